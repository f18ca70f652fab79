//! A region server: its listener, its agent, and its candidate for master.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farleaf_base::clock::SystemClock;
use farleaf_cluster::ClusterError;
use farleaf_cluster::admin;
use farleaf_cluster::agent::{Agent, AgentOptions};
use farleaf_cluster::coordinator::served::CoordinatorService;
use farleaf_cluster::coordinator::{Bound, SharedCoordinator};
use farleaf_cluster::ids::{ClusterId, ServerId};
use farleaf_cluster::master::Master;
use farleaf_cluster::record::{ServerRecord, server_key};
use farleaf_net::request::{ListenOptions, Listener, Membership, Server};

use crate::agent_thread::AgentThread;
use crate::context::Context;
use crate::directory::{LockedDirectory, ServerDirectory, is_server};
use crate::dispatcher::RequestDispatcher;
use crate::error::ServerError;
use crate::host::Host;
use crate::log_ends::write_log_ends;
use crate::open_replicas::OpenReplicas;
use crate::options::ServerOptions;
use crate::outage_log::OutageLog;
use crate::seen_file::SeenFile;
use crate::sync::lock;
use crate::watchdog::watch;

/// Time for which agent and master wait for a change of the records before they check everything
/// else.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// The resources of a server that has not started: its locked directory and its listening socket.
/// Connections wait until it starts.
#[derive(Debug)]
pub struct PreparedServer {
    directory: LockedDirectory,
    listener: Listener,
    /// The cluster that the listener presents in greetings.
    membership: Membership,
    options: ServerOptions,
}

impl PreparedServer {
    /// Listens, and locks the directory, which is created if missing. Writes nothing that
    /// identifies the directory's owner.
    ///
    /// # Errors
    /// [`ServerError`]: the address cannot be listened at; the directory belongs to another server,
    /// is open, or is damaged; the leases are too long.
    pub fn new(options: &ServerOptions) -> Result<Self, ServerError> {
        options.engine.check()?;
        options.terms.check()?;
        if options.address.ip().is_unspecified() && options.advertised.is_none() {
            return Err(ServerError::NotAdvertised {
                address: options.address,
            });
        }
        let mut listen = ListenOptions::at(options.address);
        listen.secret.clone_from(&options.secret);
        listen.tls = options.tls.as_ref().map(|it| it.own.clone());
        listen.connection_count_max = options.connection_count_max;
        listen.request_memory_bytes_max = options.request_memory_bytes_max;
        listen.request_size_bytes_max = farleaf_client::protocol::REQUEST_SIZE_BYTES_MAX;
        let membership = listen.membership.clone();
        let listener = Listener::bind(&listen)?;
        let number = options.number.map(ServerId);
        Ok(Self {
            directory: LockedDirectory::open(&options.directory, number)?,
            listener,
            membership,
            options: options.clone(),
        })
    }

    /// Listens at the address of these options for some time and refuses all connections. Returns
    /// the cluster whose members or clients connect meanwhile: they know this address as that of
    /// one of their servers.
    ///
    /// # Errors
    /// [`ServerError::Wire`]: the address cannot be listened at.
    pub fn detect_cluster(
        options: &ServerOptions,
        time: Duration,
    ) -> Result<Option<ClusterId>, ServerError> {
        let mut listen = ListenOptions::at(options.address);
        listen.secret.clone_from(&options.secret);
        listen.tls = options.tls.as_ref().map(|it| it.own.clone());
        let found = Listener::bind(&listen)?.detect_cluster(time)?;
        Ok(found.map(ClusterId::from))
    }

    /// Returns whether a directory already is a server's. Creates nothing.
    ///
    /// # Errors
    /// If the file system cannot be read.
    pub fn is_in(directory: &Path) -> std::io::Result<bool> {
        is_server(directory)
    }

    /// Returns the cluster that the directory belongs to; `None` if the directory is new.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.directory.cluster()
    }

    /// Starts the server as a member of this coordinator's cluster. Costs two round trips.
    ///
    /// # Errors
    /// [`ServerError`]: the coordinator cannot be reached, or has no cluster, or another one than
    /// the directory; another server has the number for a new directory. Nothing was started.
    pub fn start(self, coordinator: SharedCoordinator) -> Result<RegionServer, ServerError> {
        let cluster = admin::cluster(&coordinator)?;
        let directory = self.directory.claim(&cluster, |server| {
            let registered = admin::read::<ServerRecord>(&coordinator, &server_key(server))?;
            Ok(registered.map(|seen| seen.record.address))
        })?;
        let (listener, membership) = (self.listener, self.membership);
        RegionServer::serve(directory, listener, membership, coordinator, &self.options)
    }
}

/// Sets the cluster that greetings present.
pub(crate) fn set(membership: &Membership, cluster: ClusterId) {
    if let Some(tag) = cluster.tag() {
        membership.set(tag);
    }
}

/// A running region server. Dropping it closes everything, in order, with all data on its disk.
#[derive(Debug)]
pub struct RegionServer {
    server: ServerId,
    cluster: ClusterId,
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    failure: Arc<Mutex<Option<ServerError>>>,
    outage_log: Arc<OutageLog>,
    /// Whether the server has had a lease.
    has_joined: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    dispatcher: Option<Server>,
    _directory: ServerDirectory,
}

impl RegionServer {
    /// Starts a server. It serves regions when the master has assigned some to it.
    ///
    /// # Errors
    /// [`ServerError`]: the directory belongs to another server, is open, or is damaged; the
    /// coordinator cannot be reached, or has no cluster; the address cannot be listened at; another
    /// server has the number. Nothing was started.
    pub fn start(
        coordinator: SharedCoordinator,
        options: &ServerOptions,
    ) -> Result<Self, ServerError> {
        PreparedServer::new(options)?.start(coordinator)
    }

