//! A backup: the copy in force, and the copy that its primary writes.

use std::sync::Arc;

use farleaf_cluster::agent::host::{RegionOrder, ReplicaFailure};
use farleaf_cluster::ids::Epoch;
use farleaf_cluster::record::VerificationReport;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_lsm::follow::follows;
use farleaf_lsm::place::{LogNumber, LogPosition};
use farleaf_lsm::storage::Storage;
use farleaf_lsm::{Engine, EngineOptions, LsmError};
use farleaf_net::secret::AgreementSide;
use farleaf_replica::{Backup, BackupOptions, ReplicaError, promote_directory};

use super::handle::Replica;
use super::memory::BackupMemory;
use super::verification::Verification;
use crate::attachment::{self, AttachmentKey};
use crate::context::Context;
use crate::damage::SharedDamage;
use crate::error::ServerError;
use crate::peer::{PeerReply, ReplicaName};
use crate::place::{ReplicaNote, ReplicaStore};
use crate::sync::lock;

/// A replica that is not primary.
pub(super) struct BackupReplica {
    place: ReplicaStore,
    /// The note of the copy in force; `None` if there is none yet.
    pub(super) note: Option<ReplicaNote>,
    /// The copy that its primary writes.
    attached: Option<AttachedCopy>,
    attachment_count: u64,
    /// Whether it reports the end of the log of the copy in force, since that copy may lack what
    /// others have (CONTROL-18).
    is_unproven: bool,
    verification: Verification,
}

/// A copy that a primary writes.
struct AttachedCopy {
    attachment: u64,
    generation: u64,
    epoch: Epoch,
    /// Whether the copy in force is moved aside instead of removed, because the new copy may lack
    /// data that it has.
    keeps_copy: bool,
    backup: Backup<MappedEndpoint>,
    /// Memory with the backup's words, dropped after the backup.
    memory: BackupMemory,
}

/// Converts an epoch of the control plane to one of replication.
pub(super) const fn epoch_of(epoch: Epoch) -> farleaf_replica::Epoch {
    farleaf_replica::Epoch(epoch.0)
}

impl BackupReplica {
    pub(super) fn new(place: ReplicaStore, note: Option<ReplicaNote>) -> Self {
        Self {
            place,
            note,
            attached: None,
            attachment_count: 0,
            is_unproven: false,
            // Without a copy there is nothing to verify.
            verification: Verification::new(note.is_none_or(|note| note.is_verified)),
        }
    }

    /// Returns whether the copy that the primary writes is in force.
    fn is_committed(&self) -> bool {
        match (&self.attached, &self.note) {
            (Some(attached), Some(note)) => attached.generation == note.generation,
            _ => false,
        }
    }

    /// Raises the backup to the order's epoch: nothing of an earlier epoch is accepted from now on.
    /// The primary may be the same one, which continues, or another one, which starts over.
    pub(super) fn raise(&mut self, order: &RegionOrder) -> Result<(), ReplicaFailure> {
        let epoch = order.epoch;
        self.is_unproven = order.is_unproven;
        if !self.is_committed() {
            // It was never complete, and the primary that fills it is of an earlier epoch.
            self.attached = None;
        }
        if let Some(attached) = self
            .attached
            .as_mut()
            .filter(|attached| attached.epoch < epoch)
        {
            match attached.backup.raise(epoch_of(epoch)) {
                // The primary was first, at this epoch or at a later one than that of the order.
                Ok(()) | Err(ReplicaError::NotLater { .. }) => attached.epoch = epoch,
                Err(error) => return Err(ServerError::from(error).into()),
            }
        }
        // Nothing is acknowledged at the new epoch before a copy on disk names it: this copy, or
        // the one that replaces it.
        match self.note {
            Some(note) if note.epoch < epoch => self.put_in_force(ReplicaNote { epoch, ..note }),
            _ => Ok(()),
        }
    }

    fn put_in_force(&mut self, note: ReplicaNote) -> Result<(), ReplicaFailure> {
        self.note = Some(self.place.put_in_force(&note)?);
        Ok(())
    }

    /// Ends the copy that the primary writes. If it is in force, all of it is then on the disk.
    pub(super) fn detach(&mut self) -> Result<(), ReplicaFailure> {
        let is_committed = self.is_committed();
        let Some(mut attached) = self.attached.take() else {
            return Ok(());
        };
        attached.memory.fence();
        if !is_committed {
            return Ok(());
        }
        let retired = attached.backup.retire();
        retired.map_err(|error| ReplicaFailure {
            how: format!("cannot write the latest data to disk: {error}"),
            lacked_space: error.is_out_of_space(),
            is_damaged: false,
        })
    }

