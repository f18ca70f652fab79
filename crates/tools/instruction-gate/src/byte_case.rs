//! Cases of tables of byte strings: records like YCSB's, all in their pages.

use std::cell::RefCell;
use std::hint::black_box;

use farleaf::{ByteTable, Pool, RecordBuffer, Session, TableOptions};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Records of the measured table.
const RECORD_COUNT: usize = 50_000;
/// Records that a scan requests.
const SCAN_RECORD_COUNT: usize = 100;
const VALUE: [u8; 100] = [7; 100];

/// Table after its load, and its keys in the order in which they are requested.
pub(crate) struct LoadedBytes {
    table: ByteTable,
    keys: Vec<Vec<u8>>,
    records: RefCell<RecordBuffer>,
    /// Kept open: tables of a closed session are closed.
    _session: Session,
}

/// Prepares a table in this process's memory, on which every operation was executed once.
pub(crate) fn prepare_byte_table() -> LoadedBytes {
    let pool = Pool::open("mem:").expect("a pool in this process");
    let session = pool.session().expect("a session");
    let table = session.create_byte_table("gate", &TableOptions::bytes());
    let table = table.expect("a table");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    let key = |_| format!("user{:020}", random.next_u64()).into_bytes();
    let keys: Vec<Vec<u8>> = (0..RECORD_COUNT).map(key).collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let records = sorted.iter().map(|key| (key, VALUE));
    table.bulk_load(records, |_| {}).expect("a load");
    let loaded = LoadedBytes {
        table,
        keys,
        records: RefCell::default(),
        _session: session,
    };
    // The first operations read the loaded root, detect the processor's features and allocate.
    let (table, first) = (&loaded.table, &loaded.keys[0]);
    assert_eq!(table.get(first).expect("a get"), Some(VALUE.to_vec()));
    assert!(table.put(first, &VALUE).expect("a put"));
    let mut records = RecordBuffer::new();
    let scanned = table.scan_into(first, None, SCAN_RECORD_COUNT, &mut records);
    scanned.expect("a scan");
    loaded.records.replace(records);
    loaded
}

/// Gets a present key, keys in random order, and reads the value in place.
#[inline(never)]
pub(crate) fn gate_byte_get(loaded: &LoadedBytes, operation_count: u64) {
    for (_, key) in (0..operation_count).zip(loaded.keys.iter().cycle()) {
        let size = |value: Option<&[u8]>| black_box(value).map(<[u8]>::len);
        let size_bytes = loaded.table.get_with(black_box(key), size).expect("a get");
        assert_eq!(size_bytes, Some(VALUE.len()));
    }
}

/// Puts a present key, keys in random order.
#[inline(never)]
pub(crate) fn gate_byte_put(loaded: &LoadedBytes, operation_count: u64) {
    for (_, key) in (0..operation_count).zip(loaded.keys.iter().cycle()) {
        black_box(loaded.table.put(black_box(key), &VALUE).expect("a put"));
    }
}

/// Scans 100 records, into a reused buffer.
#[inline(never)]
pub(crate) fn gate_byte_scan(loaded: &LoadedBytes, operation_count: u64) {
    let records = &mut *loaded.records.borrow_mut();
    for (_, key) in (0..operation_count).zip(loaded.keys.iter().cycle()) {
        let from = black_box(key);
        let scanned = loaded
            .table
            .scan_into(from, None, SCAN_RECORD_COUNT, records);
        scanned.expect("a scan");
        black_box(&*records);
    }
}
