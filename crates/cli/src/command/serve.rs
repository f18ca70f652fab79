//! `farleaf serve`: runs a memory node for processes of this host and of others.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use clap::{ArgGroup, Args};
use farleaf::{PageKind, Pool, Rights, Secret, TlsServer, call_options, retrain_policy};
use farleaf_node::{
    NodeError, NodeOptions, RetrainPolicy, ShmNode, TcpListenError, TcpListenOptions,
};

use crate::arguments::PoolArguments;
use crate::command::serve_node;
use crate::failure::{BadArgument, Ending};
use crate::output::print;
use crate::reload::{ReloadArguments, Reloader};
use crate::signals;
use crate::tls_options::ListenSecurity;
use farleaf_bench::quantity::{parse_size, size};

const HUGE_PAGE_SIZE_BYTES: u64 = 2 << 20;

/// Pool to serve.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("network").args(["listen", "node"]).multiple(true))]
pub(crate) struct ServeArguments {
    /// Serve this node of a pool of several nodes, which `--pool FILE` lists; node 0 is the main
    /// node
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["name", "size", "listen", "silence"])]
    #[arg(allow_negative_numbers = true)]
    pub(super) node: Option<u8>,

    /// Name of the pool; its address is `shm:NAME`
    #[arg(long, default_value = "default")]
    name: String,

    /// Size of the pool's memory, such as 512MiB or 4GiB; all of it is allocated at startup
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    #[arg(allow_negative_numbers = true)]
    size: u64,

    /// Threads that retrain tables in the background: 1, or 0 for none
    #[arg(
        long,
        default_value_t = 1,
        value_name = "COUNT",
        allow_negative_numbers = true
    )]
    retrain_threads: u32,

    /// Worker threads for calls (`--index rpc` and `xstore`), 0 to 64, in addition to the thread
    /// that reads the calls [default: one for four processors]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    call_workers: Option<u32>,

    /// Threads that train the models of `xstore` tables, from 1 to 64
    #[arg(
        long,
        default_value_t = 1,
        value_name = "COUNT",
        allow_negative_numbers = true
    )]
    train_threads: u32,

    /// Listen for clients on the network, too: IP:PORT, or PORT on the loopback interface. An
    /// address that other hosts can reach requires a secret (`--secret-file` or `FARLEAF_SECRET`),
    /// and a certificate (`--tls-cert`) or `--insecure`. On loopback, the server creates a
    /// secret for this user's programs if none is given
    #[arg(long, value_name = "ADDRESS", value_parser = parse_listen)]
    #[arg(allow_negative_numbers = true)]
    listen: Option<SocketAddr>,

    /// Serve the memory through an RDMA device (RoCE, InfiniBand or Soft-RoCE). Only clients with
    /// such a device can write then; `shm` clients are refused. In a pool of several nodes, all or
    /// none use it
    #[arg(long, requires = "network")]
    pub(super) verbs: bool,

    /// Maximum number of network connections; a process uses two, and one for each session
    #[arg(
        long,
        default_value_t = 1024,
        value_name = "COUNT",
        requires = "network"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(4..=1_000_000))]
    #[arg(allow_negative_numbers = true)]
    connections: u32,

    /// Maximum number of sessions of a network client; a process that opens the pool twice counts
    /// as two clients
    #[arg(
        long,
        default_value_t = 512,
        value_name = "COUNT",
        requires = "network"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1023))]
    #[arg(allow_negative_numbers = true)]
    sessions_per_client: u32,

    /// Seconds of silence after which a network client counts as dead
    #[arg(
        long,
        default_value_t = 30,
        value_name = "SECONDS",
        requires = "listen"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    #[arg(allow_negative_numbers = true)]
    silence: u32,

    /// Threads that execute network requests [default: one per core, at most 4]
    #[arg(
        long,
        value_name = "COUNT",
        requires = "network",
        allow_negative_numbers = true
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    nic_threads: Option<u32>,

    #[command(flatten)]
    pub(super) security: ListenSecurity,

    #[command(flatten)]
    pub(super) reload: ReloadArguments,
}

