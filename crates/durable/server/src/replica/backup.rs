//! A backup: the copy in force, and the one that its primary writes into (RS1, RS5, RS7).

use std::sync::Arc;

use farleaf_cluster::agent::host::{RegionOrder, ReplicaFailure};
use farleaf_cluster::ids::Epoch;
use farleaf_cluster::record::VerificationReport;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::tcp::AgreementSide;
use farleaf_lsm::follow::follows;
use farleaf_lsm::place::{LogNumber, LogPosition};
use farleaf_lsm::storage::Storage;
use farleaf_lsm::{Engine, EngineOptions, LsmError};
use farleaf_replica::{Backup, BackupOptions, ReplicaError, promote_directory};

use super::memory::BackupMemory;
use super::verification::Verification;
use super::{Replica, SharedDamage};
use crate::attachment::{self, AttachmentKey};
use crate::context::Context;
use crate::error::ServerError;
use crate::peer::{PeerReply, ReplicaName};
use crate::place::{Note, ReplicaPlace};

/// A replica that is no primary.
pub(super) struct BackupReplica {
    place: ReplicaPlace,
    /// RS1: what is in force; none: there is nothing yet.
    pub(super) note: Option<Note>,
    /// What its primary writes into.
    live: Option<Live>,
    attachment_count: u64,
    /// CP18: whether it says how far the log of the copy in force goes, as that may have lost what
    /// others have.
    is_unproven: bool,
    verification: Verification,
}

/// A copy that a primary writes.
struct Live {
    attachment: u64,
    generation: u64,
    epoch: Epoch,
    /// RS8: it may lack what the copy in force has, which is moved aside then, and not removed.
    keeps_copy: bool,
    backup: Backup<MappedEndpoint>,
    /// Dropped behind the backup, whose words it has.
    memory: BackupMemory,
}

/// A replication epoch is the control plane's.
pub(super) const fn epoch_of(epoch: Epoch) -> farleaf_replica::Epoch {
    farleaf_replica::Epoch(epoch.0)
}

impl BackupReplica {
    pub(super) fn new(place: ReplicaPlace, note: Option<Note>) -> Self {
        Self {
            place,
            note,
            live: None,
            attachment_count: 0,
            is_unproven: false,
            // Where there is no copy yet, there is none to be verified.
            verification: Verification::new(note.is_none_or(|note| note.is_verified)),
        }
    }

    /// Whether what its primary writes is the copy in force.
    fn is_committed(&self) -> bool {
        match (&self.live, &self.note) {
            (Some(live), Some(note)) => live.generation == note.generation,
            _ => false,
        }
    }

    /// RS7: from now on nothing of an earlier epoch is taken. The primary may be the same, and go
    /// on; or another one, which begins anew.
    pub(super) fn raise(&mut self, order: &RegionOrder) -> Result<(), ReplicaFailure> {
        let epoch = order.epoch;
        self.is_unproven = order.is_unproven;
        if !self.is_committed() {
            // It was never whole, and whoever fills it is of an epoch that is over.
            self.live = None;
        }
        if let Some(live) = self.live.as_mut().filter(|live| live.epoch < epoch) {
            match live.backup.raise(epoch_of(epoch)) {
                // Its primary was first, at this epoch, or at a later one that this order is not
                // of.
                Ok(()) | Err(ReplicaError::NotLater { .. }) => live.epoch = epoch,
                Err(error) => return Err(ServerError::from(error).into()),
            }
        }
        // RH5: nothing is acknowledged at the new epoch before a copy says that it was opened at
        // it: this one, or the one that comes in its place.
        match self.note {
            Some(note) if note.epoch < epoch => self.put_in_force(Note { epoch, ..note }),
            _ => Ok(()),
        }
    }

    fn put_in_force(&mut self, note: Note) -> Result<(), ReplicaFailure> {
        self.note = Some(self.place.put_in_force(&note)?);
        Ok(())
    }

    /// Ends what its primary writes. If that is the copy in force, all of it is on the disk then.
    pub(super) fn detach(&mut self) -> Result<(), ReplicaFailure> {
        let is_committed = self.is_committed();
        let Some(mut live) = self.live.take() else {
            return Ok(());
        };
        live.memory.fence();
        if !is_committed {
            return Ok(());
        }
        let retired = live.backup.retire();
        retired.map_err(|error| ReplicaFailure {
            how: format!("what came last cannot be kept: {error}"),
            lacked_room: error.is_no_room(),
            is_damaged: false,
        })
    }

