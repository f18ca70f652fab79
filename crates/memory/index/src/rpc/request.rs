//! Encoding of requests.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | kind (8), flags of a write (8), table id (32, from bit 32 on) |
//! | 1.. | key and values; keys; first key and limit; a load's number, and its records or count |
//!
//! Flags: bits 8 and 9, whether a compare-and-swap has an expected and a new value; bit 10, whether
//! a write ends with the position where its key is expected: generation (32, from bit 32) and
//! version (32), the sub-model's number, the position.

use farleaf_base::TableId;

use super::change::Change;
use super::words::{BadWords, Words, put};
use crate::xstore::{ModelVersion, TablePosition};

/// Largest number of keys of one request. The reply then takes at most half a ring of 32 KiB, so
/// the node never has to keep part of it.
pub const MULTI_GET_COUNT_MAX: usize = 900;
/// Largest number of records that one request asks for, for the same reason as
/// [`MULTI_GET_COUNT_MAX`].
pub const SCAN_COUNT_MAX: u64 = 900;
/// Largest number of records of a load in one request.
pub const LOAD_PART_COUNT_MAX: usize = 512;

const HAS_EXPECTED: u64 = 1 << 8;
const HAS_NEW: u64 = 1 << 9;
const HAS_PLACE: u64 = 1 << 10;

/// First kind of write; the kinds of writes are adjacent numbers.
const PUT: u64 = 3;
const COMPARE_SWAP: u64 = 7;

fn kind_of(change: Change) -> u64 {
    match change {
        Change::Put(_) => PUT,
        Change::Insert(_) => 4,
        Change::Update(_) => 5,
        Change::Delete => 6,
        Change::CompareSwap { .. } => COMPARE_SWAP,
    }
}

fn put_change(bytes: &mut Vec<u8>, key: u64, change: Change) {
    match change {
        Change::Put(value) | Change::Insert(value) | Change::Update(value) => {
            put(bytes, [key, value]);
        }
        Change::Delete => put(bytes, [key]),
        Change::CompareSwap { expected, new } => {
            put(bytes, [key, expected.unwrap_or(0), new.unwrap_or(0)]);
        }
    }
}

fn read_change(words: &mut Words<'_>, kind: u64, flags: u64) -> Result<(u64, Change), BadWords> {
    let key = words.next()?;
    let change = match kind {
        PUT => Change::Put(words.next()?),
        4 => Change::Insert(words.next()?),
        5 => Change::Update(words.next()?),
        6 => Change::Delete,
        _ => {
            let (expected, new) = (words.next()?, words.next()?);
            Change::CompareSwap {
                expected: (flags & HAS_EXPECTED != 0).then_some(expected),
                new: (flags & HAS_NEW != 0).then_some(new),
            }
        }
    };
    Ok((key, change))
}

fn version_words(version: ModelVersion) -> [u64; 2] {
    let ModelVersion {
        generation,
        number,
        version,
    } = version;
    [
        u64::from(generation) << 32 | u64::from(version),
        number.into(),
    ]
}

fn read_version(words: &mut Words<'_>) -> Result<ModelVersion, BadWords> {
    let first = words.next()?;
    Ok(ModelVersion {
        generation: (first >> 32) as u32,
        version: first as u32,
        number: read_u32(words)?,
    })
}

fn read_u32(words: &mut Words<'_>) -> Result<u32, BadWords> {
    u32::try_from(words.next()?).map_err(|_| BadWords("unknown request format"))
}

/// Message of a client to the memory node, about one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WordRequest {
    /// Read the value of a key.
    Get(u64),
    /// Read the values of several keys.
    MultiGet(Vec<u64>),
    /// Write to a key.
    Change(u64, Change),
    /// Write to a key that is expected at a position.
    ChangeAt(u64, Change, TablePosition),
    /// Read the value of a key that these models did not lead to.
    LookUp(u64, ModelVersion),
    /// Read the first records from a key on.
    Scan {
        /// Smallest key.
        from: u64,
        /// Largest number of records.
        limit: u64,
    },
    /// Read the last records up to a key, in descending order.
    ScanReverse {
        /// Largest key.
        from: u64,
        /// Largest number of records.
        limit: u64,
    },
    /// Count the records.
    Count,
    /// Add records to a load, after those of earlier requests.
    LoadPart {
        /// Number of the load in the session.
        load: u64,
        /// Records to add.
        records: Vec<(u64, u64)>,
    },
    /// Commit a complete load: if the table is empty, it gets the load's records.
    LoadCommit {
        /// Number of the load in the session.
        load: u64,
        /// Number of records of the load.
        record_count: u64,
    },
    /// Discard a load.
    LoadDrop {
        /// Number of the load in the session.
        load: u64,
    },
}

impl WordRequest {
    fn kind(&self) -> u64 {
        match self {
            Self::Get(_) => 1,
            Self::MultiGet(_) => 2,
            Self::Change(_, change) | Self::ChangeAt(_, change, _) => kind_of(*change),
            Self::Scan { .. } => 8,
            Self::Count => 9,
            Self::LoadPart { .. } => 10,
            Self::LoadCommit { .. } => 11,
            Self::LoadDrop { .. } => 12,
            Self::LookUp(..) => 13,
            Self::ScanReverse { .. } => 14,
        }
    }

