//! A pool that a process has opened.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_base::{NodeId, OwnerWord};
use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory, PageKind};
use farleaf_fabric::network::NodeDirectory;
use farleaf_fabric::shm::{PoolName, ShmClient};
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions, TcpListenOptions};
use farleaf_fabric::verbs::VerbsClient;
use farleaf_fabric::{Batch, Control, ControlError, Endpoint, SessionLife};
use farleaf_node::{DataNode, DataNodeOptions, MainNodeOptions, MemNode, ShmNode};
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::CHUNK_SIZE_BYTES;
use farleaf_pool::members::{Member, MemberState};
use farleaf_pool::session::read_sessions;
use farleaf_pool::tally::{RetrainCounters, read_retrain_counters};
use farleaf_pool::{NodeLayout, PoolLayout, Superblock};

use crate::endpoint::PoolEndpoint;
use crate::host::SessionHost;
use crate::nodes::{NodeInfo, PoolNodes, answering};
use crate::options::{EmbeddedFabric, PoolOptions, SessionOptions};
use crate::pool_address::{is_host_and_port, unknown_kind};
use crate::process::{Barrier, ProcessThread, SequencePublisher};
use crate::session::{Session, read_catalog};
use crate::share::PoolShare;
use crate::{Error, ErrorKind};

/// Handle of a pool that this process has opened. Clones share the same pool; sessions keep it
/// open.
#[derive(Clone, Debug)]
pub struct Pool(pub(crate) Arc<PoolInner>);

/// Properties of an open pool.
#[derive(Clone, Debug)]
pub struct PoolInfo {
    /// Address of the pool.
    pub address: String,
    /// Size of the pool's memory in bytes.
    pub size_bytes: u64,
    /// Page kind of the pool's memory, if its node runs in this process.
    pub page_kind: Option<PageKind>,
}

/// Memory, sessions and tables of a pool in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes that tables can use.
    pub size_bytes: u64,
    /// Bytes that tables use.
    pub used_bytes: u64,
    /// Sessions alive, including the memory node's own.
    pub session_count: u64,
    /// Number of tables.
    pub table_count: u64,
}

/// Totals of the retraining of a pool's tables since the pool was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetrainingReport {
    /// Retrainings done and their costs.
    pub tally: RetrainCounters,
    /// Models that clients have requested to retrain and that the node has not examined yet.
    pub queue_length: u64,
}

#[derive(Debug)]
pub(crate) struct PoolInner {
    pub(crate) share: PoolShare,
    /// Dropped before the connection, because without the connection it would consider itself
    /// fenced.
    _process: ProcessThread,
    pool_connection: PoolConnection,
    pub(crate) control: Arc<dyn Control>,
    /// Node in this process; stopped after all fields above are dropped.
    node: Option<ShmNode>,
    /// Further nodes of the pool in this process.
    _data_nodes: Vec<DataNode>,
}

/// Connection to the pool's memory.
#[derive(Clone, Debug)]
enum PoolConnection {
    Mapped(Arc<MappedMemory>),
    /// TCP connection to the main node, and to the other nodes if there may be any.
    Network(Arc<TcpClient>, Option<Arc<PoolNodes>>),
    /// RDMA connection for sessions; control requests use TCP.
    Verbs(Arc<VerbsClient>, Option<Arc<PoolNodes>>),
}

impl PoolConnection {
    /// Returns the connections to the nodes other than the main node.
    fn nodes(&self) -> Option<&Arc<PoolNodes>> {
        match self {
            Self::Mapped(_) => None,
            Self::Network(_, nodes) | Self::Verbs(_, nodes) => nodes.as_ref(),
        }
    }

    /// Creates an endpoint for a session, or without an owner for the process itself.
    fn endpoint(&self, owner: Option<OwnerWord>) -> Result<PoolEndpoint, Error> {
        Ok(match self {
            Self::Mapped(memory) => PoolEndpoint::mapped(MappedEndpoint::new(Arc::clone(memory))),
            Self::Network(main_node, nodes) => network_endpoint(main_node, nodes.as_ref(), owner)?,
            Self::Verbs(main_node, nodes) => {
                let Some(owner) = owner else {
                    return Ok(network_endpoint(main_node.control(), nodes.as_ref(), None)?);
                };
                PoolEndpoint::verbs(match nodes {
                    None => main_node.endpoint(owner)?,
                    Some(nodes) => main_node.pool_endpoint(owner, Arc::clone(nodes) as _)?,
                })
            }
        })
    }

    /// Returns the control connection to the main node, if the pool is on the network.
    fn control(&self) -> Option<&Arc<TcpClient>> {
        match self {
            Self::Mapped(_) => None,
            Self::Network(main_node, _) => Some(main_node),
            Self::Verbs(main_node, _) => Some(main_node.control()),
        }
    }

