//! A region server: its listener, its agent, and whoever would be master.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farleaf_cluster::ClusterError;
use farleaf_cluster::admin;
use farleaf_cluster::agent::{Agent, AgentOptions};
use farleaf_cluster::clock::SystemClock;
use farleaf_cluster::coordinator::served::CoordinatorService;
use farleaf_cluster::coordinator::{Bound, SharedCoordinator};
use farleaf_cluster::ids::{ClusterId, ServerId};
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::master::Master;
use farleaf_cluster::plan::PlanOptions;
use farleaf_cluster::record::{ServerRecord, server_key};
use farleaf_lsm::EngineOptions;
use farleaf_lsm::follow::WriteFault;
use farleaf_replica::ReplicationOptions;
use farleaf_wire::{ListenOptions, Listener, Membership, Secret, Server};

use crate::agent_thread::AgentThread;
use crate::contact::Contact;
use crate::context::{Context, ReplicaOptions};
use crate::directory::{LockedDirectory, ServerDirectory, is_server};
use crate::error::ServerError;
use crate::front::Front;
use crate::host::Host;
use crate::log_ends::write_log_ends;
use crate::open_replicas::OpenReplicas;
use crate::open_storage::OpenStorage;
use crate::seen_file::SeenFile;
use crate::watchdog::watch;

/// How a region server works.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where its data are.
    pub directory: PathBuf,
    /// Which server it is, of a directory that is new, or has this number already; without one, a
    /// new one gets one.
    pub number: Option<u64>,
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// Where others reach it, if that is somewhere else.
    pub advertised: Option<String>,
    /// What clients and other servers prove to know: the same on all servers.
    pub secret: Option<Secret>,
    /// A secret that only servers know, the same on all servers; primaries prove to know it before
    /// they write into a backup's memory. Without one, `secret` is used, which clients know, too.
    pub server_secret: Option<Secret>,
    /// So many clients' connections at the most.
    pub connection_count_max: usize,
    /// What is agreed on about leases: the same on all servers. A lease is a day at the most.
    pub terms: LeaseTerms,
    /// How regions are placed.
    pub plan: PlanOptions,
    /// It would be master.
    pub is_candidate: bool,
    /// Others reach its coordinator here.
    pub serves_coordinator: bool,
    /// How engines work.
    pub engine: EngineOptions,
    /// How regions are replicated.
    pub replication: ReplicationOptions,
    /// Buffers for log segments, 2 MiB each, that each backup here has; 2 or more.
    pub slot_count: u64,
    /// A backup that cannot be reached, or filled, for so long has failed.
    pub link_patience: Duration,
    /// How often each replica that has nothing else to do reads 2 MiB of its disk, to find what the
    /// disk has lost before somebody needs it.
    pub scrub_interval: Duration,
    /// How often a primary whose copy an older version has written, and nobody has verified since,
    /// does the same until it has read all of it, whether it is idle or not.
    pub first_scrub_interval: Duration,
    /// How directories of data are opened: tests have disks that fail.
    #[doc(hidden)]
    pub storage: OpenStorage,
    /// A mistake that a test plants in what backups here write.
    #[doc(hidden)]
    pub write_fault: WriteFault,
}

impl ServerOptions {
    /// Those of a server with this directory, at a free port of loopback.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            number: None,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertised: None,
            secret: None,
            server_secret: None,
            connection_count_max: 1024,
            terms: LeaseTerms::default(),
            plan: PlanOptions::default(),
            is_candidate: true,
            serves_coordinator: false,
            engine: EngineOptions::new(),
            replication: ReplicationOptions::new(),
            slot_count: 4,
            link_patience: Duration::from_secs(10),
            scrub_interval: Duration::from_secs(5),
            first_scrub_interval: Duration::from_millis(50),
            storage: OpenStorage::default(),
            write_fault: WriteFault::default(),
        }
    }
}

/// A backup's memory is lost when it has not answered for as long as a lease is, but no sooner and
/// no later than this.
const ANSWER_TIME: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));