    /// Returns the largest number of records that the node accesses: the cost in addition to the
    /// call.
    pub fn record_count_max(&self) -> u64 {
        match self {
            Self::MultiGet(keys) => keys.len() as u64,
            Self::Scan { limit, .. } | Self::ScanReverse { limit, .. } => *limit,
            Self::LoadPart { records, .. } => records.len() as u64,
            _ => 1,
        }
    }

    /// Encodes the request into `bytes`, after clearing it.
    pub fn encode(&self, table: TableId, bytes: &mut Vec<u8>) {
        bytes.clear();
        put(
            bytes,
            [self.kind() | self.flags() | u64::from(table.0) << 32],
        );
        match self {
            Self::Get(key) => put(bytes, [*key]),
            Self::MultiGet(keys) => put(bytes, keys.iter().copied()),
            Self::Change(key, change) => put_change(bytes, *key, *change),
            Self::ChangeAt(key, change, place) => {
                put_change(bytes, *key, *change);
                put(bytes, version_words(place.of));
                put(bytes, [place.index.into()]);
            }
            Self::LookUp(key, version) => {
                put(bytes, [*key]);
                put(bytes, version_words(*version));
            }
            Self::Scan { from, limit } | Self::ScanReverse { from, limit } => {
                put(bytes, [*from, *limit]);
            }
            Self::Count => {}
            Self::LoadPart { load, records } => {
                put(bytes, [*load]);
                put(
                    bytes,
                    records.iter().flat_map(|(key, value)| [*key, *value]),
                );
            }
            Self::LoadCommit { load, record_count } => put(bytes, [*load, *record_count]),
            Self::LoadDrop { load } => put(bytes, [*load]),
        }
    }

    /// Decodes a request that a client sent.
    ///
    /// # Errors
    /// The bytes are not a valid request.
    pub fn decode(bytes: &[u8]) -> Result<(TableId, Self), BadWords> {
        let mut words = Words::new(bytes)?;
        let head = words.next()?;
        let table = TableId((head >> 32) as u32);
        let flags = head & (HAS_EXPECTED | HAS_NEW | HAS_PLACE);
        let kind = head & 0xFF;
        let is_swap = kind == COMPARE_SWAP;
        let is_change = (PUT..=COMPARE_SWAP).contains(&kind);
        let has_values = flags & (HAS_EXPECTED | HAS_NEW) != 0;
        let has_place = flags & HAS_PLACE != 0;
        let is_known = head & 0xFFFF_FF00 == flags;
        if !is_known || has_values && !is_swap || has_place && !is_change {
            return Err(BadWords("unknown request format"));
        }
        let request = match kind {
            1 => Self::Get(words.next()?),
            2 => {
                if words.clone().rest().len() > MULTI_GET_COUNT_MAX {
                    return Err(BadWords("too many keys"));
                }
                return Ok((table, Self::MultiGet(words.rest().collect())));
            }
            PUT..=COMPARE_SWAP => {
                let (key, change) = read_change(&mut words, kind, flags)?;
                if has_place {
                    let of = read_version(&mut words)?;
                    let index = read_u32(&mut words)?;
                    Self::ChangeAt(key, change, TablePosition { of, index })
                } else {
                    Self::Change(key, change)
                }
            }
            8 => Self::Scan {
                from: words.next()?,
                limit: words.next()?.min(SCAN_COUNT_MAX),
            },
            9 => Self::Count,
            10 => return Ok((table, Self::load_part(words)?)),
            11 => Self::LoadCommit {
                load: words.next()?,
                record_count: words.next()?,
            },
            12 => Self::LoadDrop {
                load: words.next()?,
            },
            13 => Self::LookUp(words.next()?, read_version(&mut words)?),
            14 => Self::ScanReverse {
                from: words.next()?,
                limit: words.next()?.min(SCAN_COUNT_MAX),
            },
            _ => return Err(BadWords("unknown request kind")),
        };
        words.end()?;
        Ok((table, request))
    }

    /// Returns the flags of a write in the first word.
    fn flags(&self) -> u64 {
        let (change, place) = match self {
            Self::Change(_, change) => (*change, 0),
            Self::ChangeAt(_, change, _) => (*change, HAS_PLACE),
            _ => return 0,
        };
        let Change::CompareSwap { expected, new } = change else {
            return place;
        };
        let expected = if expected.is_some() { HAS_EXPECTED } else { 0 };
        place | expected | if new.is_some() { HAS_NEW } else { 0 }
    }

