//! Operations on tables of byte strings that the memory node stores (`rpc`): one call each, and
//! more if a value or a reply is longer than a message.

use farleaf_base::limits::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};
use farleaf_fabric::OperationKind;
use farleaf_index::rpc::bytes::{
    BOUND_SIZE_BYTES_MAX, ByteChange, ByteCondition, ByteRange, ByteReply, ByteRequest, FoundValue,
    MESSAGE_SIZE_BYTES_MAX, PART_SIZE_BYTES, string_size_bytes,
};
use farleaf_index::strings::operation::{
    Change, Changed, Condition, RecordBuffer, ReverseCursor, ScanCursor, check_record,
};
use farleaf_leaf::strings::Fence;

use super::AsyncByteTable;
use super::exchange::{CallSequence, other_reply, reply_capacity};
use crate::Error;
use crate::async_table::SlowPathFuture;
use crate::host::SessionHost;

/// Reply space in bytes for one value. A longer value takes another call. The ring has space for 23
/// such replies at a time, so that short values do not limit concurrency much.
const VALUE_SPACE_BYTES: usize = 1200;
/// Reply space in bytes that a scan reserves for each record, and for a key of maximum length.
const RECORD_SPACE_BYTES: usize = 256;
const KEY_SPACE_BYTES: usize = KEY_SIZE_BYTES_MAX + 100;

/// First part of a value, as a reply contains it.
struct ValuePrefix {
    value: Vec<u8>,
    whole_size_bytes: usize,
}

impl ValuePrefix {
    fn new(found: FoundValue<'_>) -> Self {
        Self {
            value: found.here.to_vec(),
            whole_size_bytes: found.whole_size_bytes as usize,
        }
    }
}

/// Records that a scan requests next.
pub(super) struct RemainingRange {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    descends: bool,
    of_keys: bool,
}

