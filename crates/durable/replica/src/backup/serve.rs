//! What a primary asks of a backup by messages (RP3).

use std::sync::Arc;
use std::time::Instant;

use farleaf_executor::block_on;
use farleaf_fabric::Endpoint;
use farleaf_lsm::LsmError;
use farleaf_lsm::follow::{BaseEnd, Filling, FollowOptions, IndexKind, InstalledEdit};
use farleaf_lsm::log::record::EngineId;
use farleaf_lsm::place::SEGMENT_SIZE_BYTES;
use farleaf_lsm::scrub::{PieceName, Scrub};
use farleaf_lsm::written::WrittenSum;

use super::buffers::Extent;
use super::counts::add_time;
use super::{Backup, State, failed_memory};
use crate::error::{Epoch, ReplicaError};
use crate::layout::bytes_of;
use crate::request::{Reply, Request, VERSION};

impl<E: Endpoint> Backup<E> {
    pub(super) fn serve_one(&mut self) -> Result<bool, ReplicaError> {
        if self.follow_log()? {
            return Ok(true);
        }
        if self.answer_one()? {
            return Ok(true);
        }
        let State::Following(follower) = &mut self.state else {
            return Ok(false);
        };
        let since = Instant::now();
        let synced_to = follower.synced_to();
        let worked = follower.maintain()?;
        let has_synced = follower.synced_to() > synced_to;
        add_time(&mut self.counts.maintain_time_ns, since);
        if has_synced {
            self.tell()?;
        }
        Ok(worked)
    }