/// Parses IP:PORT, or PORT on the loopback interface.
pub(super) fn parse_listen(text: &str) -> Result<SocketAddr, &'static str> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let port = text.strip_prefix(':').unwrap_or(text);
    let port = port.strip_prefix("localhost:").unwrap_or(port);
    let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let parsed = port.parse().map(loopback);
    parsed.map_err(|_| "expected IP:PORT, such as 10.0.0.5:7470, or a port of this host's loopback")
}

/// Serves until SIGHUP, SIGINT or SIGTERM. A second SIGINT or SIGTERM ends the process at once.
pub(crate) fn run(pool: &PoolArguments, arguments: &ServeArguments) -> anyhow::Result<Ending> {
    if let Some(number) = arguments.node {
        return serve_node::run(pool, arguments, number.into());
    }
    // Files are read before the signal handlers are installed: they may be pipes without a writer.
    let listening = arguments.listening(pool)?;
    refuse_if_served(&arguments.name)?;
    // Installed before the node starts, so that no signal is missed.
    let signals = signals::take()?;
    let options = arguments.node_options()?;
    let (name, size_bytes) = (&arguments.name, arguments.size);
    let node = if arguments.verbs {
        ShmNode::start_with_verbs(name, size_bytes, options, &(&pool.rdma).into())
    } else {
        ShmNode::start(name, size_bytes, options)
    };
    let mut node = node.map_err(|error| refused(&arguments.name, error))?;
    let reloader = arguments.reloader(pool, listening.as_ref());
    let network = listening.map(|it| listen(&it, &mut node)).transpose()?;
    warn_of_ordinary_pages(node.page_kind(), node.size_bytes());
    let stop = node.stop_signal();
    signals::stop_on(signals, move || stop.stop(), reloader.start()?)?;
    let size = size(node.size_bytes());
    let kind = if arguments.verbs { "verbs" } else { "tcp" };
    let network_text = network.map(|at| format!("{kind}:{at}"));
    let address = match &network_text {
        Some(text) if arguments.verbs => text.clone(),
        _ => node.name().to_string(),
    };
    let device = node.verbs();
    tracing::info!(
        pool = address,
        network = network_text,
        device,
        size,
        pid = std::process::id(),
        "serving"
    );
    let (also, from_network) = match network {
        Some(_) if arguments.verbs => {
            let device = device.unwrap_or_default();
            (format!(" by {device}"), String::new())
        }
        Some(at) => (
            format!(" and tcp:{at}"),
            format!(", and `--pool {}` from the network", from_elsewhere(at)),
        ),
        None => Default::default(),
    };
    let ready = format!(
        "serving {address}{also}, {size}; `farleaf --pool {address} ...` and \
         `Pool::open(\"{address}\")` use it{from_network}; Ctrl-C stops it\n"
    );
    // The parent process need not read the line.
    let _ = print(ready);
    node.wait()
        .with_context(|| format!("{address} stopped serving"))?;
    tracing::info!(pool = address, "stopped");
    Ok(Ending::Done)
}

impl ServeArguments {
    pub(super) fn retraining(&self) -> anyhow::Result<Option<RetrainPolicy>> {
        let policy = retrain_policy(self.retrain_threads);
        Ok(policy.map_err(|error| BadArgument(format!("--{error}")))?)
    }

    /// Returns the options of the node's background work.
    pub(super) fn node_options(&self) -> anyhow::Result<NodeOptions> {
        let calls = call_options(self.call_workers, self.train_threads);
        Ok(NodeOptions {
            retraining: self.retraining()?,
            calls: calls.map_err(|error| BadArgument(format!("--{error}")))?,
        })
    }

    /// Returns the options for listening on the network, if an address is given.
    fn listening(&self, pool: &PoolArguments) -> anyhow::Result<Option<TcpListenOptions>> {
        let Some(address) = self.listen else {
            return Ok(None);
        };
        let tls = pool.tls.server(self.security, self.verbs)?;
        self.listen_at(address, pool.secret()?, tls).map(Some)
    }

    /// Returns what reloads the files of a node that listens on the network.
    fn reloader(&self, pool: &PoolArguments, listening: Option<&TcpListenOptions>) -> Reloader {
        let secret = listening.and_then(|it| it.secret.as_ref());
        let mut reloader = self.reload.reloader(pool, secret);
        if let Some(tls) = listening.and_then(|it| it.tls.as_ref()) {
            let security = self.security;
            pool.tls
                .reload_server(&mut reloader, tls, security, self.verbs);
        }
        reloader
    }