impl RemainingRange {
    fn range(&self, limit: usize) -> ByteRange<'_> {
        ByteRange {
            start: &self.start,
            end: self.end.as_deref(),
            descends: self.descends,
            of_keys: self.of_keys,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
        }
    }

    /// Returns whether a reply is valid for the request: records in order and within the range, and
    /// at least one unless it is the end.
    fn is_answered_by(
        &self,
        records: &[(&[u8], FoundValue<'_>)],
        is_end: bool,
        limit: usize,
    ) -> bool {
        let is_inside =
            |key: &[u8]| key >= &self.start[..] && self.end.as_deref().is_none_or(|end| key < end);
        let is_sorted = records.is_sorted_by(|one, next| {
            if self.descends {
                one.0 > next.0
            } else {
                one.0 < next.0
            }
        });
        let has_some = is_end || !records.is_empty() || limit == 0;
        let all_inside = records.iter().all(|(key, _)| is_inside(key));
        is_sorted && all_inside && has_some && records.len() <= limit
    }
}

/// Cursor of a scan of a table that the node stores.
pub(super) trait RemoteCursor {
    /// Returns the remaining range; `None` if nothing is left.
    fn wanted(&self) -> Option<RemainingRange>;

    /// Moves the cursor behind the last key; `None` if there are no more keys.
    fn go_on(&mut self, last: Option<&[u8]>);
}

impl RemoteCursor for ScanCursor {
    fn wanted(&self) -> Option<RemainingRange> {
        Some(RemainingRange {
            start: bound(self.next_key()?),
            end: self.end().map(bound),
            descends: false,
            of_keys: !self.has_values(),
        })
    }

    fn go_on(&mut self, last: Option<&[u8]>) {
        match last {
            Some(last) => self.pass_key(last),
            None => self.finish(),
        }
    }
}

impl RemoteCursor for ReverseCursor {
    fn wanted(&self) -> Option<RemainingRange> {
        Some(RemainingRange {
            start: bound(self.start()),
            end: self.before()?.least_key().map(|key| bound(&key)),
            descends: true,
            of_keys: !self.has_values(),
        })
    }

    fn go_on(&mut self, last: Option<&[u8]>) {
        match last {
            Some(last) => self.pass(Fence::Before(last.to_vec())),
            None => self.finish(),
        }
    }
}

/// Returns a range bound of valid length that selects the same keys. A bound that is longer than
/// any key lies directly behind its longest valid prefix.
fn bound(string: &[u8]) -> Vec<u8> {
    match string.split_at_checked(KEY_SIZE_BYTES_MAX) {
        Some((key, rest)) if !rest.is_empty() => [key, &[0]].concat(),
        _ => string.to_vec(),
    }
}

const _: () = assert!(BOUND_SIZE_BYTES_MAX == KEY_SIZE_BYTES_MAX + 1);

/// Returns how many of the first keys fit one request.
fn keys_of_request<K: AsRef<[u8]>>(keys: &[K]) -> usize {
    let mut left_bytes = PART_SIZE_BYTES;
    let fit = keys.iter().take_while(|key| {
        let left = left_bytes.checked_sub(string_size_bytes(key.as_ref().len()));
        left_bytes = left.unwrap_or(0);
        left.is_some()
    });
    fit.count()
}

impl<H: SessionHost> AsyncByteTable<H> {
    fn check(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let checked = check_record(key, value);
        checked.map_err(|error| Error::from(error).of_table(&self.info().name))
    }

    pub(super) fn get_remote<'a>(&'a self, key: &'a [u8]) -> SlowPathFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            self.check(key, &[])?;
            self.remotely(OperationKind::Get, async |exchange| {
                let mut values = Vec::new();
                exchange
                    .get_some(&[key], VALUE_SPACE_BYTES, &mut values)
                    .await?;
                Ok(values.pop().flatten())
            })
            .await
        })
    }

    pub(super) fn multi_get_remote<'a, K: AsRef<[u8]>>(
        &'a self,
        keys: &'a [K],
    ) -> SlowPathFuture<'a, Vec<Option<Vec<u8>>>> {
        Box::pin(async move {
            for key in keys {
                self.check(key.as_ref(), &[])?;
            }
            self.remotely(OperationKind::MultiGet, async |exchange| {
                let mut values = Vec::new();
                while let Some(rest) = keys.get(values.len()..).filter(|rest| !rest.is_empty()) {
                    let requested = &rest[..keys_of_request(rest)];
                    let requested: Vec<&[u8]> = requested.iter().map(AsRef::as_ref).collect();
                    let reply_space_bytes = MESSAGE_SIZE_BYTES_MAX;
                    exchange
                        .get_some(&requested, reply_space_bytes, &mut values)
                        .await?;
                }
                Ok(values)
            })
            .await
        })
    }

    pub(super) fn modify_remote<'a>(
        &'a self,
        kind: OperationKind,
        key: &'a [u8],
        change: &'a Change<'a>,
    ) -> SlowPathFuture<'a, Changed> {
        Box::pin(async move {
            self.check(key, change.value.unwrap_or_default())?;
            if let Condition::IfEqual(Some(expected)) = change.condition
                && expected.len() > VALUE_SIZE_BYTES_MAX
            {
                // A value can never be that long, so the comparison fails.
                let previous = self.get_remote(key).await?;
                return Ok(Changed {
                    is_done: false,
                    was_present: previous.is_some(),
                    previous,
                });
            }
            self.remotely(kind, async |exchange| exchange.change(key, change).await)
                .await
        })
    }

    /// Adds records and moves the cursor behind them, in either direction.
    pub(super) fn scan_remote<'a>(
        &'a self,
        cursor: &'a mut impl RemoteCursor,
        wanted: usize,
        records: &'a mut RecordBuffer,
    ) -> SlowPathFuture<'a, ()> {
        Box::pin(async move {
            let end = records.len().saturating_add(wanted);
            self.remotely(OperationKind::Scan, async |exchange| {
                while records.len() < end
                    && let Some(range) = cursor.wanted()
                {
                    let limit = end - records.len();
                    let is_end = exchange.scan_some(&range, limit, records).await?;
                    cursor.go_on(records.last().map(|(key, _)| key).filter(|_| !is_end));
                }
                Ok(())
            })
            .await
        })
    }

    /// Returns the number of records.
    pub(super) fn count_remote(&self) -> SlowPathFuture<'_, u64> {
        Box::pin(self.remotely(OperationKind::Control, async |exchange| {
            exchange.ask_count(&ByteRequest::Count).await
        }))
    }
}

