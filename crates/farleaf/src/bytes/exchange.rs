//! One operation on a table of byte strings that the memory node stores, as a series of calls.

use farleaf_fabric::{Batch, Endpoint, OperationKind, ProtocolCheck};
use farleaf_index::rpc::Failure;
use farleaf_index::rpc::bytes::{
    ByteReply, ByteRequest, MESSAGE_SIZE_BYTES_MAX, PART_SIZE_BYTES, ReplyCapacity, RequestHead,
    SentValue, string_size_bytes,
};
use farleaf_index::strings::ByteLoadError;

use super::AsyncByteTable;
use super::transfers::TransferPermit;
use crate::host::SessionHost;
use crate::{Error, ErrorKind};

/// One operation and the state of its calls.
#[derive(Debug)]
pub(super) struct CallSequence<'a, H: SessionHost> {
    table: &'a AsyncByteTable<H>,
    batch: Box<Batch>,
    permit: TransferPermit<'a>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl<H: SessionHost> AsyncByteTable<H> {
    /// Returns whether the memory node executes the operations.
    pub(super) fn is_remote(&self) -> bool {
        !self.info().options.layer.has_leaves()
    }

    /// Executes an operation by calls, which count as one operation.
    pub(super) async fn remotely<R>(
        &self,
        kind: OperationKind,
        operation: impl AsyncFnOnce(&mut CallSequence<'_, H>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let session = &self.session;
        // Waits before the operation begins: an unfinished operation would keep the session from
        // catching up.
        let permit = session.transfers.permit().await;
        let _guard = session.begin_bytes(&self.state).await?;
        let mut exchange = CallSequence {
            table: self,
            permit,
            batch: session.take_batch(),
            request: Vec::new(),
            reply: Vec::new(),
        };
        let done = match exchange.discard_abandoned().await {
            Ok(()) => operation(&mut exchange).await,
            Err(error) => Err(error),
        };
        session.finish(kind, exchange.batch);
        done
    }
}

