//! Encoding of requests for byte strings.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | kind (8), flags (16), zero (8), table id (32) |
//! | 1 | the lowest number that the session has open |
//! | 2.. | by kind, below |
//!
//! | kind | words |
//! |---|---|
//! | 32 get | number; reply limit (32), number of keys (32); the keys |
//! | 33 change | number; reply limit; the key; the value, if any; the expected value, if any |
//! | 34 scan | number; reply limit (32), limit (32); start; end, if any |
//! | 35 count | |
//! | 36 read | number; reply limit (32), offset (32) |
//! | 37 stage | number; offset (32), size of the whole (32); the part |
//! | 38 part of a load | number; keys and values alternating |
//! | 39 end of a load | number; number of records |
//! | 40 forget | number |
//!
//! The *reply limit* is in bytes. A string is a word with its size, then its
//! bytes, padded with zeros to whole words. A value is a string, or bit 63 and a word with the
//! number that it is staged under.
//!
//! Flags of a change: bits 8 and 9, its condition (always, if absent, if present, if equal); bit
//! 10, whether a value is expected; 11, whether there is a new value; 12, whether the previous
//! value is requested. Flags of a scan: bit 8, whether it has an end; 9, whether it descends; 10,
//! whether only keys are requested.

use farleaf_base::TableId;
use farleaf_base::limits::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};

use super::{BOUND_SIZE_BYTES_MAX, MESSAGE_SIZE_BYTES_MAX};
use crate::rpc::words::{BadWords, Words, put, put_bytes};

/// First kind of request about byte strings; lower kinds are about words.
const GET: u64 = 32;
const CHANGE: u64 = 33;
const SCAN: u64 = 34;
const COUNT: u64 = 35;
const READ: u64 = 36;
const STAGE: u64 = 37;
const LOAD_PART: u64 = 38;
const LOAD_COMMIT: u64 = 39;
const FORGET: u64 = 40;

const CONDITION_SHIFT: u32 = 8;
const HAS_EXPECTED: u64 = 1 << 10;
const HAS_VALUE: u64 = 1 << 11;
const WANTS_PREVIOUS: u64 = 1 << 12;
const CHANGE_FLAGS: u64 = 0x1F << CONDITION_SHIFT;

const HAS_END: u64 = 1 << 8;
const DESCENDS: u64 = 1 << 9;
const OF_KEYS: u64 = 1 << 10;
const SCAN_FLAGS: u64 = HAS_END | DESCENDS | OF_KEYS;

const STAGED: u64 = 1 << 63;

const UNKNOWN_FORM: BadWords = BadWords("unknown request format");

/// Head of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Table of the request.
    pub table: TableId,
    /// Lowest number under which the session has, or will have, something open. It does not use
    /// lower numbers any more.
    pub lowest_open: u64,
}

/// Value as a request sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentValue<'a> {
    /// The value is in the request.
    Here(&'a [u8]),
    /// The value is staged under this number.
    Staged(u64),
}

/// Size limit of a reply, and the number for the rest of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyCapacity {
    /// Number that the session assigns to a value that does not fit into the reply.
    pub number: u64,
    /// Size limit of the reply in bytes. Exceeded only if a single key is longer.
    pub size_bytes: u32,
}

/// Condition of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteCondition<'a> {
    /// Always change the key.
    Always,
    /// Change the key only if it is absent.
    IfAbsent,
    /// Change the key only if it is present.
    IfPresent,
    /// Change the key only if it has this value; `None`: if it is absent.
    IfEqual(Option<SentValue<'a>>),
}

/// Write to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteChange<'a> {
    /// Key to change.
    pub key: &'a [u8],
    /// Condition of the change.
    pub condition: ByteCondition<'a>,
    /// New value; `None` to remove the key.
    pub value: Option<SentValue<'a>>,
    /// True if the previous value is requested. A value that was expected, and present, is not
    /// returned.
    pub wants_previous: bool,
}

/// Range of keys whose records are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange<'a> {
    /// Smallest key.
    pub start: &'a [u8],
    /// First key after the range; `None` if the range has no end.
    pub end: Option<&'a [u8]>,
    /// True if the last records come first.
    pub descends: bool,
    /// True if only keys are requested.
    pub of_keys: bool,
    /// Largest number of records.
    pub limit: u32,
}

