//! Joining: how the main node admits data nodes.

use std::sync::Arc;

use farleaf_base::locks::lock;
use farleaf_base::{NodeId, OwnerWord};
use farleaf_executor::block_on;
use farleaf_fabric::tcp::{JoinRequest, Joined, TcpClient};
use farleaf_fabric::{Batch, BatchError, Control, ControlError, Endpoint};
use farleaf_pool::members::{MEMBER_ADDRESS_SIZE_BYTES_MAX, Member};
use farleaf_pool::session::read_sessions;
use farleaf_pool::{NodeLayout, Superblock};

use super::PoolMainNode;
use super::watch::DataNodeLink;

/// Error for data nodes of a main node that clients reach by a derived key.
const NO_PASSES: &str = "the pool's main node is served with a key derived from the secret; the \
    main node of a pool of several nodes requires the secret itself";

/// State of a join.
#[derive(Debug)]
pub(super) enum JoinState {
    Asked {
        request: JoinRequest,
        /// Whether the node has learned which pool this is, which its second request shows.
        knows_pool: bool,
    },
    /// The join failed; the reason is returned at the node's next request.
    Failed(String),
}

impl PoolMainNode {
    /// Handles a join request in the listener.
    pub(crate) fn join(&self, request: &JoinRequest) -> Result<Joined, String> {
        let size = request.address.len();
        if size == 0 || size > MEMBER_ADDRESS_SIZE_BYTES_MAX {
            return Err(format!(
                "the node's address has {size} bytes; expected 1 to \
                 {MEMBER_ADDRESS_SIZE_BYTES_MAX} bytes"
            ));
        }
        Superblock::new(request.size_bytes, request.memory_id)
            .map_err(|error| error.to_string())?;
        if request.serves_verbs != self.options.verbs.is_some() {
            return Err(of_two_kinds(request.serves_verbs).to_owned());
        }
        let pool_id = self.layout.superblock.memory_id;
        if let Some(node) = self.number_of(request.memory_id) {
            return Ok(Joined {
                node: Some(node),
                pool_id,
            });
        }
        let mut joining = lock(&self.joining);
        if let Some(JoinState::Failed(why)) = joining.get(&request.memory_id) {
            let why = why.clone();
            joining.remove(&request.memory_id);
            return Err(why);
        }
        let knows_pool = joining.contains_key(&request.memory_id);
        let asked = JoinState::Asked {
            request: request.clone(),
            knows_pool,
        };
        joining.insert(request.memory_id, asked);
        let node = None;
        Ok(Joined { node, pool_id })
    }

    /// Returns the number of a memory that belongs or belonged to the pool. Its node then learns
    /// its state when it asks for it, and rejoins with new memory.
    fn number_of(&self, memory_id: u64) -> Option<NodeId> {
        let mut all = self.layout.members().all();
        let found = all.find(|(member, _)| member.layout.superblock.memory_id == memory_id);
        found.map(|(member, _)| member.layout.node)
    }

    /// Admits all waiting nodes; failures are reported at the nodes' next requests.
    pub(super) fn admit_waiting(&self) {
        let asked: Vec<JoinRequest> = lock(&self.joining)
            .values()
            .filter_map(|joining| match joining {
                JoinState::Asked {
                    request,
                    knows_pool: true,
                } => Some(request.clone()),
                JoinState::Asked { .. } | JoinState::Failed(_) => None,
            })
            .collect();
        for request in asked {
            let mut taken = self.admit_one(&request);
            match &taken {
                Ok(node) => tracing::info!(
                    node = node.0,
                    address = request.address,
                    size_bytes = request.size_bytes,
                    "a node has joined the pool with empty memory"
                ),
                Err(why) => tracing::warn!(address = request.address, why, "a node cannot join"),
            }
            let mut joining = lock(&self.joining);
            match taken.as_mut() {
                Ok(_) => joining.remove(&request.memory_id),
                Err(why) => {
                    joining.insert(request.memory_id, JoinState::Failed(std::mem::take(why)))
                }
            };
        }
    }

