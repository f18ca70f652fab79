//! A backup of a primary, from its side: attached, filled, put in force (RS5).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farleaf_cluster::ids::ServerId;
use farleaf_fabric::Control as _;
use farleaf_fabric::tcp::{AgreementKey, AgreementSide, TcpClient, TcpConnectOptions, TcpEndpoint};
use farleaf_lsm::LsmError;
use farleaf_lsm::place::{LogNumber, LogPosition};
use farleaf_replica::{BackupId, BackupWays, LinkStatus, Primary, ReplicaError};

use super::memory::layout;
use super::{Replica, SharedDamage, segment_of};
use crate::attachment::{self, AttachmentKey};
use crate::context::Context;
use crate::peer::{self, PeerReply, PeerRequest, ReplicaName};
use crate::served::{Failure, Served};

/// Between two tries.
const REST: Duration = Duration::from_millis(20);

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Filling,
    /// Writes wait for it, and its copy is in force.
    InSync,
    /// It cannot be reached, or does not take what it must.
    Failed(String),
}

struct Shared {
    stage: Mutex<Stage>,
    is_ended: AtomicBool,
    /// As long as it is there, the sessions are.
    client: Mutex<Option<Arc<TcpClient>>>,
}

/// A backup of a primary, and the thread that fills it.
pub(super) struct Link {
    shared: Arc<Shared>,
    id: BackupId,
    server: ServerId,
    primary: Primary<TcpEndpoint>,
    damage: Arc<SharedDamage>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Begins to fill a backup, in a thread that ends by itself.
    pub(super) fn start(
        (replica, context): (&Arc<Replica>, &Arc<Context>),
        primary: &Primary<TcpEndpoint>,
        (server, name): (ServerId, ReplicaName),
        (is_needed, reach): (bool, Option<LogPosition>),
    ) -> Self {
        let shared = Arc::new(Shared {
            stage: Mutex::new(Stage::Filling),
            is_ended: AtomicBool::new(false),
            client: Mutex::default(),
        });
        let id = BackupId(name.replica.0);
        let work = Work {
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
            replica.nudge();
        });
        let thread = match spawned {
            Ok(thread) => Some(thread),
            Err(error) => {
                shared.set(Stage::Failed(format!("no thread to fill it: {error}")));
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

    /// Where the backup is.
    pub(super) const fn server(&self) -> ServerId {
        self.server
    }

    /// How far it is, with what the primary knows of its backups.
    pub(super) fn stage(&self, backups: &[LinkStatus]) -> Stage {
        let stage = self.shared.stage().clone();
        if stage != Stage::InSync {
            return stage;
        }
        let own = backups.iter().find(|it| it.backup == self.id);
        match own.and_then(|it| it.lost.clone()) {
            Some(how) => Stage::Failed(how),
            None => Stage::InSync,
        }
    }

    /// Ends it: writes wait for it no more. The record does not name it any more (RP6), or the
    /// primary has ended. Its thread may wait for another server: it sees that it has ended, and
    /// leaves nothing.
    pub(super) fn end(self) -> Option<JoinHandle<()>> {
        self.shared.is_ended.store(true, Ordering::Release);
        // It is none of the primary's if it was not filled yet.
        let _ = self.primary.remove_backup(self.id);
        self.damage.forget(self.id);
        if let Some(client) = self.shared.client().take() {
            client.hang_up();
        }
        self.thread
    }
}

impl Shared {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stage: Stage) {
        *self.stage() = stage;
    }

    fn client(&self) -> MutexGuard<'_, Option<Arc<TcpClient>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }
}

/// Before this side's own disk is looked at again: at first, and at the most, as each time doubles
/// it.
const DAMAGED_REST: (Duration, Duration) = (Duration::from_secs(3), Duration::from_mins(5));

/// What the thread does.
struct Work {
    replica: Arc<Replica>,
    /// The record says that the backup has everything.
    is_needed: bool,
    /// CP18: how far the log of the primary's copy went, if it may have lost what others have.
    reach: Option<LogPosition>,
    shared: Arc<Shared>,
    context: Arc<Context>,
    primary: Primary<TcpEndpoint>,
    id: BackupId,
    server: ServerId,
    name: ReplicaName,
    /// RS8: this side's log is damaged, so the copy that the backup has is kept.
    keeps_copy: Cell<bool>,
}

/// What came of a try.
enum Tried {
    Done,
    /// The other server does not know of the order yet.
    NotYet(String),
    Failed(String),
    /// This side cannot read what it has.
    OwnFailed(Failure),
    /// RS10: this side's disk is full, and the log cannot be ended where the copy is to begin.
    OwnFull(LsmError),
}

fn not_wanted() -> Tried {
    Tried::Failed("it is not wanted any more".to_owned())
}

impl Work {
    fn run(&self) {
        let since = Instant::now();
        let mut damaged_rest = DAMAGED_REST.0;
        while !self.shared.is_ended() {
            let how = match self.attach() {
                Tried::Done => return self.shared.set(Stage::InSync),
                Tried::NotYet(how) | Tried::Failed(how) => how,
                Tried::OwnFailed(how) => {
                    self.note_own(damaged_rest, |served| {
                        served.note_failure(how);
                    });
                    if !self.is_needed {
                        damaged_rest = (damaged_rest * 2).min(DAMAGED_REST.1);
                    }
                    continue;
                }
                Tried::OwnFull(error) => {
                    self.note_own(DAMAGED_REST.0, |served| {
                        served.note_engine(&error);
                    });
                    continue;
                }
            };
            tracing::debug!("{} of {} is not filled: {how}", self.id, self.name.region);
            if since.elapsed() > self.context.options.link_patience {
                tracing::warn!("{} of {} has failed: {how}", self.id, self.name.region);
                return self.shared.set(Stage::Failed(how));
            }
            thread::sleep(REST);
        }
    }

