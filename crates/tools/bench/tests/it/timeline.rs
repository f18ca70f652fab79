//! Tests of small tables that are measured while they change.

use std::cell::RefCell;
use std::time::Duration;

use farleaf::LayerKind;
use farleaf_bench::runner::{BenchError, FabricKind, ProgressSink, Row, Silent};
use farleaf_bench::timeline::{
    CSV_NAME, Change, Interval, KeyOrder, SVG_NAME, TimelineConfig, TimelineReport, files,
    interval_row, run, total_text,
};

/// Returns every pattern, in a small size.
fn changes() -> Vec<Change> {
    let orders = KeyOrder::ALL.into_iter();
    let growth = orders.flat_map(|order| {
        [(2_000, 12_000), (0, 6_000)].map(|(from, to)| Change::Growth { order, from, to })
    });
    let window = Change::Window {
        keys: 2_000,
        inserts: 6_000,
    };
    let shrink = Change::Shrink {
        from: 10_000,
        delete_percent: 90,
    };
    growth.chain([window, shrink]).collect()
}

fn small(change: Change) -> TimelineConfig {
    TimelineConfig {
        change,
        fabric: FabricKind::Mem,
        threads: 2,
        interval: Duration::from_millis(100),
        settle: Duration::ZERO,
        ..TimelineConfig::default()
    }
}

fn run_right(config: &TimelineConfig) -> TimelineReport {
    let report = run(config, &Silent).unwrap_or_else(|error| panic!("{config:?}: {error}"));
    assert!(report.is_right(), "{config:?}: {:?}", report.total);
    report
}

/// Promise: every pattern ends with exactly the expected keys, on both layers, and every operation
/// is in exactly one interval.
#[test]
fn every_pattern_ends_as_it_must() {
    for layer in [LayerKind::Learned, LayerKind::Rolex] {
        for change in changes() {
            let report = run_right(&TimelineConfig {
                layer,
                ..small(change)
            });
            let total = &report.total;
            let expected = change.key_count() - change.delete_count();
            assert_eq!(total.records, expected, "{change:?}");
            assert_eq!(total.fresh.gets, expected.min(100_000), "{change:?}");
            let writes = report.intervals.iter().map(|it| it.writes_per_s * 0.1);
            assert_eq!(
                writes.sum::<f64>().round() as u64,
                change.write_count(),
                "{change:?}"
            );
            assert!(total.round_trips_per_get.is_some_and(|mean| mean >= 1.0));
            assert!(total.memory_bytes > 0 && total.fill > 0.0, "{total:?}");
            assert!(total.pool_used_bytes_max >= total.memory_bytes_begin);
        }
    }
}

/// Promise: shared memory, one thread, other leaves and runs of only writes work, too.
#[test]
fn other_options_work() {
    for change in changes() {
        let report = run_right(&TimelineConfig {
            fabric: FabricKind::Shm,
            threads: 1,
            reads_percent: 0,
            slots: 16,
            fill_percent: 100,
            seed: 9,
            ..small(change)
        });
        assert_eq!(report.total.round_trips_per_get, None, "nobody read");
    }
}

/// Promise: intervals follow each other without gap, and threads continue to read, and only read,
/// for the settling time.
#[test]
fn threads_settle() {
    struct Ends(RefCell<Vec<f64>>);
    impl ProgressSink for Ends {
        fn row(&self, row: &Row) {
            let json = row.json.as_ref().expect("an object");
            let row: serde_json::Value = serde_json::from_str(json).expect("an object");
            if row["kind"] == "interval" {
                self.0
                    .borrow_mut()
                    .push(row["end_s"].as_f64().expect("a number"));
            }
        }
    }
    let ends = Ends(RefCell::default());
    let config = TimelineConfig {
        settle: Duration::from_millis(300),
        ..small(changes()[0])
    };
    let report = run(&config, &ends).expect("run");
    assert!(report.is_right(), "{:?}", report.total);
    let ends_s = ends.0.into_inner();
    let expected = (1..=ends_s.len()).map(|number| number as f64 / 10.0);
    assert!(
        expected
            .zip(&ends_s)
            .all(|(want, got)| (want - got).abs() < 1e-9)
    );
    assert_eq!(ends_s.len(), report.intervals.len());
    let last = *ends_s.last().expect("intervals");
    let stop_s = report.total.written_s + 0.3;
    assert!(
        last >= stop_s - 1e-9 && last < stop_s + 0.1,
        "{last} {stop_s}"
    );
    let settled = |it: &&Interval| it.end_s - 0.1 >= report.total.written_s;
    let settled: Vec<&Interval> = report.intervals.iter().filter(settled).collect();
    assert!(settled.len() >= 2, "{ends_s:?}");
    for interval in settled {
        assert!(interval.writes_per_s == 0.0 && interval.reads_per_s > 0.0);
        assert!(interval.one_leaf_fraction.is_some());
    }
}

/// Promise: puts that a full pool refuses are counted, and no acknowledged record is missing then.
#[test]
fn what_is_refused_is_counted() {
    let config = TimelineConfig {
        size_bytes: Some(4 << 20),
        ..small(Change::Growth {
            order: KeyOrder::Uniform,
            from: 1_000,
            to: 200_000,
        })
    };
    let report = run(&config, &Silent).expect("run");
    assert!(!report.is_right());
    let total = &report.total;
    assert!(total.refused > 0, "{total:?}");
    assert_eq!((total.errors, total.missing), (0, 0), "{total:?}");
    assert_eq!(total.records + total.refused, 200_000);
    assert!(total_text(&report).contains(" refused"));
}

/// Promise: a pool that cannot be created, or is too small for the load, gives an error that says
/// so.
#[test]
fn pools_that_are_too_small_are_told() {
    let config = TimelineConfig {
        size_bytes: Some(4 << 20),
        ..small(Change::Shrink {
            from: 1_000_000,
            delete_percent: 50,
        })
    };
    let error = run(&config, &Silent).expect_err("too small");
    assert!(matches!(error, BenchError::Table { .. }), "{error}");
    assert!(error.to_string().contains("loading"), "{error}");
}

/// Promise: the CSV file has a line for each interval of each run, all with the same columns; the
/// chart names its runs, its units and the end of the writes.
#[test]
fn files_have_every_interval() {
    let layers = [LayerKind::Learned, LayerKind::Rolex];
    let reports = layers.map(|layer| {
        run_right(&TimelineConfig {
            layer,
            ..small(changes()[0])
        })
    });
    for reports in [&reports[..], &reports[..1]] {
        let files = files(reports).expect("drawn");
        let [(csv_name, csv), (svg_name, svg)] = &files[..] else {
            panic!("two files");
        };
        assert_eq!((csv_name.as_str(), svg_name.as_str()), (CSV_NAME, SVG_NAME));
        let rows: Vec<&str> = csv.lines().collect();
        let count: usize = reports.iter().map(|report| report.intervals.len()).sum();
        assert_eq!(rows.len(), count + 1);
        let columns = |row: &str| row.split(',').count();
        assert!(rows.iter().all(|row| columns(row) == columns(rows[0])));
        assert!(rows[1].starts_with("uniform,learned,0.1,writing,"));
        for text in [
            "time (s)",
            "million operations / s",
            "round trips per get",
            "end of growth, learned",
            "2,000 keys grow to 12,000, uniform",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.contains("end of growth, rolex"), reports.len() == 2);
    }
    let row = interval_row(&reports[0].intervals[0]);
    assert!(row.starts_with("    0.1 "), "{row}");
}