    /// Begins another copy, for the primary of this epoch. The one in force stays until that one
    /// is (RS1).
    pub(super) fn attach(
        &mut self,
        context: &Context,
        (name, primary_key, keeps_copy): (ReplicaName, AttachmentKey, bool),
        replica: &Replica,
    ) -> Result<PeerReply, ReplicaFailure> {
        self.detach()?;
        let kept = self.note.map(|note| note.generation);
        self.place.make()?;
        let generation = self.place.clear_but(kept)?;
        let storage = self.place.storage(generation)?;
        let options = &context.options;
        let own = attachment::draw()?;
        let key = AttachmentKey(own.public());
        let side = (AgreementSide::Answering, primary_key);
        let of = (name, self.attachment_count + 1);
        let secret = attachment::secret(own, side, options.memory_secret.as_ref(), of)?;
        let memory = BackupMemory::open(context.host, options.slot_count, secret)?;
        let of = BackupOptions {
            engine: options.engine.clone(),
            replaces: true,
            previous: self.previous().filter(|_| !keeps_copy),
            write_fault: options.write_fault.clone(),
        };
        let epoch_of_it = epoch_of(name.epoch);
        let backup = Backup::new(memory.near(), memory.layout, epoch_of_it, (storage, of));
        let backup = backup.map_err(ServerError::from)?;
        replica.log_end().begin(backup.tail(memory.near()));
        self.attachment_count += 1;
        let unproven = self.note.as_ref().filter(|_| self.is_unproven);
        let reach = unproven.and_then(|note| self.place.reach(note));
        let reply = PeerReply::Attached {
            attachment: self.attachment_count,
            port: memory.port,
            key,
            slot_count: options.slot_count,
            reach: reach.map(|it| it.0),
            damaged: replica.damage().all().iter().map(|it| it.0).collect(),
        };
        self.live = Some(Live {
            attachment: self.attachment_count,
            generation,
            epoch: name.epoch,
            keeps_copy,
            backup,
            memory,
        });
        Ok(reply)
    }

    /// RP14: the copy in force, of which pieces are taken into the next one. One that cannot be
    /// used is of no use here, either, and stays as it is.
    fn previous(&self) -> Option<Arc<dyn Storage>> {
        let storage = self.place.storage_in_force(self.note.as_ref()?);
        let unusable = |error: &_| tracing::warn!(%error, "nothing of a copy is kept");
        storage.inspect_err(unusable).ok()
    }

    /// RS1: the copy that was filled is the one in force, if it is the one that is meant.
    pub(super) fn commit(
        &mut self,
        note: Note,
        attachment: u64,
    ) -> Result<PeerReply, ReplicaFailure> {
        let Some(live) = self.live.as_mut().filter(|it| it.attachment == attachment) else {
            return Ok(PeerReply::Refused(
                "another copy was begun since, or this one has ended".to_owned(),
            ));
        };
        let status = live.backup.status().map_err(ServerError::from)?;
        if !status.is_filled || status.failed.is_some() {
            return Ok(PeerReply::Refused("it was not filled".to_owned()));
        }
        let generation = live.generation;
        if let Some(kept) = self.note.filter(|_| live.keeps_copy) {
            // Before: so a crash in between leaves both copies there, and neither in force.
            self.place.set_aside(&kept)?;
        }
        self.put_in_force(Note { generation, ..note })?;
        // RS14: its primary has compared each piece of it, or has sent it.
        self.verification = Verification::new(true);
        // RP14: not before. Nobody opens the other copy from now on.
        if let Some(live) = &mut self.live {
            let released = live.backup.note_in_force();
            released.map_err(ServerError::from)?;
        }
        self.place.clear_but(Some(generation))?;
        Ok(PeerReply::Committed)
    }

    /// A step of what there is to do; false: nothing.
    pub(super) fn serve(&mut self) -> Result<bool, ReplicaFailure> {
        let Some(live) = &mut self.live else {
            return Ok(false);
        };
        let served = live.backup.serve();
        Ok(served.map_err(ServerError::from)?)
    }

