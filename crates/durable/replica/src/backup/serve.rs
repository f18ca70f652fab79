//! Requests from a primary to its backup (REPLICATION-3).

use std::sync::Arc;
use std::time::Instant;

use farleaf_executor::block_on;
use farleaf_fabric::Endpoint;
use farleaf_lsm::LsmError;
use farleaf_lsm::follow::{BaseManifest, Filling, FollowOptions, IndexKind, InstalledEdit};
use farleaf_lsm::log::record::EngineId;
use farleaf_lsm::place::SEGMENT_SIZE_BYTES;
use farleaf_lsm::scrub::{PieceName, Scrub};
use farleaf_lsm::written::WrittenSum;

use super::buffers::WriteExtent;
use super::counts::add_time;
use super::{Backup, BackupState, failed_memory};
use crate::error::{Epoch, ReplicaError};
use crate::layout::bytes_of;
use crate::request::{ReplicationReply, ReplicationRequest, VERSION};

impl<E: Endpoint> Backup<E> {
    pub(super) fn serve_one(&mut self) -> Result<bool, ReplicaError> {
        if self.follow_log()? {
            return Ok(true);
        }
        if self.answer_one()? {
            return Ok(true);
        }
        let BackupState::Following(follower) = &mut self.state else {
            return Ok(false);
        };
        let since = Instant::now();
        let synced_to = follower.synced_to();
        let worked = follower.maintain()?;
        let has_synced = follower.synced_to() > synced_to;
        add_time(&mut self.counts.maintain_time_ns, since);
        if has_synced {
            self.report_progress()?;
        }
        Ok(worked)
    }

    /// Answers the next request, if there is one. A request that cannot be executed is refused, and
    /// the primary then loses this backup (REPLICATION-6). A disk error ends the backup.
    fn answer_one(&mut self) -> Result<bool, ReplicaError> {
        let next = self.mailbox.next(&self.near, &self.near, &mut self.batch);
        let next = block_on(next, self.near.completions());
        let next = next.map_err(|error| ReplicaError::Failed {
            how: format!("cannot receive messages of its primary: {error}"),
            is_out_of_space: false,
        })?;
        let Some(asked) = next else {
            return Ok(false);
        };
        let since = Instant::now();
        let mut done = match ReplicationRequest::decode(&asked.payload) {
            Ok(request) => self.answer(request),
            Err(how) => Err(LsmError::CannotFollow { how }.into()),
        };
        let answer = done.as_mut().ok().and_then(Option::take);
        let answer = answer.map(ReplicationReply::encode).unwrap_or_default();
        let (refused, failed) = match done {
            Ok(_) => (None, None),
            Err(error) if is_refusal(&error) => (Some(error.to_string()), None),
            Err(error) => (Some(error.to_string()), Some(error)),
        };
        let replies = Arc::clone(self.mailbox.replies());
        let (near, batch) = (&self.near, &mut self.batch);
        let replied = if let Some(reason) = &refused {
            self.counts.refused_count += 1;
            let refusal = replies.refuse(near, batch, asked.reply, reason);
            block_on(refusal, near.completions())
        } else {
            let reply = replies.reply(near, batch, asked.reply, &answer);
            block_on(reply, near.completions())
        };
        replied.map_err(|error| failed_memory(&error))?;
        self.counts.request_count += 1;
        add_time(&mut self.counts.request_time_ns, since);
        failed.map_or(Ok(true), Err)
    }

    fn answer(
        &mut self,
        request: ReplicationRequest,
    ) -> Result<Option<ReplicationReply>, ReplicaError> {
        match request {
            ReplicationRequest::Begin {
                version,
                epoch,
                engine,
                index,
            } => {
                let own = self.current_epoch()?;
                if version != VERSION || Epoch(epoch) != own {
                    return Err(refusal(format!(
                        "a primary of epoch {epoch} and version {version} cannot use a backup of \
                         {own} and version {VERSION}"
                    )));
                }
                return self.begin(engine, index).map(Some);
            }
            ReplicationRequest::LogOffer {
                number,
                end,
                size_bytes,
                sum,
            } => {
                let filling = self.filling()?;
                let is_taken = filling.take_log(number, end, size_bytes, sum)?;
                return Ok(Some(self.note_offer(is_taken, size_bytes)));
            }
            ReplicationRequest::TreeOffer {
                id,
                index,
                size_bytes,
                sum,
            } => {
                let filling = self.filling()?;
                let is_taken = filling.take_tree_segment(id, index, size_bytes, sum)?;
                return Ok(Some(self.note_offer(is_taken, size_bytes)));
            }
            ReplicationRequest::LogSegment {
                number,
                end,
                size_bytes,
            } => {
                let written = self.with_staged(size_bytes, |backup, bytes| {
                    Ok(backup.filling()?.put_log(number, end, bytes)?)
                });
                return Ok(Some(ReplicationReply::Written(written?)));
            }
            ReplicationRequest::TreeSegment {
                id,
                index,
                size_bytes,
            } => {
                let written =
                    self.with_staged(size_bytes, |backup, bytes| match &mut backup.state {
                        BackupState::Following(follower) => {
                            Ok(follower.put_tree_segment(id, index, bytes)?)
                        }
                        _ => Ok(backup.filling()?.put_tree_segment(id, index, bytes)?),
                    });
                return Ok(Some(ReplicationReply::Written(written?)));
            }
            ReplicationRequest::Tree { level, id, shape } => {
                self.filling()?.put_tree(level, id, shape)?;
            }
            ReplicationRequest::Finish(end) => self.finish(end)?,
            ReplicationRequest::Edit(edit) => self.install(&edit)?,
            ReplicationRequest::Piece { name, size_bytes } => {
                return self.own_piece(name, size_bytes).map(Some);
            }
        }
        Ok(None)
    }

