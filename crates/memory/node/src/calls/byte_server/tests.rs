use super::*;
use farleaf_base::{Incarnation, SessionId};
use farleaf_index::rpc::bytes::MESSAGE_SIZE_BYTES_MAX;

fn owner(number: u16) -> OwnerWord {
    let session = SessionId::new(number).expect("a number");
    OwnerWord::new(session, Incarnation::new(1))
}

fn capacity(number: u64, size_bytes: usize) -> ReplyCapacity {
    ReplyCapacity {
        number,
        size_bytes: size_bytes as u32,
    }
}

fn tables() -> (ByteTables, Arc<ServedByteTable>) {
    let tables = ByteTables::new(Arc::new(MemoryLimit::new(1 << 20)));
    let table = tables.add(TableId(3), 0);
    (tables, table)
}

fn put<'a>(key: &'a [u8], value: SentValue<'a>) -> ByteRequest<'a> {
    let change = ByteChange {
        key,
        condition: ByteCondition::Always,
        value: Some(value),
        wants_previous: false,
    };
    ByteRequest::Change {
        change,
        capacity: capacity(0, 16),
    }
}

/// Promise: a value of which a reply contained the beginning is read to its end as found,
/// even if its key has another value by then, and is released afterwards.
#[test]
fn what_was_found_is_read_to_its_end() {
    let (tables, table) = tables();
    let session = owner(1);
    let mut bytes = Vec::new();
    let value: Vec<u8> = (0..1_000_u32).map(|byte| byte as u8).collect();
    tables.execute(
        &table,
        session,
        put(b"k", SentValue::Here(&value)),
        &mut bytes,
    );
    let get = ByteRequest::Get {
        keys: vec![b"k", b"k"],
        capacity: capacity(7, 500),
    };
    tables.execute(&table, session, get, &mut bytes);
    let mut read = match ByteReply::decode(&bytes) {
        Ok(ByteReply::Values(values)) => {
            assert_eq!(values.len(), 1, "nothing behind one that is cut off");
            let found = values[0].expect("it is there");
            assert_eq!(found.whole_size_bytes, 1_000);
            found.here.to_vec()
        }
        other => panic!("{other:?}"),
    };
    assert!(bytes.len() <= 500 && read.len() > 400);
    tables.execute(
        &table,
        session,
        put(b"k", SentValue::Here(b"new")),
        &mut bytes,
    );
    while read.len() < 1_000 {
        let request = ByteRequest::Read {
            offset: read.len() as u32,
            capacity: capacity(7, 300),
        };
        tables.execute(&table, session, request, &mut bytes);
        assert!(bytes.len() <= 300);
        match ByteReply::decode(&bytes) {
            Ok(ByteReply::Part(part)) => read.extend_from_slice(part),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(read, value);
    let again = ByteRequest::Read {
        offset: 500,
        capacity: capacity(7, 300),
    };
    tables.execute(&table, session, again, &mut bytes);
    assert_eq!(
        ByteReply::decode(&bytes),
        Ok(ByteReply::Failed(Failure::Unsound))
    );
}

/// Promise: every request about a transfer that the session has not begun, or that belongs to
/// another session, gets an error and changes nothing.
#[test]
fn what_was_not_begun_is_refused() {
    let (tables, table) = tables();
    let (session, other) = (owner(1), owner(2));
    let mut bytes = Vec::new();
    let stage = ByteRequest::Stage {
        number: 7,
        offset: 0,
        whole_size_bytes: 3,
        part: b"abc",
    };
    tables.execute(&table, other, stage, &mut bytes);
    assert_eq!(ByteReply::decode(&bytes), Ok(ByteReply::Count(3)));
    for request in [
        put(b"k", SentValue::Staged(7)),
        ByteRequest::Read {
            offset: 0,
            capacity: capacity(7, 100),
        },
        ByteRequest::Stage {
            number: 7,
            offset: 3,
            whole_size_bytes: 6,
            part: b"def",
        },
        ByteRequest::LoadCommit {
            number: 7,
            record_count: 0,
        },
        ByteRequest::LoadPart {
            number: 8,
            records: vec![(b"k", SentValue::Staged(7))],
        },
    ] {
        let text = format!("{request:?}");
        tables.execute(&table, session, request, &mut bytes);
        let refused = ByteReply::Failed(Failure::Unsound);
        assert_eq!(ByteReply::decode(&bytes), Ok(refused), "{text}");
    }
    tables.execute(&table, session, ByteRequest::Count, &mut bytes);
    assert_eq!(ByteReply::decode(&bytes), Ok(ByteReply::Count(0)));
    tables.execute(&table, other, put(b"k", SentValue::Staged(7)), &mut bytes);
    tables.execute(&table, session, ByteRequest::Count, &mut bytes);
    assert_eq!(ByteReply::decode(&bytes), Ok(ByteReply::Count(1)));
}

/// Promise: no reply is longer than requested, unless a single key is, however long values and keys
/// are. A reply with space for nothing still makes progress.
#[test]
fn replies_have_space() {
    let (tables, table) = tables();
    let session = owner(1);
    let mut bytes = Vec::new();
    for number in 0..40_usize {
        let (key, value) = (vec![number as u8; number * 100 + 1], vec![1; number * 300]);
        let request = put(&key, SentValue::Here(&value));
        tables.execute(&table, session, request, &mut bytes);
    }
    for capacity_bytes in [0, 16, 100, 5_000, MESSAGE_SIZE_BYTES_MAX] {
        for (of_keys, descends) in [(false, false), (true, false), (false, true)] {
            let (mut count, mut last) = (0, Vec::new());
            loop {
                let range = ByteRange {
                    start: if descends { b"" } else { &last },
                    end: (descends && count > 0).then_some(&last),
                    descends,
                    of_keys,
                    limit: 1_000,
                };
                let request = ByteRequest::Scan {
                    range,
                    capacity: capacity(9, capacity_bytes),
                };
                tables.execute(&table, session, request, &mut bytes);
                let Ok(ByteReply::Records { records, is_end }) = ByteReply::decode(&bytes) else {
                    panic!("no records");
                };
                let least = records.first().map_or(16, |(key, _)| key.len() + 40);
                assert!(bytes.len() <= capacity_bytes.max(least), "{capacity_bytes}");
                assert!(is_end || !records.is_empty());
                count += records.len();
                if is_end {
                    break;
                }
                last = records[records.len() - 1].0.to_vec();
                if !descends {
                    last.push(0);
                }
            }
            assert_eq!(count, 40, "{capacity_bytes}");
        }
    }
}
