//! One operation on a table of byte strings that the memory node holds, call by call.

use farleaf_byte_index::ByteLoadError;
use farleaf_fabric::{Batch, Endpoint, OperationKind, ProtocolCheck};
use farleaf_index::rpc::Failure;
use farleaf_index::rpc::bytes::{
    ByteReply, ByteRequest, MESSAGE_SIZE_BYTES_MAX, PART_SIZE_BYTES, ReplyRoom, RequestHead, Sent,
    string_size_bytes,
};

use super::AsyncByteTable;
use super::transfers::Permit;
use crate::host::Host;
use crate::{Error, ErrorKind};

/// One operation, as it makes calls.
#[derive(Debug)]
pub(super) struct Exchange<'a, H: Host> {
    table: &'a AsyncByteTable<H>,
    batch: Box<Batch>,
    permit: Permit<'a>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl<H: Host> AsyncByteTable<H> {
    /// Whether the memory node executes the operations.
    pub(super) fn is_remote(&self) -> bool {
        !self.info().options.layer.has_leaves()
    }

    /// Does an operation by calls, which counts as one.
    pub(super) async fn remotely<R>(
        &self,
        kind: OperationKind,
        operation: impl AsyncFnOnce(&mut Exchange<'_, H>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let session = &self.session;
        // Who waits has nothing begun, which would keep the session where it is (P1).
        let permit = session.transfers.permit().await;
        let _begun = session.begin_bytes(&self.state).await?;
        let mut exchange = Exchange {
            table: self,
            permit,
            batch: session.take_batch(),
            request: Vec::new(),
            reply: Vec::new(),
        };
        let done = match exchange.forget_given_up().await {
            Ok(()) => operation(&mut exchange).await,
            Err(error) => Err(error),
        };
        session.finish(kind, exchange.batch);
        done
    }
}

impl<H: Host> Exchange<'_, H> {
    /// One call, for whose reply room of so many bytes is announced.
    async fn send(&mut self, request: &ByteRequest<'_>, room_bytes: usize) -> Result<(), Error> {
        let session = &self.table.session;
        let head = RequestHead {
            table: self.table.state.entry.record.id,
            lowest_open: session.transfers.lowest_open(session.next_number()),
        };
        request.encode(head, &mut self.request);
        let room = (room_bytes, &mut self.reply);
        session.call(&mut self.batch, &self.request, room).await
    }

    /// One call, and what is answered.
    pub(super) async fn ask(
        &mut self,
        request: &ByteRequest<'_>,
        room_bytes: usize,
    ) -> Result<ByteReply<'_>, Error> {
        self.send(request, room_bytes).await?;
        match ByteReply::decode(&self.reply) {
            Ok(ByteReply::Failed(failure)) => Err(self.failed(failure)),
            Ok(reply) => Ok(reply),
            Err(bad) => Err(ErrorKind::BadReply(bad.text()).into()),
        }
    }

    /// One call that is answered by a number.
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
            Failure::Unsound => ErrorKind::ValueGivenUp { name: name() },
            // Its catalog said otherwise when the table was opened, and never changes that.
            Failure::OfOtherKind => ErrorKind::BadReply("that the table is of another kind"),
            Failure::OfLeaves => ErrorKind::BadReply("that the table's records are not its own"),
            Failure::PoolFull => ErrorKind::BadReply("that it needs a leaf"),
        }
        .into()
    }

    /// What to say of a change that was answered, when something has failed since: other errors say
    /// that nothing has been written.
    pub(super) fn after_change(&self, is_done: bool, error: Error) -> Error {
        if !is_done {
            return error;
        }
        let name = self.table.info().name.clone();
        let source = error;
        ErrorKind::PreviousLost { name, source }.into()
    }

    /// A number for something that may go in parts.
    pub(super) fn begin_transfer(&mut self) -> u64 {
        let session = &self.table.session;
        let number = if session.endpoint.leaves_out(ProtocolCheck::PartsAreNumbered) {
            1
        } else {
            session.next_load()
        };
        self.permit.open(number);
        number
    }

    /// The node has nothing under this number any more.
    pub(super) fn end_transfer(&mut self, number: u64) {
        self.permit.close(number);
    }

    /// Has the node forget what it has under this number.
    pub(super) async fn forget(&mut self, number: u64) -> Result<(), Error> {
        // Whatever it says, it has done that first.
        let room_bytes = ByteReply::SHORT_SIZE_BYTES;
        self.send(&ByteRequest::Forget { number }, room_bytes)
            .await?;
        self.end_transfer(number);
        Ok(())
    }

    async fn forget_given_up(&mut self) -> Result<(), Error> {
        let session = &self.table.session;
        while let Some(number) = self.permit.take_given_up(session.next_number()) {
            self.forget(number).await?;
        }
        Ok(())
    }

    /// A value as a request brings it, of which so many bytes are left: staged if it is longer.
    /// One call for each 14 KiB then. Its number is to be ended when the request has been answered.
    pub(super) async fn sent<'v>(
        &mut self,
        value: &'v [u8],
        left_bytes: &mut usize,
    ) -> Result<Sent<'v>, Error> {
        if let Some(left) = left_bytes.checked_sub(string_size_bytes(value.len())) {
            *left_bytes = left;
            return Ok(Sent::Here(value));
        }
        assert!(!value.is_empty(), "there is room for an empty value");
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
        Ok(Sent::Staged(number))
    }

    /// A request that named it has been answered.
    pub(super) fn end_sent(&mut self, sent: Option<Sent<'_>>) {
        if let Some(Sent::Staged(number)) = sent {
            self.end_transfer(number);
        }
    }

    /// Reads on behind the beginning of a value that the node holds under a number. One call for
    /// each 14.6 KiB.
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
                room: room(number, MESSAGE_SIZE_BYTES_MAX),
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

pub(super) fn room(number: u64, size_bytes: usize) -> ReplyRoom {
    ReplyRoom {
        number,
        size_bytes: size_bytes as u32,
    }
}

/// What came is a reply, and not to that.
#[cold]
pub(super) fn other_reply() -> Error {
    ErrorKind::BadReply("a reply to something else").into()
}