/// How long agent and master wait for a change of the records before they look at everything else.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// All that a server takes of its host, with nothing begun: its directory, locked, and the socket
/// that it listens at. Whoever connects waits until it starts.
#[derive(Debug)]
pub struct PreparedServer {
    directory: LockedDirectory,
    listener: Listener,
    /// What the listener says it is a server of.
    membership: Membership,
    options: ServerOptions,
}

impl PreparedServer {
    /// Listens, and locks the directory, which is made if it is not there. Nothing is written that
    /// says whose it is.
    ///
    /// # Errors
    /// [`ServerError`]: the address cannot be listened at; the directory is another server's, open,
    /// damaged; the leases are too long.
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
        listen.connection_count_max = options.connection_count_max;
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

    /// Listens at the address of these options for so long, and lets nobody in. The cluster whose
    /// members or clients come meanwhile: they know this address as that of a server of theirs.
    ///
    /// # Errors
    /// [`ServerError::Wire`]: the address cannot be listened at.
    pub fn sound_out(
        options: &ServerOptions,
        time: Duration,
    ) -> Result<Option<ClusterId>, ServerError> {
        let mut listen = ListenOptions::at(options.address);
        listen.secret.clone_from(&options.secret);
        let found = Listener::bind(&listen)?.sound_out(time)?;
        Ok(found.map(ClusterId::from))
    }

    /// Whether a directory is a server's already. Nothing is made.
    ///
    /// # Errors
    /// The system does not say.
    pub fn is_in(directory: &Path) -> std::io::Result<bool> {
        is_server(directory)
    }

    /// The cluster that its directory belongs to; none: the directory is new.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.directory.cluster()
    }

    /// Starts the server, as one of this coordinator's cluster. Two round trips.
    ///
    /// # Errors
    /// [`ServerError`]: the coordinator cannot be reached, or has no cluster, or another one than
    /// the directory; another server has the number that a new directory was to have. Nothing was
    /// begun.
    pub fn start(self, coordinator: SharedCoordinator) -> Result<RegionServer, ServerError> {
        let cluster = admin::cluster(&coordinator)?;
        let directory = self.directory.claim(&cluster, |server| {
            let registered = admin::read::<ServerRecord>(&coordinator, &server_key(server))?;
            Ok(registered.map(|seen| seen.record.address))
        })?;
        let listener = (self.listener, self.membership);
        RegionServer::serve((directory, listener), coordinator, &self.options)
    }
}

/// Has greetings say of which cluster this server is.
pub(crate) fn set(membership: &Membership, cluster: ClusterId) {
    if let Some(tag) = cluster.tag() {
        membership.set(tag);
    }
}

/// A region server at work. Dropping it closes everything, in order: what it has is on its disk.
#[derive(Debug)]
pub struct RegionServer {
    server: ServerId,
    cluster: ClusterId,
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    failure: Arc<Mutex<Option<ServerError>>>,
    contact: Arc<Contact>,
    /// It has had a lease.
    has_joined: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    front: Option<Server>,
    _directory: ServerDirectory,
}

impl RegionServer {
    /// Starts one. It serves when the master has given it something to serve.
    ///
    /// # Errors
    /// [`ServerError`]: the directory is another's, open, damaged; the coordinator cannot be
    /// reached, or has no cluster; the address cannot be listened at; another server has the
    /// number. Nothing was begun.
    pub fn start(
        coordinator: SharedCoordinator,
        options: &ServerOptions,
    ) -> Result<Self, ServerError> {
        PreparedServer::new(options)?.start(coordinator)
    }