    fn size_bytes(&self) -> u64 {
        match self {
            Self::Mapped(memory) => memory.word_count() * 8,
            Self::Network(client, _) => client.memory_size_bytes(),
            Self::Verbs(client, _) => client.memory_size_bytes(),
        }
    }
}

fn network_endpoint(
    main_node: &TcpClient,
    nodes: Option<&Arc<PoolNodes>>,
    owner: Option<OwnerWord>,
) -> Result<PoolEndpoint, ControlError> {
    let Some(nodes) = nodes else {
        return Ok(PoolEndpoint::network(main_node.endpoint(owner)?));
    };
    let nodes: Arc<dyn NodeDirectory> = Arc::clone(nodes) as _;
    Ok(PoolEndpoint::network(
        main_node.pool_endpoint(owner, nodes)?,
    ))
}

impl SessionHost for Pool {
    type Endpoint = PoolEndpoint;

    const CLOSES_DROPPED_SESSIONS: bool = true;

    #[inline]
    fn share(&self) -> &PoolShare {
        &self.0.share
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        self.0.control.close_session(owner)
    }

    fn is_node_gone(&self, owner: OwnerWord, poll_count: u32) -> bool {
        if !poll_count.is_multiple_of(NODE_CHECK_POLL_COUNT) {
            return false;
        }
        let life = self.0.control.session_life(owner);
        !matches!(life, Ok(SessionLife::Alive { .. }))
    }
}

/// Polls for a reply after which the client checks whether the node is alive: about a second.
const NODE_CHECK_POLL_COUNT: u32 = 1 << 13;

impl Pool {
    /// Opens a pool. `shm:NAME` is served by `farleaf serve` on this host, `tcp:HOST:PORT` by
    /// `farleaf serve --listen` on any host, and `verbs:HOST:PORT` by `farleaf serve --listen
    /// --verbs`. `mem:` is a new pool of 256 MiB in this process's memory. In a pool of several
    /// nodes (`farleaf serve --pool FILE --node N`) the address of any node opens all of them.
    ///
    /// # Errors
    /// The address is invalid; no process serves the pool; its version is unsupported, or it is not
    /// a pool; it requires a secret, which only [`open_with`](Self::open_with) can supply.
    pub fn open(address: &str) -> Result<Self, Error> {
        Self::open_with(address, &TcpConnectOptions::default())
    }

