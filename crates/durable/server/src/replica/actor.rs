//! The thread of a replica: carries out orders, answers other servers, and does background work.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::{Closing, RegionOrder, ReplicaFailure, Source};
use farleaf_cluster::ids::ServerId;
use farleaf_lsm::Engine;
use farleaf_lsm::place::LogNumber;

use super::backup::{BackupReplica, OpenedCopy, open_copy};
use super::handle::{PREPARING, Replica};
use super::order::{Ending, OrderSlot, PeerCall, Role, Wanted};
use super::primary::PrimaryReplica;
use super::verification::BUSY_INTERVAL_COUNT;
use crate::context::Context;
use crate::error::ServerError;
use crate::peer::{PeerReply, PeerRequest};
use crate::place::{ReplicaNote, ReplicaStore};
use crate::sync::lock;

/// Sleeps when there is nothing to do: the next one applies when the replica has been idle for the
/// corresponding time in `BUSY_TIME`.
const REST: [Duration; 3] = [
    Duration::from_micros(200),
    Duration::from_millis(5),
    Duration::from_millis(25),
];
const BUSY_TIME: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// Interval at which it updates its status while it works.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(20);

/// Time after which an opening that found the disk full is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which a primary on a full disk keeps its data when another replica is to take over.
const KEEP_DATA_TIME: Duration = Duration::from_secs(1);
/// Interval at which such a primary checks for space.
const KEEP_DATA_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Result of an order to be primary.
#[derive(PartialEq, Eq)]
enum PromotionOutcome {
    Primary,
    /// The disk is full; the order is retried.
    Waits,
}

/// The replica's open engine or backup.
enum ActorState {
    Nothing,
    Primary(Box<PrimaryReplica>),
    Backup(Box<BackupReplica>),
    /// The replica does nothing any more, and waits to be closed.
    Failed,
}

pub(super) struct Actor {
    replica: Arc<Replica>,
    context: Arc<Context>,
    place: ReplicaStore,
    state: ActorState,
    /// Server of the primary, if this is a backup.
    primary: Option<ServerId>,
    /// Order that could not be carried out because the disk is full, and the time of the retry.
    again: Option<(Wanted, Instant)>,
    /// Time since which it is to be a backup, but keeps its data as primary because the disk is
    /// full.
    keeps_data_since: Option<Instant>,
}

impl Actor {
    pub(super) fn new(replica: Arc<Replica>) -> Self {
        let context = Arc::clone(&replica.context);
        let place = context.replica_store(replica.region, replica.number);
        let place = place.of_table(replica.incarnation);
        Self {
            replica,
            context,
            place,
            state: ActorState::Nothing,
            primary: None,
            again: None,
            keeps_data_since: None,
        }
    }

    pub(super) fn run(mut self, begins_at: Instant) {
        self.wait_until(begins_at);
        let mut worked_at = Instant::now();
        let mut scrubbed_at = worked_at;
        let mut published_at = None;
        loop {
            let OrderSlot {
                wanted,
                ending,
                peer_calls,
                is_woken,
            } = std::mem::take(&mut *lock(&self.replica.order_slot));
            if let Some(ending) = ending {
                return self.end(ending);
            }
            let has_orders = wanted.is_some() || is_woken || !peer_calls.is_empty();
            if let Some(wanted) = wanted.or_else(|| self.due_retry()) {
                let followed = self.follow(wanted);
                self.note(followed);
            }
            for peer_call in peer_calls {
                self.answer(&peer_call);
            }
            let worked = self.work();
            let is_busy = worked.as_ref().copied().unwrap_or(false) || has_orders;
            self.note(worked.map(drop));
            let now = Instant::now();
            if self.scrub_is_due(is_busy, now - scrubbed_at) {
                let scrubbed = self.scrub();
                self.note(scrubbed);
                scrubbed_at = now;
            }
            if has_orders || published_at.is_none_or(|at| now - at >= PUBLISH_INTERVAL) {
                self.publish_status();
                published_at = Some(now);
            }
            if is_busy {
                worked_at = now;
            } else {
                let idle_time = now - worked_at;
                let passed = BUSY_TIME.iter().filter(|it| idle_time >= **it);
                self.rest(REST[passed.count()]);
            }
        }
    }

