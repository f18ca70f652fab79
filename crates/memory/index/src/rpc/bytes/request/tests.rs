use super::*;
use proptest::prelude::*;

/// Request that owns its strings.
#[derive(Clone, Debug)]
enum OwnedRequest {
    Get(Vec<Vec<u8>>),
    Change(Vec<u8>, u8, Option<OwnSent>, Option<OwnSent>, bool),
    Scan(Vec<u8>, Option<Vec<u8>>, bool, bool, u32),
    Count,
    Read(u32),
    Stage(u32, Vec<u8>, u32),
    LoadPart(Vec<(Vec<u8>, OwnSent)>),
    LoadCommit(u64),
    Forget,
}

#[derive(Clone, Debug)]
enum OwnSent {
    Here(Vec<u8>),
    Staged(u64),
}

impl OwnSent {
    fn sent(&self) -> SentValue<'_> {
        match self {
            Self::Here(value) => SentValue::Here(value),
            Self::Staged(number) => SentValue::Staged(*number),
        }
    }
}

impl OwnedRequest {
    fn request(&self, number: u64, capacity: u32) -> ByteRequest<'_> {
        let size_bytes = capacity;
        let capacity = ReplyCapacity { number, size_bytes };
        match self {
            Self::Get(keys) => ByteRequest::Get {
                keys: keys.iter().map(Vec::as_slice).collect(),
                capacity,
            },
            Self::Change(key, condition, value, expected, wants_previous) => {
                let condition = match condition {
                    0 => ByteCondition::Always,
                    1 => ByteCondition::IfAbsent,
                    2 => ByteCondition::IfPresent,
                    _ => ByteCondition::IfEqual(expected.as_ref().map(OwnSent::sent)),
                };
                let change = ByteChange {
                    key,
                    condition,
                    value: value.as_ref().map(OwnSent::sent),
                    wants_previous: *wants_previous,
                };
                ByteRequest::Change { change, capacity }
            }
            Self::Scan(start, end, descends, of_keys, limit) => {
                let range = ByteRange {
                    start,
                    end: end.as_deref(),
                    descends: *descends,
                    of_keys: *of_keys,
                    limit: *limit,
                };
                ByteRequest::Scan { range, capacity }
            }
            Self::Count => ByteRequest::Count,
            Self::Read(offset) => ByteRequest::Read {
                offset: *offset,
                capacity,
            },
            Self::Stage(offset, part, rest) => ByteRequest::Stage {
                number,
                offset: *offset,
                whole_size_bytes: offset + part.len() as u32 + rest,
                part,
            },
            Self::LoadPart(records) => ByteRequest::LoadPart {
                number,
                records: records
                    .iter()
                    .map(|(key, value)| (key.as_slice(), value.sent()))
                    .collect(),
            },
            Self::LoadCommit(record_count) => ByteRequest::LoadCommit {
                number,
                record_count: *record_count,
            },
            Self::Forget => ByteRequest::Forget { number },
        }
    }
}

fn string() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..40)
}

