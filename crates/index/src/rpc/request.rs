//! Requests as bytes.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | kind (8), which values a compare-and-swap has (8), table id (32, from bit 32 on) |
//! | 1.. | key and values; keys; first key and limit; a load's number, and its records or count |

use farleaf_types::TableId;

use super::change::Change;
use super::words::{BadWords, Words, put};

/// Keys that one request asks for at the most. The reply takes no more than half a ring of 32 KiB,
/// so nothing has to be kept until it is fetched.
pub const MULTI_GET_COUNT_MAX: usize = 900;
/// Records that one request asks for at the most; as many for the same reason.
pub const SCAN_COUNT_MAX: u64 = 900;
/// Records of a load that one request brings at the most.
pub const LOAD_PART_COUNT_MAX: usize = 512;

const HAS_EXPECTED: u64 = 1 << 8;
const HAS_NEW: u64 = 1 << 9;

/// What a client asks of the node, about one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The value of a key.
    Get(u64),
    /// The values of so many keys.
    MultiGet(Vec<u64>),
    /// A write.
    Change(u64, Change),
    /// So many of the first records from a key on.
    Scan {
        /// The smallest key.
        from: u64,
        /// How many, at the most.
        limit: u64,
    },
    /// How many records there are.
    Count,
    /// Records of a load that its session numbers so, behind those of earlier requests.
    LoadPart {
        /// The session's number of the load.
        load: u64,
        /// The records.
        records: Vec<(u64, u64)>,
    },
    /// The load is whole, and the table is what it brought, if it was empty.
    LoadCommit {
        /// The session's number of the load.
        load: u64,
        /// How many records it has.
        record_count: u64,
    },
    /// The load is given up.
    LoadDrop {
        /// The session's number of the load.
        load: u64,
    },
}

impl Request {
    fn kind(&self) -> u64 {
        match self {
            Self::Get(_) => 1,
            Self::MultiGet(_) => 2,
            Self::Change(_, Change::Put(_)) => 3,
            Self::Change(_, Change::Insert(_)) => 4,
            Self::Change(_, Change::Update(_)) => 5,
            Self::Change(_, Change::Delete) => 6,
            Self::Change(_, Change::CompareSwap { .. }) => 7,
            Self::Scan { .. } => 8,
            Self::Count => 9,
            Self::LoadPart { .. } => 10,
            Self::LoadCommit { .. } => 11,
            Self::LoadDrop { .. } => 12,
        }
    }

