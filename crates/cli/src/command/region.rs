//! `farleaf region serve`: runs a server of a cluster, which stores regions of persistent tables on
//! its disk.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use farleaf::persistent::{ClientOptions, SharedCoordinator};
use farleaf_cluster::ClusterError;
use farleaf_cluster::coordinator::CoordinatorAddress;
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::record::NUMBER_END;
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::memtable::Memtable;
use farleaf_net::tls::host_of;
use farleaf_server::{PreparedServer, RegionServer, ServerError, ServerOptions, ServerTls};

use super::cluster_client::{is_etcd_elsewhere, parse_address};
use super::region_compare::{self, CompareArguments};
use super::region_coordinator::{
    CoordinatorReply, Elsewhere, OPTION, Own, check_init, no_cluster, refuse_empty,
};
use super::serve::{allow_descriptors, parse_listen};
use crate::arguments::{PoolArguments, secret_of};
use crate::failure::{BadArgument, Ending};
use crate::output::print;
use crate::reload::{ReloadArguments, Reloader};
use crate::signals;
use crate::tls_options::{ListenSecurity, Member};
use farleaf_bench::quantity::{parse_seconds, parse_size, size};

/// Arguments of `farleaf region`.
#[derive(Debug, Args)]
pub(crate) struct RegionArguments {
    #[command(subcommand)]
    command: RegionCommand,
}

#[derive(Debug, Subcommand)]
enum RegionCommand {
    /// Serve regions of persistent tables from a directory
    Serve(Box<ServeArguments>),
    /// Compare the replicas in several servers' data directories byte by byte; exit status 1 if any
    /// differ. Stop the servers first: while they run, what was written last may differ
    Compare(CompareArguments),
}

/// Options of a server.
#[derive(Debug, Args)]
struct ServeArguments {
    /// Directory for all that the server has, made if it is not there
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// Coordinator of the cluster: `tcp:HOST:PORT` of another `farleaf region serve`;
    /// `etcd:HOST:PORT[,HOST:PORT...]`; or `dir:PATH`, a coordinator in this process that also
    /// serves the others [default: dir:DIR/coordinator]
    #[arg(long, value_name = "ADDRESS")]
    coordinator: Option<String>,

    /// Create a new cluster with a coordinator in this process; if DIR already has one, start it
    #[arg(long)]
    init: bool,

    /// Seconds to wait at startup for a coordinator that cannot be reached, from 0 to 86400
    /// [default: no limit]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    #[arg(value_parser = |text: &str| parse_seconds(text, 0..=86_400))]
    coordinator_patience: Option<u32>,

    /// Address to listen on: IP:PORT, or PORT on the loopback interface; port 0 picks a free port.
    /// An address that other hosts can reach requires a secret (`--secret-file` or
    /// `FARLEAF_SECRET`), and a certificate (`--tls-cert`) or `--insecure`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7480")]
    #[arg(value_parser = parse_listen, allow_negative_numbers = true)]
    listen: SocketAddr,

    #[command(flatten)]
    security: ListenSecurity,

    #[command(flatten)]
    reload: ReloadArguments,

    /// Address under which others reach this server, HOST:PORT [default: the listening address]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_advertised)]
    advertise: Option<String>,

    /// File with a secret that only the servers of the cluster know, the same for all. It protects
    /// the memory of backups from clients [default: the cluster's secret]
    #[arg(long, value_name = "FILE", env = "FARLEAF_SERVER_SECRET_FILE")]
    server_secret_file: Option<PathBuf>,

    /// Number of this server, used by `cluster status`, `move` and `drain`, from 1 on. The
    /// directory keeps it from the first start [default: a random number]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..NUMBER_END))]
    number: Option<u64>,

    /// Lease in seconds: how long the cluster waits for a silent server, from 1 to 600; the same
    /// for all servers
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = |text: &str| parse_seconds(text, 1..=600))]
    lease: u32,

    /// How backups get their index: `sent` by the primary, or `built` by each backup, which takes
    /// more processor time and disk space
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    index: IndexName,

    /// Size of a region's write buffer (L0) before it is flushed as a tree. A flush also happens
    /// after four times as much log. Recent values take up to half as much memory in addition
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_l0_size)]
    #[arg(allow_negative_numbers = true)]
    l0_size: u64,

    /// Block cache of each region, for trees and log
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_cache_size)]
    #[arg(allow_negative_numbers = true)]
    cache: u64,

    /// Size ratio of adjacent levels, from 2 to 64
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 8,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=64))]
    growth_factor: u64,

    /// Log buffers of 2 MiB for each backup on this server, from 2 to 1024
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 4,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=1024))]
    buffers: u64,

    /// Seconds to wait for a backup that cannot be reached, from 1 to 600; then another server
    /// replaces it
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = |text: &str| parse_seconds(text, 1..=600))]
    link_patience: u32,

    /// Maximum number of connections from clients and other servers
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1024,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(4..=1_000_000))]
    connections: u32,

    /// Memory for requests and replies above 64 KiB; one client (IP address) gets at most half of
    /// it. A request beyond it waits, and after 5 s is refused
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_request_memory)]
    #[arg(allow_negative_numbers = true)]
    request_memory_max: u64,

    /// Never become the master, which assigns regions to servers; at least one server must be able
    /// to
    #[arg(long)]
    no_master: bool,
}