/// Request of a client about one table of byte strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByteRequest<'a> {
    /// Read the values of keys, of as many of the first ones as fit into the reply.
    Get {
        /// Keys, one or more.
        keys: Vec<&'a [u8]>,
        /// Limit of the reply.
        capacity: ReplyCapacity,
    },
    /// Write to a key.
    Change {
        /// Write to execute.
        change: ByteChange<'a>,
        /// Limit of the reply.
        capacity: ReplyCapacity,
    },
    /// Read the first records of a range, as many as fit into the reply.
    Scan {
        /// Range to read.
        range: ByteRange<'a>,
        /// Limit of the reply.
        capacity: ReplyCapacity,
    },
    /// Count the records.
    Count,
    /// Read more of a value that the node holds under the number in `capacity`.
    Read {
        /// Offset in the value, in bytes.
        offset: u32,
        /// Limit of the reply.
        capacity: ReplyCapacity,
    },
    /// Stage the next part of a value.
    Stage {
        /// Number that the session assigns to the value.
        number: u64,
        /// Size of the previous parts in bytes.
        offset: u32,
        /// Size of the whole value in bytes.
        whole_size_bytes: u32,
        /// Part, which is not empty.
        part: &'a [u8],
    },
    /// Add records to a load, after those of earlier requests.
    LoadPart {
        /// Number of the load in the session.
        number: u64,
        /// Records, one or more, ascending.
        records: Vec<(&'a [u8], SentValue<'a>)>,
    },
    /// Commit a complete load: if the table is empty, it gets the load's records.
    LoadCommit {
        /// Number of the load in the session.
        number: u64,
        /// Number of records of the load.
        record_count: u64,
    },
    /// Discard everything that is held, staged or loaded under a number.
    Forget {
        /// Number that the session assigned.
        number: u64,
    },
}