    /// The bytes.
    pub fn encode(&self, table: TableId, bytes: &mut Vec<u8>) {
        bytes.clear();
        let mut head = self.kind() | u64::from(table.0) << 32;
        if let Self::Change(_, Change::CompareSwap { expected, new }) = self {
            head |= if expected.is_some() { HAS_EXPECTED } else { 0 };
            head |= if new.is_some() { HAS_NEW } else { 0 };
        }
        put(bytes, [head]);
        match self {
            Self::Get(key) | Self::Change(key, Change::Delete) => put(bytes, [*key]),
            Self::MultiGet(keys) => put(bytes, keys.iter().copied()),
            Self::Change(
                key,
                Change::Put(value) | Change::Insert(value) | Change::Update(value),
            ) => {
                put(bytes, [*key, *value]);
            }
            Self::Change(key, Change::CompareSwap { expected, new }) => {
                put(bytes, [*key, expected.unwrap_or(0), new.unwrap_or(0)]);
            }
            Self::Scan { from, limit } => put(bytes, [*from, *limit]),
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

    /// What a client sent.
    ///
    /// # Errors
    /// It is no request.
    pub fn decode(bytes: &[u8]) -> Result<(TableId, Self), BadWords> {
        let mut words = Words::new(bytes)?;
        let head = words.next()?;
        let table = TableId((head >> 32) as u32);
        let flags = head & (HAS_EXPECTED | HAS_NEW);
        if head & 0xFFFF_FF00 != flags || flags != 0 && head & 0xFF != 7 {
            return Err(BadWords("a request of an unknown form"));
        }
        let request = match head & 0xFF {
            1 => Self::Get(words.next()?),
            2 => {
                if words.clone().rest().len() > MULTI_GET_COUNT_MAX {
                    return Err(BadWords("a request for too many keys"));
                }
                return Ok((table, Self::MultiGet(words.rest().collect())));
            }
            3 => Self::Change(words.next()?, Change::Put(words.next()?)),
            4 => Self::Change(words.next()?, Change::Insert(words.next()?)),
            5 => Self::Change(words.next()?, Change::Update(words.next()?)),
            6 => Self::Change(words.next()?, Change::Delete),
            7 => {
                let (key, expected, new) = (words.next()?, words.next()?, words.next()?);
                let expected = (flags & HAS_EXPECTED != 0).then_some(expected);
                let new = (flags & HAS_NEW != 0).then_some(new);
                Self::Change(key, Change::CompareSwap { expected, new })
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
            _ => return Err(BadWords("a request of an unknown kind")),
        };
        words.end()?;
        Ok((table, request))
    }

    fn load_part(mut words: Words<'_>) -> Result<Self, BadWords> {
        let load = words.next()?;
        let count = words.clone().rest().len();
        if count == 0 || !count.is_multiple_of(2) || count / 2 > LOAD_PART_COUNT_MAX {
            return Err(BadWords("a part of a load that is none"));
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

    fn requests() -> impl Strategy<Value = Request> {
        let change = prop_oneof![
            any::<u64>().prop_map(Change::Put),
            any::<u64>().prop_map(Change::Insert),
            any::<u64>().prop_map(Change::Update),
            Just(Change::Delete),
            any::<(Option<u64>, Option<u64>)>()
                .prop_map(|(expected, new)| Change::CompareSwap { expected, new }),
        ];
        prop_oneof![
            any::<u64>().prop_map(Request::Get),
            proptest::collection::vec(any::<u64>(), 0..40).prop_map(Request::MultiGet),
            (any::<u64>(), change).prop_map(|(key, change)| Request::Change(key, change)),
            (any::<u64>(), 0..=SCAN_COUNT_MAX)
                .prop_map(|(from, limit)| Request::Scan { from, limit }),
            Just(Request::Count),
            (
                any::<u64>(),
                proptest::collection::vec(any::<(u64, u64)>(), 1..40)
            )
                .prop_map(|(load, records)| Request::LoadPart { load, records }),
            any::<(u64, u64)>()
                .prop_map(|(load, record_count)| Request::LoadCommit { load, record_count }),
            any::<u64>().prop_map(|load| Request::LoadDrop { load }),
        ]
    }

    /// The format: a later version that changes it must say so.
    #[test]
    fn bytes_are_golden() {
        let mut bytes = Vec::new();
        let change = Change::CompareSwap {
            expected: Some(3),
            new: None,
        };
        Request::Change(0x0102, change).encode(TableId(9), &mut bytes);
        let words = [0x0000_0009_0000_0107_u64, 0x0102, 3, 0];
        assert_eq!(bytes, words.map(u64::to_le_bytes).concat());
    }

    /// Promise: what is too much, too little or of another version is refused.
    #[test]
    fn what_is_no_request_is_refused() {
        let decode = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            Request::decode(&bytes)
        };
        assert!(Request::decode(&[1, 0, 0]).is_err(), "no whole words");
        for words in [
            &[][..],
            &[1],
            &[1, 2, 3],
            &[0],
            &[13, 0],
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
        assert_eq!(scan, (TableId(0), Request::Scan { from: 5, limit }));
    }

    proptest! {
        /// Promise: every request comes back as it was.
        #[test]
        fn requests_come_back(request in requests(), table: u32) {
            let mut bytes = Vec::new();
            request.encode(TableId(table), &mut bytes);
            prop_assert_eq!(Request::decode(&bytes), Ok((TableId(table), request)));
        }

        /// Promise: any bytes are a request or an error, and a request is written as it was read.
        #[test]
        fn any_bytes_can_be_read(
            words in proptest::collection::vec(prop_oneof![0..14_u64, any::<u64>()], 0..9),
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            if let Ok((table, request)) = Request::decode(&bytes) {
                let mut written = Vec::new();
                request.encode(table, &mut written);
                prop_assert_eq!(Request::decode(&written), Ok((table, request)));
            }
        }
    }
}