    /// Returns the options for listening on an address.
    pub(super) fn listen_at(
        &self,
        address: SocketAddr,
        secret: Option<Secret>,
        tls: Option<TlsServer>,
    ) -> anyhow::Result<TcpListenOptions> {
        let mut options = TcpListenOptions::at(address);
        options.secret = secret;
        if let Some(secret) = &options.secret
            && secret.rights() < Rights::Admin
        {
            let reason = "a node needs the pool's secret itself, not a key derived from it";
            return Err(BadArgument(reason.to_owned()).into());
        }
        options.tls = tls;
        // Without a secret, the listener refuses the address.
        if options.secret.is_some() {
            self.security
                .check(address, options.tls.is_some(), self.verbs)?;
        }
        options.connection_count_max = self.connections as usize;
        options.silence_max = Duration::from_secs(self.silence.into());
        options.session_count_max = self.sessions_per_client as usize;
        if let Some(count) = self.nic_threads {
            options.nic_thread_count = count as usize;
        }
        allow_descriptors(u64::from(self.connections));
        Ok(options)
    }
}

pub(super) fn warn_of_ordinary_pages(pages: PageKind, size_bytes: u64) {
    if pages == PageKind::Ordinary {
        let page_count = size_bytes.div_ceil(HUGE_PAGE_SIZE_BYTES);
        tracing::warn!(
            "huge pages are unavailable, so the pool is slower; to reserve enough, run `sysctl -w \
             vm.nr_hugepages={page_count}` as root before `farleaf serve`"
        );
    }
}

/// Returns the address for clients. A server that listens on all addresses of a host cannot know
/// which one its clients use.
fn from_elsewhere(at: SocketAddr) -> String {
    if at.ip().is_unspecified() {
        format!("tcp:HOST:{}", at.port())
    } else {
        format!("tcp:{at}")
    }
}

fn listen(options: &TcpListenOptions, node: &mut ShmNode) -> anyhow::Result<SocketAddr> {
    let listened = node.listen(options);
    listened.map_err(|error| cannot_listen("--listen", error, &node.name().to_string()))
}

/// Returns the error for a node that cannot serve `what`.
pub(super) fn cannot_listen(option: &str, error: NodeError, what: &str) -> anyhow::Error {
    let needs_secret = matches!(
        error,
        NodeError::Network(TcpListenError::NeedsSecret { .. })
    );
    if needs_secret {
        let hint = "set --secret-file or FARLEAF_SECRET; `farleaf secret new` creates a secret";
        return BadArgument(format!("{option}: {error}; {hint}")).into();
    }
    anyhow::Error::new(error).context(format!("cannot serve {what}"))
}

/// Raises the limit of descriptors: each connection takes one, and the initial limit of hosts is
/// lower than the allowed one.
pub(super) fn allow_descriptors(connection_count: u64) {
    /// Number of descriptors that a node has open besides connections.
    const OTHERS: u64 = 1200;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = connection_count + OTHERS;
    let raised = rustix::process::Rlimit {
        current: Some(limit.maximum.map_or(wanted, |maximum| maximum.min(wanted))),
        maximum: limit.maximum,
    };
    let is_low = limit.current.is_some_and(|current| current < wanted);
    if is_low && rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).is_err() {
        tracing::warn!("cannot raise the limit of open files: fewer clients can connect");
    }
}

/// Rejects a name that is served already, before any memory is allocated: the node takes the name
/// after the memory, which may not fit twice. If two servers start at once, the node rejects the
/// second.
fn refuse_if_served(name: &str) -> anyhow::Result<()> {
    let address = format!("shm:{name}");
    if Pool::open(&address).is_err() {
        return Ok(());
    }
    Err(anyhow::anyhow!(
        "cannot serve {address}: it is already served by another process; stop that process, or \
         use another name"
    ))
}

fn refused(name: &str, error: NodeError) -> anyhow::Error {
    match error {
        NodeError::Name(_) => BadArgument(format!("--name: {error}")).into(),
        NodeError::Size(_) => {
            BadArgument(format!("--size: {error}; for example, use 64MiB")).into()
        }
        other => anyhow::Error::new(other).context(format!("cannot serve shm:{name}")),
    }
}