    /// RS8: trees are checked as they are read; this looks at the log, before it is copied. No copy
    /// is made of damage while another replica has everything; and where the record says that this
    /// backup has, it keeps what it has, unless it says itself that the same is damaged there. Else
    /// a copy with what can be read is better than none.
    fn check_own(&self, theirs: &BTreeSet<LogNumber>) -> Result<BTreeSet<LogNumber>, Tried> {
        let engine = self.primary.engine();
        let damage = engine.damage_of_log().map_err(|error| self.own(&error))?;
        let shared = self.replica.damage();
        let is_there = |error: &&LsmError| {
            if self.is_needed {
                segment_of(error).is_some_and(|it| theirs.contains(&it))
            } else {
                shared.has(error)
            }
        };
        if let Some(error) = damage.iter().find(|error| !is_there(error)) {
            if self.is_needed || self.replica.shown().has_other {
                return Err(self.own(error));
            }
            tracing::error!(
                "{} of {} is filled from a log that is damaged, as no other copy is known: {}",
                self.id,
                self.name.region,
                self.failure_of(error).how
            );
            if !self.keeps_copy.replace(true) {
                let how = "the copy that it has is kept, as the primary's log is damaged";
                return Err(Tried::NotYet(how.to_owned()));
            }
        }
        if !damage.is_empty() {
            // Who opens this copy, or a backup's, reads what was not flushed: nothing of it is
            // served then where it is damaged (VL6). No record is read to flush it.
            engine.freeze();
        }
        // No reason to give up any more: to hand over to the same damage helps nobody.
        let segments = damage.iter().filter_map(segment_of).collect();
        shared.note(self.id, &segments);
        Ok(segments)
    }

    fn own(&self, error: &LsmError) -> Tried {
        Tried::OwnFailed(self.failure_of(error))
    }

    fn failure_of(&self, error: &LsmError) -> Failure {
        let served = self.replica.served();
        served.map_or_else(
            || error.to_string().into(),
            |served| served.failure_of(error),
        )
    }

    /// CP18: of copies that were found after an outage the one whose log goes on furthest is to be
    /// primary; each may have lost what came last, by damage too, and does not see that by itself.
    fn compare(&self, reach: Option<u64>) -> Result<(), Tried> {
        let own = self.reach.filter(|_| self.is_needed);
        let (Some(own), Some(other)) = (own, reach.map(LogPosition)) else {
            return Ok(());
        };
        if other <= own {
            return Ok(());
        }
        let how = format!(
            "its log goes on to {own}, and that of the copy on {} to {other}: that one goes on",
            self.server
        );
        Err(Tried::OwnFailed(how.into()))
    }

