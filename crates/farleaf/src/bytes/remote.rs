//! Operations on tables of byte strings that the memory node holds (`rpc`): a call each, and more
//! where a value or an answer is longer than a message.

use farleaf_byte_index::operation::{
    Change, Changed, Condition, RecordBuffer, ReverseCursor, ScanCursor, check_record,
};
use farleaf_fabric::OperationKind;
use farleaf_index::rpc::bytes::{
    BOUND_SIZE_BYTES_MAX, ByteChange, ByteCondition, ByteRange, ByteReply, ByteRequest, Found,
    KEY_SIZE_BYTES_MAX, MESSAGE_SIZE_BYTES_MAX, PART_SIZE_BYTES, VALUE_SIZE_BYTES_MAX,
    string_size_bytes,
};
use farleaf_page::Fence;

use super::AsyncByteTable;
use super::exchange::{Exchange, other_reply, room};
use crate::Error;
use crate::async_table::Rare;
use crate::host::Host;

/// Room that is announced for one value. A longer one takes another call, and one that is much
/// shorter does not keep many others from being under way: there is room for 23 at a time.
const VALUE_ROOM_BYTES: usize = 1200;
/// Room that a scan announces for a record, and for a key as long as any.
const RECORD_ROOM_BYTES: usize = 256;
const KEY_ROOM_BYTES: usize = KEY_SIZE_BYTES_MAX + 100;

/// What a reply had of a value.
struct Beginning {
    value: Vec<u8>,
    whole_size_bytes: usize,
}

impl Beginning {
    fn new(found: Found<'_>) -> Self {
        Self {
            value: found.here.to_vec(),
            whole_size_bytes: found.whole_size_bytes as usize,
        }
    }
}

/// Which records a scan asks for next.
pub(super) struct Wanted {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    descends: bool,
    of_keys: bool,
}

