//! The thread of a replica: brings about what is ordered, answers other servers, works (RS6).

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::{Closing, RegionOrder, ReplicaFailure, Source};
use farleaf_cluster::ids::ServerId;
use farleaf_lsm::Engine;
use farleaf_lsm::place::LogNumber;

use super::backup::{BackupReplica, Opened, open_copy};
use super::primary::PrimaryReplica;
use super::verification::BUSY_INTERVAL_COUNT;
use super::{Board, Ending, Errand, PREPARING, Replica, Role, Wanted};
use crate::context::Context;
use crate::error::ServerError;
use crate::peer::{PeerReply, PeerRequest};
use crate::place::{Note, ReplicaPlace};

/// How long it rests when there is nothing to do: as long as there was something a while ago, and
/// after a while.
const REST: [Duration; 3] = [
    Duration::from_micros(200),
    Duration::from_millis(5),
    Duration::from_millis(25),
];
const BUSY_TIME: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// How often it shows how it is doing, while it works.
const SHOW_INTERVAL: Duration = Duration::from_millis(20);

/// RS10: after which it is tried again to open what found no room.
const AGAIN_REST: Duration = Duration::from_secs(1);

/// RS10: for how long a primary on a full disk keeps what it has when another one is to take over,
/// and how often it looks for room.
const STAY_PATIENCE: Duration = Duration::from_secs(1);
const STAY_REST: Duration = Duration::from_millis(100);

/// What came of an order to be primary.
#[derive(PartialEq, Eq)]
enum Became {
    Primary,
    /// It found no room, and is tried again.
    Waits,
}

/// What is open.
enum State {
    Nothing,
    Primary(Box<PrimaryReplica>),
    Backup(Box<BackupReplica>),
    /// It does nothing any more, and waits to be closed.
    Failed,
}

pub(super) struct Actor {
    replica: Arc<Replica>,
    context: Arc<Context>,
    place: ReplicaPlace,
    state: State,
    /// Whose backup it is.
    primary: Option<ServerId>,
    /// RS10: what could not be brought about for want of room, and when it is tried again.
    again: Option<(Wanted, Instant)>,
    /// RS10: since when it is to be a backup, and keeps what it has as primary.
    stays_since: Option<Instant>,
}

impl Actor {
    pub(super) fn new(replica: Arc<Replica>) -> Self {
        let context = Arc::clone(&replica.context);
        let id = (replica.region, replica.number);
        let place = ReplicaPlace::new(
            (&*context.regions, context.cluster()),
            id,
            context.open_storage.clone(),
        )
        .of_table(replica.incarnation);
        Self {
            replica,
            context,
            place,
            state: State::Nothing,
            primary: None,
            again: None,
            stays_since: None,
        }
    }