    /// RS8: reads a part of the disk; `Err`: it is damaged, and not as all copies are. Not before
    /// its copy is in force, as what all have is told with that.
    pub(super) fn scrub(&mut self, damage: &SharedDamage) -> Result<(), ReplicaFailure> {
        if !self.is_committed() {
            return Ok(());
        }
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        let stepped = live.backup.scrub_step();
        if let Some(stepped) = stepped.as_ref().map(Option::as_ref).transpose() {
            self.verification.note_step(stepped.copied());
        }
        match stepped {
            Err(ReplicaError::Engine(error)) if !damage.has(&error) => {
                let place = live.backup.place_of_damage(&error);
                let place = place.map_or_else(String::new, |place| format!(" ({place})"));
                Err(ReplicaFailure {
                    is_damaged: error.is_damage(),
                    ..format!("{error}{place}").into()
                })
            }
            Ok(_) | Err(ReplicaError::Engine(_)) => Ok(()),
            Err(error) => Err(ServerError::from(error).into()),
        }
    }

    /// Whether the log of what is in force has a segment, as far as is known: one that has been
    /// collected it has not.
    pub(super) fn has_log_segment(&self, number: LogNumber) -> bool {
        let live = self.live.as_ref().filter(|_| self.is_committed());
        let has = live.and_then(|live| live.backup.has_log_segment(number));
        has.unwrap_or(true)
    }

    /// RS14: how far its files are verified.
    pub(super) fn verification(&mut self) -> VerificationReport {
        let is_committed = self.is_committed();
        let live = self.live.as_mut().filter(|_| is_committed);
        let counts = live.map(|live| live.backup.scrub_counts());
        self.verification.report(counts.unwrap_or_default())
    }

    /// How far the log goes.
    pub(super) fn position_bytes(&mut self) -> u64 {
        let status = self.live.as_mut().map(|live| live.backup.status());
        match status {
            Some(Ok(status)) => status.log_end.0,
            _ => 0,
        }
    }

    /// RS7: becomes an engine, at this epoch, which the note says before anybody is served. What
    /// its primary has written is promoted if it is in force; else the copy is that was before:
    /// nothing was acknowledged since without this replica.
    ///
    /// RS10: if there is no room, it has all that it had, and can be promoted when there is.
    pub(super) fn promote(
        &mut self,
        order: &RegionOrder,
        options: EngineOptions,
    ) -> Result<Opened, ServerError> {
        let epoch = order.epoch;
        let Some(note) = self.note else {
            let how = "it never had all, so it cannot be primary";
            return Err(ServerError::NoCopy(how));
        };
        if !self.is_committed() {
            self.live = None;
        }
        if let Some(live) = &mut self.live {
            live.backup.prepare_promotion(epoch_of(epoch))?;
        }
        let unproven = Some(&note).filter(|_| order.is_unproven);
        let reach = unproven.and_then(|note| self.place.reach(note));
        // All of it is on the disk.
        let engine = match self.live.take() {
            Some(live) => live.backup.promote(epoch_of(epoch), options)?,
            None => open_copy(&self.place, &note, options)?,
        };
        let note = self.place.put_in_force(&Note { epoch, ..note })?;
        Ok(Opened {
            engine,
            note,
            reach,
        })
    }
}

/// A copy that was opened as an engine.
pub(super) struct Opened {
    pub(super) engine: Engine,
    pub(super) note: Note,
    /// CP18: how far its log went when it was opened, if it may have lost what others have.
    pub(super) reach: Option<LogPosition>,
}

/// The engine of a copy: an engine's directory, or a backup's.
pub(super) fn open_copy(
    place: &ReplicaPlace,
    note: &Note,
    options: EngineOptions,
) -> Result<Engine, ServerError> {
    let storage = place.storage_in_force(note)?;
    let looked = follows(&*storage).map_err(|source| LsmError::Storage {
        action: "list",
        file: ".".to_owned(),
        directory: storage.name(),
        source,
    });
    if looked? {
        return Ok(promote_directory(storage, options)?);
    }
    Ok(Engine::open(storage, options)?)
}