    /// Admits one node.
    fn admit_one(&self, request: &JoinRequest) -> Result<NodeId, String> {
        if !self.has_passes() {
            return Err(NO_PASSES.to_owned());
        }
        let client = TcpClient::connect(&request.address, &self.connect_options());
        let client = client.map_err(|error| format!("the main node cannot reach it: {error}"))?;
        let superblock = read_superblock(&client)?;
        let is_it = superblock.memory_id == request.memory_id;
        if !is_it || superblock.size_bytes != request.size_bytes {
            return Err(format!("another node replies at {}", request.address));
        }
        // An earlier node at this address is gone.
        let gone: Vec<NodeId> = {
            let all = self.layout.members().all();
            let old = all.filter(|(member, state)| {
                state.is_reachable() && member.address == request.address
            });
            old.map(|(member, _)| member.layout.node).collect()
        };
        for node in gone {
            self.declare_lost(node, "another node is served at its address");
        }
        let members = self.layout.members();
        // The requested number, if no memory has had it; else a free one.
        let mut numbers = [request.wanted.0]
            .into_iter()
            .chain(1..=u8::MAX)
            .map(NodeId);
        let node = numbers
            .find(|node| members.get(*node).is_none())
            .ok_or("the pool has used all its 255 node numbers; create a new pool")?;
        let member = Member {
            layout: NodeLayout { node, superblock },
            address: request.address.clone(),
        };
        let link = Arc::new(DataNodeLink::new(client));
        // In this order: notifications first, then the sessions fenced before.
        self.link_newcomer(node, &link);
        let barred = self.bar_fenced(&link);
        let taken = barred.and_then(|()| self.write_entry(member, &link));
        taken.inspect_err(|_| self.remove_newcomer(node, &link))?;
        Ok(node)
    }

    /// Bars sessions at a newcomer that were fenced before it was linked.
    fn bar_fenced(&self, link: &DataNodeLink) -> Result<(), String> {
        let fenced = self.with_endpoint(|endpoint| {
            let mut batch = Batch::new();
            let records = read_sessions(endpoint, &self.layout, &mut batch);
            let records = block_on(records, endpoint.completions())?;
            let last = records.into_iter().filter_map(|(session, record)| {
                let last = record.last_fenced()?;
                Some(OwnerWord::new(session, last))
            });
            Ok::<_, BatchError>(last.collect::<Vec<OwnerWord>>())
        });
        for owner in fenced.map_err(|error| error.to_string())? {
            let barred = link.client.fence_session(owner, &mut |_| ());
            barred.map_err(|error| format!("the node did not bar a fenced session: {error}"))?;
        }
        Ok(())
    }
}

/// Returns the error for a node whose words are changed in another way than the main node's: a
/// session has one kind of connection to all nodes.
fn of_two_kinds(is_by_verbs: bool) -> &'static str {
    if is_by_verbs {
        "the node's memory is served by an RDMA device, but that of the pool's main node by TCP; \
         start all nodes with --verbs, or none"
    } else {
        "the node's memory is served by TCP, but that of the pool's main node by an RDMA device; \
         start all nodes with --verbs, or none"
    }
}

/// Reads the superblock of a node's memory.
fn read_superblock(client: &TcpClient) -> Result<Superblock, String> {
    let endpoint = client.endpoint(None).map_err(|error| error.to_string())?;
    let read = Superblock::read(&endpoint, client.memory_size_bytes());
    let read = block_on(read, endpoint.completions()).map_err(|error| error.to_string())?;
    read.map_err(|error| error.to_string())
}

/// Checks that the node that answers is this member. After a loss another node may listen at the
/// address, and the caller may not know that yet. Costs one connection and one round trip.
///
/// # Errors
/// Another node answers, or the node cannot be reached.
pub fn check_memory(client: &TcpClient, member: &Member) -> Result<(), ControlError> {
    let reason = match read_superblock(client) {
        Ok(found) if found == member.layout.superblock => return Ok(()),
        Ok(_) => format!(
            "expected {} of the pool, found another node",
            member.layout.node
        ),
        Err(reason) => reason,
    };
    let pool = format!("tcp:{}", member.address);
    Err(ControlError::Refused { pool, reason })
}