    pub(super) fn run(mut self, begins_at: Instant) {
        self.wait_until(begins_at);
        let mut worked_at = Instant::now();
        let mut scrubbed_at = worked_at;
        let mut shown_at = None;
        loop {
            let Board {
                wanted,
                ending,
                errands,
                is_nudged,
            } = std::mem::take(&mut *self.replica.board());
            if let Some(ending) = ending {
                return self.end(ending);
            }
            let has_orders = wanted.is_some() || is_nudged || !errands.is_empty();
            if let Some(wanted) = wanted.or_else(|| self.due_again()) {
                let followed = self.follow(wanted);
                self.note(followed);
            }
            for errand in errands {
                self.answer(&errand);
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
            if has_orders || shown_at.is_none_or(|at| now - at >= SHOW_INTERVAL) {
                self.show();
                shown_at = Some(now);
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

    /// RS10: what is to be tried again now.
    fn due_again(&mut self) -> Option<Wanted> {
        let due = self.again.take_if(|(_, at)| *at <= Instant::now());
        due.map(|(wanted, _)| wanted)
    }

    /// Waits, until a time or its end.
    fn wait_until(&self, time: Instant) {
        let mut board = self.replica.board();
        while board.ending.is_none() {
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.replica.changed.wait_timeout(board, left);
            board = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn rest(&self, rest: Duration) {
        let board = self.replica.board();
        let is_idle = board.wanted.is_none()
            && board.ending.is_none()
            && board.errands.is_empty()
            && !board.is_nudged;
        if is_idle {
            // A wake-up that is missed costs a rest.
            drop(self.replica.changed.wait_timeout(board, rest));
        }
    }

    /// A failure is the end of the replica under this number (CP16).
    fn note(&mut self, done: Result<(), ReplicaFailure>) {
        let Err(failure) = done else {
            return;
        };
        let region = self.replica.region;
        tracing::error!("{region} fails on {}: {}", self.context.server, failure.how);
        self.replica.set_served(None);
        let state = std::mem::replace(&mut self.state, State::Failed);
        // What can be kept of it is.
        if let Err(error) = self.close_state(state) {
            tracing::warn!(
                "what {region} had last is not all on the disk: {}",
                error.how
            );
        }
        let mut shown = self.replica.show();
        shown.failure.get_or_insert(failure);
        shown.waits_for_room = false;
        shown.primary = None;
    }

    fn work(&mut self) -> Result<bool, ReplicaFailure> {
        match &mut self.state {
            State::Primary(primary) => Ok(primary.maintain()),
            // RS10: nobody is its primary any more, and its disk is full.
            State::Backup(_) if self.again.is_some() => Ok(false),
            State::Backup(backup) => backup.serve(),
            State::Nothing | State::Failed => Ok(false),
        }
    }

    /// RS8, RS14: whether a part of the disk is to be read, so long after the last one.
    fn scrub_is_due(&self, is_busy: bool, since: Duration) -> bool {
        let options = &self.context.options;
        let interval = options.scrub_interval;
        if let State::Primary(primary) = &self.state
            && primary.verifies_first()
        {
            // In this order: the turn is taken.
            return since >= options.first_scrub_interval && self.context.may_verify();
        }
        let busy_interval = interval.saturating_mul(BUSY_INTERVAL_COUNT);
        since >= if is_busy { busy_interval } else { interval }
    }

    /// RS8: looks for what the disk has lost.
    fn scrub(&mut self) -> Result<(), ReplicaFailure> {
        match &mut self.state {
            State::Primary(primary) => {
                if let Err(error) = primary.scrub() {
                    primary.served().note(&error);
                }
                Ok(())
            }
            State::Backup(backup) => backup.scrub(self.replica.damage()),
            State::Nothing | State::Failed => Ok(()),
        }
    }

    fn show(&mut self) {
        let stage = self.replica.stage();
        let mut filling_count = 0;
        let mut has_other = false;
        let verification;
        let (report, size_bytes, position_bytes) = match &mut self.state {
            State::Primary(primary) => {
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
            State::Backup(backup) => {
                verification = backup.verification();
                let damage = self.replica.damage();
                damage.note_collected(|number| backup.has_log_segment(number));
                (None, 0, backup.position_bytes())
            }
            State::Nothing | State::Failed => return,
        };
        let mut shown = self.replica.show();
        shown.primary = report;
        shown.verification = Some(verification);
        shown.has_other = has_other;
        shown.filling_count = filling_count;
        shown.is_frozen = stage != PREPARING;
        shown.position_bytes = position_bytes;
        if size_bytes > 0 {
            shown.size_bytes = size_bytes;
        }
    }

    /// Brings about what is ordered.
    fn follow(&mut self, wanted: Wanted) -> Result<(), ReplicaFailure> {
        self.again = None;
        if matches!(self.state, State::Failed) {
            return Ok(());
        }
        let before = wanted.clone();
        let Wanted { order, role } = wanted;
        match role {
            Role::Primary { backups, source } => {
                self.stays_since = None;
                let has_other = backups.iter().any(|it| it.in_sync && !it.is_lost);
                if self.become_primary(&order, (source, has_other))? == Became::Waits {
                    self.again = Some((before, Instant::now() + AGAIN_REST));
                    return Ok(());
                }
                let State::Primary(primary) = &mut self.state else {
                    unreachable!("it became one");
                };
                if has_other {
                    // Before their links look at it, and those of the others.
                    self.replica.show().has_other = true;
                }
                primary.set_backups((&self.replica, &self.context), &backups);
            }
            Role::Backup { primary, source } => {
                if self.stays() {
                    self.again = Some((before, Instant::now() + STAY_REST));
                    return Ok(());
                }
                self.become_backup(&order, source)?;
                self.primary = Some(primary);
            }
        }
        let mut shown = self.replica.show();
        shown.epoch = Some(order.epoch);
        if std::mem::take(&mut shown.waits_for_room) {
            tracing::info!("{} has room, and goes on", self.replica.region);
        }
        Ok(())
    }

    /// RS10: without room it waits, if no other replica could take its place.
    fn become_primary(
        &mut self,
        order: &RegionOrder,
        (source, has_other): (Source, bool),
    ) -> Result<Became, ReplicaFailure> {
        let opened = match std::mem::replace(&mut self.state, State::Nothing) {
            State::Primary(mut primary) => {
                let is_later = primary.served().epoch() < order.epoch;
                let raised = if is_later {
                    primary.raise(&self.replica, order)
                } else {
                    Ok(())
                };
                if is_later && raised.is_ok() {
                    self.replica.set_served(Some(Arc::clone(primary.served())));
                }
                self.state = State::Primary(primary);
                return match raised {
                    Ok(()) => Ok(Became::Primary),
                    Err(error) if error.is_no_room() => Ok(self.waits(&error)),
                    Err(error) => Err(error.into()),
                };
            }
            State::Backup(mut backup) => {
                let options = self.context.options.engine.clone();
                match backup.promote(order, options) {
                    Ok(promoted) => promoted,
                    Err(error) if error.is_no_room() && !has_other => {
                        self.state = State::Backup(backup);
                        return Ok(self.waits(&error));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            State::Nothing => match self.open_engine(order, source) {
                Ok(opened) => opened,
                // RS10: its copy stays on the disk. Another one that has everything may have room.
                Err(error) if error.is_no_room() && !has_other => {
                    return Ok(self.waits(&error));
                }
                Err(error) => return Err(error.into()),
            },
            State::Failed => return Err("it has failed before".to_owned().into()),
        };
        let primary = PrimaryReplica::new(
            self.place.clone(),
            opened,
            (&self.replica, &self.context),
            order,
        );
        self.replica.set_served(Some(Arc::clone(primary.served())));
        self.state = State::Primary(Box::new(primary));
        Ok(Became::Primary)
    }

    /// RS10: a primary that would be a backup, and cannot put what it has on its disk, keeps it for
    /// a while: its successor may be broken by now, and the next one be this one.
    fn stays(&mut self) -> bool {
        let State::Primary(primary) = &self.state else {
            return false;
        };
        if !primary.finds_no_room() {
            return false;
        }
        let since = self.stays_since.get_or_insert_with(Instant::now);
        since.elapsed() < STAY_PATIENCE
    }

    /// RS10: what an order is waited with for.
    fn waits(&self, error: &ServerError) -> Became {
        let (region, server) = (self.replica.region, self.context.server);
        let was_told = std::mem::replace(&mut self.replica.show().waits_for_room, true);
        if !was_told {
            tracing::error!(
                "{region} waits for room on the disk of {server}, which is full: {error}; make \
                 room on it, or enlarge it: it is served then by itself, and until then nobody \
                 reads or writes it"
            );
        }
        Became::Waits
    }

    /// RH5: the note is durable before the engine is served.
    fn open_engine(&self, order: &RegionOrder, source: Source) -> Result<Opened, ServerError> {
        let no_copy = |how| Err(ServerError::NoCopy(how));
        self.place.make_way()?;
        let options = self.context.options.engine.clone();
        match source {
            Source::Empty => {
                // CP18: what is damaged was not reported, and is no reason to begin anew over it.
                if self.place.note()?.is_some() {
                    return no_copy("its copy on this disk cannot be used; it is kept");
                }
                self.place.make()?;
                let generation = self.place.clear_but(None)?;
                let id = (order.table, order.region, order.replica);
                let note = Note::new(id, order.epoch, generation);
                let storage = self.place.storage(generation)?;
                let engine = Engine::open(storage, options)?;
                let note = self.place.put_in_force(&note)?;
                Ok(Opened {
                    engine,
                    note,
                    reach: None,
                })
            }
            Source::Copy => {
                let Some(note) = self.place.note()? else {
                    return no_copy("there is no copy of it on this disk");
                };
                let unproven = Some(&note).filter(|_| order.is_unproven);
                let reach = unproven.and_then(|note| self.place.reach(note));
                let engine = open_copy(&self.place, &note, options)?;
                let note = Note {
                    epoch: order.epoch,
                    ..note
                };
                let note = self.place.put_in_force(&note)?;
                Ok(Opened {
                    engine,
                    note,
                    reach,
                })
            }
            Source::Split(_) => no_copy("nothing was prepared for this region here"),
            Source::Primary(_) => no_copy("a primary is nobody's backup"),
        }
    }

    fn become_backup(&mut self, order: &RegionOrder, source: Source) -> Result<(), ReplicaFailure> {
        let mut backup = match std::mem::replace(&mut self.state, State::Nothing) {
            State::Backup(backup) => backup,
            State::Primary(primary) => {
                let note = primary.note;
                primary.close(&self.replica)?;
                Box::new(BackupReplica::new(self.place.clone(), Some(note)))
            }
            State::Nothing => {
                self.place.make_way()?;
                let note = self.place.note()?;
                // CP18: the record says that it has everything.
                if source == Source::Copy && note.is_none() {
                    let how = "there is no copy of it on this disk";
                    return Err(ServerError::NoCopy(how).into());
                }
                Box::new(BackupReplica::new(self.place.clone(), note))
            }
            State::Failed => return Err("it has failed before".to_owned().into()),
        };
        let raised = backup.raise(order);
        self.state = State::Backup(backup);
        raised
    }

    fn answer(&mut self, errand: &Errand) {
        let reply = self.answer_to(&errand.request);
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => {
                let how = failure.how.clone();
                self.note(Err(failure));
                PeerReply::Refused(how)
            }
        };
        // Whoever asked may have given up.
        let _ = errand.reply.send(reply);
    }

    /// `Err`: the replica cannot go on.
    fn answer_to(&mut self, request: &PeerRequest) -> Result<PeerReply, ReplicaFailure> {
        let name = match request {
            PeerRequest::Attach { of: name, .. } | PeerRequest::Commit { of: name, .. } => *name,
            // Whoever has the board of replicas answers it.
            PeerRequest::Prepare { .. } | PeerRequest::Abandon { .. } => {
                return Ok(PeerReply::Refused("it is no replica's".to_owned()));
            }
        };
        let open_at = self.replica.show().epoch;
        let State::Backup(backup) = &mut self.state else {
            return Ok(PeerReply::NotYet("it is no backup".to_owned()));
        };
        // RH3: nothing of an epoch below its own; and what it has not been told of, it waits for.
        if open_at < Some(name.epoch) {
            return Ok(PeerReply::NotYet(
                "it does not know of this epoch".to_owned(),
            ));
        }
        if open_at > Some(name.epoch) {
            let how = format!("it is at a later epoch than {}", name.epoch);
            return Ok(PeerReply::Refused(how));
        }
        if self.primary != Some(name.primary) {
            let how = format!("{} is not its primary", name.primary);
            return Ok(PeerReply::Refused(how));
        }
        match request {
            PeerRequest::Attach {
                key, keeps_copy, ..
            } => {
                let asked = (name, *key, *keeps_copy);
                backup.attach(&self.context, asked, &self.replica)
            }
            PeerRequest::Commit {
                attachment,
                damaged,
                ..
            } => {
                let id = (self.replica.table, name.region, name.replica);
                let reply = backup.commit(Note::new(id, name.epoch, 0), *attachment)?;
                if reply == PeerReply::Committed {
                    let damaged = damaged.iter().copied().map(LogNumber);
                    self.replica.damage().replace(damaged);
                }
                Ok(reply)
            }
            PeerRequest::Prepare { .. } | PeerRequest::Abandon { .. } => {
                unreachable!("they were answered")
            }
        }
    }

    fn close_state(&self, state: State) -> Result<(), ReplicaFailure> {
        match state {
            State::Primary(primary) => Ok(primary.close(&self.replica)?),
            State::Backup(mut backup) => backup.detach(),
            State::Nothing | State::Failed => Ok(()),
        }
    }

    fn end(mut self, ending: Ending) {
        let state = std::mem::replace(&mut self.state, State::Failed);
        let closed = self.close_state(state);
        let is_wanted = match ending {
            Ending::LifeOver => true,
            Ending::Closed(Closing::Removed) => false,
            // One that never had all has nothing that anybody could need. Of others the agent says
            // when nobody does (CP18).
            Ending::Closed(Closing::Broken) => !matches!(self.place.note(), Ok(None)),
        };
        if !is_wanted {
            if let Err(error) = self.place.remove() {
                tracing::warn!(%error, "a replica that is not wanted stays on the disk");
            }
            return;
        }
        let region = self.replica.region;
        if let Err(error) = closed {
            tracing::warn!(
                "what {region} had last is not all on the disk: {}",
                error.how
            );
        }
        // RS1: what was being filled counts for nothing, and takes room.
        if let Ok(Some(note)) = self.place.note()
            && let Err(error) = self.place.clear_but(Some(note.generation))
        {
            tracing::warn!(%error, "what {region} was being filled with stays on the disk");
        }
    }
}
