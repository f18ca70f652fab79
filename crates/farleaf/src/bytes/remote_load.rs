//! Loads of tables of byte strings that the memory node holds.

use std::mem;

use farleaf_byte_index::load::{ByteLoadSummary, check_next};
use farleaf_fabric::OperationKind;
use farleaf_index::rpc::bytes::{ByteRequest, PART_SIZE_BYTES, Sent, string_size_bytes};
use farleaf_message::CallError;

use super::AsyncByteTable;
use super::exchange::Exchange;
use crate::host::Host;
use crate::{Error, ErrorKind};

/// Records that a load has sent when it says how far it is.
const PROGRESS_COUNT: u64 = 1 << 14;

/// Records of a load that go with one request.
struct Part<K, V> {
    records: Vec<(K, V)>,
    /// Bytes that are left in the request for others.
    left_bytes: usize,
}

/// Whether a value is too long to go with its key.
fn is_staged(key: &[u8], value: &[u8]) -> bool {
    string_size_bytes(key.len()) + string_size_bytes(value.len()) > PART_SIZE_BYTES
}

/// Bytes that a record takes in a request.
fn record_size_bytes(key: &[u8], value: &[u8]) -> usize {
    let value_size_bytes = if is_staged(key, value) {
        // In its place, that it is staged, and the number.
        16
    } else {
        string_size_bytes(value.len())
    };
    string_size_bytes(key.len()) + value_size_bytes
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> Part<K, V> {
    fn new() -> Self {
        Self {
            records: Vec::new(),
            left_bytes: PART_SIZE_BYTES,
        }
    }

    /// Adds a record, if there is room for it.
    fn add(&mut self, record: (K, V)) -> Result<(), (K, V)> {
        let size_bytes = record_size_bytes(record.0.as_ref(), record.1.as_ref());
        let Some(left_bytes) = self.left_bytes.checked_sub(size_bytes) else {
            return Err(record);
        };
        // One that is staged is the last: an operation has two things in parts at the most.
        let is_staged = is_staged(record.0.as_ref(), record.1.as_ref());
        self.left_bytes = if is_staged { 0 } else { left_bytes };
        self.records.push(record);
        Ok(())
    }
}

impl<H: Host> AsyncByteTable<H> {
    /// All of it or nothing: the records go in parts, and a last request makes them the table's.
    pub(super) async fn load_remote<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl Iterator<Item = (K, V)>,
        progress: impl FnMut(u64),
    ) -> Result<ByteLoadSummary, Error> {
        let (session, state) = (&self.session, &self.state);
        // F6: one that is broken asks nothing.
        drop(session.begin_bytes(state).await?);
        session.check_live_bytes(state).await?;
        let load = async |exchange: &mut Exchange<'_, H>| {
            let number = exchange.begin_transfer();
            let loaded = exchange.load(number, records, progress).await;
            if loaded.as_ref().is_err_and(may_answer) {
                // If that fails, the node is told with the next operation, or forgets the load
                // with the session.
                let _ = exchange.forget(number).await;
            } else if loaded.is_ok() {
                exchange.end_transfer(number);
            }
            loaded
        };
        let record_count = self.remotely(OperationKind::BulkLoad, load).await?;
        // A load takes long; were it dropped meanwhile, what was loaded is gone with it.
        session.check_live_bytes(state).await?;
        Ok(ByteLoadSummary {
            record_count,
            ..ByteLoadSummary::default()
        })
    }
}

/// Whether the node may still answer after this.
fn may_answer(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Call(error) => matches!(error, CallError::Refused { .. }),
        ErrorKind::Fabric(_) | ErrorKind::SessionBroken => false,
        _ => true,
    }
}

impl<H: Host> Exchange<'_, H> {
    async fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        number: u64,
        records: impl Iterator<Item = (K, V)>,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let (mut part, mut previous) = (Part::new(), None::<Vec<u8>>);
        let mut record_count = 0_u64;
        for (key, value) in records {
            check_next(
                record_count,
                (key.as_ref(), value.as_ref()),
                previous.as_deref(),
            )?;
            let last = previous.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key.as_ref());
            record_count += 1;
            if let Err(record) = part.add((key, value)) {
                self.send_part(number, &mem::replace(&mut part, Part::new()))
                    .await?;
                let added = part.add(record);
                assert!(added.is_ok(), "an empty part has room for any record");
            }
            if record_count.is_multiple_of(PROGRESS_COUNT) {
                progress(record_count);
            }
        }
        if record_count == 0 {
            return Ok(0);
        }
        self.send_part(number, &part).await?;
        let commit = ByteRequest::LoadCommit {
            number,
            record_count,
        };
        self.ask_count(&commit).await
    }

    async fn send_part<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        number: u64,
        part: &Part<K, V>,
    ) -> Result<(), Error> {
        let mut records: Vec<(&[u8], Sent<'_>)> = Vec::with_capacity(part.records.len());
        for (key, value) in &part.records {
            let (key, value) = (key.as_ref(), value.as_ref());
            let mut left_bytes = PART_SIZE_BYTES - string_size_bytes(key.len());
            records.push((key, self.sent(value, &mut left_bytes).await?));
        }
        let staged: Vec<Sent<'_>> = records.iter().map(|(_, value)| *value).collect();
        self.ask_count(&ByteRequest::LoadPart { number, records })
            .await?;
        for value in staged {
            self.end_sent(Some(value));
        }
        Ok(())
    }
}
