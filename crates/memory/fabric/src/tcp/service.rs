//! The listener's interface to the memory node.

use core::ops::Range;

use farleaf_base::{NodeId, OwnerWord};

use crate::service::SessionService;
use crate::tcp::gate::Grant;
use crate::tcp::messages::{JoinRequest, Joined, MemberReply};
use farleaf_net::secret::Pass;
use farleaf_net::secret::Rights;

/// The memory node, as the listener uses it.
pub trait TcpService: SessionService {
    /// Returns the words that holders of these rights may change (FABRIC-7).
    fn grant(&self, rights: Rights) -> Grant;

    /// Returns the words that a session's process writes to keep the session alive, whatever its
    /// rights.
    fn own_words(&self, owner: OwnerWord) -> Range<u64>;

    /// Returns the address of the pool's main node, if this is another node.
    fn main_node_address(&self) -> Option<String> {
        None
    }

    /// Returns the pool's identity: the number of the main node's memory. 0: the pool has no other
    /// nodes, so its sessions need no passes.
    fn pool_id(&self) -> u64 {
        0
    }

    /// Returns true if [`fence`](SessionService::fence) was called for a session and has not
    /// finished. It may have to wait for other nodes, and the listener does not wait with it.
    /// [`process_of`](SessionService::process_of) shows when it has finished.
    fn is_being_fenced(&self, owner: OwnerWord) -> bool {
        let _ = owner;
        false
    }

    /// Admits a session that the pool's main node has registered and given this pass.
    ///
    /// # Errors
    /// The reason of the refusal: this node is the main node, the pass is invalid, or the session
    /// has been fenced here.
    fn admit(&mut self, owner: OwnerWord, pass: &Pass) -> Result<(), String> {
        let _ = pass;
        Err(format!("{owner} is not a session of this client"))
    }

    /// Bars this session from admission from now on (FABRIC-6). Returns false if the node never
    /// admits sessions by pass.
    fn bar(&mut self, owner: OwnerWord) -> bool {
        let _ = owner;
        false
    }

    /// Admits a node to the pool, which may take a while.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn join(&mut self, request: &JoinRequest) -> Result<Joined, String> {
        let _ = request;
        Err("the pool has a single node, which was started without --pool".to_owned())
    }

    /// Sets the target state of a node; returns the resulting state.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn set_member(&mut self, node: NodeId, state: u64) -> Result<MemberReply, String> {
        let _ = (node, state);
        Err("the pool has a single node, which was started without --pool".to_owned())
    }

    /// Returns the target state of a node.
    fn member(&mut self, node: NodeId) -> MemberReply {
        let _ = node;
        MemberReply {
            state: 0,
            pool_id: 0,
            answered_count: 0,
        }
    }
}