    /// Answers the next request, if there is one. What cannot be done is refused, and the primary
    /// then does without this backup (RP6); a disk that fails is the end of it.
    fn answer_one(&mut self) -> Result<bool, ReplicaError> {
        let next = self.mailbox.next(&self.near, &self.near, &mut self.batch);
        let next = block_on(next, self.near.completions());
        let next = next.map_err(|error| ReplicaError::Failed {
            how: format!("its primary's messages: {error}"),
            is_no_room: false,
        })?;
        let Some(asked) = next else {
            return Ok(false);
        };
        let since = Instant::now();
        let mut done = match Request::decode(&asked.payload) {
            Ok(request) => self.answer(request),
            Err(how) => Err(LsmError::CannotFollow { how }.into()),
        };
        let answer = done.as_mut().ok().and_then(Option::take);
        let answer = answer.map(Reply::encode).unwrap_or_default();
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

    fn answer(&mut self, request: Request) -> Result<Option<Reply>, ReplicaError> {
        match request {
            Request::Begin {
                version,
                epoch,
                engine,
                index,
            } => {
                let own = self.current_epoch()?;
                if version != VERSION || Epoch(epoch) != own {
                    return Err(refusal(format!(
                        "a primary of epoch {epoch} and version {version} comes to a backup of \
                         {own} and version {VERSION}"
                    )));
                }
                return self.begin(engine, index).map(Some);
            }
            Request::LogOffer {
                number,
                end,
                size_bytes,
                sum,
            } => {
                let filling = self.filling()?;
                let is_taken = filling.take_log((number, end), (size_bytes, sum))?;
                return Ok(Some(self.note_offer(is_taken, size_bytes)));
            }
            Request::TreeOffer {
                id,
                index,
                size_bytes,
                sum,
            } => {
                let filling = self.filling()?;
                let is_taken = filling.take_tree_segment((id, index), (size_bytes, sum))?;
                return Ok(Some(self.note_offer(is_taken, size_bytes)));
            }
            Request::LogSegment {
                number,
                end,
                size_bytes,
            } => {
                let written = self.with_staged(size_bytes, |backup, bytes| {
                    Ok(backup.filling()?.put_log(number, end, bytes)?)
                });
                return Ok(Some(Reply::Written(written?)));
            }
            Request::TreeSegment {
                id,
                index,
                size_bytes,
            } => {
                let written =
                    self.with_staged(size_bytes, |backup, bytes| match &mut backup.state {
                        State::Following(follower) => {
                            Ok(follower.put_tree_segment(id, index, bytes)?)
                        }
                        _ => Ok(backup.filling()?.put_tree_segment(id, index, bytes)?),
                    });
                return Ok(Some(Reply::Written(written?)));
            }
            Request::Tree { level, id, shape } => self.filling()?.put_tree(level, (id, shape))?,
            Request::Finish(end) => self.finish(end)?,
            Request::Edit(edit) => self.install(&edit)?,
            Request::Piece { name, size_bytes } => {
                return self.own_piece(name, size_bytes).map(Some);
            }
        }
        Ok(None)
    }

    fn finish(&mut self, end: BaseEnd) -> Result<(), ReplicaError> {
        self.filling()?;
        let filling = core::mem::replace(&mut self.state, State::Waiting);
        let State::Filling(filling) = filling else {
            unreachable!("it was looked at");
        };
        let follower = filling.finish(end)?;
        self.shared.set(follower.intake());
        self.state = State::Following(Box::new(follower));
        self.tell()
    }

    fn install(&mut self, edit: &InstalledEdit) -> Result<(), ReplicaError> {
        // What it leads to is in the buffers, if its primary is right.
        self.take_log(Extent::All)?;
        let State::Following(follower) = &mut self.state else {
            return Err(refusal("an edit comes, and the base has not".to_owned()));
        };
        follower.install(edit)?;
        self.counts.edit_count += 1;
        self.tell()
    }

    /// RP17: the checksum of a piece, as it is on this backup's disk. A full log segment that is in
    /// the buffers still is written before.
    fn own_piece(&mut self, name: PieceName, size_bytes: u32) -> Result<Reply, ReplicaError> {
        if let PieceName::Log { number } = name {
            while let State::Following(follower) = &self.state
                && follower.written_to().number() <= number
                && self.take_log(Extent::OneSegment)?
            {}
        }
        let State::Following(follower) = &self.state else {
            return Err(refusal(format!(
                "{name:?} is asked for before the base is whole"
            )));
        };
        Ok(Reply::Piece(follower.own_piece(name, size_bytes)?))
    }

    fn begin(&mut self, engine: EngineId, index: IndexKind) -> Result<Reply, ReplicaError> {
        if let State::Following(follower) = &self.state {
            self.counts.log_received_size_bytes += follower.intake().received_size_bytes();
        }
        // Its directory is locked as long as it is open.
        self.state = State::Waiting;
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
        self.state = State::Filling(Box::new(filling));
        Ok(Reply::Begun { has_previous })
    }

    fn note_offer(&mut self, is_taken: bool, size_bytes: u32) -> Reply {
        if is_taken {
            self.counts.kept_size_bytes += u64::from(size_bytes);
        }
        Reply::Taken(is_taken)
    }

    fn filling(&mut self) -> Result<&mut Filling, ReplicaError> {
        match &mut self.state {
            State::Filling(filling) => Ok(filling),
            _ => Err(LsmError::CannotFollow {
                how: "a part of the base comes, and it was not begun, or is whole".to_owned(),
            }
            .into()),
        }
    }

    /// Takes what is in the buffer for trees.
    fn with_staged(
        &mut self,
        size_bytes: u32,
        take: impl FnOnce(&mut Self, &[u8]) -> Result<WrittenSum, ReplicaError>,
    ) -> Result<WrittenSum, ReplicaError> {
        let size_bytes = u64::from(size_bytes);
        if size_bytes > SEGMENT_SIZE_BYTES {
            let how = format!("{size_bytes} bytes are more than a segment has");
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

/// Whether an error says that what was asked for cannot be, and nothing was changed.
fn is_refusal(error: &ReplicaError) -> bool {
    matches!(
        error,
        ReplicaError::Engine(
            LsmError::CannotFollow { .. } | LsmError::DamagedTree { .. } | LsmError::Locked { .. }
        )
    )
}
