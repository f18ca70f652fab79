//! A primary's backup, from the primary's side: attaching it, filling it, putting its copy in
//! force.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farleaf_cluster::ids::ServerId;
use farleaf_fabric::Control as _;
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions, TcpEndpoint};
use farleaf_lsm::LsmError;
use farleaf_lsm::place::{LogNumber, LogPosition};
use farleaf_net::secret::{AgreementKey, AgreementSide};
use farleaf_replica::{BackupConnections, BackupId, LinkStatus, Primary, ReplicaError};

use super::handle::Replica;
use super::memory::layout;
use crate::attachment::{self, AttachmentKey};
use crate::context::{Context, PeerAddress};
use crate::damage::{SharedDamage, segment_of};
use crate::peer::{self, PeerReply, PeerRequest, ReplicaName};
use crate::served::{EngineFailure, ServedRegion};
use crate::sync::lock;

/// Sleep between two attempts.
const REST: Duration = Duration::from_millis(20);

/// Progress of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkStage {
    Filling,
    /// Writes wait for the backup, and its copy is in force.
    InSync,
    /// The backup cannot be reached, or rejects what it must accept.
    Failed(String),
}

struct LinkShared {
    stage: Mutex<LinkStage>,
    is_ended: AtomicBool,
    /// Client whose sessions live as long as it does.
    client: Mutex<Option<Arc<TcpClient>>>,
}

/// A backup of a primary, and the thread that fills it.
pub(super) struct Link {
    shared: Arc<LinkShared>,
    id: BackupId,
    server: ServerId,
    primary: Primary<TcpEndpoint>,
    damage: Arc<SharedDamage>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Begins to fill a backup, in a thread that ends by itself.
    pub(super) fn start(
        replica: &Arc<Replica>,
        context: &Arc<Context>,
        primary: &Primary<TcpEndpoint>,
        server: ServerId,
        name: ReplicaName,
        is_needed: bool,
        reach: Option<LogPosition>,
    ) -> Self {
        let shared = Arc::new(LinkShared {
            stage: Mutex::new(LinkStage::Filling),
            is_ended: AtomicBool::new(false),
            client: Mutex::default(),
        });
        let id = BackupId(name.replica.0);
        let work = FillWork {
            replica: Arc::clone(replica),
            is_needed,
            reach,
            shared: Arc::clone(&shared),
            context: Arc::clone(context),
            primary: primary.clone(),
            id,
            server,
            name,
            keeps_copy: Cell::new(false),
        };
        let damage = Arc::clone(replica.damage());
        let replica = Arc::clone(replica);
        let thread = thread::Builder::new().name(format!("fill-{}", name.region.0));
        let spawned = thread.spawn(move || {
            work.run();
            replica.wake();
        });
        let thread = match spawned {
            Ok(thread) => Some(thread),
            Err(error) => {
                shared.set(LinkStage::Failed(format!("cannot start a thread: {error}")));
                None
            }
        };
        Self {
            shared,
            id,
            server,
            primary: primary.clone(),
            damage,
            thread,
        }
    }

    /// Returns the backup's server.
    pub(super) const fn server(&self) -> ServerId {
        self.server
    }

    /// Returns the progress of the backup, using the primary's status of its backups.
    pub(super) fn stage(&self, backups: &[LinkStatus]) -> LinkStage {
        let stage = lock(&self.shared.stage).clone();
        if stage != LinkStage::InSync {
            return stage;
        }
        let own = backups.iter().find(|it| it.backup == self.id);
        match own.and_then(|it| it.lost.clone()) {
            Some(how) => LinkStage::Failed(how),
            None => LinkStage::InSync,
        }
    }

    /// Ends the link: writes no longer wait for the backup. The record does not name it any more
    /// (REPLICATION-6), or the primary has ended. The link's thread may wait for another server; it
    /// ends afterwards, and leaves nothing.
    pub(super) fn end(self) -> Option<JoinHandle<()>> {
        self.shared.is_ended.store(true, Ordering::Release);
        // A backup that was not filled yet is unknown to the primary.
        let _ = self.primary.remove_backup(self.id);
        self.damage.forget(self.id);
        if let Some(client) = lock(&self.shared.client).take() {
            client.hang_up();
        }
        self.thread
    }
}

impl LinkShared {
    fn set(&self, stage: LinkStage) {
        *lock(&self.stage) = stage;
    }

    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }
}

/// First and longest sleep before the primary's own disk is checked again; each attempt doubles it.
const DAMAGED_REST: (Duration, Duration) = (Duration::from_secs(3), Duration::from_mins(5));

/// State of the filling thread.
struct FillWork {
    replica: Arc<Replica>,
    /// Whether the record lists the backup as in sync.
    is_needed: bool,
    /// End of the log of the primary's copy, if that copy may lack what others have (CONTROL-18).
    reach: Option<LogPosition>,
    shared: Arc<LinkShared>,
    context: Arc<Context>,
    primary: Primary<TcpEndpoint>,
    id: BackupId,
    server: ServerId,
    name: ReplicaName,
    /// Whether the primary's log is damaged, so that the backup's present copy is kept.
    keeps_copy: Cell<bool>,
}

