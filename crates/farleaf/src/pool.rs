//! A pool, as one process has it open.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion, PageKind};
use farleaf_fabric::network::NodeDirectory;
use farleaf_fabric::shm::{PoolName, ShmClient};
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions, TcpListenOptions};
use farleaf_fabric::verbs::VerbsClient;
use farleaf_fabric::{Batch, Control, ControlError, Endpoint, SessionLife};
use farleaf_node::{GuestNode, GuestOptions, HomeOptions, MemNode, ShmNode};
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::chunk::ChunkPurpose;
use farleaf_region::layout::CHUNK_SIZE_BYTES;
use farleaf_region::members::{Member, MemberState};
use farleaf_region::session::read_sessions;
use farleaf_region::tally::{RetrainTally, read_tally};
use farleaf_region::{PoolLayout, RegionLayout, Superblock};
use farleaf_types::{NodeId, OwnerWord};

use crate::endpoint::PoolEndpoint;
use crate::host::Host;
use crate::nodes::{NodeInfo, PoolNodes, answering};
use crate::options::{EmbeddedFabric, PoolOptions, SessionOptions};
use crate::process::{Barrier, ProcessKeeper, ProcessThread};
use crate::session::{Session, read_catalog};
use crate::share::PoolShare;
use crate::{Error, ErrorKind};

/// A pool that this process has open. Clones are the same pool; sessions keep it open.
#[derive(Clone, Debug)]
pub struct Pool(pub(crate) Arc<PoolInner>);

/// What a pool is.
#[derive(Clone, Debug)]
pub struct PoolInfo {
    /// Its address.
    pub address: String,
    /// Size of its region in bytes.
    pub size_bytes: u64,
    /// What its memory is made of, if its node runs in this process.
    pub page_kind: Option<PageKind>,
}

/// What of a pool is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes that tables can have.
    pub size_bytes: u64,
    /// Bytes that they have.
    pub used_bytes: u64,
    /// Sessions alive, the memory node's own among them.
    pub session_count: u64,
    /// Tables.
    pub table_count: u64,
}

/// What the retraining of a pool's tables has done since the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetrainingReport {
    /// What has been done.
    pub tally: RetrainTally,
    /// Models that clients have asked for, and that the node has not looked at yet.
    pub queue_length: u64,
}

#[derive(Debug)]
pub(crate) struct PoolInner {
    pub(crate) share: PoolShare,
    /// Ended before the connection is, without which it would think itself fenced.
    _process: ProcessThread,
    way: Way,
    pub(crate) control: Arc<dyn Control>,
    /// A node in this process; stopped after everything above is gone.
    node: Option<ShmNode>,
    /// And those beside it.
    _guests: Vec<GuestNode>,
}

/// How the pool's memory is reached.
#[derive(Clone, Debug)]
enum Way {
    Mapped(Arc<MappedRegion>),
    /// The home, and the others if there may be any.
    Network(Arc<TcpClient>, Option<Arc<PoolNodes>>),
    /// The same, for sessions; the process as such works over tcp.
    Verbs(Arc<VerbsClient>, Option<Arc<PoolNodes>>),
}

impl Way {
    /// The others than the home.
    fn nodes(&self) -> Option<&Arc<PoolNodes>> {
        match self {
            Self::Mapped(_) => None,
            Self::Network(_, nodes) | Self::Verbs(_, nodes) => nodes.as_ref(),
        }
    }

    /// An endpoint for a session, or for the process as such.
    fn endpoint(&self, owner: Option<OwnerWord>) -> Result<PoolEndpoint, Error> {
        Ok(match self {
            Self::Mapped(region) => PoolEndpoint::mapped(MappedEndpoint::new(Arc::clone(region))),
            Self::Network(home, nodes) => network_endpoint(home, nodes.as_ref(), owner)?,
            Self::Verbs(home, nodes) => {
                let Some(owner) = owner else {
                    return Ok(network_endpoint(home.control(), nodes.as_ref(), None)?);
                };
                PoolEndpoint::verbs(match nodes {
                    None => home.endpoint(owner)?,
                    Some(nodes) => home.pool_endpoint(owner, Arc::clone(nodes) as _)?,
                })
            }
        })
    }