impl Wanted {
    fn range(&self, limit: usize) -> ByteRange<'_> {
        ByteRange {
            start: &self.start,
            end: self.end.as_deref(),
            descends: self.descends,
            of_keys: self.of_keys,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
        }
    }

    /// Whether a reply has what was asked for: in order, in the range, and something unless that
    /// is all.
    fn is_met(&self, records: &[(&[u8], Found<'_>)], (is_end, limit): (bool, usize)) -> bool {
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

/// Where a scan of a table that the node holds stands.
pub(super) trait RemoteCursor {
    /// What is left; `None`: nothing.
    fn wanted(&self) -> Option<Wanted>;

    /// This was the last key; `None`: there is no other.
    fn go_on(&mut self, last: Option<&[u8]>);
}

impl RemoteCursor for ScanCursor {
    fn wanted(&self) -> Option<Wanted> {
        Some(Wanted {
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
    fn wanted(&self) -> Option<Wanted> {
        Some(Wanted {
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

/// Where keys of any length that there are begin, or end, if they do at this string: one that is
/// longer than keys are lies right behind what it begins with.
fn bound(string: &[u8]) -> Vec<u8> {
    match string.split_at_checked(KEY_SIZE_BYTES_MAX) {
        Some((key, rest)) if !rest.is_empty() => [key, &[0]].concat(),
        _ => string.to_vec(),
    }
}

const _: () = assert!(BOUND_SIZE_BYTES_MAX == KEY_SIZE_BYTES_MAX + 1);

/// How many of the first keys one request asks for.
fn keys_of_request<K: AsRef<[u8]>>(keys: &[K]) -> usize {
    let mut left_bytes = PART_SIZE_BYTES;
    let fit = keys.iter().take_while(|key| {
        let left = left_bytes.checked_sub(string_size_bytes(key.as_ref().len()));
        left_bytes = left.unwrap_or(0);
        left.is_some()
    });
    fit.count()
}

impl<H: Host> AsyncByteTable<H> {
    fn check(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let checked = check_record(key, value);
        checked.map_err(|error| Error::from(error).of_table(&self.info().name))
    }

    pub(super) fn get_remote<'a>(&'a self, key: &'a [u8]) -> Rare<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            self.check(key, &[])?;
            self.remotely(OperationKind::Get, async |exchange| {
                let mut values = Vec::new();
                exchange
                    .get_some(&[key], VALUE_ROOM_BYTES, &mut values)
                    .await?;
                Ok(values.pop().flatten())
            })
            .await
        })
    }

    pub(super) fn multi_get_remote<'a, K: AsRef<[u8]>>(
        &'a self,
        keys: &'a [K],
    ) -> Rare<'a, Vec<Option<Vec<u8>>>> {
        Box::pin(async move {
            for key in keys {
                self.check(key.as_ref(), &[])?;
            }
            self.remotely(OperationKind::MultiGet, async |exchange| {
                let mut values = Vec::new();
                while let Some(rest) = keys.get(values.len()..).filter(|rest| !rest.is_empty()) {
                    let asked = &rest[..keys_of_request(rest)];
                    let asked: Vec<&[u8]> = asked.iter().map(AsRef::as_ref).collect();
                    let room_bytes = MESSAGE_SIZE_BYTES_MAX;
                    exchange.get_some(&asked, room_bytes, &mut values).await?;
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
    ) -> Rare<'a, Changed> {
        Box::pin(async move {
            self.check(key, change.value.unwrap_or_default())?;
            if let Condition::IfEqual(Some(expected)) = change.condition
                && expected.len() > VALUE_SIZE_BYTES_MAX
            {
                // No value is.
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

    /// Adds records, and moves the cursor behind them, whichever way it goes.
    pub(super) fn scan_remote<'a>(
        &'a self,
        cursor: &'a mut impl RemoteCursor,
        wanted: usize,
        records: &'a mut RecordBuffer,
    ) -> Rare<'a, ()> {
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

    /// How many records there are.
    pub(super) fn count_remote(&self) -> Rare<'_, u64> {
        Box::pin(self.remotely(OperationKind::Control, async |exchange| {
            exchange.ask_count(&ByteRequest::Count).await
        }))
    }
}

impl<H: Host> Exchange<'_, H> {
    /// The values of as many of the first keys as a reply holds, one at the least. One call, and
    /// more for the last one if it is long.
    async fn get_some(
        &mut self,
        keys: &[&[u8]],
        room_bytes: usize,
        values: &mut Vec<Option<Vec<u8>>>,
    ) -> Result<(), Error> {
        let number = self.begin_transfer();
        let request = ByteRequest::Get {
            keys: keys.to_vec(),
            room: room(number, room_bytes),
        };
        let last = match self.ask(&request, room_bytes).await? {
            ByteReply::Values(found) if found.len() <= keys.len() => {
                let (last, others) = found.split_last().ok_or_else(other_reply)?;
                let others = others.iter();
                values.extend(others.map(|value| value.map(|found| found.here.to_vec())));
                last.map(Beginning::new)
            }
            _ => return Err(other_reply()),
        };
        let last = self.finish(number, last).await?;
        values.push(last);
        Ok(())
    }

    /// The whole of a value, of which a reply had the beginning.
    async fn finish(
        &mut self,
        number: u64,
        beginning: Option<Beginning>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Some(mut found) = beginning else {
            self.end_transfer(number);
            return Ok(None);
        };
        self.read_rest(number, &mut found.value, found.whole_size_bytes)
            .await?;
        Ok(Some(found.value))
    }

    /// J7: one call; more before it for long values that are sent, and after it for one that was
    /// there before.
    async fn change(&mut self, key: &[u8], change: &Change<'_>) -> Result<Changed, Error> {
        // What is expected may be empty, and nothing has no parts.
        let kept_bytes = string_size_bytes(0);
        let mut left_bytes = PART_SIZE_BYTES - string_size_bytes(key.len()) - kept_bytes;
        let value = match change.value {
            Some(value) => Some(self.sent(value, &mut left_bytes).await?),
            None => None,
        };
        let expected = match change.condition {
            Condition::IfEqual(Some(expected)) => {
                left_bytes += kept_bytes;
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
        let room_bytes = if change.wants_previous {
            VALUE_ROOM_BYTES
        } else {
            ByteReply::SHORT_SIZE_BYTES
        };
        let number = self.begin_transfer();
        let asked = ByteChange {
            key,
            condition,
            value,
            wants_previous: change.wants_previous,
        };
        let request = ByteRequest::Change {
            change: asked,
            room: room(number, room_bytes),
        };
        let ByteReply::Changed {
            is_done,
            was_present,
            previous,
        } = self.ask(&request, room_bytes).await?
        else {
            return Err(other_reply());
        };
        let previous = previous.map(Beginning::new);
        self.end_sent(value);
        self.end_sent(expected);
        let previous = self.finish(number, previous).await;
        Ok(Changed {
            is_done,
            was_present,
            previous: previous.map_err(|error| self.after_change(is_done, error))?,
        })
    }

    /// Adds the first records of a range, as many as a reply holds, one at the least if there is
    /// any; whether there are no more. One call, and more for the last value if it is long.
    async fn scan_some(
        &mut self,
        wanted: &Wanted,
        limit: usize,
        records: &mut RecordBuffer,
    ) -> Result<bool, Error> {
        let number = self.begin_transfer();
        let room_bytes = limit.saturating_mul(RECORD_ROOM_BYTES);
        let room_bytes = room_bytes.saturating_add(KEY_ROOM_BYTES);
        let room_bytes = room_bytes.min(MESSAGE_SIZE_BYTES_MAX);
        let request = ByteRequest::Scan {
            range: wanted.range(limit),
            room: room(number, room_bytes),
        };
        let ByteReply::Records {
            records: found,
            is_end,
        } = self.ask(&request, room_bytes).await?
        else {
            return Err(other_reply());
        };
        if !wanted.is_met(&found, (is_end, limit)) {
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

    /// Promise: a range that begins or ends at a string longer than any key has the keys that it
    /// would have, whichever there are.
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

    /// Promise: one key at the least goes with a request, and no more than have room.
    #[test]
    fn keys_fill_requests() {
        let longest = vec![vec![1; KEY_SIZE_BYTES_MAX]; 9];
        assert_eq!(keys_of_request(&longest), 3);
        assert_eq!(keys_of_request(&longest[..2]), 2);
        let shortest = vec![Vec::new(); 5000];
        assert_eq!(keys_of_request(&shortest), PART_SIZE_BYTES / 8);
    }
}
