//! Long random histories of tables, with many kinds of keys, compared with a model.

use farleaf_leaf::strings::PageGeometry;

use crate::strings::table::{ModelValue, Table};

/// Kind of keys.
#[derive(Clone, Copy, Debug)]
enum Keys {
    /// A few bytes of a small alphabet, including the empty key.
    Short,
    /// Number with a common prefix of some bytes.
    Numbers,
    /// Ascending number.
    Ascending,
    /// One of two or three long beginnings, longer than an inline prefix.
    Folders,
    /// Often longer than an eighth of a page, with common beginnings, up to the maximum.
    Long,
    /// As long as allowed in a page, or shorter; values likewise.
    Large,
}

fn key(table: &mut Table, keys: Keys, step: usize) -> Vec<u8> {
    let bytes = |table: &mut Table, count: usize, alphabet: usize| -> Vec<u8> {
        (0..count)
            .map(|_| (table.below(alphabet) * 85) as u8)
            .collect()
    };
    match keys {
        Keys::Short => {
            let count = table.below(7);
            bytes(table, count, 4)
        }
        Keys::Numbers => format!("user/{:06}", table.below(3000)).into_bytes(),
        Keys::Ascending => {
            let step = (step + 2).saturating_sub(table.below(3));
            format!("{step:012}").into_bytes()
        }
        Keys::Folders => {
            let folder = ["a", "b/c"][table.below(2)];
            let deep = ["/x", "/y"][table.below(2)].repeat(30);
            format!("{folder}{deep}/{:05}", table.below(4000)).into_bytes()
        }
        Keys::Large => {
            let longest = table.geometry.suffix_size_bytes_max();
            let count = longest - [0, 1, 8, longest / 2, longest - 1][table.below(5)];
            bytes(table, count, 3)
        }
        Keys::Long => {
            let common = [0, 20, 40, 70, 300, 4000][table.below(6)];
            let rest = [1, 8, 60, 90][table.below(4)];
            let mut key = vec![b'k'; common];
            key.extend(bytes(table, rest, 3));
            key
        }
    }
}

fn value(table: &mut Table, are_large: bool) -> ModelValue {
    let largest = table.geometry.value_size_bytes_max();
    let size_bytes = match table.below(40) {
        _ if are_large => largest - table.below(largest) * table.below(3) / 2,
        0 => table.below(largest + 40),
        1..=4 => table.below(largest / 4),
        5 => 0,
        _ => table.below(24),
    };
    let bytes: Vec<u8> = (0..size_bytes).map(|_| table.below(256) as u8).collect();
    if table.geometry.is_value_inline(size_bytes, largest) {
        ModelValue::Inline(bytes)
    } else {
        ModelValue::Outside(table.block(&bytes))
    }
}

fn live(size_bytes: u64, keys: Keys, step_count: usize, crash_period: u64) -> Table {
    let geometry = PageGeometry::new(size_bytes).expect("allowed");
    let mut table = Table::new(geometry, size_bytes + keys as u64, crash_period);
    for step in 0..step_count {
        let key = key(&mut table, keys, step);
        match table.below(20) {
            0 => table.merge(&key),
            1..=5 => {
                // Mostly an existing key.
                let known = table.model.range(key.clone()..).next();
                let known = known.map_or(key, |(known, _)| known.clone());
                table.delete(&known);
            }
            6..=8 => {
                let known = table.model.range(key.clone()..).next();
                let known = known.map_or(key, |(known, _)| known.clone());
                let value = value(&mut table, matches!(keys, Keys::Large));
                table.put(&known, &value);
            }
            _ => {
                let value = value(&mut table, matches!(keys, Keys::Large));
                table.put(&key, &value);
            }
        }
        if step % 128 == 0 {
            table.check();
        }
    }
    table.check();
    table
}

const SIZES: [u64; 3] = [512, 1024, 2048];

/// Tests short keys: after every change, the table lists what the model does. After every crash of
/// a change or a recovery, it lists the contents before or after.
#[test]
fn short_keys() {
    for size_bytes in SIZES {
        let table = live(size_bytes, Keys::Short, 1000, 25);
        let tally = &table.tally;
        assert!(
            tally.splits > 0 && tally.left_puts > 0 && tally.crashes > 100,
            "{tally:?}"
        );
        assert!(tally.moves > 0 && tally.merges > 0, "{tally:?}");
    }
}

/// Tests keys with a common beginning, which becomes the prefix.
#[test]
fn numbered_keys() {
    for size_bytes in SIZES {
        let tally = live(size_bytes, Keys::Numbers, 1500, 25).tally;
        assert!(
            tally.splits > 0 && tally.moves > 0 && tally.merges > 0,
            "{tally:?}"
        );
    }
}

/// Tests appends.
#[test]
fn ascending_keys() {
    for size_bytes in SIZES {
        let tally = live(size_bytes, Keys::Ascending, 1000, 25).tally;
        assert!(tally.splits > 10 * tally.rewrites, "{tally:?}");
    }
}

/// Tests prefixes of more than 32 bytes, which are outside.
#[test]
fn keys_in_deep_folders() {
    for size_bytes in SIZES {
        let tally = live(size_bytes, Keys::Folders, 1000, 25).tally;
        assert!(
            tally.outside_prefixes > 0 && tally.rewrites > 0,
            "{tally:?}"
        );
        assert!(
            tally.not_in_place.contains_key("FencesOutside"),
            "{tally:?}"
        );
    }
}

/// Tests outside keys and fences.
#[test]
fn long_keys() {
    for size_bytes in SIZES {
        let tally = live(size_bytes, Keys::Long, 1000, 25).tally;
        assert!(tally.outside_keys > 0 && tally.rewrites > 0, "{tally:?}");
    }
}

/// Tests records of which few fit into a page, up to the largest that fits by itself.
#[test]
fn large_records() {
    let mut unput_count = 0;
    for size_bytes in SIZES {
        let tally = live(size_bytes, Keys::Large, 450, 25).tally;
        assert!(tally.splits > 50, "{tally:?}");
        assert!(tally.rewrites > 0 && tally.repacks > 0, "{tally:?}");
        unput_count += tally.unput;
    }
    assert!(unput_count > 0, "some page was cut without the new record");
}