impl<'a> ByteRequest<'a> {
    /// Returns whether bytes that a client sent are about byte strings, provided that they are a
    /// request.
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|kind| u64::from(*kind) >= GET)
    }

    /// Encodes the request into `bytes`, after clearing it.
    pub fn encode(&self, head: RequestHead, bytes: &mut Vec<u8>) {
        bytes.clear();
        let first = self.kind_and_flags() | u64::from(head.table.0) << 32;
        put(bytes, [first, head.lowest_open]);
        match self {
            Self::Get { keys, capacity } => {
                put(bytes, [capacity.number]);
                put(bytes, [pair(capacity.size_bytes, keys.len() as u32)]);
                for key in keys {
                    put_string(bytes, key);
                }
            }
            Self::Change { change, capacity } => {
                put(bytes, [capacity.number, capacity.size_bytes.into()]);
                put_string(bytes, change.key);
                put_sent(bytes, change.value);
                if let ByteCondition::IfEqual(expected) = change.condition {
                    put_sent(bytes, expected);
                }
            }
            Self::Scan { range, capacity } => {
                put(
                    bytes,
                    [capacity.number, pair(capacity.size_bytes, range.limit)],
                );
                put_string(bytes, range.start);
                if let Some(end) = range.end {
                    put_string(bytes, end);
                }
            }
            Self::Count => {}
            Self::Read { offset, capacity } => {
                put(bytes, [capacity.number, pair(capacity.size_bytes, *offset)]);
            }
            Self::Stage {
                number,
                offset,
                whole_size_bytes,
                part,
            } => {
                put(bytes, [*number, pair(*offset, *whole_size_bytes)]);
                put_string(bytes, part);
            }
            Self::LoadPart { number, records } => {
                put(bytes, [*number]);
                for (key, value) in records {
                    put_string(bytes, key);
                    put_sent(bytes, Some(*value));
                }
            }
            Self::LoadCommit {
                number,
                record_count,
            } => put(bytes, [*number, *record_count]),
            Self::Forget { number } => put(bytes, [*number]),
        }
    }

    fn kind_and_flags(&self) -> u64 {
        match self {
            Self::Get { .. } => GET,
            Self::Change { change, .. } => CHANGE | flags_of_change(change),
            Self::Scan { range, .. } => SCAN | flags_of_range(range),
            Self::Count => COUNT,
            Self::Read { .. } => READ,
            Self::Stage { .. } => STAGE,
            Self::LoadPart { .. } => LOAD_PART,
            Self::LoadCommit { .. } => LOAD_COMMIT,
            Self::Forget { .. } => FORGET,
        }
    }

    /// Decodes a request that a client sent.
    ///
    /// # Errors
    /// The bytes are not a valid request about byte strings.
    pub fn decode(bytes: &'a [u8]) -> Result<(RequestHead, Self), BadWords> {
        if bytes.len() > MESSAGE_SIZE_BYTES_MAX {
            return Err(BadWords("the request is too long"));
        }
        let mut words = Words::new(bytes)?;
        let first = words.next()?;
        let (kind, flags) = (first & 0xFF, first & 0xFFFF_FF00);
        let known_flags = match kind {
            CHANGE => CHANGE_FLAGS,
            SCAN => SCAN_FLAGS,
            _ => 0,
        };
        if flags & !known_flags != 0 {
            return Err(UNKNOWN_FORM);
        }
        let head = RequestHead {
            table: TableId((first >> 32) as u32),
            lowest_open: words.next()?,
        };
        let request = match kind {
            GET => read_get(&mut words)?,
            CHANGE => read_change(&mut words, flags)?,
            SCAN => read_scan(&mut words, flags)?,
            COUNT => Self::Count,
            READ => {
                let number = words.next()?;
                let (capacity, offset) = read_space(&mut words, number)?;
                Self::Read { offset, capacity }
            }
            STAGE => read_stage(&mut words)?,
            LOAD_PART => return Ok((head, read_load_part(words)?)),
            LOAD_COMMIT => Self::LoadCommit {
                number: words.next()?,
                record_count: words.next()?,
            },
            FORGET => Self::Forget {
                number: words.next()?,
            },
            _ => return Err(BadWords("unknown request kind")),
        };
        words.end()?;
        Ok((head, request))
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn flags_of_change(change: &ByteChange<'_>) -> u64 {
    let (condition, has_expected) = match change.condition {
        ByteCondition::Always => (0, false),
        ByteCondition::IfAbsent => (1, false),
        ByteCondition::IfPresent => (2, false),
        ByteCondition::IfEqual(expected) => (3, expected.is_some()),
    };
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    condition << CONDITION_SHIFT
        | flag(has_expected, HAS_EXPECTED)
        | flag(change.value.is_some(), HAS_VALUE)
        | flag(change.wants_previous, WANTS_PREVIOUS)
}

fn flags_of_range(range: &ByteRange<'_>) -> u64 {
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    flag(range.end.is_some(), HAS_END)
        | flag(range.descends, DESCENDS)
        | flag(range.of_keys, OF_KEYS)
}

fn put_string(bytes: &mut Vec<u8>, string: &[u8]) {
    put(bytes, [string.len() as u64]);
    put_bytes(bytes, string);
}

fn put_sent(bytes: &mut Vec<u8>, sent: Option<SentValue<'_>>) {
    match sent {
        Some(SentValue::Here(value)) => put_string(bytes, value),
        Some(SentValue::Staged(number)) => put(bytes, [STAGED, number]),
        None => {}
    }
}

/// Reads the two halves of a word: the reply's size limit, which must not exceed a message, and
/// another value.
fn read_space(words: &mut Words<'_>, number: u64) -> Result<(ReplyCapacity, u32), BadWords> {
    let word = words.next()?;
    let size_bytes = word as u32;
    if size_bytes as usize > MESSAGE_SIZE_BYTES_MAX {
        return Err(BadWords("the requested reply is too long"));
    }
    Ok((ReplyCapacity { number, size_bytes }, (word >> 32) as u32))
}

fn read_string<'a>(
    words: &mut Words<'a>,
    size: u64,
    size_max: usize,
) -> Result<&'a [u8], BadWords> {
    let size = usize::try_from(size).ok().filter(|size| *size <= size_max);
    words.bytes(size.ok_or(BadWords("a string is too long"))?)
}

fn read_key<'a>(words: &mut Words<'a>) -> Result<&'a [u8], BadWords> {
    let size = words.next()?;
    read_string(words, size, KEY_SIZE_BYTES_MAX)
}

