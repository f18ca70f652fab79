//! Tables of byte strings in pools that are full or nearly full.

use std::time::Instant;

use farleaf::{OperationKind, TableOptions};

use crate::bytes::session;
use crate::{NODES, mapped_pools, pools_over};

/// Promise: if the pool becomes full within a large value, the put fails, existing records stay,
/// and small values still fit.
#[test]
fn a_full_pool_is_told_and_nothing_is_lost() {
    let pool = mapped_pools(16).swap_remove(0);
    let session = session(&pool);
    let table = session
        .create_byte_table("t", &TableOptions::bytes())
        .expect("a table");
    table.put(b"before", b"there").expect("put");
    let error = table
        .put(b"large", &vec![1; 40 << 20])
        .expect_err("no room");
    assert!(
        error
            .to_string()
            .contains("out of space on node 0 for a value block of"),
        "{error}"
    );
    assert_eq!(table.get(b"large").expect("got"), None);
    assert_eq!(
        table.get(b"before").expect("got").as_deref(),
        Some(&b"there"[..])
    );
    table.put(b"after", &[2; 1000]).expect("put");
    table
        .put(b"middling", &vec![3; 4 << 20])
        .expect("what there is room for");
    assert_eq!(table.range(b"", None).count(), 3);
}

/// Promise: in a pool with space for two large values, one can be replaced any number of times
/// without a pause. A value that does not fit is rejected within a few seconds, whatever has been
/// unlinked.
#[test]
fn large_values_are_replaced_where_there_is_space_for_two() {
    let pool = mapped_pools(16).swap_remove(0);
    let session = session(&pool);
    let table = session
        .create_byte_table("t", &TableOptions::bytes())
        .expect("a table");
    for round in 0..40_u8 {
        let value = vec![round; (5 << 20) + usize::from(round)];
        let put = table.put(b"large", &value);
        put.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(table.get(b"large").expect("got").expect("there") == value);
        let started_at = Instant::now();
        let error = table.put(b"larger", &vec![0; 40 << 20]);
        let error = error.expect_err("there is no room").to_string();
        assert!(error.contains("out of space on node 0"), "{error}");
        assert!(started_at.elapsed().as_secs() < 5);
    }
}

/// Promise: a put may be rejected because its key does not fit after its large value was written.
/// Then it writes the value only once, because blocks that it has prepared itself are not worth
/// waiting for. The put counts as one operation.
#[test]
fn a_put_does_not_wait_for_what_it_has_put_aside() {
    let pool = mapped_pools(32).swap_remove(0);
    let session = session(&pool);
    let table = session
        .create_byte_table("t", &TableOptions::bytes())
        .expect("a table");
    let large = vec![1_u8; 8 << 20];
    table.put(b"large", &large).expect("put");
    let mut count = 0;
    for size_bytes in [1_usize << 20, 100_000] {
        let key = |count: u32| format!("k{count}").into_bytes();
        while table.put(&key(count), &vec![2; size_bytes]).is_ok() {
            count += 1;
        }
    }
    let long_key = |number: u32| [&[b'x'; 4000][..], format!("{number:06}").as_bytes()].concat();
    let mut long_key_count = 0;
    while table.put(&long_key(long_key_count), b"v").is_ok() {
        long_key_count += 1;
    }
    table.delete(b"large").expect("deleted");
    let before = session.counters(OperationKind::Put);
    let put = table.put(&long_key(999_999), &large);
    let after = session.counters(OperationKind::Put);
    assert_eq!(after.operations, before.operations + 1);
    let written_bytes = after.cost.bytes_written - before.cost.bytes_written;
    assert!(
        written_bytes <= 3 * large.len() as u64,
        "{put:?}: {written_bytes}"
    );
    assert!(count > 10, "the pool was filled");
}

/// Promise: keys and other strings outside pages use another node of the pool if their page's node
/// is full, as values do. A pool of three nodes accepts long keys until all of it is full, and all
/// of them are found.
#[test]
fn long_keys_fill_all_nodes() {
    let pool = pools_over([NODES], 16, 0).swap_remove(0);
    let session = session(&pool);
    let options = TableOptions::bytes();
    let table = session.create_byte_table("t", &options).expect("a table");
    let key = |number: u64| {
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        [format!("{hash:016x}").as_bytes(), &[b'x'; 3900]].concat()
    };
    let mut count = 0_u64;
    let error = loop {
        match table.put(&key(count), b"v") {
            Ok(_) => count += 1,
            Err(error) => break error.to_string(),
        }
    };
    assert!(
        error.contains("out of space") || error.contains("the pool is full"),
        "{error}"
    );
    let usage = pool.usage().expect("the pool can be looked at");
    let used = usage.used_bytes as f64 / usage.size_bytes as f64;
    assert!(used > 0.9, "{count} keys, then {error}: {usage:?}");
    for number in (0..count).step_by(3) {
        assert_eq!(
            table.get(&key(number)).expect("got").as_deref(),
            Some(&b"v"[..]),
            "{number}"
        );
    }
    let deleted = (0..count).step_by(8);
    let deleted_count = deleted.clone().count() as u64;
    for number in deleted {
        assert!(table.delete(&key(number)).expect("deleted"));
    }
    let left = table
        .range(b"", None)
        .map(|record| record.expect("a record"));
    let left_count = left.filter(|record| record.value == b"v").count() as u64;
    assert_eq!(left_count, count - deleted_count);
}

