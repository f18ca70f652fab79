//! Figures: a tiny run writes all files, and the page is self-contained.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_sim::figures::config::{Experiments, FigureKind, ROLEX_EXPERIMENTS, RunSize};
use farleaf_sim::figures::measure::{Suite, SuiteError};
use farleaf_sim::figures::write::{Folder, WRITER, write};
use farleaf_sim::nic::profile::{Profile, load_profile};

pub(crate) const TINY: RunSize = RunSize {
    record_count: 4_000,
    warm_up_operation_count: 100,
    window_operation_count: 400,
};

/// Returns all figures of ROLEX, on a testbed with few threads.
pub(crate) fn few_threads() -> (Experiments, Profile) {
    few_threads_of(ROLEX_EXPERIMENTS)
}

/// Returns all figures of a file of the repository, on a testbed with few threads.
pub(crate) fn few_threads_of(text: &str) -> (Experiments, Profile) {
    let mut experiments = Experiments::parse(text, "mine.toml").expect("sound");
    experiments.defaults.in_flight_count.value = 2;
    for figure in &mut experiments.figure {
        if let FigureKind::Threads {
            threads_per_node, ..
        }
        | FigureKind::Clients {
            threads_per_node, ..
        }
        | FigureKind::TimeParts {
            threads_per_node, ..
        }
        | FigureKind::Timeline {
            threads_per_node, ..
        } = &mut figure.kind
        {
            *threads_per_node = vec![1, 2];
        }
    }
    let mut profile = load_profile(&experiments.profile).expect("embedded");
    profile.model.compute.threads_per_node.value = 2.0;
    (experiments, profile)
}

/// Returns all figures of ROLEX in the smallest possible size.
fn tiny() -> Suite {
    let (experiments, profile) = few_threads();
    Suite::new(experiments, "tiny", TINY, profile).expect("they fit")
}

/// Returns the files that a run of the suite writes on this many threads: names and contents.
pub(crate) fn written(suite: &Suite, thread_count: usize) -> Vec<(String, String)> {
    let reported = AtomicU64::new(0);
    let progress = |units: u64| {
        reported.fetch_add(units, Ordering::Relaxed);
    };
    let measured = suite.measure(thread_count, &progress).expect("measured");
    assert_eq!(
        reported.into_inner(),
        suite.unit_count(),
        "progress ends at 100 %"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("made/by/it");
    let claimed = Folder::claim(WRITER, &inner, &suite.file_names()).expect("new");
    let page = write(suite, &measured, &claimed).expect("written");
    assert!(page.ends_with("index.html"));
    let mut names = suite.file_names();
    names.sort_unstable();
    let files = fs::read_dir(&inner).expect("there").map(|entry| {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        (name.into_owned(), fs::read_to_string(&path).expect("text"))
    });
    let mut files: Vec<(String, String)> = files.collect();
    files.retain(|(name, _)| !has_extension(name, "txt"));
    files.sort_unstable();
    let written: Vec<&String> = files.iter().map(|(name, _)| name).collect();
    assert_eq!(written, names.iter().collect::<Vec<_>>());
    files
}

/// Promise: every figure has its CSV file, its charts and its section of the page. The page states
/// that it is modeled, with its parameters, and loads nothing from elsewhere.
#[test]
fn a_tiny_run_writes_a_page_that_needs_nothing_else() {
    let suite = tiny();
    let files = written(&suite, 2);
    let named = |end: &str| {
        let names = files.iter().filter(|(name, _)| has_extension(name, end));
        names.count()
    };
    assert_eq!(named("csv"), suite.experiments().figure.len());
    assert!(named("svg") > suite.experiments().figure.len());
    let (_, page) = files
        .iter()
        .find(|(name, _)| name == "index.html")
        .expect("a page");
    for figure in &suite.experiments().figure {
        assert!(
            page.contains(&format!("id=\"{}\"", figure.id)),
            "{}",
            figure.id
        );
    }
    for (key, parameter) in suite.model().parameters() {
        assert!(page.contains(key) && !parameter.source.is_empty(), "{key}");
    }
    assert!(page.contains("Modelled, not measured on hardware."));
    for (key, _, source) in suite.experiments().defaults.parameters() {
        assert!(page.contains(key) && !source.is_empty(), "{key}");
    }
    for word in [
        "learned",
        "rolex",
        "rf-tree",
        "sherman",
        "fg",
        "YCSB F",
        "uniform, zipfian",
        "fill",
        "epsilon",
        "slots",
    ] {
        assert!(
            page.contains(&format!("<dt><strong>{word}")),
            "{word} is explained"
        );
    }
    assert!(!page.contains("no run depends on it"), "all of them do");
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
                text.contains("modeled: ") && text.contains("learned"),
                "{name}"
            );
            assert!(page.contains(text), "{name} is in the page");
        }
        if has_extension(name, "csv") {
            let columns: Vec<usize> = text.lines().map(column_count).collect();
            assert!(columns.len() > 2, "{name}: rows");
            assert!(
                columns.iter().all(|count| *count == columns[0]),
                "{name}: {columns:?}"
            );
        }
    }
}

