//! Encoding of replies for byte strings.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | 0 or a [`Failure`] (8), flags (8), shape (16), count (32) |
//! | 1.. | values; records, a key and a value each; a number; a part of a value |
//!
//! A string is a word with its size, then its bytes, padded with zeros to whole words. A value is a
//! word, then bytes padded in the same way. The word has the size of the whole value (32), the
//! number of bytes in the reply (31), and whether there is a value (1). Only the last value may be
//! partial.
//!
//! Flags: bit 8, whether a change was done, or a range is at its end; bit 9, whether the key of a
//! change was present.

use farleaf_base::limits::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};

use super::{MESSAGE_SIZE_BYTES_MAX, string_size_bytes};
use crate::rpc::reply::Failure;
use crate::rpc::words::{BadWords, Words, put, put_bytes};

const VALUES: u64 = 16;
const CHANGED: u64 = 17;
const RECORDS: u64 = 18;
const COUNT: u64 = 19;
const PART: u64 = 20;

const IS_DONE: u64 = 1 << 8;
const WAS_PRESENT: u64 = 1 << 9;

const IS_THERE: u64 = 1 << 63;

const UNKNOWN_FORM: BadWords = BadWords("unknown reply format");

/// Value, or its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundValue<'a> {
    /// Part of the value in the reply.
    pub here: &'a [u8],
    /// Size of the whole value in bytes.
    pub whole_size_bytes: u32,
}

impl<'a> FoundValue<'a> {
    /// Creates a complete value.
    pub fn whole(value: &'a [u8]) -> Self {
        Self {
            here: value,
            whole_size_bytes: value.len() as u32,
        }
    }

    /// Returns whether the value is complete.
    pub fn is_whole(&self) -> bool {
        self.here.len() == self.whole_size_bytes as usize
    }
}

/// Reply of the memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByteReply<'a> {
    /// Values of the first of several keys, at least one.
    Values(Vec<Option<FoundValue<'a>>>),
    /// Result of a write.
    Changed {
        /// True if its condition held, so that it took effect.
        is_done: bool,
        /// True if the key was present.
        was_present: bool,
        /// Previous value, if it was requested.
        previous: Option<FoundValue<'a>>,
    },
    /// Records of a range.
    Records {
        /// Records in the requested order.
        records: Vec<(&'a [u8], FoundValue<'a>)>,
        /// True if there are no more records.
        is_end: bool,
    },
    /// Number of records, or of bytes.
    Count(u64),
    /// Next part of a value.
    Part(&'a [u8]),
    /// Nothing has changed, for this reason.
    Failed(Failure),
}

impl<'a> ByteReply<'a> {
    /// Size of a reply that has only the result of a write, or a number, in bytes.
    pub const SHORT_SIZE_BYTES: usize = 16;

    /// Encodes the reply into `bytes`, after clearing it.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        let head = |shape: u64, count: usize| shape << 16 | (count as u64) << 32;
        match self {
            Self::Values(values) => {
                put(bytes, [head(VALUES, values.len())]);
                for value in values {
                    put_found(bytes, *value);
                }
            }
            Self::Changed {
                is_done,
                was_present,
                previous,
            } => {
                let done = if *is_done { IS_DONE } else { 0 };
                let present = if *was_present { WAS_PRESENT } else { 0 };
                put(bytes, [head(CHANGED, 1) | done | present]);
                put_found(bytes, *previous);
            }
            Self::Records { records, is_end } => {
                let end = if *is_end { IS_DONE } else { 0 };
                put(bytes, [head(RECORDS, records.len()) | end]);
                for (key, value) in records {
                    put(bytes, [key.len() as u64]);
                    put_bytes(bytes, key);
                    put_found(bytes, Some(*value));
                }
            }
            Self::Count(count) => put(bytes, [head(COUNT, 1), *count]),
            Self::Part(part) => {
                put(bytes, [head(PART, part.len())]);
                put_bytes(bytes, part);
            }
            Self::Failed(failure) => put(bytes, [failure.number()]),
        }
    }

    /// Decodes a reply that the node sent.
    ///
    /// # Errors
    /// The bytes are not a valid reply to a request about byte strings.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BadWords> {
        let mut words = Words::new(bytes)?;
        let head = words.next()?;
        if head & 0xFF != 0 {
            return Failure::decode(head, words).map(Self::Failed);
        }
        let (shape, count) = (head >> 16 & 0xFFFF, (head >> 32) as usize);
        let flags = head & 0xFF00;
        let known_flags = match shape {
            CHANGED => IS_DONE | WAS_PRESENT,
            RECORDS => IS_DONE,
            _ => 0,
        };
        if flags & !known_flags != 0 {
            return Err(UNKNOWN_FORM);
        }
        let reply = match shape {
            VALUES if count > 0 => read_values(&mut words, count)?,
            CHANGED if count == 1 => Self::Changed {
                is_done: flags & IS_DONE != 0,
                was_present: flags & WAS_PRESENT != 0,
                previous: read_found(&mut words)?,
            },
            RECORDS => read_records(&mut words, count, flags & IS_DONE != 0)?,
            COUNT if count == 1 => Self::Count(words.next()?),
            PART if count > 0 => Self::Part(words.bytes(count)?),
            _ => return Err(UNKNOWN_FORM),
        };
        words.end()?;
        Ok(reply)
    }

    /// Returns the bytes of a reply with a single value of this size; if it is a record, with its
    /// key.
    pub const fn size_bytes(key_size_bytes: Option<usize>, value_size_bytes: usize) -> usize {
        let key = match key_size_bytes {
            Some(size) => string_size_bytes(size),
            None => 0,
        };
        8 + key + string_size_bytes(value_size_bytes)
    }
}