/// Promise: with scattered free chunks, a put may claim pieces of a list until none is left for the
/// last. It returns all of them, and a value that fits can be put.
#[test]
fn a_pool_that_becomes_full_in_the_middle_of_a_list_gets_all_back() {
    // Two chunks each.
    const SIZE_BYTES: usize = 100_000;
    let pool = mapped_pools(48).swap_remove(0);
    let session = session(&pool);
    let table = session.create_byte_table("t", &TableOptions::bytes());
    let table = table.expect("a table");
    let name = |number: u32| number.to_be_bytes();
    let value = |number: u32| vec![number as u8; SIZE_BYTES];
    let fits = |number: &u32| match table.put(&name(*number), &value(*number)) {
        Ok(_) => true,
        Err(error) => {
            let message = error.to_string();
            assert!(
                message.contains("out of space on node 0 for a value block of 131072"),
                "{message}"
            );
            false
        }
    };
    let count = (0..10_000).take_while(fits).count() as u32;
    assert!(count > 300, "{count}");
    for number in (0..count).step_by(2) {
        assert!(table.delete(&name(number)).expect("removed"));
    }
    let free_size_bytes = count as usize / 2 * SIZE_BYTES;
    let try_too_large = || {
        let error = table.put(b"large", &vec![1; free_size_bytes * 3 / 2]);
        let error = error.expect_err("no room").to_string();
        assert!(
            error.contains("out of space on node 0 for a value block of"),
            "{error}"
        );
        assert_eq!(table.get(b"large").expect("got"), None);
        table.memory_bytes().expect("measured")
    };
    let put_small = || {
        table.put(b"small", &[2; 100]).expect("a small value");
        table
            .put(b"middling", &[3; 3_000])
            .expect("a value outside");
    };
    // The first attempt also returns chunks of removed values that the session kept, and small
    // values take a chunk once.
    try_too_large();
    put_small();
    let memory_bytes = table.memory_bytes().expect("measured");
    for _ in 0..3 {
        assert_eq!(try_too_large(), memory_bytes);
        put_small();
    }
    let large = vec![4; free_size_bytes];
    table.put(b"large", &large).expect("what there is room for");
    assert!(table.get(b"large").expect("got").as_ref() == Some(&large));
    for number in (1..count).step_by(2) {
        assert!(table.get(&name(number)).expect("got") == Some(value(number)));
    }
    assert_eq!(table.range(b"", None).count(), count as usize / 2 + 3);
}

/// Promise: in a pool with space for two large values, each session that replaces one and closes
/// has freed the old one by then: the next session finds space at once.
#[test]
fn a_session_that_closes_has_freed_the_large_value_that_it_replaced() {
    let pool = mapped_pools(16).swap_remove(0);
    session(&pool)
        .create_byte_table("t", &TableOptions::bytes())
        .expect("a table");
    for round in 0..12_u8 {
        let session = session(&pool);
        let table = session.open_byte_table("t").expect("it is there");
        let value = vec![round; 5 << 20];
        let put = table.put(b"large", &value);
        put.unwrap_or_else(|error| panic!("round {round}: {error}"));
        session.close().expect("it closes");
    }
}

/// Promise: the cost of updates of values outside pages does not grow with the pool. Sessions keep
/// pieces for reuse, so that the chunk table is not read repeatedly.
#[test]
fn updates_do_not_read_the_chunk_table() {
    let read_bytes = [16, 256].map(|size_mib| {
        let pool = mapped_pools(size_mib).swap_remove(0);
        let session = session(&pool);
        let table = session
            .create_byte_table("t", &TableOptions::bytes())
            .expect("a table");
        let key = |number: u32| format!("key {number:05}").into_bytes();
        for number in 0..2_000 {
            table.put(&key(number), &[1; 700]).expect("put");
        }
        let before = session.counters(OperationKind::Control).cost;
        for number in 0..20_000 {
            table.put(&key(number % 2_000), &[2; 700]).expect("put");
        }
        let after = session.counters(OperationKind::Control).cost;
        (after.bytes_read - before.bytes_read) / 20_000
    });
    // Checking the grace period reads 65,472 bytes, once per some hundred updates; the chunk table
    // has 64 bytes per chunk, 262,144 bytes for 256 MiB.
    assert!(
        read_bytes[1] < read_bytes[0] + 500,
        "{read_bytes:?} bytes an update"
    );
}
