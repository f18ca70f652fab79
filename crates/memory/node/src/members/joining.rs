//! How the home takes a guest in (V1, V3).

use std::sync::Arc;

use farleaf_executor::block_on;
use farleaf_fabric::tcp::{JoinRequest, Joined, TcpClient};
use farleaf_fabric::{Batch, BatchError, Control, ControlError, Endpoint};
use farleaf_region::members::{MEMBER_ADDRESS_SIZE_BYTES_MAX, Member};
use farleaf_region::session::read_sessions;
use farleaf_region::{RegionLayout, Superblock};
use farleaf_types::{NodeId, OwnerWord};

use super::PoolHome;
use super::home::lock;
use super::watch::GuestLink;

/// Why nobody can join a home that clients reach by a derived key.
const NO_PASSES: &str = "the pool's home is served with a key that was derived from the secret: \
    the home of several nodes needs the secret itself";

/// How far a node that wants to join has come.
#[derive(Debug)]
pub(super) enum Joining {
    Asked {
        request: JoinRequest,
        /// It has heard which pool this is, as it has asked again.
        knows_pool: bool,
    },
    /// It is told why not when it asks the next time.
    Failed(String),
}

impl PoolHome {
    /// V1, as far as the listener is concerned.
    pub(crate) fn join(&self, request: &JoinRequest) -> Result<Joined, String> {
        let size = request.address.len();
        if size == 0 || size > MEMBER_ADDRESS_SIZE_BYTES_MAX {
            return Err(format!(
                "a node's address has 1 to {MEMBER_ADDRESS_SIZE_BYTES_MAX} bytes, and this one \
                 {size}"
            ));
        }
        Superblock::new(request.size_bytes, request.region_id)
            .map_err(|error| error.to_string())?;
        if request.serves_verbs != self.options.verbs.is_some() {
            return Err(of_two_kinds(request.serves_verbs).to_owned());
        }
        let pool_id = self.layout.superblock.region_id;
        if let Some(node) = self.number_of(request.region_id) {
            return Ok(Joined {
                node: Some(node),
                pool_id,
            });
        }
        let mut joining = lock(&self.joining);
        if let Some(Joining::Failed(why)) = joining.get(&request.region_id) {
            let why = why.clone();
            joining.remove(&request.region_id);
            return Err(why);
        }
        let knows_pool = joining.contains_key(&request.region_id);
        let asked = Joining::Asked {
            request: request.clone(),
            knows_pool,
        };
        joining.insert(request.region_id, asked);
        let node = None;
        Ok(Joined { node, pool_id })
    }

    /// The number of a region that belongs to the pool, or did: then its node is told so when it
    /// asks how it stands, and comes back as another one (U2, V4).
    fn number_of(&self, region_id: u64) -> Option<NodeId> {
        let mut all = self.layout.members().all();
        let found = all.find(|(member, _)| member.layout.superblock.region_id == region_id);
        found.map(|(member, _)| member.layout.node)
    }

    /// Takes in who waits, and tells the others why not when they ask again.
    pub(super) fn take_in(&self) {
        let asked: Vec<JoinRequest> = lock(&self.joining)
            .values()
            .filter_map(|joining| match joining {
                Joining::Asked {
                    request,
                    knows_pool: true,
                } => Some(request.clone()),
                Joining::Asked { .. } | Joining::Failed(_) => None,
            })
            .collect();
        for request in asked {
            let mut taken = self.take_in_one(&request);
            match &taken {
                Ok(node) => tracing::info!(
                    node = node.0,
                    address = request.address,
                    size_bytes = request.size_bytes,
                    "a node has joined, empty"
                ),
                Err(why) => tracing::warn!(address = request.address, why, "a node cannot join"),
            }
            let mut joining = lock(&self.joining);
            match taken.as_mut() {
                Ok(_) => joining.remove(&request.region_id),
                Err(why) => joining.insert(request.region_id, Joining::Failed(std::mem::take(why))),
            };
        }
    }

    /// V1.
    fn take_in_one(&self, request: &JoinRequest) -> Result<NodeId, String> {
        if !self.has_passes() {
            return Err(NO_PASSES.to_owned());
        }
        let client = TcpClient::connect(&request.address, &self.connect_options());
        let client = client.map_err(|error| format!("the home cannot reach it: {error}"))?;
        let superblock = read_superblock(&client)?;
        let is_it = superblock.region_id == request.region_id;
        if !is_it || superblock.size_bytes != request.size_bytes {
            return Err(format!("at {} another region answers", request.address));
        }
        // Who was reached there before is gone.
        let gone: Vec<NodeId> = {
            let all = self.layout.members().all();
            let old = all.filter(|(member, state)| {
                state.is_reachable() && member.address == request.address
            });
            old.map(|(member, _)| member.layout.node).collect()
        };
        for node in gone {
            self.lose(node, "another region is served at its address");
        }
        let members = self.layout.members();
        // U2. The one that it would like to have, if no region has had that.
        let mut numbers = [request.wanted.0]
            .into_iter()
            .chain(1..=u8::MAX)
            .map(NodeId);
        let node = numbers
            .find(|node| members.get(*node).is_none())
            .ok_or("the pool has given all its 255 node numbers; a new pool has them again")?;
        let member = Member {
            layout: RegionLayout { node, superblock },
            address: request.address.clone(),
        };
        let link = Arc::new(GuestLink::new(client));
        // In this order (V3).
        self.link_newcomer(node, &link);
        let barred = self.bar_fenced(&link);
        let taken = barred.and_then(|()| self.enter(member, &link));
        taken.inspect_err(|_| self.turn_away(node, &link))?;
        Ok(node)
    }

    /// V3: bars at a newcomer what was fenced before it was linked.
    fn bar_fenced(&self, link: &GuestLink) -> Result<(), String> {
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
            barred.map_err(|error| format!("it does not bar fenced sessions: {error}"))?;
        }
        Ok(())
    }
}

/// Why a node cannot join whose words are changed in another way than the home's: a session has one
/// kind of connection to all nodes.
fn of_two_kinds(is_by_verbs: bool) -> &'static str {
    if is_by_verbs {
        "its memory is served by an RDMA device, and that of the pool's home by tcp: start all \
         nodes with --verbs, or none"
    } else {
        "its memory is served by tcp, and that of the pool's home by an RDMA device: start all \
         nodes with --verbs, or none"
    }
}

/// What a node's region says of itself.
fn read_superblock(client: &TcpClient) -> Result<Superblock, String> {
    let endpoint = client.endpoint(None).map_err(|error| error.to_string())?;
    let read = Superblock::read(&endpoint, client.region_size_bytes());
    let read = block_on(read, endpoint.completions()).map_err(|error| error.to_string())?;
    read.map_err(|error| error.to_string())
}

/// U2: looks whether the node that answers is this one. Where a node was lost, another one may
/// listen by now, and whoever logs in not have heard of it yet. One connection, one round trip.
///
/// # Errors
/// It is another one, or cannot be asked.
pub fn check_region(client: &TcpClient, member: &Member) -> Result<(), ControlError> {
    let reason = match read_superblock(client) {
        Ok(found) if found == member.layout.superblock => return Ok(()),
        Ok(_) => format!(
            "another region than that of {} is served there",
            member.layout.node
        ),
        Err(reason) => reason,
    };
    let pool = format!("tcp:{}", member.address);
    Err(ControlError::Refused { pool, reason })
}
