//! Loads of tables of byte strings that the memory node stores.

use std::mem;

use farleaf_fabric::OperationKind;
use farleaf_fabric::message::CallError;
use farleaf_index::rpc::bytes::{ByteRequest, PART_SIZE_BYTES, SentValue, string_size_bytes};
use farleaf_index::strings::load::{ByteLoadSummary, check_next};

use super::AsyncByteTable;
use super::exchange::CallSequence;
use crate::host::SessionHost;
use crate::{Error, ErrorKind};

/// Records that a load sends between two progress reports.
const PROGRESS_COUNT: u64 = 1 << 14;

/// Records of a load that one request sends.
struct LoadRequestRecords<K, V> {
    records: Vec<(K, V)>,
    /// Free bytes of the request.
    left_bytes: usize,
}

/// Returns whether a value is too long to be sent with its key.
fn is_staged(key: &[u8], value: &[u8]) -> bool {
    string_size_bytes(key.len()) + string_size_bytes(value.len()) > PART_SIZE_BYTES
}

/// Returns the bytes that a record takes in a request.
fn record_size_bytes(key: &[u8], value: &[u8]) -> usize {
    let value_size_bytes = if is_staged(key, value) {
        // The mark of a staged value and its number replace the value.
        16
    } else {
        string_size_bytes(value.len())
    };
    string_size_bytes(key.len()) + value_size_bytes
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> LoadRequestRecords<K, V> {
    fn new() -> Self {
        Self {
            records: Vec::new(),
            left_bytes: PART_SIZE_BYTES,
        }
    }

    /// Adds a record, or returns it if the request is full.
    fn add(&mut self, record: (K, V)) -> Result<(), (K, V)> {
        let size_bytes = record_size_bytes(record.0.as_ref(), record.1.as_ref());
        let Some(left_bytes) = self.left_bytes.checked_sub(size_bytes) else {
            return Err(record);
        };
        // A staged value ends the request, because an operation has at most two open transfers.
        let is_staged = is_staged(record.0.as_ref(), record.1.as_ref());
        self.left_bytes = if is_staged { 0 } else { left_bytes };
        self.records.push(record);
        Ok(())
    }
}

impl<H: SessionHost> AsyncByteTable<H> {
    /// Loads all records or none: the records are sent in parts, and a last request commits them.
    pub(super) async fn load_remote<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl Iterator<Item = (K, V)>,
        progress: impl FnMut(u64),
    ) -> Result<ByteLoadSummary, Error> {
        let (session, state) = (&self.session, &self.state);
        // A broken session must not send anything (FABRIC-6).
        drop(session.begin_bytes(state).await?);
        session.check_live_bytes(state).await?;
        let load = async |exchange: &mut CallSequence<'_, H>| {
            let number = exchange.begin_transfer();
            let loaded = exchange.load(number, records, progress).await;
            if loaded.as_ref().is_err_and(may_answer) {
                // If this fails, the next operation tells the node, or the node discards the load
                // with the session.
                let _ = exchange.forget(number).await;
            } else if loaded.is_ok() {
                exchange.end_transfer(number);
            }
            loaded
        };
        let record_count = self.remotely(OperationKind::BulkLoad, load).await?;
        // Loads take long. If the table was dropped meanwhile, the loaded records are gone with it.
        session.check_live_bytes(state).await?;
        Ok(ByteLoadSummary {
            record_count,
            ..ByteLoadSummary::default()
        })
    }
}

/// Returns whether the node may still answer after this error.
fn may_answer(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Call(error) => matches!(error, CallError::Refused { .. }),
        ErrorKind::Fabric(_) | ErrorKind::SessionBroken => false,
        _ => true,
    }
}

impl<H: SessionHost> CallSequence<'_, H> {
    async fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        number: u64,
        records: impl Iterator<Item = (K, V)>,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let (mut part, mut previous) = (LoadRequestRecords::new(), None::<Vec<u8>>);
        let mut record_count = 0_u64;
        for (key, value) in records {
            check_next(
                record_count,
                key.as_ref(),
                value.as_ref(),
                previous.as_deref(),
            )?;
            let last = previous.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key.as_ref());
            record_count += 1;
            if let Err(record) = part.add((key, value)) {
                self.send_part(number, &mem::replace(&mut part, LoadRequestRecords::new()))
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
        part: &LoadRequestRecords<K, V>,
    ) -> Result<(), Error> {
        let mut records: Vec<(&[u8], SentValue<'_>)> = Vec::with_capacity(part.records.len());
        for (key, value) in &part.records {
            let (key, value) = (key.as_ref(), value.as_ref());
            let mut left_bytes = PART_SIZE_BYTES - string_size_bytes(key.len());
            records.push((key, self.sent(value, &mut left_bytes).await?));
        }
        let staged: Vec<SentValue<'_>> = records.iter().map(|(_, value)| *value).collect();
        self.ask_count(&ByteRequest::LoadPart { number, records })
            .await?;
        for value in staged {
            self.end_sent(Some(value));
        }
        Ok(())
    }
}
