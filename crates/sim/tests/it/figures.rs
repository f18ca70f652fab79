//! Figures: a tiny run writes everything, and the page needs nothing else.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_sim::figures::config::{Experiments, ROLEX_EXPERIMENTS, RunSize};
use farleaf_sim::figures::measure::Suite;
use farleaf_sim::figures::write::write;
use farleaf_sim::nic::profile::load_profile;

/// All figures of the repository, as small as they can be.
fn tiny() -> Suite {
    let mut experiments = Experiments::parse(ROLEX_EXPERIMENTS, "rolex.toml").expect("sound");
    experiments.defaults.threads_per_node = 2;
    experiments.defaults.in_flight_count = 2;
    let size = RunSize {
        record_count: 4_000,
        warm_up_operation_count: 100,
        window_operation_count: 400,
    };
    Suite {
        size_name: "tiny",
        size,
        model: load_profile(&experiments.profile).expect("embedded"),
        experiments,
    }
}

/// What a run of the suite on so many threads writes: names and texts.
fn written(suite: &Suite, thread_count: usize) -> Vec<(String, String)> {
    let told = AtomicU64::new(0);
    let progress = |units: u64| {
        told.fetch_add(units, Ordering::Relaxed);
    };
    let measured = suite.measure(thread_count, &progress).expect("measured");
    assert_eq!(
        told.into_inner(),
        suite.unit_count(),
        "progress ends at 100 %"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("made/by/it");
    let page = write(suite, &measured, &inner).expect("written");
    assert!(page.ends_with("index.html"));
    let files = fs::read_dir(&inner).expect("there").map(|entry| {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        (name.into_owned(), fs::read_to_string(&path).expect("text"))
    });
    let mut files: Vec<(String, String)> = files.collect();
    files.sort_unstable();
    files
}

/// Promise: every figure has its CSV file, its charts and its section of the page; the page says
/// that it is modelled, with which parameters, and loads nothing from anywhere.
#[test]
fn a_tiny_run_writes_a_page_that_needs_nothing_else() {
    let suite = tiny();
    let files = written(&suite, 2);
    let named = |end: &str| {
        let names = files.iter().filter(|(name, _)| has_extension(name, end));
        names.count()
    };
    assert_eq!(named("csv"), suite.experiments.figure.len());
    assert!(named("svg") > suite.experiments.figure.len());
    let (_, page) = files
        .iter()
        .find(|(name, _)| name == "index.html")
        .expect("a page");
    for figure in &suite.experiments.figure {
        assert!(
            page.contains(&format!("id=\"{}\"", figure.id)),
            "{}",
            figure.id
        );
    }
    for (key, parameter) in suite.model.parameters() {
        assert!(page.contains(key) && !parameter.source.is_empty(), "{key}");
    }
    assert!(page.contains("Modelled, not measured on hardware."));
    for loader in [
        "<script", "<link", "<img", "<iframe", "src=", "href=", "@import", "url(",
    ] {
        assert!(!page.contains(loader), "{loader}");
    }
    for (name, text) in &files {
        if has_extension(name, "svg") {
            assert!(
                text.starts_with("<svg") && text.trim_end().ends_with("</svg>"),
                "{name}"
            );
            assert!(
                text.contains("modelled: ") && text.contains("learned"),
                "{name}"
            );
            assert!(page.contains(text), "{name} is in the page");
        }
        if has_extension(name, "csv") {
            let columns: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
            assert!(columns.len() > 2, "{name}: rows");
            assert!(
                columns.iter().all(|count| *count == columns[0]),
                "{name}: {columns:?}"
            );
        }
    }
}

fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|it| it == extension)
}

/// Promise: how many threads it runs on changes no letter of what is written.
#[test]
fn threads_change_nothing() {
    let mut suite = tiny();
    suite
        .experiments
        .figure
        .retain(|figure| figure.id == "figure-7");
    suite.size.window_operation_count = 200;
    assert_eq!(suite.experiments.figure.len(), 1);
    assert_eq!(written(&suite, 1), written(&suite, 3));
}