const _: () = assert!(ByteReply::size_bytes(Some(KEY_SIZE_BYTES_MAX), 0) < MESSAGE_SIZE_BYTES_MAX);

fn put_found(bytes: &mut Vec<u8>, found: Option<FoundValue<'_>>) {
    let Some(found) = found else {
        return put(bytes, [0]);
    };
    let here = (found.here.len() as u64) << 32;
    put(bytes, [IS_THERE | here | u64::from(found.whole_size_bytes)]);
    put_bytes(bytes, found.here);
}

fn read_found<'a>(words: &mut Words<'a>) -> Result<Option<FoundValue<'a>>, BadWords> {
    let word = words.next()?;
    if word == 0 {
        return Ok(None);
    }
    let (whole_size_bytes, here) = (word as u32, (word & !IS_THERE) >> 32);
    let is_size = whole_size_bytes as usize <= VALUE_SIZE_BYTES_MAX;
    if word & IS_THERE == 0 || !is_size || here > u64::from(whole_size_bytes) {
        return Err(BadWords("invalid value header"));
    }
    Ok(Some(FoundValue {
        here: words.bytes(here as usize)?,
        whole_size_bytes,
    }))
}

/// Returns whether a value is partial, so that nothing may follow it.
fn is_cut(found: Option<FoundValue<'_>>) -> bool {
    found.is_some_and(|found| !found.is_whole())
}

const CUT_TOO_EARLY: BadWords = BadWords("unexpected data after a partial value");

fn read_values<'a>(words: &mut Words<'a>, count: usize) -> Result<ByteReply<'a>, BadWords> {
    let mut values = Vec::new();
    // Each result takes words of the message, so the loop ends with it, whatever the count is.
    for _ in 0..count {
        if values.last().is_some_and(|last| is_cut(*last)) {
            return Err(CUT_TOO_EARLY);
        }
        values.push(read_found(words)?);
    }
    Ok(ByteReply::Values(values))
}

fn read_records<'a>(
    words: &mut Words<'a>,
    count: usize,
    is_end: bool,
) -> Result<ByteReply<'a>, BadWords> {
    let mut records: Vec<(&[u8], FoundValue<'_>)> = Vec::new();
    for _ in 0..count {
        if records.last().is_some_and(|(_, last)| is_cut(Some(*last))) {
            return Err(CUT_TOO_EARLY);
        }
        let size = usize::try_from(words.next()?).ok();
        let size = size.filter(|size| *size <= KEY_SIZE_BYTES_MAX);
        let key = words.bytes(size.ok_or(BadWords("a key is too long"))?)?;
        let value = read_found(words)?;
        records.push((key, value.ok_or(BadWords("a record has no value"))?));
    }
    Ok(ByteReply::Records { records, is_end })
}

#[cfg(test)]
mod tests;