    /// The control connection to the home, if it is one over the network.
    fn control(&self) -> Option<&Arc<TcpClient>> {
        match self {
            Self::Mapped(_) => None,
            Self::Network(home, _) => Some(home),
            Self::Verbs(home, _) => Some(home.control()),
        }
    }

    fn size_bytes(&self) -> u64 {
        match self {
            Self::Mapped(region) => region.word_count() * 8,
            Self::Network(client, _) => client.region_size_bytes(),
            Self::Verbs(client, _) => client.region_size_bytes(),
        }
    }
}

fn network_endpoint(
    home: &TcpClient,
    nodes: Option<&Arc<PoolNodes>>,
    owner: Option<OwnerWord>,
) -> Result<PoolEndpoint, ControlError> {
    let Some(nodes) = nodes else {
        return Ok(PoolEndpoint::network(home.endpoint(owner)?));
    };
    let nodes: Arc<dyn NodeDirectory> = Arc::clone(nodes) as _;
    Ok(PoolEndpoint::network(home.pool_endpoint(owner, nodes)?))
}

impl Host for Pool {
    type Endpoint = PoolEndpoint;

    const CLOSES_DROPPED_SESSIONS: bool = true;

    #[inline]
    fn share(&self) -> &PoolShare {
        &self.0.share
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        self.0.control.close_session(owner)
    }

    fn is_node_gone(&self, owner: OwnerWord, look_count: u32) -> bool {
        if !look_count.is_multiple_of(NODE_LOOK_COUNT) {
            return false;
        }
        let life = self.0.control.session_life(owner);
        !matches!(life, Ok(SessionLife::Alive { .. }))
    }
}

/// Looks for an answer after which the node is asked whether it is there: about a second.
const NODE_LOOK_COUNT: u32 = 1 << 13;

impl Pool {
    /// Opens a pool: `shm:NAME`, which `farleaf serve` on this host serves; `tcp:HOST:PORT`, which
    /// `farleaf serve --listen` on any host serves; `verbs:HOST:PORT`, which `farleaf serve
    /// --listen --verbs` does; or `mem:`, a new pool of 256 MiB in this process's memory. One of
    /// several nodes is served by `farleaf serve --pool FILE --node N`, and any of them opens all.
    ///
    /// # Errors
    /// The address is none; nobody serves the pool; it is of another version or no pool; it wants a
    /// secret that only [`open_with`](Self::open_with) can give.
    pub fn open(address: &str) -> Result<Self, Error> {
        Self::open_with(address, &TcpConnectOptions::default())
    }

    /// [`open`](Self::open), with what a pool on the network wants to know. Pools of other kinds
    /// need none of it.
    ///
    /// # Errors
    /// As for [`open`](Self::open); the secret is wrong, or gives lesser rights than are asked for.
    pub fn open_with(address: &str, options: &TcpConnectOptions) -> Result<Self, Error> {
        let bad = |why: String| {
            Error::from(ErrorKind::BadAddress {
                address: address.to_owned(),
                why,
            })
        };
        match address.split_once(':') {
            Some(("shm", name)) => Self::open_shared(
                &PoolName::new(name).map_err(|error| bad(error.to_string()))?,
                None,
            ),
            Some((kind @ ("tcp" | "verbs"), at)) => {
                if !at.rsplit_once(':').is_some_and(is_host_and_port) {
                    return Err(bad(format!(
                        "after '{kind}:' comes HOST:PORT, with a port from 1 to 65535"
                    )));
                }
                match kind {
                    "tcp" => Self::open_network(at, options, None),
                    _ => Self::open_verbs(at, options, None),
                }
            }
            Some(("mem", "")) => Self::embedded(&PoolOptions::default()),
            Some(("mem", _)) => Err(bad("nothing may follow 'mem:'".to_owned())),
            Some((scheme, _)) => Err(bad(format!("there is no '{scheme}:'"))),
            None => Err(bad("there is no ':' in it".to_owned())),
        }
    }