    /// Begins another copy, for the primary of this epoch. The copy in force stays until the new
    /// one replaces it.
    pub(super) fn attach(
        &mut self,
        context: &Context,
        name: ReplicaName,
        primary_key: AttachmentKey,
        keeps_copy: bool,
        replica: &Replica,
    ) -> Result<PeerReply, ReplicaFailure> {
        self.detach()?;
        let retained = self.note.map(|note| note.generation);
        self.place.make()?;
        let generation = self.place.clear_but(retained)?;
        let storage = self.place.storage(generation)?;
        let options = &context.options;
        let own = attachment::draw()?;
        let key = AttachmentKey(own.public());
        let secret = attachment::secret(
            own,
            AgreementSide::Answering,
            primary_key,
            options.memory_secret(),
            name,
            self.attachment_count + 1,
        )?;
        let memory = BackupMemory::open(context.host, options, secret)?;
        let backup_options = BackupOptions {
            engine: options.engine.clone(),
            replaces: true,
            previous: self.previous().filter(|_| !keeps_copy),
            write_fault: options.write_fault.clone(),
        };
        let backup = Backup::new(
            memory.near(),
            memory.layout,
            epoch_of(name.epoch),
            storage,
            backup_options,
        );
        let backup = backup.map_err(ServerError::from)?;
        lock(&replica.log_end).begin(backup.tail(memory.near()));
        self.attachment_count += 1;
        let note = self.note.as_ref();
        let reach = note.and_then(|note| self.place.reach_if(self.is_unproven, note));
        let reply = PeerReply::Attached {
            attachment: self.attachment_count,
            port: memory.port,
            key,
            slot_count: options.slot_count,
            reach: reach.map(|it| it.0),
            damaged: replica.damage().all().iter().map(|it| it.0).collect(),
        };
        self.attached = Some(AttachedCopy {
            attachment: self.attachment_count,
            generation,
            epoch: name.epoch,
            keeps_copy,
            backup,
            memory,
        });
        Ok(reply)
    }

    /// Returns the copy in force, whose pieces can be reused for the next one (REPLICATION-14). A
    /// copy that cannot be used supplies none, and stays unchanged.
    fn previous(&self) -> Option<Arc<dyn Storage>> {
        let storage = self.place.storage_in_force(self.note.as_ref()?);
        let unusable = |error: &_| tracing::warn!(%error, "cannot reuse the previous copy");
        storage.inspect_err(unusable).ok()
    }

    /// Puts the filled copy in force, if it is the one that the request names.
    pub(super) fn commit(
        &mut self,
        note: ReplicaNote,
        attachment: u64,
    ) -> Result<PeerReply, ReplicaFailure> {
        let Some(attached) = self
            .attached
            .as_mut()
            .filter(|it| it.attachment == attachment)
        else {
            return Ok(PeerReply::Refused(
                "the copy was canceled, or replaced by a newer one".to_owned(),
            ));
        };
        let status = attached.backup.status().map_err(ServerError::from)?;
        if !status.is_filled || status.failed.is_some() {
            return Ok(PeerReply::Refused("the copy is not complete".to_owned()));
        }
        let generation = attached.generation;
        if let Some(replaced) = self.note.filter(|_| attached.keeps_copy) {
            // In this order: a crash in between leaves both copies on disk, and neither in force.
            self.place.set_aside(&replaced)?;
        }
        self.put_in_force(ReplicaNote { generation, ..note })?;
        // Its primary has compared or sent each piece of it, so it is verified.
        self.verification = Verification::new(true);
        // Only now (REPLICATION-14): nothing opens the other copy from now on.
        if let Some(attached) = &mut self.attached {
            let released = attached.backup.note_in_force();
            released.map_err(ServerError::from)?;
        }
        self.place.clear_but(Some(generation))?;
        Ok(PeerReply::Committed)
    }

    /// Does a step of the pending work; returns false if there is none.
    pub(super) fn serve(&mut self) -> Result<bool, ReplicaFailure> {
        let Some(attached) = &mut self.attached else {
            return Ok(false);
        };
        let served = attached.backup.serve();
        Ok(served.map_err(ServerError::from)?)
    }