/// Result of an attempt.
enum FillOutcome {
    Done,
    /// The other server has not received the order yet.
    NotYet(String),
    Failed(String),
    /// The primary cannot read its own data.
    OwnFailed(EngineFailure),
    /// The primary's disk is full, and the log cannot be ended where the copy is to begin.
    OwnFull(LsmError),
}

fn not_wanted() -> FillOutcome {
    FillOutcome::Failed("the backup is no longer needed".to_owned())
}

impl FillWork {
    fn run(&self) {
        let since = Instant::now();
        let mut damaged_rest = DAMAGED_REST.0;
        while !self.shared.is_ended() {
            let how = match self.attach() {
                FillOutcome::Done => return self.shared.set(LinkStage::InSync),
                FillOutcome::NotYet(how) | FillOutcome::Failed(how) => how,
                FillOutcome::OwnFailed(how) => {
                    self.note_own(damaged_rest, |served| {
                        served.note_failure(how);
                    });
                    if !self.is_needed {
                        damaged_rest = (damaged_rest * 2).min(DAMAGED_REST.1);
                    }
                    continue;
                }
                FillOutcome::OwnFull(error) => {
                    self.note_own(DAMAGED_REST.0, |served| {
                        served.note_engine(&error);
                    });
                    continue;
                }
            };
            tracing::debug!("{} of {} is not in sync: {how}", self.id, self.name.region);
            if since.elapsed() > self.context.options.link_patience {
                tracing::warn!("{} of {} failed: {how}", self.id, self.name.region);
                return self.shared.set(LinkStage::Failed(how));
            }
            thread::sleep(REST);
        }
    }

    /// Checks the primary's log before it is copied; trees are checked as they are read. Damage is
    /// not copied while another replica has everything. A backup that the record lists as in sync
    /// keeps its copy, unless it reports the same damage itself. Otherwise a copy with all readable
    /// data is better than none.
    fn check_own(&self, theirs: &BTreeSet<LogNumber>) -> Result<BTreeSet<LogNumber>, FillOutcome> {
        let engine = self.primary.engine();
        let damage = engine.log_corruption().map_err(|error| self.own(&error))?;
        let shared = self.replica.damage();
        let is_there = |error: &&LsmError| {
            if self.is_needed {
                segment_of(error).is_some_and(|it| theirs.contains(&it))
            } else {
                shared.has(error)
            }
        };
        if let Some(error) = damage.iter().find(|error| !is_there(error)) {
            if self.is_needed || self.replica.status().has_other {
                return Err(self.own(error));
            }
            tracing::error!(
                "{} of {} is copied from a corrupted log because no other copy is known: {}",
                self.id,
                self.name.region,
                self.failure_of(error).how
            );
            if !self.keeps_copy.replace(true) {
                let how = "the existing copy is kept because the primary's log is corrupted";
                return Err(FillOutcome::NotYet(how.to_owned()));
            }
        }
        if !damage.is_empty() {
            // Opening this copy, or a backup's, reads unflushed records, and fails if they are
            // damaged. A flush reads no record, so it avoids that.
            engine.freeze();
        }
        // No reason to give up any more: a replica with the same damage would not help.
        let segments = damage.iter().filter_map(segment_of).collect();
        shared.note(self.id, &segments);
        Ok(segments)
    }

    fn own(&self, error: &LsmError) -> FillOutcome {
        FillOutcome::OwnFailed(self.failure_of(error))
    }

    fn failure_of(&self, error: &LsmError) -> EngineFailure {
        let served = self.replica.served();
        served.map_or_else(
            || error.to_string().into(),
            |served| served.failure_of(error),
        )
    }

    /// Compares the ends of logs of copies that were found after an outage: the one with the
    /// longest log is to be primary (CONTROL-18). Each may have lost its end, also by damage,
    /// without noticing.
    fn compare(&self, reach: Option<u64>) -> Result<(), FillOutcome> {
        let own = self.reach.filter(|_| self.is_needed);
        let (Some(own), Some(other)) = (own, reach.map(LogPosition)) else {
            return Ok(());
        };
        if other <= own {
            return Ok(());
        }
        let how = format!(
            "its log ends at {own}, but the log of the copy on {} ends at {other}; that copy \
             takes over",
            self.server
        );
        Err(FillOutcome::OwnFailed(how.into()))
    }

    /// Notes a failure of the primary, not of the backup, which may have an intact copy.
    fn note_own(&self, rest: Duration, note: impl FnOnce(&ServedRegion)) {
        let served = self.replica.served();
        if let Some(served) = served.filter(|it| it.epoch() == self.name.epoch) {
            note(&served);
            self.replica.wake();
        }
        let since = Instant::now();
        while !self.shared.is_ended() && since.elapsed() < rest {
            thread::sleep(REST);
        }
    }

