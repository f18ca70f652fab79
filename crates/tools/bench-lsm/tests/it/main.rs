//! Tests that all compared engines give the same answers.

use clap::ValueEnum as _;
use farleaf_bench::runner::ValueSize;
use farleaf_bench_lsm::comparison::{LsmComparisonPlan, compare};
use farleaf_bench_lsm::engines::{EngineName, EngineSettings, Promise};
use farleaf_bench_lsm::report::Report;
use farleaf_bench_lsm::work::{Phase, WorkAmount};

fn built() -> Vec<EngineName> {
    let all = EngineName::value_variants().iter().copied();
    all.filter(|name| {
        if !name.is_built() {
            println!("skipped: {} is not part of this build", name.text());
        }
        name.is_built()
    })
    .collect()
}

fn shape(promise: Promise) -> EngineSettings {
    EngineSettings {
        promise,
        memtable_size_bytes: 1 << 20,
        cache_size_bytes: 1 << 20,
    }
}

/// Promise: a get returns the complete newest value of a key, and nothing for an absent key. Scans
/// begin with the key, or after it, and end with the last one.
#[test]
fn engines_are_maps() {
    for promise in [Promise::Buffered, Promise::Synced] {
        for name in built() {
            let directory = tempfile::tempdir().expect("a directory");
            let engine = name.open(directory.path(), shape(promise)).expect("opened");
            for number in 0..100_u32 {
                let key = format!("key{number:03}");
                engine.put(key.as_bytes(), b"old").expect("put");
                let value = vec![1; number as usize * 10];
                engine.put(key.as_bytes(), &value).expect("put");
            }
            engine.sync().expect("synced");
            assert_eq!(engine.get(b"key007").expect("got"), Some(70), "{name:?}");
            assert_eq!(engine.get(b"key000").expect("got"), Some(0), "{name:?}");
            assert_eq!(engine.get(b"key").expect("got"), None, "{name:?}");
            let scanned = [(&b"key095"[..], 50), (b"key0955", 50), (b"", 7), (b"z", 7)];
            let counts = scanned.map(|(from, count)| engine.scan(from, count).expect("scanned"));
            assert_eq!(counts, [5, 4, 7, 0], "{name:?}");
        }
    }
}

/// Promise: a comparison runs all phases on all engines, gets the same results on each (it fails
/// otherwise), and reports a row for each.
#[test]
fn a_comparison_has_a_row_for_each() {
    let plan = LsmComparisonPlan {
        engines: built(),
        phases: vec![Phase::Load, Phase::A, Phase::C, Phase::Scan],
        amount: WorkAmount {
            record_count: 20_000,
            operation_count: 5_000,
            thread_count: 1,
            value_size: "MD".parse::<ValueSize>().expect("a mix"),
            seed: 7,
        },
        shape: shape(Promise::Buffered),
        round_count: 2,
    };
    let directory = tempfile::tempdir().expect("a directory");
    let measured = compare(&plan, directory.path(), |_| {}).expect("compared");
    let report = Report::new(&plan, &measured, &[]);
    assert_eq!(report.rows.len(), plan.engines.len() * plan.phases.len());
    assert!(
        report
            .rows
            .iter()
            .all(|row| row.operations_per_second > 0.0)
    );
    let own = report.rows.iter().filter(|row| row.engine == "farleaf");
    assert!(own.clone().all(|row| row.farleaf_ratio == Some(1.0)));
    let left = std::fs::read_dir(directory.path())
        .expect("it is there")
        .count();
    assert_eq!(left, 0, "directories are removed");
}