/// Method by which backups get their trees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum IndexName {
    #[default]
    Sent,
    Built,
}

fn parse_advertised(text: &str) -> Result<String, &'static str> {
    match format!("tcp:{text}").parse() {
        Ok(CoordinatorAddress::Served(place)) => Ok(place),
        _ => Err("expected HOST:PORT, with a port from 1 to 65535 and an IPv6 address in brackets"),
    }
}

/// Parses the size of an L0.
pub(super) fn parse_l0_size(text: &str) -> Result<u64, String> {
    match parse_buffer_size(text)? {
        size_bytes if size_bytes <= Memtable::SIZE_BYTES_MAX as u64 => Ok(size_bytes),
        _ => Err("expected at most 16GiB".to_owned()),
    }
}

/// Parses the size of the memory for requests.
fn parse_request_memory(text: &str) -> Result<u64, String> {
    const SIZE_BYTES_MIN: u64 = ServerOptions::REQUEST_MEMORY_BYTES_MIN as u64;
    match parse_size(text) {
        Ok(size_bytes) if size_bytes >= SIZE_BYTES_MIN => Ok(size_bytes),
        Ok(_) => Err(format!(
            "expected at least {}, two of the largest requests",
            size(SIZE_BYTES_MIN)
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses the size of a cache, which may be as large as the host's memory.
fn parse_cache_size(text: &str) -> Result<u64, String> {
    let size_bytes = parse_buffer_size(text)?;
    let host = rustix::system::sysinfo();
    let memory = host.totalram.saturating_mul(host.mem_unit.into());
    if size_bytes > memory {
        return Err(format!(
            "expected at most {}, the memory of this host, which all its regions share",
            size(memory)
        ));
    }
    Ok(size_bytes)
}

pub(super) fn parse_buffer_size(text: &str) -> Result<u64, String> {
    const SIZE_BYTES_MIN: u64 = 1 << 20;
    match parse_size(text) {
        Ok(size_bytes) if size_bytes >= SIZE_BYTES_MIN => Ok(size_bytes),
        Ok(_) => Err("expected 1MiB or more".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs `farleaf region`.
pub(crate) fn run(pool: &PoolArguments, arguments: &RegionArguments) -> anyhow::Result<Ending> {
    match &arguments.command {
        RegionCommand::Serve(arguments) => serve(pool, arguments),
        RegionCommand::Compare(arguments) => region_compare::run(arguments),
    }
}

/// Serves until SIGHUP, SIGINT or SIGTERM. A second SIGINT or SIGTERM ends the process at once.
///
/// All checks come before anything permanent is created: first those that involve other processes
/// (the secret, the coordinator), then those of this host (the port, the directory). Only then
/// `--init` creates a cluster.
fn serve(pool: &PoolArguments, arguments: &ServeArguments) -> anyhow::Result<Ending> {
    let directory = arguments.data.display();
    let address = arguments.coordinator_address(pool)?;
    check_init(arguments.init, &address)?;
    let options = arguments.options(pool, &address)?;
    if is_etcd_elsewhere(&address) {
        tracing::warn!(
            coordinator = %address,
            "requests to etcd cross the network unencrypted and without a password"
        );
    }
    let signals = signals::take()?;
    let (stop, stopped) = mpsc::channel();
    let stop = move || {
        // If the receiver is gone, the server is stopping already.
        let _ = stop.send(());
    };
    let reload = arguments.reloader(pool, &options).start()?;
    signals::stop_on(signals, stop, reload)?;
    let Some((server, coordinator)) = arguments.start(&address, &options, &stopped)? else {
        tracing::info!("stopped");
        return Ok(Ending::Done);
    };
    let listens_at = match &options.advertised {
        Some(address) => address.clone(),
        None => server.address().to_string(),
    };
    let shared = if options.serves_coordinator {
        format!("tcp:{listens_at}")
    } else {
        coordinator.name().to_owned()
    };
    tracing::info!(
        address = listens_at,
        server = server.number().0,
        cluster = %server.cluster().digits(),
        coordinator = coordinator.name(),
        pid = std::process::id(),
        "serving"
    );
    let ready = format!(
        "serving {directory} at {listens_at}, {} of {}; `farleaf --cluster {shared} ...` and \
         `persistent::open(\"{shared}\", ...)` use it, `farleaf region serve --coordinator \
         {shared}` adds a server; Ctrl-C stops it\n",
        server.number(),
        server.cluster(),
    );
    let failure = wait_end(&server, &stopped, ready, joining_time_max(&options.terms));
    server.stop();
    if let Some(error) = failure {
        return Err(refused(error, &address, &arguments.data));
    }
    tracing::info!(address = listens_at, "stopped");
    Ok(Ending::Done)
}

/// Returns the maximum delay of the line that announces the server. After two leases, a server
/// knows whether another one has its number (CONTROL-8), and reports that instead.
fn joining_time_max(terms: &LeaseTerms) -> Duration {
    const SLACK: Duration = Duration::from_secs(2);
    terms.time_to_live * 2 + SLACK
}

/// Waits until the server should stop or cannot continue. Prints `ready` when the cluster counts
/// the server as alive, so that a table created afterwards has replicas on it. Prints it after a
/// maximum delay, too: the coordinator may be unavailable for long, and the server listens
/// meanwhile.
fn wait_end(
    server: &RegionServer,
    stopped: &Receiver<()>,
    ready: String,
    joining_time_max: Duration,
) -> Option<ServerError> {
    const LOOK_INTERVAL: Duration = Duration::from_millis(200);
    const JOINING_LOOK_INTERVAL: Duration = Duration::from_millis(5);
    let since = Instant::now();
    let mut ready = Some(ready);
    loop {
        if server.has_joined() || since.elapsed() >= joining_time_max {
            // The parent process need not read the line.
            let _ = ready.take().map(print);
        }
        let interval = match ready {
            Some(_) => JOINING_LOOK_INTERVAL,
            None => LOOK_INTERVAL,
        };
        match stopped.recv_timeout(interval) {
            Err(RecvTimeoutError::Timeout) => {}
            // On a disconnect, the thread that waits for signals is gone, so no signal can arrive
            // any more.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
        }
        if let Some(error) = server.take_failure() {
            return Some(error);
        }
    }
}

impl ServeArguments {
    /// Returns the address of the coordinator.
    fn coordinator_address(&self, pool: &PoolArguments) -> anyhow::Result<CoordinatorAddress> {
        match &self.coordinator {
            Some(text) => Ok(parse_address(OPTION, text, &pool.tls)?),
            None => Ok(CoordinatorAddress::Directory(self.data.join("coordinator"))),
        }
    }

    fn options(
        &self,
        pool: &PoolArguments,
        coordinator: &CoordinatorAddress,
    ) -> anyhow::Result<ServerOptions> {
        if self.listen.ip().is_unspecified() && self.advertise.is_none() {
            let message = format!(
                "--listen {} means all addresses of this host, to which other hosts cannot \
                 connect; set the address of this server with --advertise HOST:PORT",
                self.listen
            );
            return Err(BadArgument(message).into());
        }
        let mut options = ServerOptions::new(&self.data);
        options.number = self.number;
        options.address = self.listen;
        options.advertised.clone_from(&self.advertise);
        options.secret = pool.secret()?;
        let server_secret = self.server_secret_file.as_deref().map(secret_of);
        options.server_secret = server_secret.transpose()?;
        let tls = pool.tls.member(&self.member())?;
        options.tls = tls.map(|(own, others)| ServerTls { own, others });
        // Without a secret, the listener refuses the address.
        if options.secret.is_some() {
            self.security
                .check(self.listen, options.tls.is_some(), false)?;
        }
        options.connection_count_max = self.connections as usize;
        options.request_memory_bytes_max = self.request_memory_max as usize;
        options.terms = lease_terms(self.lease);
        options.is_candidate = !self.no_master;
        // A coordinator in this process is served to other processes.
        options.serves_coordinator = matches!(coordinator, CoordinatorAddress::Directory(_));
        options.engine = options.engine.with_l0_size(self.l0_size as usize);
        options.engine.cache_size_bytes = self.cache as usize;
        options.engine.growth_factor = self.growth_factor;
        options.replication.index = match self.index {
            IndexName::Sent => IndexKind::Sent,
            IndexName::Built => IndexKind::Built,
        };
        options.slot_count = self.buffers;
        options.link_patience = Duration::from_secs(self.link_patience.into());
        allow_descriptors(u64::from(self.connections));
        Ok(options)
    }

    fn member(&self) -> Member {
        let host = match &self.advertise {
            Some(address) => host_of(address).to_owned(),
            None => self.listen.ip().to_string(),
        };
        Member {
            who: "a region server",
            host,
            security: self.security,
            has_rdma: false,
        }
    }

    /// Returns what reloads the server's files.
    fn reloader(&self, pool: &PoolArguments, options: &ServerOptions) -> Reloader {
        let mut reloader = self.reload.reloader(pool, options.secret.as_ref());
        if let (Some(path), Some(secret)) = (&self.server_secret_file, &options.server_secret) {
            reloader.add_secret("the servers' secret", path, secret);
        }
        if let Some(tls) = &options.tls {
            let both = (&tls.own, &tls.others);
            pool.tls.reload_member(&mut reloader, both, self.member());
        }
        reloader
    }

    /// Starts the server. Returns `None` if it was stopped before its coordinator was available.
    fn start(
        &self,
        address: &CoordinatorAddress,
        options: &ServerOptions,
        stopped: &Receiver<()>,
    ) -> anyhow::Result<Option<(RegionServer, SharedCoordinator)>> {
        let explained = |error| refused(error, address, &self.data);
        if let CoordinatorAddress::Directory(path) = address {
            refuse_empty(path, &self.data, options, self.init, explained)?;
            let prepared = PreparedServer::new(options).map_err(explained)?;
            let own = Own::open(address, path, &prepared, &self.data, self.init)?;
            let server = prepared.start(own.coordinator.clone());
            let server = server.map_err(|error| match own.founded {
                Some(cluster) => explained(error).context(format!(
                    "{cluster} was created in {address} and is kept for the next start"
                )),
                None => explained(error),
            })?;
            return Ok(Some((server, own.coordinator)));
        }
        let elsewhere = Elsewhere {
            address: address.clone(),
            options: ClientOptions {
                secret: options.secret.clone(),
                tls: options.tls.as_ref().map(|it| it.others.clone()),
                ..ClientOptions::default()
            },
        };
        // Before a directory is created, so that a wrong address or secret is reported first.
        let reply = match elsewhere.ask_twice()? {
            CoordinatorReply::NotYet(why) if self.coordinator_patience == Some(0) => {
                return Err(why);
            }
            reply => reply,
        };
        let prepared = PreparedServer::new(options).map_err(explained)?;
        let coordinator = match reply {
            CoordinatorReply::There(coordinator) => coordinator,
            CoordinatorReply::NotYet(why) => {
                let patience = self.coordinator_patience;
                let patience = patience.map(|it| Duration::from_secs(it.into()));
                match elsewhere.wait(why, patience, stopped)? {
                    Some(coordinator) => coordinator,
                    None => return Ok(None),
                }
            }
        };
        let server = prepared.start(coordinator.clone()).map_err(explained)?;
        Ok(Some((server, coordinator)))
    }
}

/// Returns lease terms for a duration in seconds, with an unused margin of at most a tenth.
fn lease_terms(seconds: u32) -> LeaseTerms {
    let defaults = LeaseTerms::default();
    let time_to_live = Duration::from_secs(seconds.into());
    LeaseTerms {
        time_to_live,
        margin: defaults.margin.min(time_to_live / 10),
        ..defaults
    }
}

fn refused(
    error: ServerError,
    coordinator: &CoordinatorAddress,
    directory: &Path,
) -> anyhow::Error {
    use farleaf_net::request::NetError;
    match error {
        ServerError::Wire(error @ NetError::NeedsSecret { .. }) => {
            let hint = "set --secret-file or FARLEAF_SECRET";
            BadArgument(format!("--listen: {error}; {hint}")).into()
        }
        ServerError::Cluster(ClusterError::NoCluster) => no_cluster(coordinator),
        other => {
            let what = format!("cannot serve regions from '{}'", directory.display());
            anyhow::Error::new(other).context(what)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a cache as large as the host's memory is accepted, and a larger one is not.
    #[test]
    fn a_cache_is_not_larger_than_memory() {
        assert_eq!(parse_cache_size("1MiB"), Ok(1 << 20));
        let refused = parse_cache_size("1000TiB").expect_err("no host has that");
        assert!(refused.contains("the memory of this host"), "{refused}");
    }
}
