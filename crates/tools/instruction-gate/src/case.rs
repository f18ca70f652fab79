//! Cases of the gate: each is one function over a prepared state and an operation count.
//!
//! To add a case, write three things: a function that prepares the state (not counted), a measured
//! function `gate_<name>(state, operation_count)` marked `#[inline(never)]`, and a row in
//! [`CASES`]. The preparation also runs the operation a few times if its first use does one-time
//! work (feature detection, lazy tables), so that the count per operation is the steady one. A case
//! prints nothing: standard output carries callgrind's profile.

use std::hint::black_box;

use farleaf::{Pool, Session, Table, TableOptions};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::byte_case::{gate_byte_get, gate_byte_put, gate_byte_scan, prepare_byte_table};

/// Measured operation.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Name in `expected.toml` and in the table.
    pub name: &'static str,
    /// Last path segment of the measured function, as in its definition.
    pub function: &'static str,
    /// Number of operations of one run; large enough that call and loop set-up are negligible.
    pub operation_count: u64,
    /// Function that prepares the state and calls the measured function once with the operation
    /// count.
    pub run: fn(u64),
}

impl Case {
    const fn new(
        name: &'static str,
        function: &'static str,
        operation_count: u64,
        run: fn(u64),
    ) -> Self {
        Self {
            name,
            function,
            operation_count,
            run,
        }
    }

    /// Returns the pattern that selects the measured function for callgrind's `--toggle-collect`.
    ///
    /// Callgrind matches its demangled names, `crate::module::function` for both of Rust's mangling
    /// schemes. The pattern has no trailing `*`: it would also match closures inside the function,
    /// and entering a second matching function switches the collection off again.
    pub fn toggle_pattern(&self) -> String {
        format!("*::{}", self.function)
    }

    /// Returns the case of this name.
    pub fn named(name: &str) -> Option<&'static Case> {
        CASES.iter().find(|case| case.name == name)
    }
}

/// All cases, in the order of the table.
pub const CASES: &[Case] = &[
    Case::new("checksum_160_bytes", "gate_checksum", 20_000, |count| {
        gate_checksum(&prepare_leaf_image(), count);
    }),
    Case::new("get", "gate_get", 20_000, |count| {
        gate_get(&prepare_table(), count);
    }),
    Case::new("put", "gate_put", 20_000, |count| {
        gate_put(&prepare_table(), count);
    }),
    Case::new("multi_get_of_16", "gate_multi_get", 2_000, |count| {
        gate_multi_get(&prepare_table(), count);
    }),
    Case::new("scan_of_100", "gate_scan", 2_000, |count| {
        gate_scan(&prepare_table(), count);
    }),
    Case::new("byte_get", "gate_byte_get", 10_000, |count| {
        gate_byte_get(&prepare_byte_table(), count);
    }),
    Case::new("byte_put", "gate_byte_put", 20_000, |count| {
        gate_byte_put(&prepare_byte_table(), count);
    }),
    Case::new("byte_scan_of_100", "gate_byte_scan", 4_000, |count| {
        gate_byte_scan(&prepare_byte_table(), count);
    }),
];

/// Size of a leaf of eight slots without its lock word: four words, eight keys, eight values.
const LEAF_IMAGE_SIZE_BYTES: usize = 160;

/// Records of the measured table.
const RECORD_COUNT: usize = 100_000;
/// Records that a scan requests.
const SCAN_RECORD_COUNT: usize = 100;

fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes)
}

fn prepare_leaf_image() -> [u8; LEAF_IMAGE_SIZE_BYTES] {
    let mut image = [0; LEAF_IMAGE_SIZE_BYTES];
    Xoshiro256PlusPlus::seed_from_u64(1).fill_bytes(&mut image);
    // The first call detects the processor's features.
    black_box(checksum(&image));
    image
}

/// Computes CRC-32C over a leaf-sized buffer.
#[inline(never)]
fn gate_checksum(image: &[u8; LEAF_IMAGE_SIZE_BYTES], operation_count: u64) {
    for _ in 0..operation_count {
        black_box(checksum(black_box(image)));
    }
}

/// Table after its load, and its keys in the order in which they are requested.
struct LoadedWords {
    table: Table,
    keys: Vec<u64>,
    /// Kept open: tables of a closed session are closed.
    _session: Session,
}

/// Prepares a table in this process's memory: callgrind cannot pass shared memory between
/// processes, and the instructions of an operation are the same.
fn prepare_table() -> LoadedWords {
    let pool = Pool::open("mem:").expect("a pool in this process");
    let session = pool.session().expect("a session");
    let table = session
        .create_table("gate", &TableOptions::default())
        .expect("a table");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(2);
    let keys: Vec<u64> = (0..RECORD_COUNT).map(|_| random.next_u64()).collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    sorted.dedup();
    table
        .bulk_load(sorted.iter().map(|key| (*key, !key)), |_| {})
        .expect("a load");
    let loaded = LoadedWords {
        table,
        keys,
        _session: session,
    };
    // The first operations read the loaded root, detect the processor's features and allocate.
    gate_operations_once(&loaded);
    loaded
}

fn gate_operations_once(loaded: &LoadedWords) {
    let first = loaded.keys[0];
    let mut records = Vec::new();
    loaded.table.get(first).expect("a get");
    loaded.table.put(first, !first).expect("a put");
    loaded.table.multi_get(&loaded.keys[..16]).expect("gets");
    loaded
        .table
        .scan_into(first, SCAN_RECORD_COUNT, &mut records)
        .expect("a scan");
}

/// Gets a present key, keys in random order.
#[inline(never)]
fn gate_get(loaded: &LoadedWords, operation_count: u64) {
    for (_, key) in (0..operation_count).zip(loaded.keys.iter().cycle()) {
        black_box(loaded.table.get(black_box(*key)).expect("a get"));
    }
}

/// Puts a present key, keys in random order.
#[inline(never)]
fn gate_put(loaded: &LoadedWords, operation_count: u64) {
    for (_, key) in (0..operation_count).zip(loaded.keys.iter().cycle()) {
        black_box(loaded.table.put(black_box(*key), 7).expect("a put"));
    }
}

/// Gets 16 present keys in one batch.
#[inline(never)]
fn gate_multi_get(loaded: &LoadedWords, operation_count: u64) {
    let mut values = Vec::new();
    for (_, keys) in (0..operation_count).zip(loaded.keys.chunks_exact(16).cycle()) {
        let done = loaded.table.multi_get_into(black_box(keys), &mut values);
        done.expect("gets");
        black_box(&values);
    }
}

/// Scans 100 records.
#[inline(never)]
fn gate_scan(loaded: &LoadedWords, operation_count: u64) {
    let mut records = Vec::new();
    for (_, key) in (0..operation_count).zip(loaded.keys.iter().cycle()) {
        let done = loaded
            .table
            .scan_into(black_box(*key), SCAN_RECORD_COUNT, &mut records);
        done.expect("a scan");
        black_box(&records);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Promise: names are unique keys of `expected.toml`, and functions unique names for callgrind.
    #[test]
    fn names_and_functions_are_unique() {
        let names: BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
        let functions: BTreeSet<_> = CASES.iter().map(|case| case.function).collect();
        assert_eq!((names.len(), functions.len()), (CASES.len(), CASES.len()));
    }

    /// Promise: every measured get finds its key, so the count is that of a hit.
    #[test]
    fn every_measured_get_is_a_hit() {
        let loaded = prepare_table();
        let mut keys = loaded.keys.iter();
        assert!(keys.all(|key| loaded.table.get(*key).expect("a get") == Some(!key)));
    }
}