impl<H: SessionHost> CallSequence<'_, H> {
    /// Makes one call, whose reply has `reply_space_bytes` of space.
    async fn send(
        &mut self,
        request: &ByteRequest<'_>,
        reply_space_bytes: usize,
    ) -> Result<(), Error> {
        let session = &self.table.session;
        let head = RequestHead {
            table: self.table.state.entry.record.id,
            lowest_open: session.transfers.lowest_open(session.next_number()),
        };
        request.encode(head, &mut self.request);
        session
            .call(
                &mut self.batch,
                &self.request,
                reply_space_bytes,
                &mut self.reply,
            )
            .await
    }

    /// Makes one call and returns the reply.
    pub(super) async fn ask(
        &mut self,
        request: &ByteRequest<'_>,
        reply_space_bytes: usize,
    ) -> Result<ByteReply<'_>, Error> {
        self.send(request, reply_space_bytes).await?;
        match ByteReply::decode(&self.reply) {
            Ok(ByteReply::Failed(failure)) => Err(self.failed(failure)),
            Ok(reply) => Ok(reply),
            Err(bad) => Err(ErrorKind::BadReply(bad.text()).into()),
        }
    }

    /// Makes one call and returns the number in its reply.
    pub(super) async fn ask_count(&mut self, request: &ByteRequest<'_>) -> Result<u64, Error> {
        match self.ask(request, ByteReply::SHORT_SIZE_BYTES).await? {
            ByteReply::Count(count) => Ok(count),
            _ => Err(other_reply()),
        }
    }

    fn failed(&self, failure: Failure) -> Error {
        let name = || self.table.info().name.clone();
        match failure {
            Failure::Dropped => ErrorKind::TableDropped { name: name() },
            Failure::NotEmpty => return ByteLoadError::TableNotEmpty.into(),
            Failure::Full => ErrorKind::NodeFull,
            Failure::Unsound => ErrorKind::ValueDiscarded { name: name() },
            // The catalog contradicted this when the table was opened, and a table's kind never
            // changes.
            Failure::OfOtherKind => ErrorKind::BadReply("the table is of another kind"),
            Failure::OfLeaves => {
                ErrorKind::BadReply("the node does not store the table's records itself")
            }
            Failure::PoolFull => {
                ErrorKind::BadReply("out of space for a leaf, which the table does not need")
            }
        }
        .into()
    }

    /// Returns the error for a failure after a write was answered. All other errors mean that
    /// nothing was written.
    pub(super) fn after_change(&self, is_done: bool, error: Error) -> Error {
        if !is_done {
            return error;
        }
        let name = self.table.info().name.clone();
        let source = error;
        ErrorKind::PreviousLost { name, source }.into()
    }

    /// Returns a number for a transfer that may have several parts.
    pub(super) fn begin_transfer(&mut self) -> u64 {
        let session = &self.table.session;
        let number = if session
            .endpoint
            .skips_check(ProtocolCheck::PartsAreNumbered)
        {
            1
        } else {
            session.next_load()
        };
        self.permit.open(number);
        number
    }

    /// Records that the node has no data under this number any more.
    pub(super) fn end_transfer(&mut self, number: u64) {
        self.permit.close(number);
    }

    /// Makes the node discard its data under this number.
    pub(super) async fn forget(&mut self, number: u64) -> Result<(), Error> {
        // The node discards the data before it replies, so any reply will do.
        let reply_space_bytes = ByteReply::SHORT_SIZE_BYTES;
        self.send(&ByteRequest::Forget { number }, reply_space_bytes)
            .await?;
        self.end_transfer(number);
        Ok(())
    }

    async fn discard_abandoned(&mut self) -> Result<(), Error> {
        let session = &self.table.session;
        while let Some(number) = self.permit.take_abandoned(session.next_number()) {
            self.forget(number).await?;
        }
        Ok(())
    }

    /// Returns a value as a request contains it, if `left_bytes` of the request are free. A longer
    /// value is staged first, at one call per 14 KiB. The caller ends the transfer when the request
    /// has been answered.
    pub(super) async fn sent<'v>(
        &mut self,
        value: &'v [u8],
        left_bytes: &mut usize,
    ) -> Result<SentValue<'v>, Error> {
        if let Some(left) = left_bytes.checked_sub(string_size_bytes(value.len())) {
            *left_bytes = left;
            return Ok(SentValue::Here(value));
        }
        assert!(!value.is_empty(), "an empty value fits");
        let number = self.begin_transfer();
        let mut staged_bytes = 0;
        for part in value.chunks(PART_SIZE_BYTES) {
            let request = ByteRequest::Stage {
                number,
                offset: staged_bytes as u32,
                whole_size_bytes: value.len() as u32,
                part,
            };
            staged_bytes += part.len();
            if self.ask_count(&request).await? != staged_bytes as u64 {
                return Err(other_reply());
            }
        }
        Ok(SentValue::Staged(number))
    }

    /// Ends a staged value's transfer after the request that named it has been answered.
    pub(super) fn end_sent(&mut self, sent: Option<SentValue<'_>>) {
        if let Some(SentValue::Staged(number)) = sent {
            self.end_transfer(number);
        }
    }

    /// Reads the rest of a value that the node holds under a number, at one call per 14.6 KiB.
    pub(super) async fn read_rest(
        &mut self,
        number: u64,
        value: &mut Vec<u8>,
        whole_size_bytes: usize,
    ) -> Result<(), Error> {
        value.reserve_exact(whole_size_bytes.saturating_sub(value.len()));
        while value.len() < whole_size_bytes {
            let request = ByteRequest::Read {
                offset: value.len() as u32,
                capacity: reply_capacity(number, MESSAGE_SIZE_BYTES_MAX),
            };
            match self.ask(&request, MESSAGE_SIZE_BYTES_MAX).await? {
                ByteReply::Part(part) if part.len() <= whole_size_bytes - value.len() => {
                    value.extend_from_slice(part);
                }
                _ => return Err(other_reply()),
            }
        }
        self.end_transfer(number);
        Ok(())
    }
}

pub(super) fn reply_capacity(number: u64, size_bytes: usize) -> ReplyCapacity {
    ReplyCapacity {
        number,
        size_bytes: size_bytes as u32,
    }
}

/// Returns the error for a valid reply that does not match the request.
#[cold]
pub(super) fn other_reply() -> Error {
    ErrorKind::BadReply("a reply that does not match the request").into()
}
