//! Fuzzing of valid requests and replies that are changed at random.

use farleaf_base::TableId;
use farleaf_base::fuzzing::run;
use farleaf_base::random::Random;

use super::{
    ByteChange, ByteCondition, ByteRange, ByteReply, ByteRequest, FoundValue,
    MESSAGE_SIZE_BYTES_MAX, ReplyCapacity, RequestHead, SentValue,
};
use crate::rpc::Failure;

fn strings(random: &mut Random) -> Vec<Vec<u8>> {
    let count = 1 + random.index(9);
    let mut strings: Vec<Vec<u8>> = (0..count)
        .map(|_| {
            let size_max = if random.one_in(9) { 1500 } else { 20 };
            let size = random.index(size_max);
            (0..size).map(|_| random.bits() as u8).collect()
        })
        .collect();
    strings.sort();
    strings.dedup();
    strings
}

fn sent<'a>(random: &mut Random, value: &'a [u8]) -> SentValue<'a> {
    if random.one_in(3) {
        SentValue::Staged(random.below(9))
    } else {
        SentValue::Here(value)
    }
}

fn request<'a>(random: &mut Random, strings: &'a [Vec<u8>]) -> ByteRequest<'a> {
    let string = |random: &mut Random| strings[random.index(strings.len())].as_slice();
    let number = random.below(9);
    let capacity = ReplyCapacity {
        number,
        size_bytes: random.below(MESSAGE_SIZE_BYTES_MAX as u64) as u32,
    };
    match random.below(9) {
        0 => ByteRequest::Get {
            keys: strings.iter().map(Vec::as_slice).collect(),
            capacity,
        },
        1 => {
            let (expected, value) = (string(random), string(random));
            let condition = match random.below(4) {
                0 => ByteCondition::Always,
                1 => ByteCondition::IfAbsent,
                2 => ByteCondition::IfEqual(None),
                _ => ByteCondition::IfEqual(Some(sent(random, expected))),
            };
            let change = ByteChange {
                key: string(random),
                condition,
                value: random.one_in(2).then(|| sent(random, value)),
                wants_previous: random.one_in(2),
            };
            ByteRequest::Change { change, capacity }
        }
        2 => {
            let end = string(random);
            let range = ByteRange {
                start: string(random),
                end: random.one_in(2).then_some(end),
                descends: random.one_in(2),
                of_keys: random.one_in(2),
                limit: random.below(1000) as u32,
            };
            ByteRequest::Scan { range, capacity }
        }
        3 => ByteRequest::Read {
            offset: random.below(1 << 20) as u32,
            capacity,
        },
        4 => ByteRequest::Stage {
            number,
            offset: random.below(1 << 20) as u32,
            whole_size_bytes: 1 << 21,
            part: &[7; 900],
        },
        5 => ByteRequest::LoadPart {
            number,
            records: strings
                .iter()
                .map(|key| (key.as_slice(), sent(random, key)))
                .collect(),
        },
        6 => ByteRequest::LoadCommit {
            number,
            record_count: random.bits(),
        },
        7 => ByteRequest::Count,
        _ => ByteRequest::Forget { number },
    }
}

fn reply<'a>(random: &mut Random, strings: &'a [Vec<u8>]) -> ByteReply<'a> {
    let value = |random: &mut Random| FoundValue::whole(&strings[random.index(strings.len())]);
    let last = |random: &mut Random| {
        let mut found = value(random);
        found.whole_size_bytes += random.below(3) as u32 * 5000;
        found
    };
    match random.below(5) {
        0 => {
            let values = strings.iter();
            let values =
                values.map(|value| Some(FoundValue::whole(value)).filter(|_| random.one_in(2)));
            let mut values: Vec<_> = values.collect();
            values.push(Some(last(random)));
            ByteReply::Values(values)
        }
        1 => ByteReply::Changed {
            is_done: random.one_in(2),
            was_present: random.one_in(2),
            previous: random.one_in(2).then(|| last(random)),
        },
        2 => {
            let records = strings.iter().map(|key| (key.as_slice(), value(random)));
            ByteReply::Records {
                records: records.collect(),
                is_end: random.one_in(2),
            }
        }
        3 => ByteReply::Part(&[9; 700]),
        _ => ByteReply::Failed(Failure::Full),
    }
}

/// Checks that a randomly changed request is rejected, or is encoded to the bytes that were
/// decoded.
#[test]
fn fuzz_byte_requests() {
    run("requests about byte strings", |random| {
        let strings = strings(random);
        let mut bytes = Vec::new();
        let head = RequestHead {
            table: TableId(3),
            lowest_open: random.below(9),
        };
        request(random, &strings).encode(head, &mut bytes);
        if bytes.len() <= MESSAGE_SIZE_BYTES_MAX {
            ByteRequest::decode(&bytes).expect("it was honest");
        }
        random.mutate(&mut bytes);
        if let Ok((head, request)) = ByteRequest::decode(&bytes) {
            let mut written = Vec::new();
            request.encode(head, &mut written);
            assert_eq!(written, bytes);
        }
    });
}

/// Checks that a randomly changed reply is rejected, or is encoded to the bytes that were decoded.
#[test]
fn fuzz_byte_replies() {
    run("replies about byte strings", |random| {
        let strings = strings(random);
        let mut bytes = Vec::new();
        reply(random, &strings).encode(&mut bytes);
        ByteReply::decode(&bytes).expect("it was honest");
        random.mutate(&mut bytes);
        if let Ok(reply) = ByteReply::decode(&bytes) {
            let mut written = Vec::new();
            reply.encode(&mut written);
            assert_eq!(written, bytes);
        }
    });
}
