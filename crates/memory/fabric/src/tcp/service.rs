//! What the listener needs of the memory node behind it.

use core::ops::Range;

use farleaf_types::{NodeId, OwnerWord};

use crate::service::SessionService;
use crate::tcp::gate::Grant;
use crate::tcp::greeting::{JoinRequest, Joined, MemberReply};
use crate::tcp::pass::Pass;
use crate::tcp::secret::Rights;

/// What the listener needs of the memory node.
pub trait TcpService: SessionService {
    /// F7: what the holders of these rights may change.
    fn grant(&self, rights: Rights) -> Grant;

    /// The words that the process of a session writes to keep it alive, whatever its rights.
    fn own_words(&self, owner: OwnerWord) -> Range<u64>;

    /// Where the pool's home node is, if this is another one.
    fn home_address(&self) -> Option<String> {
        None
    }

    /// Which pool it is: the number of the home node's region. 0: one that has no other nodes,
    /// whose sessions need no passes.
    fn pool_id(&self) -> u64 {
        0
    }

    /// Whether [`fence`](SessionService::fence) has been called for a session and is not over: it
    /// takes the time of other nodes, for which nobody is kept waiting here.
    /// [`process_of`](SessionService::process_of) tells when it is.
    fn is_being_fenced(&self, owner: OwnerWord) -> bool {
        let _ = owner;
        false
    }

    /// Lets a session in that the pool's home has registered, and given this pass to.
    ///
    /// # Errors
    /// Why not: this is the home, the pass is none, or the session has been fenced here.
    fn admit(&mut self, owner: OwnerWord, pass: &Pass) -> Result<(), String> {
        let _ = pass;
        Err(format!("{owner} is none of this client's sessions"))
    }

    /// F6: never admits this session from now on. False: sessions are not admitted here at all.
    fn bar(&mut self, owner: OwnerWord) -> bool {
        let _ = owner;
        false
    }

    /// Takes a node into the pool, which may be under way for a while.
    ///
    /// # Errors
    /// Why not.
    fn join(&mut self, request: &JoinRequest) -> Result<Joined, String> {
        let _ = request;
        Err("its pool has one node: it is served without --pool".to_owned())
    }

    /// Sets what is to become of a node; returns what is.
    ///
    /// # Errors
    /// Why not.
    fn set_member(&mut self, node: NodeId, state: u64) -> Result<MemberReply, String> {
        let _ = (node, state);
        Err("its pool has one node: it is served without --pool".to_owned())
    }

    /// What is to become of a node.
    fn member(&mut self, node: NodeId) -> MemberReply {
        let _ = node;
        MemberReply {
            state: 0,
            pool_id: 0,
            answered_count: 0,
        }
    }
}