    fn finish(&mut self, end: BaseManifest) -> Result<(), ReplicaError> {
        self.filling()?;
        let filling = core::mem::replace(&mut self.state, BackupState::Waiting);
        let BackupState::Filling(filling) = filling else {
            unreachable!("it was looked at");
        };
        let follower = filling.finish(end)?;
        self.shared.set(follower.intake());
        self.state = BackupState::Following(Box::new(follower));
        self.report_progress()
    }

    fn install(&mut self, edit: &InstalledEdit) -> Result<(), ReplicaError> {
        // If the primary is correct, the log that the edit refers to is in the buffers.
        self.take_log(WriteExtent::All)?;
        let BackupState::Following(follower) = &mut self.state else {
            return Err(refusal(
                "received an edit before the base was complete".to_owned(),
            ));
        };
        follower.install(edit)?;
        self.counts.edit_count += 1;
        self.report_progress()
    }

    /// Returns the checksum of a piece as it is on this backup's disk (REPLICATION-17). A full log
    /// segment that is still in the buffers is written first.
    fn own_piece(
        &mut self,
        name: PieceName,
        size_bytes: u32,
    ) -> Result<ReplicationReply, ReplicaError> {
        if let PieceName::Log { number } = name {
            while let BackupState::Following(follower) = &self.state
                && follower.written_to().number() <= number
                && self.take_log(WriteExtent::OneSegment)?
            {}
        }
        let BackupState::Following(follower) = &self.state else {
            return Err(refusal(format!(
                "{name:?} was requested before the base was complete"
            )));
        };
        Ok(ReplicationReply::Piece(
            follower.own_piece(name, size_bytes)?,
        ))
    }

    fn begin(
        &mut self,
        engine: EngineId,
        index: IndexKind,
    ) -> Result<ReplicationReply, ReplicaError> {
        if let BackupState::Following(follower) = &self.state {
            self.counts.log_received_size_bytes += follower.intake().received_size_bytes();
        }
        // The directory is locked as long as it is open.
        self.state = BackupState::Waiting;
        self.scrub = Scrub::new();
        let options = FollowOptions {
            index,
            replaces: self.options.replaces,
            engine: self.options.engine.clone(),
            previous: self.options.previous.clone(),
            write_fault: self.options.write_fault.clone(),
        };
        let filling = Filling::begin(Arc::clone(&self.storage), options, engine)?;
        let has_previous = filling.has_previous();
        self.state = BackupState::Filling(Box::new(filling));
        Ok(ReplicationReply::Begun { has_previous })
    }

    fn note_offer(&mut self, is_taken: bool, size_bytes: u32) -> ReplicationReply {
        if is_taken {
            self.counts.kept_size_bytes += u64::from(size_bytes);
        }
        ReplicationReply::Taken(is_taken)
    }

    fn filling(&mut self) -> Result<&mut Filling, ReplicaError> {
        match &mut self.state {
            BackupState::Filling(filling) => Ok(filling),
            _ => Err(LsmError::CannotFollow {
                how: "received a part of a base that is not started or is complete".to_owned(),
            }
            .into()),
        }
    }

    /// Reads the buffer for trees and passes its bytes to the function.
    fn with_staged(
        &mut self,
        size_bytes: u32,
        take: impl FnOnce(&mut Self, &[u8]) -> Result<WrittenSum, ReplicaError>,
    ) -> Result<WrittenSum, ReplicaError> {
        let size_bytes = u64::from(size_bytes);
        if size_bytes > SEGMENT_SIZE_BYTES {
            let how = format!("{size_bytes} bytes exceed the size of a segment");
            return Err(refusal(how));
        }
        self.batch.clear();
        let word_count = size_bytes.div_ceil(8) as usize;
        let slot = self.batch.read(self.layout.staging(), word_count);
        self.execute()?;
        self.counts.index_received_size_bytes += size_bytes;
        let batch = core::mem::take(&mut self.batch);
        let mut buffer = core::mem::take(&mut self.bytes);
        let bytes = bytes_of(batch.words(slot), &mut buffer);
        let taken = take(self, &bytes[..size_bytes as usize]);
        (self.batch, self.bytes) = (batch, buffer);
        taken
    }
}

fn refusal(how: String) -> ReplicaError {
    LsmError::CannotFollow { how }.into()
}

/// Returns whether an error means that the request was impossible and nothing was changed.
fn is_refusal(error: &ReplicaError) -> bool {
    matches!(
        error,
        ReplicaError::Engine(
            LsmError::CannotFollow { .. } | LsmError::CorruptTree { .. } | LsmError::Locked { .. }
        )
    )
}