    /// Reads a part of the disk. Returns `Err` if it is damaged, and not all copies have the same
    /// damage. Does nothing before the copy is in force, since the shared damage is sent with that
    /// request.
    pub(super) fn scrub(&mut self, damage: &SharedDamage) -> Result<(), ReplicaFailure> {
        if !self.is_committed() {
            return Ok(());
        }
        let Some(attached) = &mut self.attached else {
            return Ok(());
        };
        let stepped = attached.backup.scrub_step();
        if let Some(stepped) = stepped.as_ref().map(Option::as_ref).transpose() {
            self.verification.note_step(stepped.copied());
        }
        match stepped {
            Err(ReplicaError::Engine(error)) if !damage.has(&error) => {
                let place = attached.backup.corruption_place(&error);
                let place = place.map_or_else(String::new, |place| format!(" ({place})"));
                Err(ReplicaFailure {
                    is_damaged: error.is_corruption(),
                    ..format!("{error}{place}").into()
                })
            }
            Ok(_) | Err(ReplicaError::Engine(_)) => Ok(()),
            Err(error) => Err(ServerError::from(error).into()),
        }
    }

    /// Returns whether the log of the copy in force has a segment, as far as is known; it does not
    /// have collected segments.
    pub(super) fn has_log_segment(&self, number: LogNumber) -> bool {
        let attached = self.attached.as_ref().filter(|_| self.is_committed());
        let has = attached.and_then(|attached| attached.backup.has_log_segment(number));
        has.unwrap_or(true)
    }

    /// Returns the progress of the verification of its files.
    pub(super) fn verification(&mut self) -> VerificationReport {
        let is_committed = self.is_committed();
        let attached = self.attached.as_mut().filter(|_| is_committed);
        let counts = attached.map(|attached| attached.backup.scrub_counts());
        self.verification.report(counts.unwrap_or_default())
    }

    /// Returns the end of the log, in bytes.
    pub(super) fn position_bytes(&mut self) -> u64 {
        let status = self
            .attached
            .as_mut()
            .map(|attached| attached.backup.status());
        match status {
            Some(Ok(status)) => status.log_end.0,
            _ => 0,
        }
    }

    /// Becomes an engine at this epoch, which the note names before anything is served. Promotes
    /// the copy that its primary writes if it is in force, otherwise the previous copy: nothing was
    /// acknowledged since without this replica.
    ///
    /// If the disk is full, the backup keeps all its data, and can be promoted when there is space.
    pub(super) fn promote(
        &mut self,
        order: &RegionOrder,
        options: EngineOptions,
    ) -> Result<OpenedCopy, ServerError> {
        let epoch = order.epoch;
        let Some(note) = self.note else {
            let how = "the replica was never complete, so it cannot become primary";
            return Err(ServerError::NoCopy(how));
        };
        if !self.is_committed() {
            self.attached = None;
        }
        if let Some(attached) = &mut self.attached {
            attached.backup.prepare_promotion(epoch_of(epoch))?;
        }
        let reach = self.place.reach_if(order.is_unproven, &note);
        // All of it is on the disk.
        let engine = match self.attached.take() {
            Some(attached) => attached.backup.promote(epoch_of(epoch), options)?,
            None => open_copy(&self.place, &note, options)?,
        };
        let note = self.place.put_in_force(&ReplicaNote { epoch, ..note })?;
        Ok(OpenedCopy {
            engine,
            note,
            reach,
        })
    }
}

/// A copy that was opened as an engine.
pub(super) struct OpenedCopy {
    pub(super) engine: Engine,
    pub(super) note: ReplicaNote,
    /// End of its log when it was opened, if it may lack what others have (CONTROL-18).
    pub(super) reach: Option<LogPosition>,
}

/// Opens the engine of a copy: an engine's directory, or a backup's.
pub(super) fn open_copy(
    place: &ReplicaStore,
    note: &ReplicaNote,
    options: EngineOptions,
) -> Result<Engine, ServerError> {
    let storage = place.storage_in_force(note)?;
    let result = follows(&*storage).map_err(|source| LsmError::Storage {
        action: "list",
        file: ".".to_owned(),
        directory: storage.name(),
        source,
    });
    if result? {
        return Ok(promote_directory(storage, options)?);
    }
    Ok(Engine::open(storage, options)?)
}
