//! Operations on tables of byte strings, by the numbers of keys and values.

use std::fmt::Debug;
use std::sync::Arc;

use farleaf::{AsyncByteTable, ByteInsertion, ByteSwap, Record};
use farleaf_fabric::Endpoint;

use super::{OperationFailure, SimHost, Unexpected};
use crate::history::{Answer, Operation};
use crate::strings::StringMap;

/// Table of byte strings, with the meaning of numbers.
#[derive(Debug)]
pub(super) struct ByNumbers<E: Endpoint + Debug> {
    pub(super) table: AsyncByteTable<SimHost<E>>,
    pub(super) strings: Arc<StringMap>,
}

impl<E: Endpoint + Debug> Clone for ByNumbers<E> {
    fn clone(&self) -> Self {
        Self {
            table: self.table.clone(),
            strings: Arc::clone(&self.strings),
        }
    }
}

impl<E: Endpoint + Debug> ByNumbers<E> {
    /// Executes an operation. Some kinds of operation exist twice: odd keys and values use the one
    /// that does not return the previous state.
    pub(super) async fn perform(
        &self,
        operation: &Operation,
        expected: Option<u64>,
    ) -> Result<Answer, OperationFailure> {
        let (table, strings) = (&self.table, &*self.strings);
        let key_of = |number: u64| strings.key(number);
        Ok(match operation {
            Operation::Get(key) => {
                let value = table.get(key_of(*key)).await?;
                Answer::Values(vec![self.number(value)?])
            }
            Operation::MultiGet(keys) => {
                let keys: Vec<_> = keys.iter().map(|key| key_of(*key)).collect();
                let values = table.multi_get(&keys).await?.into_iter();
                let values = values.map(|value| self.number(value));
                Answer::Values(values.collect::<Result<_, _>>()?)
            }
            Operation::Put(key, number) => {
                let (key, value) = (key_of(*key), strings.value(*number));
                let to = Some(*number);
                if number % 2 == 1 {
                    let was_present = table.put(key, &value).await?;
                    Answer::Wrote { was_present, to }
                } else {
                    let from = self.number(table.replace(key, &value).await?)?;
                    Answer::Changed { from, to }
                }
            }
            Operation::Insert(key, number) => {
                let value = strings.value(*number);
                match table.insert(key_of(*key), &value).await? {
                    ByteInsertion::Inserted => changed(None, Some(*number)),
                    ByteInsertion::AlreadyPresent(found) => {
                        let found = self.number(Some(found))?;
                        changed(found, found)
                    }
                }
            }
            Operation::Update(key, number) => {
                let value = strings.value(*number);
                if table.update(key_of(*key), &value).await? {
                    Answer::Wrote {
                        was_present: true,
                        to: Some(*number),
                    }
                } else {
                    changed(None, None)
                }
            }
            Operation::Delete(key) if key % 2 == 1 => Answer::Wrote {
                was_present: table.delete(key_of(*key)).await?,
                to: None,
            },
            Operation::Delete(key) => {
                let from = self.number(table.take(key_of(*key)).await?)?;
                changed(from, None)
            }
            Operation::CompareSwap(key, new) => {
                let values = [expected, *new].map(|number| number.map(|it| strings.value(it)));
                let [before, after] = values.each_ref().map(Option::as_deref);
                let swapped = table.compare_and_swap(key_of(*key), before, after);
                match swapped.await? {
                    ByteSwap::Swapped => changed(expected, *new),
                    ByteSwap::Differs(found) => {
                        let found = self.number(found)?;
                        changed(found, found)
                    }
                }
            }
            _ => self.perform_on_many(operation).await?,
        })
    }

    async fn perform_on_many(&self, operation: &Operation) -> Result<Answer, OperationFailure> {
        let (table, strings) = (&self.table, &*self.strings);
        let start = |number: u64| strings.bound(number).unwrap_or_default();
        Ok(match operation {
            Operation::Scan(from, limit) => {
                let records = table.scan(start(*from), None, *limit).await?;
                self.records(&records, *limit)?
            }
            Operation::ScanReverse(to, limit) => {
                let end = strings.bound(*to);
                let records = table.scan_reverse(&[], end, *limit).await?;
                self.records(&records, *limit)?
            }
            Operation::DeleteRange(from, to) => {
                let end = strings.bound(*to);
                Answer::Cleared(table.delete_range(start(*from), end).await?)
            }
            Operation::Load(records) => {
                let records = records.iter();
                let records =
                    records.map(|(key, value)| (strings.key(*key), strings.value(*value)));
                table.bulk_load(records, |_| ()).await?;
                Answer::Loaded
            }
            other => unreachable!("{other:?} is on no table, or on one key"),
        })
    }

    fn number(&self, value: Option<Vec<u8>>) -> Result<Option<u64>, OperationFailure> {
        let Some(value) = value else {
            return Ok(None);
        };
        let number = self.strings.value_number(&value);
        let number = number.ok_or_else(|| unknown_bytes("value", &value))?;
        Ok(Some(number))
    }

    fn records(&self, records: &[Record], limit: usize) -> Result<Answer, OperationFailure> {
        let records = records.iter().map(|Record { key, value }| {
            let number = self.strings.key_number(key);
            let number = number.ok_or_else(|| unknown_bytes("key", key))?;
            let value = self.strings.value_number(value);
            let value = value.ok_or_else(|| unknown_bytes("value of a scan", key))?;
            Ok((number, value))
        });
        let records: Vec<_> = records.collect::<Result<_, OperationFailure>>()?;
        let is_end = records.len() < limit;
        Ok(Answer::Records(records, is_end))
    }
}

fn changed(from: Option<u64>, to: Option<u64>) -> Answer {
    Answer::Changed { from, to }
}

/// Returns the failure of a read of bytes that no client has ever written.
fn unknown_bytes(what: &str, bytes: &[u8]) -> OperationFailure {
    let head = &bytes[..bytes.len().min(24)];
    let text = format!(
        "read a {what} that nobody wrote: {} bytes, {}",
        bytes.len(),
        head.escape_ascii()
    );
    OperationFailure::Unexpected(Unexpected::Failed(text))
}
