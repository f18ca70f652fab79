//! Tests of counted costs of operations, on small tables.

use farleaf::LayerKind;
use farleaf_bench::costs::{CostRow, CostsConfig, run};
use farleaf_bench::runner::{FabricKind, RunConfig, Silent};

fn counted() -> Vec<CostRow> {
    let config = CostsConfig {
        table: RunConfig {
            fabric: FabricKind::Mem,
            records: 10_000,
            operations: 3_000,
            ..RunConfig::default()
        },
        ..CostsConfig::default()
    };
    let rows = run(&config, &Silent).expect("costs");
    assert!(rows.iter().all(CostRow::is_right), "{rows:?}");
    rows
}

fn row<'a>(rows: &'a [CostRow], layer: LayerKind, operation: &str) -> &'a CostRow {
    let found = |row: &&CostRow| row.index == layer.name() && row.operation == operation;
    rows.iter().find(found).expect("a row for each")
}

/// Promise: every kind of operation is counted with every layer, correctly, and the same in every
/// run.
#[test]
fn counts_are_the_same_in_every_run() {
    let rows = counted();
    assert_eq!(rows.len(), 6 * LayerKind::ALL.len());
    assert_eq!(rows, counted());
}

/// Promise: counts are those for which the layers are designed. A get is one round trip with cached
/// search structures, one per level without, two with all levels but the lowest. A write adds one
/// round trip, one compare-and-swap, and the words of its record. A scan of 100 reads the leaves of
/// 100 records.
#[test]
fn counts_are_those_of_the_layers() {
    let rows = counted();
    for layer in LayerKind::OF_LEAVES {
        let [search, update, insert, delete, scan] =
            ["search", "update", "insert", "delete", "scan 100"].map(|it| row(&rows, layer, it));
        // 1,667 leaves under nodes of 45 entries: two levels.
        let (search_trips, write_trips) = match layer {
            LayerKind::Fg => (3.0, 4.0),
            LayerKind::Cell => (2.0, 3.0),
            LayerKind::Rolex => (1.0, 3.0),
            _ => (1.0, 2.0),
        };
        let is_near = |value: f64, wanted: f64| (value - wanted).abs() < 0.1;
        assert!(is_near(search.round_trips, search_trips), "{search:?}");
        assert!(is_near(update.round_trips, write_trips), "{update:?}");
        assert!(is_near(delete.round_trips, write_trips), "{delete:?}");
        // Some split a leaf.
        let more = insert.round_trips - write_trips;
        assert!((0.01..2.0).contains(&more), "{insert:?}");
        assert!(is_near(update.atomics, 1.0) && search.atomics < 0.01);
        assert!(is_near(update.bytes_written, 24.0), "{update:?}");
        assert!(insert.bytes_written > 32.0 && search.bytes_written < 0.01);
        assert!(scan.bytes_read > 100.0 * 16.0, "{scan:?}");
        let held = search.metadata_bytes_per_key;
        let held_at_most = match layer {
            LayerKind::Fg | LayerKind::Cell => 0.1,
            LayerKind::Learned => 0.6,
            _ => 10.0,
        };
        assert!(held <= held_at_most, "{layer}: {held}");
    }
}

/// Promise: for tables that the memory node holds every operation is a call: one round trip, which
/// writes a segment and, in shared memory, reads nothing.
#[test]
fn calls_are_one_round_trip() {
    let rows = counted();
    for operation in [
        "search", "update", "insert", "delete", "scan 10", "scan 100",
    ] {
        let row = row(&rows, LayerKind::Rpc, operation);
        let counted = (
            row.round_trips,
            row.bytes_written,
            row.bytes_read,
            row.atomics,
        );
        assert_eq!(counted, (1.0, 128.0, 0.0, 0.0), "{row:?}");
        assert_eq!(row.metadata_bytes, 0, "{row:?}");
    }
}