    /// Starts a memory node in this process and opens its pool. The node stops when the pool and
    /// its sessions are dropped.
    ///
    /// # Errors
    /// The size is too small, the host has not so much memory, or the name is bad or taken.
    pub fn embedded(options: &PoolOptions) -> Result<Self, Error> {
        let own = options.node()?;
        match &options.fabric {
            EmbeddedFabric::Mem => {
                let node = Arc::new(MemNode::start(options.size_bytes, own)?);
                let region = Arc::clone(node.region());
                Self::assemble("mem:".to_owned(), Way::Mapped(region), node, None)
            }
            EmbeddedFabric::Shm { name } => {
                let name = name.clone().unwrap_or_else(private_name);
                let node = ShmNode::start(&name, options.size_bytes, own)?;
                let name = node.name().clone();
                Self::open_shared(&name, Some(node))
            }
            EmbeddedFabric::Nodes { node_count } => Self::embedded_nodes(*node_count, options),
            EmbeddedFabric::Tcp => {
                let mut node = ShmNode::start(&private_name(), options.size_bytes, own)?;
                let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let address = node.listen(&TcpListenOptions::at(loopback))?.to_string();
                Self::open_network(&address, &TcpConnectOptions::default(), Some(node))
            }
            EmbeddedFabric::Verbs(verbs) => {
                let (name, size) = (private_name(), options.size_bytes);
                let mut node = ShmNode::start_with_verbs(&name, size, own, verbs)?;
                let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let address = node.listen(&TcpListenOptions::at(loopback))?.to_string();
                let options = TcpConnectOptions {
                    verbs: verbs.clone(),
                    ..TcpConnectOptions::default()
                };
                Self::open_verbs(&address, &options, Some(node))
            }
        }
    }

    fn embedded_nodes(node_count: u8, options: &PoolOptions) -> Result<Self, Error> {
        let own = options.node()?;
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let connect = TcpConnectOptions::default();
        let home = HomeOptions {
            address: loopback.to_string(),
            connect: connect.clone(),
            lost_after: connect.answer_time_max,
            verbs: None,
        };
        let name = private_name();
        let mut node = ShmNode::start_home(&name, options.size_bytes, own, home)?;
        let address = node.listen(&TcpListenOptions::at(loopback))?.to_string();
        let start = |number| {
            GuestNode::start(&GuestOptions {
                name: format!("{name}-{number}"),
                size_bytes: options.size_bytes,
                listen: TcpListenOptions::at(loopback),
                address: loopback.to_string(),
                wanted: NodeId(number),
                home_address: address.clone(),
                connect: connect.clone(),
                verbs: None,
            })
        };
        let guests: Result<Vec<GuestNode>, _> = (1..node_count).map(start).collect();
        let guests = guests?;
        for guest in &guests {
            guest.wait_until_joined()?;
        }
        let client = TcpClient::connect(&address, &connect)?;
        let node = (Some(node), guests, Some(&connect));
        Self::assemble_network(&address, client, node)
    }

    fn open_shared(name: &PoolName, node: Option<ShmNode>) -> Result<Self, Error> {
        let (client, memory, size_bytes) = ShmClient::connect(name)?;
        let region =
            MappedRegion::map_shared(memory, size_bytes).map_err(|source| ErrorKind::Map {
                pool: name.to_string(),
                source,
            })?;
        let way = Way::Mapped(Arc::new(region));
        Self::assemble(name.to_string(), way, Arc::new(client), node)
    }

    fn open_network(
        address: &str,
        options: &TcpConnectOptions,
        node: Option<ShmNode>,
    ) -> Result<Self, Error> {
        let mut client = TcpClient::connect(address, options)?;
        if let Some(home) = client.home_address()? {
            // What there is once in a pool is at its home (U1).
            client = TcpClient::connect(&home, options)?;
        }
        Self::assemble_network(address, client, (node, Vec::new(), Some(options)))
    }

    fn assemble_network(
        address: &str,
        client: TcpClient,
        nodes: (Option<ShmNode>, Vec<GuestNode>, Option<&TcpConnectOptions>),
    ) -> Result<Self, Error> {
        let client = Arc::new(client);
        let way = Way::Network(Arc::clone(&client), None);
        Self::assemble_with(format!("tcp:{address}"), way, client, nodes)
    }

    fn open_verbs(
        address: &str,
        options: &TcpConnectOptions,
        node: Option<ShmNode>,
    ) -> Result<Self, Error> {
        let client = Arc::new(VerbsClient::connect_home(address, options)?);
        let way = Way::Verbs(Arc::clone(&client), None);
        let nodes = (node, Vec::new(), Some(options));
        Self::assemble_with(format!("verbs:{address}"), way, client, nodes)
    }