/// Returns the number of fields of a line; a quoted field may contain commas.
fn column_count(line: &str) -> usize {
    let outside = line.split('"').step_by(2);
    outside.map(|part| part.matches(',').count()).sum::<usize>() + 1
}

fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|it| it == extension)
}

/// Returns the first figure, in a smaller size.
pub(crate) fn one_figure(profile: Profile) -> Suite {
    let (mut experiments, _) = few_threads();
    experiments.figure.retain(|figure| figure.id == "figure-7");
    assert_eq!(experiments.figure.len(), 1);
    let size = RunSize {
        window_operation_count: 200,
        ..TINY
    };
    Suite::new(experiments, "tiny", size, profile).expect("they fit")
}

/// Promise: the number of threads changes no byte of the files.
#[test]
fn threads_change_nothing() {
    let suite = one_figure(few_threads().1);
    assert_eq!(written(&suite, 1), written(&suite, 3));
}

fn page(profile: Profile) -> String {
    let label = profile.label();
    let files = written(&one_figure(profile), 2);
    for (name, text) in &files {
        if has_extension(name, "csv") {
            for line in text.lines().skip(1) {
                assert!(line.starts_with(&format!("{label},")), "{name}: {line}");
            }
        }
        if has_extension(name, "svg") {
            assert!(text.contains(&format!("modeled: {label}: ")), "{name}");
        }
    }
    let page = files.into_iter().find(|(name, _)| name == "index.html");
    page.expect("a page").1
}

/// Promise: a changed copy of the paper's testbed is not presented as the testbed. The page names
/// the file and the changes, reports the self-check's result, and warns beside the paper's numbers.
#[test]
fn a_changed_profile_is_told_from_the_papers() {
    let (_, mut profile) = few_threads();
    profile.file = Some("mine.toml".into());
    profile.model.nic.bandwidth_gbit_per_s.value = 25.0;
    assert_eq!(profile.label(), "rolex (changed)");
    let changed = page(profile);
    for expected in [
        "from file <code>mine.toml</code>",
        "It is not the built-in profile of this name",
        "<td>nic.bandwidth_gbit_per_s</td><td>25</td><td>100</td>",
        "<td>compute.threads_per_node</td><td>2</td><td>24</td>",
        "NOT all are within 15 % of what is published",
        "Not the paper's testbed.",
        "The paper, on another testbed",
    ] {
        assert!(changed.contains(expected), "{expected}");
    }
    let as_it_is = page(load_profile("rolex").expect("embedded"));
    assert!(as_it_is.contains("All are within 15 % of what is published"));
    for warning in [
        "Not the paper's testbed.",
        "on another testbed",
        "is not the built-in",
    ] {
        assert!(!as_it_is.contains(warning), "{warning}");
    }
}