    fn serve(
        directory: ServerDirectory,
        listener: Listener,
        membership: Membership,
        coordinator: SharedCoordinator,
        options: &ServerOptions,
    ) -> Result<Self, ServerError> {
        let address = listener.address();
        let cluster = directory.cluster;
        set(&membership, cluster);
        let seen = SeenFile::open(&directory.path, cluster)?;
        let bound = Bound::to(coordinator, cluster).having_seen(seen.last());
        let context = Context::new(bound.clone(), &directory, address.ip(), options.clone());
        let context = Arc::new(context);
        let replicas = Arc::new(OpenReplicas::new(Arc::clone(&context)));
        let host = Host::new(context, Arc::clone(&replicas));
        let serves = options.serves_coordinator;
        let (watched, written) = (Arc::clone(&replicas), Arc::clone(&replicas));
        let dispatcher = RequestDispatcher {
            replicas,
            coordinator: serves.then(|| CoordinatorService::new(bound.inner().clone())),
        };
        let dispatcher = listener.serve(Arc::new(dispatcher))?;
        let mut server = Self {
            server: directory.server,
            cluster: directory.cluster,
            address,
            is_over: Arc::default(),
            failure: Arc::default(),
            outage_log: Arc::default(),
            has_joined: Arc::default(),
            threads: Vec::new(),
            dispatcher: Some(dispatcher),
            _directory: directory,
        };
        let patience = options.link_patience;
        server.spawn("watchdog", move |is_over| {
            watch(&watched, patience, is_over);
        })?;
        server.spawn("log ends", move |is_over| write_log_ends(&written, is_over))?;
        server.start_agent(bound.clone(), seen, options, host, membership)?;
        if options.is_candidate {
            server.start_master(bound, options)?;
        }
        Ok(server)
    }

    fn start_agent(
        &mut self,
        coordinator: Bound<SharedCoordinator>,
        seen: SeenFile,
        options: &ServerOptions,
        host: Host,
        membership: Membership,
    ) -> Result<(), ServerError> {
        let address = match &options.advertised {
            Some(address) => address.clone(),
            None => self.address.to_string(),
        };
        let mut of = AgentOptions::new(self.cluster, self.server, &address);
        of.terms = options.terms;
        let (seen, writer) = seen.split();
        // The thread ends when the agent has noted its last state.
        self.spawn("seen", move |_| writer.run())?;
        let thread = AgentThread {
            agent: Agent::new(coordinator, Arc::new(SystemClock), of, host),
            seen,
            directory: options.directory.clone(),
            server: self.server,
            membership,
            outage_log: Arc::clone(&self.outage_log),
            failure: Arc::clone(&self.failure),
            has_joined: Arc::clone(&self.has_joined),
        };
        self.spawn("agent", move |is_over| thread.run(is_over))
    }

    fn start_master(
        &mut self,
        coordinator: Bound<SharedCoordinator>,
        options: &ServerOptions,
    ) -> Result<(), ServerError> {
        let (clock, terms) = (Arc::new(SystemClock), options.terms);
        let address = self.address.to_string();
        let plan = options.plan.clone();
        let mut master = Master::new(coordinator, clock, terms, &address, plan);
        let outage_log = Arc::clone(&self.outage_log);
        self.spawn("master", move |is_over| {
            while !is_over.load(Ordering::Acquire) {
                let ticked = master.tick(TICK).map_err(ClusterError::from);
                let is_master = ticked.as_ref().is_ok_and(|tick| tick.is_master);
                outage_log.note(
                    "master",
                    ticked.as_ref().map(drop),
                    master.is_coordinator_reachable(),
                );
                if !is_master {
                    thread::sleep(TICK);
                }
            }
            if let Err(error) = master.resign() {
                tracing::warn!(%error, "cannot give up the master's lease; it will expire");
            }
        })
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> Result<(), ServerError> {
        let is_over = Arc::clone(&self.is_over);
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || body(&is_over));
        self.threads
            .push(thread.map_err(|source| ServerError::NoResource {
                what: "thread",
                source,
            })?);
        Ok(())
    }

    /// Returns the server's number.
    pub fn number(&self) -> ServerId {
        self.server
    }

    /// Returns the server's cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Returns the address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns whether the server has had a lease, so that the master counts it as alive. A server
    /// that was killed and restarted first waits for the end of its earlier lease, and any server
    /// waits while the coordinator is unavailable.
    pub fn has_joined(&self) -> bool {
        self.has_joined.load(Ordering::Acquire)
    }

    /// Returns why the server will never serve anything, once that is known: another server has its
    /// number. The error is returned once; the caller then stops the server.
    pub fn take_failure(&self) -> Option<ServerError> {
        let mut failure = lock(&self.failure);
        failure.take()
    }

    /// Closes everything and ends the lease, so that other servers can take over the regions at
    /// once.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.is_over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a server thread panicked");
            }
        }
        self.dispatcher = None;
    }
}

impl Drop for RegionServer {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with a lease that readers would refuse is rejected before it does anything.
    #[test]
    fn a_lease_that_is_too_long_is_refused() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut options = ServerOptions::new(&scratch.path().join("server"));
        options.terms.time_to_live = std::time::Duration::from_secs(86_401);
        let error = PreparedServer::new(&options).expect_err("it is too long");
        let is_told = matches!(
            error,
            ServerError::Cluster(ClusterError::LeaseTooLong { .. })
        );
        assert!(is_told, "{error}");
        assert!(!options.directory.exists());
    }
}