    fn load_part(mut words: Words<'_>) -> Result<Self, BadWords> {
        let load = words.next()?;
        let count = words.clone().rest().len();
        if count == 0 || !count.is_multiple_of(2) || count / 2 > LOAD_PART_COUNT_MAX {
            return Err(BadWords("invalid size of a part of a load"));
        }
        let keys = words.clone().rest().step_by(2);
        let values = words.rest().skip(1).step_by(2);
        let records = keys.zip(values).collect();
        Ok(Self::LoadPart { load, records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn version() -> impl Strategy<Value = ModelVersion> {
        any::<(u32, u32, u32)>().prop_map(|(generation, number, version)| ModelVersion {
            generation,
            number,
            version,
        })
    }

    fn requests() -> impl Strategy<Value = WordRequest> {
        let change = prop_oneof![
            any::<u64>().prop_map(Change::Put),
            any::<u64>().prop_map(Change::Insert),
            any::<u64>().prop_map(Change::Update),
            Just(Change::Delete),
            any::<(Option<u64>, Option<u64>)>()
                .prop_map(|(expected, new)| Change::CompareSwap { expected, new }),
        ];
        prop_oneof![
            any::<u64>().prop_map(WordRequest::Get),
            proptest::collection::vec(any::<u64>(), 0..40).prop_map(WordRequest::MultiGet),
            (any::<u64>(), change.clone())
                .prop_map(|(key, change)| WordRequest::Change(key, change)),
            (any::<u64>(), change, version(), any::<u32>()).prop_map(|(key, change, of, index)| {
                WordRequest::ChangeAt(key, change, TablePosition { of, index })
            }),
            (any::<u64>(), version()).prop_map(|(key, version)| WordRequest::LookUp(key, version)),
            (any::<u64>(), 0..=SCAN_COUNT_MAX)
                .prop_map(|(from, limit)| WordRequest::Scan { from, limit }),
            (any::<u64>(), 0..=SCAN_COUNT_MAX)
                .prop_map(|(from, limit)| WordRequest::ScanReverse { from, limit }),
            Just(WordRequest::Count),
            (
                any::<u64>(),
                proptest::collection::vec(any::<(u64, u64)>(), 1..40)
            )
                .prop_map(|(load, records)| WordRequest::LoadPart { load, records }),
            any::<(u64, u64)>()
                .prop_map(|(load, record_count)| WordRequest::LoadCommit { load, record_count }),
            any::<u64>().prop_map(|load| WordRequest::LoadDrop { load }),
        ]
    }

    /// Format: a later version that changes it must have another number.
    #[test]
    fn bytes_are_golden() {
        let mut bytes = Vec::new();
        let change = Change::CompareSwap {
            expected: Some(3),
            new: None,
        };
        WordRequest::Change(0x0102, change).encode(TableId(9), &mut bytes);
        let words = [0x0000_0009_0000_0107_u64, 0x0102, 3, 0];
        assert_eq!(bytes, words.map(u64::to_le_bytes).concat());
        let scan = WordRequest::ScanReverse { from: 7, limit: 2 };
        scan.encode(TableId(9), &mut bytes);
        let words = [0x0000_0009_0000_000E_u64, 7, 2];
        assert_eq!(bytes, words.map(u64::to_le_bytes).concat());
    }

    /// Checks that requests that are too long, too short or of another version are rejected.
    #[test]
    fn what_is_no_request_is_refused() {
        let decode = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            WordRequest::decode(&bytes)
        };
        assert!(WordRequest::decode(&[1, 0, 0]).is_err(), "no whole words");
        for words in [
            &[][..],
            &[1],
            &[1, 2, 3],
            &[0],
            &[14, 0],
            &[15, 0],
            &[13, 0],
            &[0x0401, 5],
            &[0x0403, 5, 6, 7],
            &[0x0101, 5],
            &[0x0407, 5, 5, 5],
            &[7, 5, 5],
            &[10, 1],
            &[10, 1, 2],
            &[2; MULTI_GET_COUNT_MAX + 2],
            &[10; 2 * LOAD_PART_COUNT_MAX + 4],
        ] {
            assert!(decode(words).is_err(), "{words:?}");
        }
        let scan = decode(&[8, 5, u64::MAX]).expect("a scan");
        let limit = SCAN_COUNT_MAX;
        assert_eq!(scan, (TableId(0), WordRequest::Scan { from: 5, limit }));
    }

    proptest! {
        /// Checks that every request is decoded as encoded.
        #[test]
        fn requests_come_back(request in requests(), table: u32) {
            let mut bytes = Vec::new();
            request.encode(TableId(table), &mut bytes);
            prop_assert_eq!(WordRequest::decode(&bytes), Ok((TableId(table), request)));
        }

        /// Checks that decoding any bytes returns a request or an error, and that a decoded request
        /// is encoded to the same bytes.
        #[test]
        fn any_bytes_can_be_read(
            words in proptest::collection::vec(
                prop_oneof![0..16_u64, Just(0x0404), any::<u64>()],
                0..9,
            ),
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            if let Ok((table, request)) = WordRequest::decode(&bytes) {
                let mut written = Vec::new();
                request.encode(table, &mut written);
                prop_assert_eq!(WordRequest::decode(&written), Ok((table, request)));
            }
        }
    }
}