    /// Opens a pool like [`open`](Self::open), with options for pools on the network. Other pools
    /// ignore them.
    ///
    /// # Errors
    /// The same as those of [`open`](Self::open); also if the secret is wrong or grants fewer
    /// rights than requested.
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
                if !is_host_and_port(at) {
                    return Err(bad(format!(
                        "expected '{kind}:HOST:PORT' with a port from 1 to 65535"
                    )));
                }
                match kind {
                    "tcp" => Self::open_network(at, options, None),
                    _ => Self::open_verbs(at, options, None),
                }
            }
            Some(("mem", "")) => Self::embedded(&PoolOptions::default()),
            Some(("mem", _)) => Err(bad("unexpected text after 'mem:'".to_owned())),
            _ => Err(bad(unknown_kind(address))),
        }
    }

    /// Starts a memory node in this process and opens its pool. The node stops when the pool and
    /// its sessions are dropped.
    ///
    /// # Errors
    /// The size is too small, the host lacks memory, or the name is invalid or in use.
    pub fn embedded(options: &PoolOptions) -> Result<Self, Error> {
        let own = options.node()?;
        match &options.fabric {
            EmbeddedFabric::Mem => {
                let node = Arc::new(MemNode::start(options.size_bytes, own)?);
                let memory = Arc::clone(node.memory());
                Self::assemble(
                    "mem:".to_owned(),
                    PoolConnection::Mapped(memory),
                    node,
                    None,
                )
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
        let main_node = MainNodeOptions {
            address: loopback.to_string(),
            connect: connect.clone(),
            lost_after: connect.answer_time_max,
            verbs: None,
        };
        let name = private_name();
        let mut node = ShmNode::start_main_node(&name, options.size_bytes, own, main_node)?;
        let address = node.listen(&TcpListenOptions::at(loopback))?.to_string();
        let start = |number| {
            DataNode::start(&DataNodeOptions {
                name: format!("{name}-{number}"),
                size_bytes: options.size_bytes,
                listen: TcpListenOptions::at(loopback),
                address: loopback.to_string(),
                wanted: NodeId(number),
                main_node_address: address.clone(),
                connect: connect.clone(),
                verbs: None,
            })
        };
        let data_nodes: Result<Vec<DataNode>, _> = (1..node_count).map(start).collect();
        let data_nodes = data_nodes?;
        for data_node in &data_nodes {
            data_node.wait_until_joined()?;
        }
        let client = TcpClient::connect(&address, &connect)?;
        Self::assemble_network(&address, client, Some(node), data_nodes, Some(&connect))
    }

    fn open_shared(name: &PoolName, node: Option<ShmNode>) -> Result<Self, Error> {
        let (client, memory, size_bytes) = ShmClient::connect(name)?;
        let memory =
            MappedMemory::map_shared(memory, size_bytes).map_err(|source| ErrorKind::Map {
                pool: name.to_string(),
                source,
            })?;
        let pool_connection = PoolConnection::Mapped(Arc::new(memory));
        Self::assemble(name.to_string(), pool_connection, Arc::new(client), node)
    }

    fn open_network(
        address: &str,
        options: &TcpConnectOptions,
        node: Option<ShmNode>,
    ) -> Result<Self, Error> {
        let mut client = TcpClient::connect(address, options)?;
        if let Some(main_node) = client.main_node_address()? {
            // Sessions and catalog, of which a pool has one each, are on its main node.
            client = TcpClient::connect(&main_node, options)?;
        }
        Self::assemble_network(address, client, node, Vec::new(), Some(options))
    }

    fn assemble_network(
        address: &str,
        client: TcpClient,
        node: Option<ShmNode>,
        data_nodes: Vec<DataNode>,
        options: Option<&TcpConnectOptions>,
    ) -> Result<Self, Error> {
        let client = Arc::new(client);
        let pool_connection = PoolConnection::Network(Arc::clone(&client), None);
        let address = format!("tcp:{address}");
        Self::assemble_with(address, pool_connection, client, node, data_nodes, options)
    }

    fn open_verbs(
        address: &str,
        options: &TcpConnectOptions,
        node: Option<ShmNode>,
    ) -> Result<Self, Error> {
        let client = Arc::new(VerbsClient::connect_main_node(address, options)?);
        let pool_connection = PoolConnection::Verbs(Arc::clone(&client), None);
        Self::assemble_with(
            format!("verbs:{address}"),
            pool_connection,
            client,
            node,
            Vec::new(),
            Some(options),
        )
    }

    fn assemble(
        address: String,
        pool_connection: PoolConnection,
        control: Arc<dyn Control>,
        node: Option<ShmNode>,
    ) -> Result<Self, Error> {
        Self::assemble_with(address, pool_connection, control, node, Vec::new(), None)
    }

    fn assemble_with(
        address: String,
        mut pool_connection: PoolConnection,
        control: Arc<dyn Control>,
        node: Option<ShmNode>,
        data_nodes: Vec<DataNode>,
        options: Option<&TcpConnectOptions>,
    ) -> Result<Self, Error> {
        let endpoint = pool_connection.endpoint(None)?;
        let read = drive(
            &endpoint,
            Superblock::read(&endpoint, pool_connection.size_bytes()),
        )?;
        let superblock = read.map_err(|source| ErrorKind::Superblock {
            pool: address.clone(),
            source,
        })?;
        let main_node = NodeLayout {
            node: NodeId(0),
            superblock,
        };
        let layout = PoolLayout::from(main_node);
        let refreshed = layout.members().refresh(&endpoint, &layout);
        let has_nodes = drive(&endpoint, refreshed)?;
        if has_nodes {
            let Some((main_node, options)) = pool_connection.control().zip(options) else {
                let why = "it is one of several nodes, which are reached over the network; open \
                           the pool as tcp:HOST:PORT or verbs:HOST:PORT of any of them";
                let why = why.to_owned();
                return Err(ErrorKind::BadAddress { address, why }.into());
            };
            let nodes = PoolNodes::new(Arc::clone(main_node), layout.clone(), options.clone());
            match &mut pool_connection {
                PoolConnection::Network(_, known) | PoolConnection::Verbs(_, known) => {
                    *known = Some(Arc::new(nodes));
                }
                PoolConnection::Mapped(_) => {}
            }
        }
        let share = PoolShare::new(address, layout);
        let publisher = SequencePublisher::new(endpoint, &share, Barrier::Kernel);
        let (of_thread, others) = (Arc::clone(&control), pool_connection.nodes().cloned());
        let lose = move || {
            of_thread.give_up();
            if let Some(nodes) = &others {
                nodes.give_up();
            }
        };
        let process = ProcessThread::start(publisher, lose);
        let process = process.map_err(ErrorKind::Thread)?;
        Ok(Self(Arc::new(PoolInner {
            share,
            pool_connection,
            control,
            _process: process,
            node,
            _data_nodes: data_nodes,
        })))
    }

    /// Registers a session: the access of one thread to the pool.
    ///
    /// # Errors
    /// The memory node cannot be reached, or has no free session.
    pub fn session(&self) -> Result<Session, Error> {
        self.session_with(&SessionOptions::default())
    }

    /// Registers a session like [`session`](Self::session), with options.
    ///
    /// # Errors
    /// The same as those of [`session`](Self::session).
    pub fn session_with(&self, options: &SessionOptions) -> Result<Session, Error> {
        Session::open(self.clone(), options)
    }

    pub(crate) fn endpoint(&self, owner: Option<OwnerWord>) -> Result<PoolEndpoint, Error> {
        self.0.pool_connection.endpoint(owner)
    }

    /// Returns the properties of the pool.
    pub fn info(&self) -> PoolInfo {
        PoolInfo {
            address: self.0.share.address.clone(),
            size_bytes: self.0.share.layout.superblock.size_bytes,
            page_kind: self.0.node.as_ref().map(ShmNode::page_kind),
        }
    }

    /// Returns the totals and the queue of the node's retraining. Costs one round trip.
    ///
    /// # Errors
    /// The fabric failed.
    pub fn retraining(&self) -> Result<RetrainingReport, Error> {
        let mut batch = Batch::new();
        let (endpoint, layout) = (self.endpoint(None)?, &self.0.share.layout);
        let read = read_retrain_counters(&endpoint, layout, &mut batch);
        let (tally, queue_length) = drive(&endpoint, read)?;
        Ok(RetrainingReport {
            tally,
            queue_length,
        })
    }

    /// Returns the pool's nodes, main node first, including lost ones. Costs a few round trips and
    /// 64 bytes per 64 KiB chunk. In a pool of several nodes it waits up to half a second until
    /// each has replied to the main node once more. A node that has not replied within two seconds
    /// is listed without its used bytes.
    ///
    /// # Errors
    /// The main node cannot be reached.
    pub fn nodes(&self) -> Result<Vec<NodeInfo>, Error> {
        let endpoint = self.endpoint(None)?;
        let layout = &self.0.share.layout;
        let members = layout.members();
        drive(&endpoint, members.refresh(&endpoint, layout))?;
        let allocator = ChunkAllocator::new(&endpoint, layout, OwnerWord::FREE);
        // Read before the probes, because probing takes a moment.
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
                    NodeId(0) => members.main_node_address().to_owned(),
                    _ => member.address.clone(),
                },
                state,
                size_bytes: member.layout.superblock.chunk_count * CHUNK_SIZE_BYTES,
                used_bytes: used_count.map(|count| count * CHUNK_SIZE_BYTES),
            })
        });
        nodes.collect()
    }

    /// Returns the reachable nodes that reply now; a request to a hanging node would wait until it
    /// is declared lost.
    fn answering(&self, known: &[(Member, MemberState)]) -> Result<Vec<NodeId>, Error> {
        let reachable = known.iter().filter(|(_, state)| state.is_reachable());
        let nodes: Vec<_> = reachable.map(|(member, _)| member.layout.node).collect();
        match self.0.pool_connection.control() {
            Some(main_node) if nodes.len() > 1 => Ok(answering(main_node, &nodes)?),
            _ => Ok(nodes),
        }
    }

    /// Requests that the pool's main node drains a node, takes it into use again, or declares it
    /// lost. Returns at once: [`nodes`](Self::nodes) shows when a drained node has left.
    ///
    /// # Errors
    /// The main node cannot be reached, the pool has one node, the node does not exist or is in
    /// another state, or the `admin` right is missing.
    pub fn set_node_state(&self, number: u8, state: MemberState) -> Result<(), Error> {
        let Some(main_node) = self.0.pool_connection.control() else {
            let why = "nodes are administered over the network; use tcp:HOST:PORT or \
                       verbs:HOST:PORT";
            let (why, address) = (why.to_owned(), self.0.share.address.clone());
            return Err(ErrorKind::BadAddress { address, why }.into());
        };
        main_node.set_member(NodeId(number), state as u64)?;
        Ok(())
    }

    /// Returns the memory, sessions and tables in use. Costs a few round trips and 64 bytes per 64
    /// KiB chunk.
    ///
    /// # Errors
    /// The fabric failed.
    pub fn usage(&self) -> Result<PoolUsage, Error> {
        let endpoint = self.endpoint(None)?;
        let layout = &self.0.share.layout;
        let allocator = ChunkAllocator::new(&endpoint, layout, OwnerWord::FREE);
        let chunks = drive(&endpoint, allocator.entries())?;
        let sizes = layout
            .memories()
            .map(|memory| memory.superblock.chunk_count);
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

/// Runs a future that uses an endpoint to completion.
fn drive<F: Future>(endpoint: &PoolEndpoint, future: F) -> F::Output {
    block_on(future, endpoint.completions())
}

/// Returns a pool name that is unique on this host.
fn private_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!(
        "private-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}