    fn assemble(
        address: String,
        way: Way,
        control: Arc<dyn Control>,
        node: Option<ShmNode>,
    ) -> Result<Self, Error> {
        Self::assemble_with(address, way, control, (node, Vec::new(), None))
    }

    fn assemble_with(
        address: String,
        mut way: Way,
        control: Arc<dyn Control>,
        (node, guests, options): (Option<ShmNode>, Vec<GuestNode>, Option<&TcpConnectOptions>),
    ) -> Result<Self, Error> {
        let endpoint = way.endpoint(None)?;
        let read = drive(&endpoint, Superblock::read(&endpoint, way.size_bytes()))?;
        let superblock = read.map_err(|source| ErrorKind::Superblock {
            pool: address.clone(),
            source,
        })?;
        let home = RegionLayout {
            node: NodeId(0),
            superblock,
        };
        let layout = PoolLayout::from(home);
        let refreshed = layout.members().refresh(&endpoint, &layout);
        let has_nodes = drive(&endpoint, refreshed)?;
        if has_nodes {
            let Some((home, options)) = way.control().zip(options) else {
                let why = "it is one of several nodes, which are reached over the network: open \
                           the pool by tcp:HOST:PORT or verbs:HOST:PORT of any of them";
                let why = why.to_owned();
                return Err(ErrorKind::BadAddress { address, why }.into());
            };
            let nodes = PoolNodes::new(Arc::clone(home), layout.clone(), options.clone());
            match &mut way {
                Way::Network(_, known) | Way::Verbs(_, known) => *known = Some(Arc::new(nodes)),
                Way::Mapped(_) => {}
            }
        }
        let share = PoolShare::new(address, layout);
        let keeper = ProcessKeeper::new(endpoint, &share, Barrier::Kernel);
        let (of_thread, others) = (Arc::clone(&control), way.nodes().cloned());
        let lose = move || {
            of_thread.give_up();
            if let Some(nodes) = &others {
                nodes.give_up();
            }
        };
        let process = ProcessThread::start(keeper, lose);
        let process = process.map_err(ErrorKind::Thread)?;
        Ok(Self(Arc::new(PoolInner {
            share,
            way,
            control,
            _process: process,
            node,
            _guests: guests,
        })))
    }

    /// Registers a session: one thread's way into the pool.
    ///
    /// # Errors
    /// The memory node cannot be reached, or has no session left.
    pub fn session(&self) -> Result<Session, Error> {
        self.session_with(&SessionOptions::default())
    }

    /// [`session`](Self::session), with options.
    ///
    /// # Errors
    /// As for [`session`](Self::session).
    pub fn session_with(&self, options: &SessionOptions) -> Result<Session, Error> {
        Session::open(self.clone(), options)
    }

    pub(crate) fn endpoint(&self, owner: Option<OwnerWord>) -> Result<PoolEndpoint, Error> {
        self.0.way.endpoint(owner)
    }

    /// What the pool is.
    pub fn info(&self) -> PoolInfo {
        PoolInfo {
            address: self.0.share.address.clone(),
            size_bytes: self.0.share.layout.superblock.size_bytes,
            page_kind: self.0.node.as_ref().map(ShmNode::page_kind),
        }
    }

    /// What its node's retraining has done, and what waits for it. One round trip.
    ///
    /// # Errors
    /// The fabric failed.
    pub fn retraining(&self) -> Result<RetrainingReport, Error> {
        let mut batch = Batch::new();
        let (endpoint, layout) = (self.endpoint(None)?, &self.0.share.layout);
        let read = read_tally(&endpoint, layout, &mut batch);
        let (tally, queue_length) = drive(&endpoint, read)?;
        Ok(RetrainingReport {
            tally,
            queue_length,
        })
    }