fn requests() -> impl Strategy<Value = OwnedRequest> {
    let sent = prop_oneof![
        string().prop_map(OwnSent::Here),
        any::<u64>().prop_map(OwnSent::Staged),
    ];
    let maybe = proptest::option::of(sent.clone());
    let records = proptest::collection::btree_map(string(), sent, 1..9);
    prop_oneof![
        proptest::collection::vec(string(), 1..9).prop_map(OwnedRequest::Get),
        (string(), 0..4_u8, maybe.clone(), maybe, any::<bool>()).prop_map(
            |(key, condition, value, expected, wants)| OwnedRequest::Change(
                key, condition, value, expected, wants
            )
        ),
        (
            string(),
            proptest::option::of(string()),
            any::<bool>(),
            any::<bool>(),
            any::<u32>()
        )
            .prop_map(|(start, end, descends, of_keys, limit)| OwnedRequest::Scan(
                start, end, descends, of_keys, limit
            )),
        Just(OwnedRequest::Count),
        any::<u32>().prop_map(OwnedRequest::Read),
        (
            0..1_u32 << 25,
            proptest::collection::vec(any::<u8>(), 1..90),
            0..1_u32 << 25
        )
            .prop_map(|(offset, part, rest)| OwnedRequest::Stage(offset, part, rest)),
        records.prop_map(|records| OwnedRequest::LoadPart(records.into_iter().collect())),
        any::<u64>().prop_map(OwnedRequest::LoadCommit),
        Just(OwnedRequest::Forget),
    ]
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Format: a later version that changes it must have another number.
#[test]
fn bytes_are_golden() {
    let change = ByteChange {
        key: b"key",
        condition: ByteCondition::IfEqual(Some(SentValue::Here(b"123456789"))),
        value: Some(SentValue::Staged(7)),
        wants_previous: true,
    };
    let capacity = ReplyCapacity {
        number: 5,
        size_bytes: 100,
    };
    let mut bytes = Vec::new();
    let head = RequestHead {
        table: TableId(9),
        lowest_open: 4,
    };
    ByteRequest::Change { change, capacity }.encode(head, &mut bytes);
    let key = 0x0079_656B;
    let expected = [0x3837_3635_3433_3231, 0x39];
    let words = [
        0x0000_0009_0000_1F21,
        4,
        5,
        100,
        3,
        key,
        STAGED,
        7,
        9,
        expected[0],
        expected[1],
    ];
    assert_eq!(bytes, bytes_of(&words));
    assert!(ByteRequest::is_one(&bytes));
    let mut words_request = Vec::new();
    crate::rpc::WordRequest::Count.encode(TableId(9), &mut words_request);
    assert!(!ByteRequest::is_one(&words_request));
}

/// Checks that requests that are too long, too short or of another version are rejected.
#[test]
fn what_is_no_request_is_refused() {
    let capacity = 100_u64;
    let long = bytes_of(&[1; MESSAGE_SIZE_BYTES_MAX / 8 + 1]);
    assert!(ByteRequest::decode(&long).is_err(), "too long");
    assert!(ByteRequest::decode(&[35, 0, 0]).is_err(), "no whole words");
    let too_long_key = [&[GET, 0, 1, 1 << 32 | capacity, 4097][..], &[1; 513]].concat();
    for words in [
        &[][..],
        &[31],
        &[41],
        &[41, 0],
        &[COUNT],
        &[GET, 0, 1, capacity],
        &[GET, 0, 1, 1 << 32 | capacity],
        &[GET, 0, 1, u64::from(u32::MAX) << 32, 0],
        &[GET, 0, 1, pair(MESSAGE_SIZE_BYTES_MAX as u32 + 1, 1), 0],
        &[GET, 0, 1, 1 << 32 | capacity, 1, 0x100],
        &[GET | 1 << 8, 0, 1, 1 << 32 | capacity, 0],
        &too_long_key,
        &[CHANGE | 1 << 13, 0, 1, capacity, 0],
        &[CHANGE | HAS_EXPECTED, 0, 1, capacity, 0, 0],
        &[CHANGE | HAS_VALUE, 0, 1, capacity, 0],
        &[CHANGE | HAS_VALUE, 0, 1, capacity, 0, STAGED],
        &[CHANGE | HAS_VALUE, 0, 1, capacity, 0, STAGED | 1, 1],
        &[CHANGE, 0, 1, 1 << 32 | capacity, 0],
        &[SCAN | HAS_END, 0, 1, capacity, 0],
        &[SCAN, 0, 1, capacity, 4098],
        &[COUNT, 0, 1],
        &[STAGE, 0, 1, 1 << 32, 0],
        &[STAGE, 0, 1, 1 << 32, 2, 5],
        &[STAGE, 0, 1, u64::from(u32::MAX) | 1 << 32, 1, 5],
        &[STAGE, 0, 1, (64 << 20 | 1) << 32, 1, 5],
        &[LOAD_PART, 0, 1],
        &[LOAD_PART, 0, 1, 1, 5, 0, 1, 5, 0],
        &[LOAD_PART, 0, 1, 1, 5],
        &[LOAD_COMMIT, 0, 1],
        &[FORGET, 0, 1, 1],
    ] {
        let read = ByteRequest::decode(&bytes_of(words)).map(|(_, request)| format!("{request:?}"));
        assert!(read.is_err(), "{words:?}: {read:?}");
    }
}

proptest! {
    /// Checks that every request is decoded as encoded, and that truncated or longer ones are
    /// rejected.
    #[test]
    fn requests_come_back(
        own in requests(),
        (table, lowest_open) in any::<(u32, u64)>(),
        number: u64,
        capacity in 0..=MESSAGE_SIZE_BYTES_MAX as u32,
    ) {
        let table = TableId(table);
        let head = RequestHead { table, lowest_open };
        let request = own.request(number, capacity);
        let mut bytes = Vec::new();
        request.encode(head, &mut bytes);
        prop_assert!(ByteRequest::is_one(&bytes));
        let is_load = matches!(request, ByteRequest::LoadPart { .. });
        prop_assert_eq!(ByteRequest::decode(&bytes), Ok((head, request)));
        prop_assert!(is_load || ByteRequest::decode(&bytes[..bytes.len() - 8]).is_err());
        bytes.extend([0; 8]);
        prop_assert!(is_load || ByteRequest::decode(&bytes).is_err());
    }

    /// Checks that decoding any bytes returns a request or an error, and that a decoded request is
    /// encoded to the same bytes.
    #[test]
    fn any_bytes_can_be_read(
        kind in 30..42_u64,
        flags in 0..64_u64,
        words in proptest::collection::vec(
            prop_oneof![0..9_u64, Just(STAGED), Just(1 << 32 | 8), any::<u64>()],
            0..12,
        ),
    ) {
        let words: Vec<u64> = core::iter::once(kind | flags << 8).chain(words).collect();
        let bytes = bytes_of(&words);
        if let Ok((head, request)) = ByteRequest::decode(&bytes) {
            let mut written = Vec::new();
            request.encode(head, &mut written);
            prop_assert_eq!(written, bytes);
        }
    }
}