impl<H: SessionHost> CallSequence<'_, H> {
    /// Returns the values of as many of the first keys as fit a reply, at least one. Costs one
    /// call, and more if the last value is long.
    async fn get_some(
        &mut self,
        keys: &[&[u8]],
        reply_space_bytes: usize,
        values: &mut Vec<Option<Vec<u8>>>,
    ) -> Result<(), Error> {
        let number = self.begin_transfer();
        let request = ByteRequest::Get {
            keys: keys.to_vec(),
            capacity: reply_capacity(number, reply_space_bytes),
        };
        let last = match self.ask(&request, reply_space_bytes).await? {
            ByteReply::Values(found) if found.len() <= keys.len() => {
                let (last, others) = found.split_last().ok_or_else(other_reply)?;
                let others = others.iter();
                values.extend(others.map(|value| value.map(|found| found.here.to_vec())));
                last.map(ValuePrefix::new)
            }
            _ => return Err(other_reply()),
        };
        let last = self.finish(number, last).await?;
        values.push(last);
        Ok(())
    }

    /// Returns a complete value, given its first part from a reply.
    async fn finish(
        &mut self,
        number: u64,
        beginning: Option<ValuePrefix>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Some(mut found) = beginning else {
            self.end_transfer(number);
            return Ok(None);
        };
        self.read_rest(number, &mut found.value, found.whole_size_bytes)
            .await?;
        Ok(Some(found.value))
    }

    /// Executes a write in one call; long values take further calls before it (the new value) and
    /// after it (the previous one).
    async fn change(&mut self, key: &[u8], change: &Change<'_>) -> Result<Changed, Error> {
        // The expected value may be empty, and an empty value is never staged.
        let reserved_bytes = string_size_bytes(0);
        let mut left_bytes = PART_SIZE_BYTES - string_size_bytes(key.len()) - reserved_bytes;
        let value = match change.value {
            Some(value) => Some(self.sent(value, &mut left_bytes).await?),
            None => None,
        };
        let expected = match change.condition {
            Condition::IfEqual(Some(expected)) => {
                left_bytes += reserved_bytes;
                Some(self.sent(expected, &mut left_bytes).await?)
            }
            _ => None,
        };
        let condition = match change.condition {
            Condition::Always => ByteCondition::Always,
            Condition::IfAbsent => ByteCondition::IfAbsent,
            Condition::IfPresent => ByteCondition::IfPresent,
            Condition::IfEqual(_) => ByteCondition::IfEqual(expected),
        };
        let reply_space_bytes = if change.wants_previous {
            VALUE_SPACE_BYTES
        } else {
            ByteReply::SHORT_SIZE_BYTES
        };
        let number = self.begin_transfer();
        let change = ByteChange {
            key,
            condition,
            value,
            wants_previous: change.wants_previous,
        };
        let request = ByteRequest::Change {
            change,
            capacity: reply_capacity(number, reply_space_bytes),
        };
        let ByteReply::Changed {
            is_done,
            was_present,
            previous,
        } = self.ask(&request, reply_space_bytes).await?
        else {
            return Err(other_reply());
        };
        let previous = previous.map(ValuePrefix::new);
        self.end_sent(value);
        self.end_sent(expected);
        let previous = self.finish(number, previous).await;
        Ok(Changed {
            is_done,
            was_present,
            previous: previous.map_err(|error| self.after_change(is_done, error))?,
        })
    }

    /// Adds the first records of a range, as many as fit a reply, at least one if any exists.
    /// Returns whether there are no more. Costs one call, and more if the last value is long.
    async fn scan_some(
        &mut self,
        wanted: &RemainingRange,
        limit: usize,
        records: &mut RecordBuffer,
    ) -> Result<bool, Error> {
        let number = self.begin_transfer();
        let reply_space_bytes = limit.saturating_mul(RECORD_SPACE_BYTES);
        let reply_space_bytes = reply_space_bytes.saturating_add(KEY_SPACE_BYTES);
        let reply_space_bytes = reply_space_bytes.min(MESSAGE_SIZE_BYTES_MAX);
        let request = ByteRequest::Scan {
            range: wanted.range(limit),
            capacity: reply_capacity(number, reply_space_bytes),
        };
        let ByteReply::Records {
            records: found,
            is_end,
        } = self.ask(&request, reply_space_bytes).await?
        else {
            return Err(other_reply());
        };
        if !wanted.is_answered_by(&found, is_end, limit) {
            return Err(other_reply());
        }
        let Some((last, others)) = found.split_last() else {
            self.end_transfer(number);
            return Ok(is_end);
        };
        for (key, value) in others {
            records.push(key, value.here);
        }
        let (key, value) = last;
        let whole_size_bytes = value.whole_size_bytes as usize;
        let (key, mut value) = (key.to_vec(), value.here.to_vec());
        self.read_rest(number, &mut value, whole_size_bytes).await?;
        records.push(&key, &value);
        Ok(is_end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a range whose bound is longer than any key selects the same keys as a range with
    /// the exact bound.
    #[test]
    fn long_bounds_are_as_good_as_short_ones() {
        let longest = vec![7; KEY_SIZE_BYTES_MAX];
        let above = [&longest[..KEY_SIZE_BYTES_MAX - 1], &[8][..]].concat();
        let keys = [&b""[..], &longest[..9], &longest, &above, b"\x07\x08"];
        for tail in [&b""[..], b"\0", b"\0\0", b"\xFF\xFF"] {
            let string = [&longest[..], tail].concat();
            let short = bound(&string);
            assert!(short.len() <= BOUND_SIZE_BYTES_MAX);
            for key in keys {
                assert_eq!(key < &string[..], key < &short[..], "{}", key.len());
            }
        }
        assert_eq!(bound(b"short"), b"short");
    }

    /// Promise: each request has at least one key, and no more than fit.
    #[test]
    fn keys_fill_requests() {
        let longest = vec![vec![1; KEY_SIZE_BYTES_MAX]; 9];
        assert_eq!(keys_of_request(&longest), 3);
        assert_eq!(keys_of_request(&longest[..2]), 2);
        let shortest = vec![Vec::new(); 5000];
        assert_eq!(keys_of_request(&shortest), PART_SIZE_BYTES / 8);
    }
}