    /// Its nodes, home first, lost ones too. A few round trips, and 64 bytes per 64 KiB chunk;
    /// where there are several nodes, up to half a second until each has answered the home once
    /// more. One that has not in two seconds is told all the same, without what is in use.
    ///
    /// # Errors
    /// The home cannot be reached.
    pub fn nodes(&self) -> Result<Vec<NodeInfo>, Error> {
        let endpoint = self.endpoint(None)?;
        let layout = &self.0.share.layout;
        let members = layout.members();
        drive(&endpoint, members.refresh(&endpoint, layout))?;
        let allocator = ChunkAllocator::new(&endpoint, layout, OwnerWord::FREE);
        // As they are now: finding out which of them answer takes a moment.
        let known: Vec<_> = members
            .all()
            .map(|(member, state)| (member.clone(), state))
            .collect();
        let answering = self.answering(&known)?;
        let nodes = known.into_iter().map(|(member, state)| {
            let node = member.layout.node;
            let used_count = if answering.contains(&node) {
                drive(&endpoint, allocator.used_count(node))?
            } else {
                None
            };
            Ok(NodeInfo {
                number: node.0,
                address: match node {
                    NodeId(0) => members.home_address().to_owned(),
                    _ => member.address.clone(),
                },
                state,
                size_bytes: member.layout.superblock.chunk_count * CHUNK_SIZE_BYTES,
                used_bytes: used_count.map(|count| count * CHUNK_SIZE_BYTES),
            })
        });
        nodes.collect()
    }

    /// Those of some nodes that can be asked now: who asks one that hangs waits until it is lost.
    fn answering(&self, known: &[(Member, MemberState)]) -> Result<Vec<NodeId>, Error> {
        let reachable = known.iter().filter(|(_, state)| state.is_reachable());
        let nodes: Vec<_> = reachable.map(|(member, _)| member.layout.node).collect();
        match self.0.way.control() {
            Some(home) if nodes.len() > 1 => Ok(answering(home, &nodes)?),
            _ => Ok(nodes),
        }
    }

    /// Asks the pool's home to let a node drain, to take it into use again, or to give it up for
    /// lost. Returns at once: [`nodes`](Self::nodes) shows when a drained node has left.
    ///
    /// # Errors
    /// The home cannot be reached, the pool has one node, there is no such node or it is in another
    /// state, or the right to administer is missing.
    pub fn set_node_state(&self, number: u8, state: MemberState) -> Result<(), Error> {
        let Some(home) = self.0.way.control() else {
            let why = "nodes are administered over the network, by tcp:HOST:PORT or \
                       verbs:HOST:PORT";
            let (why, address) = (why.to_owned(), self.0.share.address.clone());
            return Err(ErrorKind::BadAddress { address, why }.into());
        };
        home.set_member(NodeId(number), state as u64)?;
        Ok(())
    }

    /// What of it is in use. A few round trips, and 64 bytes per 64 KiB chunk.
    ///
    /// # Errors
    /// The fabric failed.
    pub fn usage(&self) -> Result<PoolUsage, Error> {
        let endpoint = self.endpoint(None)?;
        let layout = &self.0.share.layout;
        let allocator = ChunkAllocator::new(&endpoint, layout, OwnerWord::FREE);
        let chunks = drive(&endpoint, allocator.entries())?;
        let sizes = layout.regions().map(|region| region.superblock.chunk_count);
        let chunk_count: u64 = sizes.sum();
        let used = chunks
            .iter()
            .filter(|(_, chunk)| chunk.purpose != Some(ChunkPurpose::Free));
        let mut batch = Batch::new();
        let sessions = drive(&endpoint, read_sessions(&endpoint, layout, &mut batch))?;
        let alive = sessions
            .iter()
            .filter(|(_, record)| record.alive().is_some());
        Ok(PoolUsage {
            size_bytes: chunk_count * CHUNK_SIZE_BYTES,
            used_bytes: used.count() as u64 * CHUNK_SIZE_BYTES,
            session_count: alive.count() as u64,
            table_count: drive(&endpoint, read_catalog(&endpoint, layout))?.len() as u64,
        })
    }
}

/// Runs what uses an endpoint to its end.
fn drive<F: Future>(endpoint: &PoolEndpoint, future: F) -> F::Output {
    block_on(future, endpoint.completions())
}

/// Whether it can be a host's name and a port; what it is worth is for the system to say.
fn is_host_and_port((host, port): (&str, &str)) -> bool {
    !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// A name that no other pool of this host has.
fn private_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!(
        "private-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}