    fn attach(&self) -> FillOutcome {
        let own = match attachment::draw() {
            Ok(own) => own,
            Err(how) => return FillOutcome::Failed(how),
        };
        let request = PeerRequest::Attach {
            of: self.name,
            key: AttachmentKey(own.public()),
            keeps_copy: self.keeps_copy.get(),
        };
        let reply = peer::ask(&self.context, self.server, &request);
        let (attachment, client, slot_count, theirs) = match reply {
            Err(how) | Ok((PeerReply::Refused(how), _)) => return FillOutcome::Failed(how),
            Ok((PeerReply::NotYet(how), _)) => {
                // Another server may have the address by now, and will never have the replica.
                self.context.forget_address(self.server);
                return FillOutcome::NotYet(how);
            }
            Ok((
                PeerReply::Attached {
                    attachment,
                    port,
                    key,
                    slot_count,
                    reach,
                    damaged,
                },
                address,
            )) => {
                if let Err(tried) = self.compare(reach) {
                    return tried;
                }
                let address = PeerAddress {
                    socket: SocketAddr::new(address.socket.ip(), port),
                    host: address.host,
                };
                match self.connect(&address, own, key, attachment) {
                    Ok(client) => {
                        let theirs = damaged.into_iter().map(LogNumber).collect();
                        (attachment, client, slot_count, theirs)
                    }
                    Err(how) => return FillOutcome::Failed(how),
                }
            }
            Ok((other, _)) => {
                return FillOutcome::Failed(format!("invalid reply from {}: {other}", self.server));
            }
        };
        let filled = self.fill(&client, slot_count, &theirs).and_then(|damage| {
            if self.shared.is_ended() {
                return Err(not_wanted());
            }
            let commit = PeerRequest::Commit {
                of: self.name,
                attachment,
                damaged: damage.iter().map(|it| it.0).collect(),
            };
            match peer::ask(&self.context, self.server, &commit).map_err(FillOutcome::Failed)? {
                (PeerReply::Committed, _) => Ok(()),
                (other, _) => Err(FillOutcome::Failed(format!(
                    "cannot commit the copy: {other}"
                ))),
            }
        });
        match filled {
            Ok(()) if !self.shared.is_ended() => FillOutcome::Done,
            Ok(()) => {
                let _ = self.primary.remove_backup(self.id);
                not_wanted()
            }
            Err(tried) => {
                let _ = self.primary.remove_backup(self.id);
                *lock(&self.shared.client) = None;
                tried
            }
        }
    }

    /// Connects to the backup's memory, with the secret that both sides have agreed on.
    fn connect(
        &self,
        address: &PeerAddress,
        own: AgreementKey,
        theirs: AttachmentKey,
        attachment: u64,
    ) -> Result<Arc<TcpClient>, String> {
        let options = &self.context.options;
        let known = options.memory_secret();
        let side = AgreementSide::Asking;
        let secret = attachment::secret(own, side, theirs, known, self.name, attachment)?;
        let options = TcpConnectOptions {
            secret: Some(secret),
            tls: self.context.tls_for(&address.host),
            answer_time_max: options.answer_time_max(),
            ..TcpConnectOptions::default()
        };
        let client = TcpClient::connect(&address.socket.to_string(), &options);
        let failed = |error| format!("{error} (all servers must have the same secrets)");
        Ok(Arc::new(client.map_err(failed)?))
    }

    /// Fills the backup. Returns the damaged segments of its copy.
    fn fill(
        &self,
        client: &Arc<TcpClient>,
        slot_count: u64,
        theirs: &BTreeSet<LogNumber>,
    ) -> Result<BTreeSet<LogNumber>, FillOutcome> {
        *lock(&self.shared.client) = Some(Arc::clone(client));
        if self.shared.is_ended() {
            return Err(not_wanted());
        }
        let layout = layout(slot_count);
        let layout = layout.ok_or_else(|| format!("invalid buffer count {slot_count}"));
        let connections = BackupConnections {
            log: session(client).map_err(FillOutcome::Failed)?,
            index: session(client).map_err(FillOutcome::Failed)?,
            layout: layout.map_err(FillOutcome::Failed)?,
        };
        let damage = self.check_own(theirs)?;
        let filled = self.primary.add_backup(self.id, connections);
        filled.map(|()| damage).map_err(|error| match error {
            ReplicaError::Engine(error) if error.is_out_of_space() => FillOutcome::OwnFull(error),
            ReplicaError::Engine(error) => self.own(&error),
            error => {
                if let ReplicaError::Mismatch { found, .. } = &error {
                    let (name, mismatches) = (&self.name, self.replica.mismatches());
                    mismatches.note(name.region, name.replica, self.server, found);
                }
                FillOutcome::Failed(error.to_string())
            }
        })
    }
}

fn session(client: &TcpClient) -> Result<TcpEndpoint, String> {
    let owner = client.register_session();
    let owner = owner.map_err(|error| error.to_string())?;
    let endpoint = client.endpoint(Some(owner));
    endpoint.map_err(|error| error.to_string())
}