fn read_sent<'a>(words: &mut Words<'a>) -> Result<SentValue<'a>, BadWords> {
    match words.next()? {
        STAGED => Ok(SentValue::Staged(words.next()?)),
        size => Ok(SentValue::Here(read_string(
            words,
            size,
            VALUE_SIZE_BYTES_MAX,
        )?)),
    }
}

fn read_get<'a>(words: &mut Words<'a>) -> Result<ByteRequest<'a>, BadWords> {
    let number = words.next()?;
    let (capacity, count) = read_space(words, number)?;
    if count == 0 {
        return Err(BadWords("no keys requested"));
    }
    let mut keys = Vec::new();
    // Each key takes words of the message, so the loop ends with it, whatever the count is.
    for _ in 0..count {
        keys.push(read_key(words)?);
    }
    Ok(ByteRequest::Get { keys, capacity })
}

fn read_change<'a>(words: &mut Words<'a>, flags: u64) -> Result<ByteRequest<'a>, BadWords> {
    let number = words.next()?;
    let (capacity, rest) = read_space(words, number)?;
    let condition = flags >> CONDITION_SHIFT & 3;
    let has_expected = flags & HAS_EXPECTED != 0;
    if rest != 0 || has_expected && condition != 3 {
        return Err(UNKNOWN_FORM);
    }
    let key = read_key(words)?;
    let has_value = flags & HAS_VALUE != 0;
    let value = has_value.then(|| read_sent(words)).transpose()?;
    let condition = match condition {
        0 => ByteCondition::Always,
        1 => ByteCondition::IfAbsent,
        2 => ByteCondition::IfPresent,
        _ => {
            let expected = has_expected.then(|| read_sent(words)).transpose()?;
            ByteCondition::IfEqual(expected)
        }
    };
    let change = ByteChange {
        key,
        condition,
        value,
        wants_previous: flags & WANTS_PREVIOUS != 0,
    };
    Ok(ByteRequest::Change { change, capacity })
}

fn read_scan<'a>(words: &mut Words<'a>, flags: u64) -> Result<ByteRequest<'a>, BadWords> {
    let number = words.next()?;
    let (capacity, limit) = read_space(words, number)?;
    let bound = |words: &mut Words<'a>| {
        let size = words.next()?;
        read_string(words, size, BOUND_SIZE_BYTES_MAX)
    };
    let start = bound(words)?;
    let has_end = flags & HAS_END != 0;
    let range = ByteRange {
        start,
        end: has_end.then(|| bound(words)).transpose()?,
        descends: flags & DESCENDS != 0,
        of_keys: flags & OF_KEYS != 0,
        limit,
    };
    Ok(ByteRequest::Scan { range, capacity })
}

fn read_stage<'a>(words: &mut Words<'a>) -> Result<ByteRequest<'a>, BadWords> {
    let number = words.next()?;
    let sizes = words.next()?;
    let (offset, whole_size_bytes) = (sizes as u32, (sizes >> 32) as u32);
    let size = words.next()?;
    let part = read_string(words, size, MESSAGE_SIZE_BYTES_MAX)?;
    let is_inside = offset
        .checked_add(part.len() as u32)
        .is_some_and(|end| end <= whole_size_bytes);
    if part.is_empty() || !is_inside || whole_size_bytes as usize > VALUE_SIZE_BYTES_MAX {
        return Err(BadWords("invalid size or offset of a part of a value"));
    }
    Ok(ByteRequest::Stage {
        number,
        offset,
        whole_size_bytes,
        part,
    })
}

fn read_load_part(mut words: Words<'_>) -> Result<ByteRequest<'_>, BadWords> {
    let number = words.next()?;
    let mut records: Vec<(&[u8], SentValue<'_>)> = Vec::new();
    while !words.is_empty() {
        let key = read_key(&mut words)?;
        if records.last().is_some_and(|(last, _)| *last >= key) {
            return Err(BadWords("the keys of a part of a load do not ascend"));
        }
        records.push((key, read_sent(&mut words)?));
    }
    if records.is_empty() {
        return Err(BadWords("a part of a load has no records"));
    }
    Ok(ByteRequest::LoadPart { number, records })
}

#[cfg(test)]
mod tests;