/// Promise: experiments with more threads than a testbed has are refused, and so is a testbed with
/// more threads than a memory node has sessions; no experiment runs with fewer.
#[test]
fn too_many_threads_are_refused() {
    let refused = |experiments: Experiments, profile: Profile| {
        let refused = Suite::new(experiments, "tiny", TINY, profile);
        refused.expect_err("refused")
    };
    let (mut experiments, profile) = few_threads();
    for figure in &mut experiments.figure {
        if let FigureKind::Threads {
            threads_per_node, ..
        } = &mut figure.kind
        {
            *threads_per_node = vec![1, 3];
        }
    }
    let error = refused(experiments, profile).to_string();
    assert!(
        error.starts_with("threads_per_node of figure 'figure-10' = 3: a compute node of profile"),
        "{error}"
    );
    let (experiments, mut profile) = few_threads();
    profile.model.compute.threads_per_node.value = 256.0;
    profile.model.compute.node_count.value = 4.0;
    let error = refused(experiments, profile);
    assert!(
        matches!(error, SuiteError::TooManySessions { .. }),
        "{error}"
    );
}

/// Promise: table 1 is about models and figure 12 about bytes. Neither repeats the other's charts,
/// and each model's keys are beside the paper's for each fill and error.
#[test]
fn table_1_shows_keys_a_model() {
    let (mut experiments, profile) = few_threads();
    let is_still = |id: &str| ["figure-12", "table-1"].contains(&id);
    experiments.figure.retain(|figure| is_still(&figure.id));
    let suite = Suite::new(experiments, "tiny", TINY, profile).expect("they fit");
    let files = written(&suite, 2);
    let text = |name: &str| {
        let file = files.iter().find(|(it, _)| it == name);
        &file.expect("a file").1
    };
    let has_label = |name: &str, label: &str| text(name).lines().any(|it| it.trim() == label);
    assert!(has_label("table-1-error-32.svg", "keys a model"));
    assert!(has_label("table-1-error-32.svg", "fill 75 %"));
    assert!(!has_label("table-1-error-32.svg", "bytes a key"));
    assert!(has_label("figure-12-fill-75-error-16.svg", "bytes a key"));
    assert_eq!(text("table-1.csv").matches(",fill_percent,75,").count(), 4);
    let page = text("index.html");
    for expected in [
        "(fill 50 %, error 16), ",
        "(fill 100 %, error 32)</td>",
        "4,000 records",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
}

/// Promise: the timeline has each layer with retraining and without, over increasing time, with our
/// retraining numbers beside the paper's. If experiments do not retrain, neither does the timeline.
#[test]
fn the_timeline_is_with_retraining_and_without() {
    for retraining in [true, false] {
        let (mut experiments, profile) = few_threads();
        experiments.figure.retain(|figure| figure.id == "timeline");
        experiments.retraining = retraining;
        let plan = &mut experiments.defaults;
        plan.retrain_tick_us.value = 20;
        let suite = Suite::new(experiments, "tiny", TINY, profile).expect("they fit");
        let files = written(&suite, 2);
        let text = |name: &str| {
            let file = files.iter().find(|(it, _)| it == name);
            &file.expect("a file").1
        };
        let svg = text("timeline-1-thread-a-compute-node.svg");
        assert!(svg.contains("virtual time (ms)") && svg.contains("learned, not retrained"));
        let labels: Vec<&str> = svg.lines().map(str::trim).collect();
        assert_eq!(labels.contains(&"learned"), retraining);
        let csv = text("timeline.csv");
        let mut lines = csv.lines();
        let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
        let column = |name: &str| header.iter().position(|it| *it == name).expect("there");
        let (mut retrained_count, mut before_ms) = (0, 0.0);
        for line in lines {
            let cells: Vec<&str> = line.split(',').collect();
            let at_ms: f64 = cells[column("x")].parse().expect("a time");
            let window: u64 = cells[column("window")].parse().expect("a number");
            assert!(at_ms >= before_ms || window == 0, "{line}");
            before_ms = at_ms;
            let is_on: bool = cells[column("retraining")].parse().expect("a boolean");
            let leaves = cells[column("retrained_leaf_count")];
            assert_eq!(leaves.is_empty(), !is_on, "{line}");
            retrained_count += leaves.parse().unwrap_or(0);
        }
        assert_eq!(retrained_count > 0, retraining);
        let is_beside = text("index.html").contains("rolex: not measured");
        assert_eq!(is_beside, !retraining);
    }
}

/// Promise: an invalid file of keys is detected before any run, and its error names the file of
/// experiments and the key.
#[test]
fn bad_files_of_keys_are_told_at_once() {
    let place = tempfile::tempdir().expect("a folder");
    fs::write(place.path().join("few.txt"), "1\n2\n").expect("written");
    for (from, to, key, cause) in [
        (
            "value = \"uniform\"",
            "value = \"keys:few.txt\"",
            "defaults.keys",
            "has 2 distinct",
        ),
        (
            "\"weblog\"",
            "\"keys:none.txt\"",
            "keys of figure 'figure-9'",
            "No such file",
        ),
    ] {
        assert!(ROLEX_EXPERIMENTS.contains(from), "nothing to replace");
        let text = ROLEX_EXPERIMENTS.replacen(from, to, 1);
        let read = Experiments::parse(&text, "mine.toml").expect("sound");
        let read = read.in_folder(place.path());
        let quick = read.size.quick;
        let profile = load_profile("rolex").expect("embedded");
        let refused = Suite::new(read, "quick", quick, profile);
        let error = refused.expect_err("refused").to_string();
        assert!(
            error.starts_with(&format!("mine.toml: {key} = 'keys:")),
            "{error}"
        );
        assert!(error.contains(cause), "{error}");
    }
}

/// Promise: the runs use the profile's number of threads.
#[test]
fn a_profiles_threads_are_those_that_run() {
    for threads_per_node in [1, 2] {
        let (_, mut profile) = few_threads();
        profile.model.compute.threads_per_node.value = f64::from(threads_per_node);
        let files = written(&one_figure(profile), 2);
        let csv = files.iter().find(|(name, _)| name == "figure-7.csv");
        let mut lines = csv.expect("a file").1.lines();
        let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
        let column = header.iter().position(|name| *name == "threads_per_node");
        let column = column.expect("a column");
        for line in lines {
            let cell = line.split(',').nth(column);
            assert_eq!(cell, Some(&*threads_per_node.to_string()), "{line}");
        }
    }
}

/// Promise: a CSV file names the quantity of x, and missing values are empty and not 0.
#[test]
fn what_was_not_measured_is_empty() {
    let files = written(&tiny(), 2);
    for (name, quantity) in [
        ("figure-7.csv", "workload"),
        ("figure-8a.csv", "inserted_percent"),
        ("figure-10.csv", "threads_per_node"),
        ("figure-12.csv", "record_count"),
    ] {
        let (_, text) = files.iter().find(|(it, _)| it == name).expect("a file");
        let mut lines = text.lines();
        let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
        // Only quoted titles contain a comma.
        let unquoted = |line: &str| {
            let parts = line.split('"').enumerate();
            let parts = parts.map(|(index, part)| match index % 2 {
                0 => part.to_owned(),
                _ => part.replace(',', ";"),
            });
            parts.collect::<String>()
        };
        for line in lines.map(unquoted) {
            let cells: Vec<&str> = line.split(',').collect();
            let cell = |name: &str| {
                let column = header.iter().position(|it| *it == name);
                cells[column.expect("a column")]
            };
            assert_eq!(cell("quantity"), quantity);
            assert!(!cell("x").is_empty() && !cell("key_count").is_empty());
            let of_runs = [
                "threads_per_node",
                "in_flight_count",
                "window",
                "operations_per_s",
                "processor_use",
                "memory_slot_use",
                "kind",
                "latency_ns_p99",
            ];
            for column in of_runs {
                let is_empty = cell(column).is_empty();
                assert_eq!(is_empty, name == "figure-12.csv", "{name} {column}");
            }
        }
    }
}