    /// Returns the order that is to be retried now.
    fn due_retry(&mut self) -> Option<Wanted> {
        let due = self.again.take_if(|(_, at)| *at <= Instant::now());
        due.map(|(wanted, _)| wanted)
    }

    /// Waits until a time or the replica's end.
    fn wait_until(&self, time: Instant) {
        let mut order_slot = lock(&self.replica.order_slot);
        while order_slot.ending.is_none() {
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.replica.changed.wait_timeout(order_slot, left);
            order_slot = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn rest(&self, rest: Duration) {
        let order_slot = lock(&self.replica.order_slot);
        let is_idle = order_slot.wanted.is_none()
            && order_slot.ending.is_none()
            && order_slot.peer_calls.is_empty()
            && !order_slot.is_woken;
        if is_idle {
            // A missed wake-up costs only one sleep.
            drop(self.replica.changed.wait_timeout(order_slot, rest));
        }
    }

    /// Notes a failure, which is the end of the replica under this number (CONTROL-16).
    fn note(&mut self, done: Result<(), ReplicaFailure>) {
        let Err(failure) = done else {
            return;
        };
        let region = self.replica.region;
        tracing::error!(
            "{region} failed on {}: {}",
            self.context.server,
            failure.how
        );
        self.replica.set_served(None);
        let state = std::mem::replace(&mut self.state, ActorState::Failed);
        // Keeps as much of its data as possible.
        if let Err(error) = self.close_state(state) {
            tracing::warn!(
                "cannot write the latest data of {region} to disk: {}",
                error.how
            );
        }
        let mut status = lock(&self.replica.status);
        status.failure.get_or_insert(failure);
        status.waits_for_space = false;
        status.primary = None;
    }

    fn work(&mut self) -> Result<bool, ReplicaFailure> {
        match &mut self.state {
            ActorState::Primary(primary) => Ok(primary.maintain()),
            // It has no primary any more, and its disk is full.
            ActorState::Backup(_) if self.again.is_some() => Ok(false),
            ActorState::Backup(backup) => backup.serve(),
            ActorState::Nothing | ActorState::Failed => Ok(false),
        }
    }

    /// Returns whether a part of the disk is to be read, at a time `since` the last one.
    fn scrub_is_due(&self, is_busy: bool, since: Duration) -> bool {
        let options = &self.context.options;
        let interval = options.scrub_interval;
        if let ActorState::Primary(primary) = &self.state
            && primary.verifies_first()
        {
            // In this order: the second check takes the server's turn.
            return since >= options.first_scrub_interval && self.context.may_verify();
        }
        let busy_interval = interval.saturating_mul(BUSY_INTERVAL_COUNT);
        since >= if is_busy { busy_interval } else { interval }
    }

    /// Reads the next part of the disk to find corruption.
    fn scrub(&mut self) -> Result<(), ReplicaFailure> {
        match &mut self.state {
            ActorState::Primary(primary) => {
                if let Err(error) = primary.scrub() {
                    primary.served().note(&error);
                }
                Ok(())
            }
            ActorState::Backup(backup) => backup.scrub(self.replica.damage()),
            ActorState::Nothing | ActorState::Failed => Ok(()),
        }
    }

    fn publish_status(&mut self) {
        let stage = self.replica.stage();
        let mut filling_count = 0;
        let mut has_other = false;
        let verification;
        let (report, size_bytes, position_bytes) = match &mut self.state {
            ActorState::Primary(primary) => {
                verification = primary.verification();
                if stage == PREPARING {
                    primary.prune();
                }
                let report;
                (report, filling_count) = primary.report(&self.replica);
                has_other = primary.has_other(&report);
                let engine = primary.served().primary.engine();
                let segments = engine.log().segments();
                let damage = self.replica.damage();
                damage.note_collected(|number| segments.has(number));
                (Some(report), primary.size_bytes(), primary.position_bytes())
            }
            ActorState::Backup(backup) => {
                verification = backup.verification();
                let damage = self.replica.damage();
                damage.note_collected(|number| backup.has_log_segment(number));
                (None, 0, backup.position_bytes())
            }
            ActorState::Nothing | ActorState::Failed => return,
        };
        let mut status = lock(&self.replica.status);
        status.primary = report;
        status.verification = Some(verification);
        status.has_other = has_other;
        status.filling_count = filling_count;
        status.is_frozen = stage != PREPARING;
        status.position_bytes = position_bytes;
        if size_bytes > 0 {
            status.size_bytes = size_bytes;
        }
    }

    /// Carries out an order.
    fn follow(&mut self, wanted: Wanted) -> Result<(), ReplicaFailure> {
        self.again = None;
        if matches!(self.state, ActorState::Failed) {
            return Ok(());
        }
        let before = wanted.clone();
        let Wanted { order, role } = wanted;
        match role {
            Role::Primary { backups, source } => {
                self.keeps_data_since = None;
                let has_other = backups.iter().any(|it| it.in_sync && !it.is_lost);
                if self.become_primary(&order, source, has_other)? == PromotionOutcome::Waits {
                    self.again = Some((before, Instant::now() + RETRY_INTERVAL));
                    return Ok(());
                }
                let ActorState::Primary(primary) = &mut self.state else {
                    unreachable!("the replica has become primary");
                };
                if has_other {
                    // Before its links, and those of the other replica, check it.
                    lock(&self.replica.status).has_other = true;
                }
                primary.set_backups(&self.replica, &self.context, &backups);
            }
            Role::Backup { primary, source } => {
                if self.keeps_data() {
                    self.again = Some((before, Instant::now() + KEEP_DATA_POLL_INTERVAL));
                    return Ok(());
                }
                self.become_backup(&order, source)?;
                self.primary = Some(primary);
            }
        }
        let mut status = lock(&self.replica.status);
        status.epoch = Some(order.epoch);
        if std::mem::take(&mut status.waits_for_space) {
            let region = self.replica.region;
            tracing::info!("the disk has free space again; {region} continues");
        }
        Ok(())
    }

    /// Becomes primary. If the disk is full and no other replica could take its place, it waits.
    fn become_primary(
        &mut self,
        order: &RegionOrder,
        source: Source,
        has_other: bool,
    ) -> Result<PromotionOutcome, ReplicaFailure> {
        let opened = match std::mem::replace(&mut self.state, ActorState::Nothing) {
            ActorState::Primary(mut primary) => {
                let is_later = primary.served().epoch() < order.epoch;
                let raised = if is_later {
                    primary.raise(&self.replica, order)
                } else {
                    Ok(())
                };
                if is_later && raised.is_ok() {
                    self.replica.set_served(Some(Arc::clone(primary.served())));
                }
                self.state = ActorState::Primary(primary);
                return match raised {
                    Ok(()) => Ok(PromotionOutcome::Primary),
                    Err(error) if error.is_out_of_space() => Ok(self.waits(&error)),
                    Err(error) => Err(error.into()),
                };
            }
            ActorState::Backup(mut backup) => {
                let options = self.context.options.engine.clone();
                match backup.promote(order, options) {
                    Ok(promoted) => promoted,
                    Err(error) if error.is_out_of_space() && !has_other => {
                        self.state = ActorState::Backup(backup);
                        return Ok(self.waits(&error));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            ActorState::Nothing => match self.open_engine(order, source) {
                Ok(opened) => opened,
                // The copy remains on the disk. Another replica that has everything may have space.
                Err(error) if error.is_out_of_space() && !has_other => {
                    return Ok(self.waits(&error));
                }
                Err(error) => return Err(error.into()),
            },
            ActorState::Failed => return Err("the replica has already failed".to_owned().into()),
        };
        let primary = PrimaryReplica::new(
            self.place.clone(),
            opened,
            &self.replica,
            &self.context,
            order,
        );
        self.replica.set_served(Some(Arc::clone(primary.served())));
        self.state = ActorState::Primary(Box::new(primary));
        Ok(PromotionOutcome::Primary)
    }

    /// Keeps a primary's data for a while if it is to be a backup and cannot write them to its full
    /// disk. Its successor may break, and then this replica is the next primary.
    fn keeps_data(&mut self) -> bool {
        let ActorState::Primary(primary) = &self.state else {
            return false;
        };
        if !primary.lacks_space() {
            return false;
        }
        let since = self.keeps_data_since.get_or_insert_with(Instant::now);
        since.elapsed() < KEEP_DATA_TIME
    }

    /// Notes that an order waits for free space.
    fn waits(&self, error: &ServerError) -> PromotionOutcome {
        let (region, server) = (self.replica.region, self.context.server);
        let was_reported = std::mem::replace(&mut lock(&self.replica.status).waits_for_space, true);
        if !was_reported {
            tracing::error!(
                "{region} is unavailable because the disk of {server} is full: {error}; free \
                 space on it or enlarge it; the region then becomes available automatically"
            );
        }
        PromotionOutcome::Waits
    }

    /// Opens the engine. The note is durable before the engine is served.
    fn open_engine(&self, order: &RegionOrder, source: Source) -> Result<OpenedCopy, ServerError> {
        let no_copy = |how| Err(ServerError::NoCopy(how));
        self.place.move_other_table_aside()?;
        let options = self.context.options.engine.clone();
        match source {
            Source::Empty => {
                // A damaged copy was not reported, and must not be replaced by an empty one
                // (CONTROL-18).
                if self.place.note()?.is_some() {
                    return no_copy("the copy on this disk is unusable; it was not replaced");
                }
                self.place.make()?;
                let generation = self.place.clear_but(None)?;
                let note = ReplicaNote::new(
                    order.table,
                    order.region,
                    order.replica,
                    order.epoch,
                    generation,
                );
                let storage = self.place.storage(generation)?;
                let engine = Engine::open(storage, options)?;
                let note = self.place.put_in_force(&note)?;
                Ok(OpenedCopy {
                    engine,
                    note,
                    reach: None,
                })
            }
            Source::Copy => {
                let Some(note) = self.place.note()? else {
                    return no_copy("this disk has no copy of the region");
                };
                let reach = self.place.reach_if(order.is_unproven, &note);
                let engine = open_copy(&self.place, &note, options)?;
                let note = ReplicaNote {
                    epoch: order.epoch,
                    ..note
                };
                let note = self.place.put_in_force(&note)?;
                Ok(OpenedCopy {
                    engine,
                    note,
                    reach,
                })
            }
            Source::Split(_) => no_copy("the region was not prepared on this server"),
            Source::Primary(_) => no_copy("a primary cannot copy its data from another one"),
        }
    }

    fn become_backup(&mut self, order: &RegionOrder, source: Source) -> Result<(), ReplicaFailure> {
        let mut backup = match std::mem::replace(&mut self.state, ActorState::Nothing) {
            ActorState::Backup(backup) => backup,
            ActorState::Primary(primary) => {
                let note = primary.note;
                primary.close(&self.replica)?;
                Box::new(BackupReplica::new(self.place.clone(), Some(note)))
            }
            ActorState::Nothing => {
                self.place.move_other_table_aside()?;
                let note = self.place.note()?;
                // The record lists this replica as complete (CONTROL-18).
                if source == Source::Copy && note.is_none() {
                    let how = "this disk has no copy of the region";
                    return Err(ServerError::NoCopy(how).into());
                }
                Box::new(BackupReplica::new(self.place.clone(), note))
            }
            ActorState::Failed => return Err("the replica has already failed".to_owned().into()),
        };
        let raised = backup.raise(order);
        self.state = ActorState::Backup(backup);
        raised
    }

    fn answer(&mut self, peer_call: &PeerCall) {
        let reply = self.answer_to(&peer_call.request);
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => {
                let how = failure.how.clone();
                self.note(Err(failure));
                PeerReply::Refused(how)
            }
        };
        // The requesting thread may have given up.
        let _ = peer_call.reply.send(reply);
    }

    /// Answers a request of another server. `Err` means that the replica cannot continue.
    fn answer_to(&mut self, request: &PeerRequest) -> Result<PeerReply, ReplicaFailure> {
        let name = match request {
            PeerRequest::Attach { of: name, .. } | PeerRequest::Commit { of: name, .. } => *name,
            // `OpenReplicas` answers these requests.
            PeerRequest::Prepare { .. } | PeerRequest::Abandon { .. } => {
                return Ok(PeerReply::Refused(
                    "a replica cannot handle this request".to_owned(),
                ));
            }
        };
        let open_at = lock(&self.replica.status).epoch;
        let ActorState::Backup(backup) = &mut self.state else {
            return Ok(PeerReply::NotYet("the replica is not a backup".to_owned()));
        };
        // Nothing of an epoch below its own is accepted, and a later epoch waits for the order.
        if open_at < Some(name.epoch) {
            return Ok(PeerReply::NotYet(
                "the replica has not reached this epoch".to_owned(),
            ));
        }
        if open_at > Some(name.epoch) {
            let how = format!("the replica is at a later epoch than {}", name.epoch);
            return Ok(PeerReply::Refused(how));
        }
        if self.primary != Some(name.primary) {
            let how = format!("{} is not the primary of the replica", name.primary);
            return Ok(PeerReply::Refused(how));
        }
        match request {
            PeerRequest::Attach {
                key, keeps_copy, ..
            } => backup.attach(&self.context, name, *key, *keeps_copy, &self.replica),
            PeerRequest::Commit {
                attachment,
                damaged,
                ..
            } => {
                let table = self.replica.table;
                let note = ReplicaNote::new(table, name.region, name.replica, name.epoch, 0);
                let reply = backup.commit(note, *attachment)?;
                if reply == PeerReply::Committed {
                    let damaged = damaged.iter().copied().map(LogNumber);
                    self.replica.damage().replace(damaged);
                }
                Ok(reply)
            }
            PeerRequest::Prepare { .. } | PeerRequest::Abandon { .. } => {
                unreachable!("these requests were refused above")
            }
        }
    }

    fn close_state(&self, state: ActorState) -> Result<(), ReplicaFailure> {
        match state {
            ActorState::Primary(primary) => Ok(primary.close(&self.replica)?),
            ActorState::Backup(mut backup) => backup.detach(),
            ActorState::Nothing | ActorState::Failed => Ok(()),
        }
    }

    fn end(mut self, ending: Ending) {
        let state = std::mem::replace(&mut self.state, ActorState::Failed);
        let closed = self.close_state(state);
        let is_wanted = match ending {
            Ending::LifeOver => true,
            Ending::Closed(Closing::Removed) => false,
            // A replica that was never complete has nothing that could be needed. For others the
            // agent decides when their data are no longer needed (CONTROL-18).
            Ending::Closed(Closing::Broken) => !matches!(self.place.note(), Ok(None)),
        };
        if !is_wanted {
            if let Err(error) = self.place.remove() {
                tracing::warn!(%error, "cannot remove an unneeded replica from the disk");
            }
            return;
        }
        let region = self.replica.region;
        if let Err(error) = closed {
            tracing::warn!(
                "cannot write the latest data of {region} to disk: {}",
                error.how
            );
        }
        // Copies that were being filled do not count, and take space.
        if let Ok(Some(note)) = self.place.note()
            && let Err(error) = self.place.clear_but(Some(note.generation))
        {
            tracing::warn!(%error, "cannot remove incomplete copies of {region} from the disk");
        }
    }
}