    fn serve(
        (directory, (listener, membership)): (ServerDirectory, (Listener, Membership)),
        coordinator: SharedCoordinator,
        options: &ServerOptions,
    ) -> Result<Self, ServerError> {
        let address = listener.address();
        let cluster = directory.cluster;
        set(&membership, cluster);
        let seen = SeenFile::open(&directory.path, cluster)?;
        let bound = Bound::to(coordinator, cluster).having_seen(seen.last());
        let context = Context::new(
            bound.clone(),
            (cluster, directory.server),
            (address.ip(), options.secret.clone()),
            (directory.regions(), options.storage.clone()),
            ReplicaOptions {
                engine: options.engine.clone(),
                replication: options.replication,
                slot_count: options.slot_count,
                link_patience: options.link_patience,
                answer_time_max: options
                    .terms
                    .time_to_live
                    .clamp(ANSWER_TIME.0, ANSWER_TIME.1),
                memory_secret: options
                    .server_secret
                    .clone()
                    .or_else(|| options.secret.clone()),
                scrub_interval: options.scrub_interval,
                write_fault: options.write_fault.clone(),
                first_scrub_interval: options.first_scrub_interval,
            },
        );
        let context = Arc::new(context);
        let replicas = Arc::new(OpenReplicas::new(Arc::clone(&context)));
        let host = Host::new(context, Arc::clone(&replicas));
        let serves = options.serves_coordinator;
        let (watched, written) = (Arc::clone(&replicas), Arc::clone(&replicas));
        let front = Front {
            replicas,
            coordinator: serves.then(|| CoordinatorService::new(bound.inner().clone())),
        };
        let front = listener.serve(Arc::new(front))?;
        let mut server = Self {
            server: directory.server,
            cluster: directory.cluster,
            address,
            is_over: Arc::default(),
            failure: Arc::default(),
            contact: Arc::default(),
            has_joined: Arc::default(),
            threads: Vec::new(),
            front: Some(front),
            _directory: directory,
        };
        let patience = options.link_patience;
        server.spawn("watchdog", move |is_over| {
            watch(&watched, patience, is_over);
        })?;
        server.spawn("log ends", move |is_over| write_log_ends(&written, is_over))?;
        server.start_agent((bound.clone(), seen), options, (host, membership))?;
        if options.is_candidate {
            server.start_master(bound, options)?;
        }
        Ok(server)
    }

    fn start_agent(
        &mut self,
        (coordinator, seen): (Bound<SharedCoordinator>, SeenFile),
        options: &ServerOptions,
        (host, membership): (Host, Membership),
    ) -> Result<(), ServerError> {
        let address = match &options.advertised {
            Some(address) => address.clone(),
            None => self.address.to_string(),
        };
        let mut of = AgentOptions::new(self.cluster, self.server, &address);
        of.terms = options.terms;
        let (seen, writer) = seen.split();
        // It ends when the agent has noted the last.
        self.spawn("seen", move |_| writer.run())?;
        let thread = AgentThread {
            agent: Agent::new(coordinator, Arc::new(SystemClock), of, host),
            seen,
            directory: options.directory.clone(),
            server: self.server,
            membership,
            contact: Arc::clone(&self.contact),
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
        let contact = Arc::clone(&self.contact);
        self.spawn("master", move |is_over| {
            while !is_over.load(Ordering::Acquire) {
                let ticked = master.tick(TICK).map_err(ClusterError::from);
                let is_master = ticked.as_ref().is_ok_and(|tick| tick.is_master);
                contact.note("master", ticked.as_ref().map(drop), master.is_in_touch());
                if !is_master {
                    thread::sleep(TICK);
                }
            }
            if let Err(error) = master.resign() {
                tracing::warn!(%error, "the master's lease ends by itself");
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

    /// Which server it is.
    pub fn number(&self) -> ServerId {
        self.server
    }

    /// Of which cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it is, or was, one of the cluster's servers that are alive: it has had a lease, so
    /// the master counts it. One that was killed and starts again has to wait for the end of its
    /// earlier lease first, and any for a coordinator that is away.
    pub fn has_joined(&self) -> bool {
        self.has_joined.load(Ordering::Acquire)
    }

    /// Why it will never serve anything, once that is known: another server has its number. It is
    /// told once; whoever has started the server stops it then.
    pub fn take_failure(&self) -> Option<ServerError> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take()
    }

    /// Closes everything: its regions are others' at once, as it gives its lease back.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.is_over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the server has panicked");
            }
        }
        self.front = None;
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

    /// Promise: a server whose registration nobody would read is refused before it does anything.
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