    /// RS8: that is the primary's failure, and none of the backup's, which may have a whole copy.
    fn note_own(&self, rest: Duration, note: impl FnOnce(&Served)) {
        let served = self.replica.served();
        if let Some(served) = served.filter(|it| it.epoch() == self.name.epoch) {
            note(&served);
            self.replica.nudge();
        }
        let since = Instant::now();
        while !self.shared.is_ended() && since.elapsed() < rest {
            thread::sleep(REST);
        }
    }

    fn attach(&self) -> Tried {
        let own = match attachment::draw() {
            Ok(own) => own,
            Err(how) => return Tried::Failed(how),
        };
        let request = PeerRequest::Attach {
            of: self.name,
            key: AttachmentKey(own.public()),
            keeps_copy: self.keeps_copy.get(),
        };
        let asked = peer::ask(&self.context, self.server, &request);
        let (attachment, client, slot_count, theirs) = match asked {
            Err(how) | Ok((PeerReply::Refused(how), _)) => return Tried::Failed(how),
            Ok((PeerReply::NotYet(how), _)) => {
                // Perhaps another server listens there by now, which never will have it.
                self.context.forget_address(self.server);
                return Tried::NotYet(how);
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
                let address = SocketAddr::new(address.ip(), port);
                match self.connect(address, own, (key, attachment)) {
                    Ok(client) => {
                        let theirs = damaged.into_iter().map(LogNumber).collect();
                        (attachment, client, slot_count, theirs)
                    }
                    Err(how) => return Tried::Failed(how),
                }
            }
            Ok((other, _)) => {
                return Tried::Failed(format!("it has answered something else: {other}"));
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
            match peer::ask(&self.context, self.server, &commit).map_err(Tried::Failed)? {
                (PeerReply::Committed, _) => Ok(()),
                (other, _) => Err(Tried::Failed(format!("its copy is not in force: {other}"))),
            }
        });
        match filled {
            Ok(()) if !self.shared.is_ended() => Tried::Done,
            Ok(()) => {
                let _ = self.primary.remove_backup(self.id);
                not_wanted()
            }
            Err(tried) => {
                let _ = self.primary.remove_backup(self.id);
                *self.shared.client() = None;
                tried
            }
        }
    }

    /// Connects to the backup's memory, with the secret that both sides have agreed on.
    fn connect(
        &self,
        address: SocketAddr,
        own: AgreementKey,
        (theirs, attachment): (AttachmentKey, u64),
    ) -> Result<Arc<TcpClient>, String> {
        let options = &self.context.options;
        let known = options.memory_secret.as_ref();
        let side = (AgreementSide::Asking, theirs);
        let secret = attachment::secret(own, side, known, (self.name, attachment))?;
        let options = TcpConnectOptions {
            secret: Some(secret),
            answer_time_max: options.answer_time_max,
            ..TcpConnectOptions::default()
        };
        let client = TcpClient::connect(&address.to_string(), &options);
        let failed = |error| format!("{error} (all servers need the same secrets)");
        Ok(Arc::new(client.map_err(failed)?))
    }

    /// What is damaged in it.
    fn fill(
        &self,
        client: &Arc<TcpClient>,
        slot_count: u64,
        theirs: &BTreeSet<LogNumber>,
    ) -> Result<BTreeSet<LogNumber>, Tried> {
        *self.shared.client() = Some(Arc::clone(client));
        if self.shared.is_ended() {
            return Err(not_wanted());
        }
        let layout = layout(slot_count);
        let layout = layout.ok_or_else(|| format!("it says that it has {slot_count} buffers"));
        let ways = BackupWays {
            log: session(client).map_err(Tried::Failed)?,
            index: session(client).map_err(Tried::Failed)?,
            layout: layout.map_err(Tried::Failed)?,
        };
        let damage = self.check_own(theirs)?;
        let filled = self.primary.add_backup(self.id, ways);
        filled.map(|()| damage).map_err(|error| match error {
            ReplicaError::Engine(error) if error.is_no_room() => Tried::OwnFull(error),
            ReplicaError::Engine(error) => self.own(&error),
            error => {
                if let ReplicaError::Mismatch { found, .. } = &error {
                    let of = (self.name.replica, self.server);
                    self.replica.mismatches().note(self.name.region, of, found);
                }
                Tried::Failed(error.to_string())
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
