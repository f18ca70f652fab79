//! Report: medians and ratios, as a table and as JSON.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use comfy_table::{CellAlignment, Table};
use farleaf_bench::report::{median, ruled_table};
use serde::Serialize;

use crate::comparison::{ComparisonPlan, ComparisonResults, Kind};
use crate::floor::FloorManner;
use crate::peer::Work;
use crate::peers::PeerName;
use crate::targets::{Target, judge};

/// Name of a measured subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubjectName {
    /// Map.
    Peer(PeerName),
    /// Bare memory.
    Floor(FloorManner),
}

impl SubjectName {
    /// Returns the name in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Peer(peer) => peer.as_str(),
            Self::Floor(FloorManner::Dependent) => "floor, dependent",
            Self::Floor(FloorManner::Independent) => "floor, independent",
            Self::Floor(FloorManner::Grouped) => "floor, groups of 16",
        }
    }
}

/// Time of an operation on one thread.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Subject that was measured.
    pub subject: SubjectName,
    /// Kind of work.
    pub work: Work,
    /// Number of concurrent threads.
    pub thread_count: usize,
    /// Time of the slowest thread divided by its operations, in nanoseconds, for each round.
    pub nanoseconds_by_round: Vec<f64>,
}

impl Figure {
    /// Returns whether the figure is of this subject, kind of work and number of threads.
    pub(crate) fn is_of(&self, subject: SubjectName, work: Work, thread_count: usize) -> bool {
        (self.subject, self.work, self.thread_count) == (subject, work, thread_count)
    }

    /// Returns the median of the rounds.
    pub fn nanoseconds_median(&self) -> f64 {
        median(self.nanoseconds_by_round.iter().copied()).unwrap_or(f64::NAN)
    }
}

/// Load time of a map.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LoadTime {
    /// Name of the map.
    pub peer: PeerName,
    /// Load time in seconds.
    pub seconds: f64,
}

/// Map that was not measured.
#[derive(Clone, Debug, Serialize)]
pub struct SkippedPeer {
    /// Name of the map.
    pub peer: PeerName,
    /// Reason why the map was skipped.
    pub why: String,
}

/// Kind of keys and values.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum KindReport {
    Words {
        slots: u64,
    },
    Bytes {
        key_size_bytes: usize,
        value_size_bytes: usize,
        page_size_bytes: u64,
        inline_value_size_bytes: u64,
    },
}

impl From<&Kind> for KindReport {
    fn from(kind: &Kind) -> Self {
        match kind {
            Kind::Words { slots } => Self::Words { slots: *slots },
            Kind::Strings(options) => Self::Bytes {
                key_size_bytes: options.key_size_bytes,
                value_size_bytes: options.value_size_bytes,
                page_size_bytes: options.pages.page_size_bytes,
                inline_value_size_bytes: options.pages.inline_value_size_bytes,
            },
        }
    }
}

impl fmt::Display for KindReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words { slots } => write!(f, "records, leaves of {slots} slots"),
            Self::Bytes {
                key_size_bytes,
                value_size_bytes,
                page_size_bytes,
                inline_value_size_bytes,
            } => write!(
                f,
                "records of {key_size_bytes} and {value_size_bytes} bytes, pages of \
                 {page_size_bytes} with values of up to {inline_value_size_bytes}"
            ),
        }
    }
}

/// Results of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    record_count: usize,
    operation_count: usize,
    round_count: usize,
    seed: u64,
    #[serde(flatten)]
    kind: KindReport,
    processor: String,
    core_count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    has_huge_pages: Option<bool>,
    loaded: Vec<LoadedReport>,
    skipped: Vec<SkippedPeer>,
    medians: Vec<Median>,
    targets: Vec<Target>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct LoadedReport {
    #[serde(flatten)]
    loaded: LoadTime,
    /// Ratio to Farleaf's time.
    ratio_to_farleaf: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
struct Median {
    nanoseconds: f64,
    /// Ratio to Farleaf's time, for the same work and number of threads.
    ratio_to_farleaf: Option<f64>,
    #[serde(flatten)]
    figure: Figure,
}

impl Report {
    /// Creates the report from the plan and the measurements.
    pub fn new(plan: &ComparisonPlan, measured: &ComparisonResults) -> Self {
        let figures = &measured.figures;
        let farleaf = SubjectName::Peer(PeerName::Farleaf);
        let median = |figure: &Figure| {
            let base = find(figures, farleaf, figure.work, figure.thread_count);
            let nanoseconds = figure.nanoseconds_median();
            Median {
                nanoseconds,
                ratio_to_farleaf: base.map(|base| nanoseconds / base),
                figure: figure.clone(),
            }
        };
        Self {
            record_count: plan.record_count,
            operation_count: plan.operation_count,
            round_count: plan.round_count,
            seed: plan.seed,
            kind: (&plan.kind).into(),
            processor: processor_name(),
            core_count: std::thread::available_parallelism().map_or(1, usize::from),
            has_huge_pages: measured.has_huge_pages,
            loaded: loaded_reports(&measured.loaded),
            skipped: measured.skipped.clone(),
            medians: figures.iter().map(median).collect(),
            targets: match plan.kind {
                Kind::Words { .. } => judge(figures),
                Kind::Strings(_) => Vec::new(),
            },
        }
    }

    /// Formats the report as JSON, for programs.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }

    /// Formats the report for people: loads, a table for each number of threads, then the targets.
    pub fn to_table(&self) -> String {
        let mut text = self.heading();
        let _ = write!(text, "\nloaded in s:");
        for (place, report) in self.loaded.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            let (name, seconds) = (report.loaded.peer.as_str(), report.loaded.seconds);
            let _ = write!(
                text,
                "{comma} {name} {}",
                with_ratio(seconds, report.ratio_to_farleaf)
            );
        }
        text.push('\n');
        for skipped in &self.skipped {
            let _ = writeln!(text, "skipped: {}: {}", skipped.peer.as_str(), skipped.why);
        }
        let thread_counts = self.medians.iter().map(|it| it.figure.thread_count);
        let thread_counts: BTreeSet<usize> = thread_counts.collect();
        for thread_count in thread_counts {
            let _ = writeln!(text, "\nthreads: {thread_count}");
            let _ = writeln!(text, "{}", self.table_of(thread_count));
        }
        if !self.targets.is_empty() {
            text.push('\n');
        }
        for target in &self.targets {
            let _ = writeln!(text, "{target}");
        }
        text
    }

    fn heading(&self) -> String {
        let pages = match self.has_huge_pages {
            Some(true) => "; farleaf and floor on huge pages",
            Some(false) => "; farleaf and floor on ordinary pages",
            None => "",
        };
        format!(
            "{} {}, {} rounds of {} operations per thread, seed {}\n\
             {}, {} cores{pages}\n\
             medians in ns per operation of one thread; in brackets: multiples of farleaf's;\n\
             multi_get: of {} keys, ns per key; scan: of {} records\n",
            self.record_count,
            self.kind,
            self.round_count,
            self.operation_count,
            self.seed,
            self.processor,
            self.core_count,
            crate::peer::GROUP_SIZE,
            crate::peer::SCAN_LIMIT,
        )
    }

    fn table_of(&self, thread_count: usize) -> Table {
        let mut table = ruled_table(&["", "get", "multi_get", "put", "scan"]);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut subjects: Vec<SubjectName> = Vec::new();
        for median in &self.medians {
            if !subjects.contains(&median.figure.subject) {
                subjects.push(median.figure.subject);
            }
        }
        for subject in subjects {
            let cell = |work| {
                let mut medians = self.medians.iter();
                let median = medians.find(|it| it.figure.is_of(subject, work, thread_count));
                median.map_or_else(String::new, |it| {
                    with_ratio(it.nanoseconds, it.ratio_to_farleaf)
                })
            };
            let cells = Work::ALL.map(cell);
            table.add_row([subject.as_str().to_owned()].into_iter().chain(cells));
        }
        table
    }
}

fn with_ratio(number: f64, ratio: Option<f64>) -> String {
    let precision = usize::from(number < 100.0);
    match ratio {
        Some(ratio) => format!("{number:.precision$} ({ratio:.2})"),
        None => format!("{number:.precision$}"),
    }
}

fn loaded_reports(loaded: &[LoadTime]) -> Vec<LoadedReport> {
    let farleaf = loaded.iter().find(|it| it.peer == PeerName::Farleaf);
    let report = |loaded: &LoadTime| LoadedReport {
        loaded: *loaded,
        ratio_to_farleaf: farleaf.map(|farleaf| loaded.seconds / farleaf.seconds),
    };
    loaded.iter().map(report).collect()
}

/// Returns the median of one subject's work, in nanoseconds.
pub(crate) fn find(
    figures: &[Figure],
    subject: SubjectName,
    work: Work,
    thread_count: usize,
) -> Option<f64> {
    let mut figures = figures.iter();
    let figure = figures.find(|it| it.is_of(subject, work, thread_count))?;
    Some(figure.nanoseconds_median())
}

/// Returns the processor's name in Linux.
fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or_else(
        || "unknown processor".to_owned(),
        |(_, name)| name.trim().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(nanoseconds_by_round: Vec<f64>) -> Figure {
        Figure {
            subject: SubjectName::Peer(PeerName::Farleaf),
            work: Work::Get,
            thread_count: 1,
            nanoseconds_by_round,
        }
    }

    /// Promise: the median is that of the sorted rounds, between the middle two of an even number.
    #[test]
    fn medians_are_of_sorted_rounds() {
        let near = |rounds: Vec<f64>, expected: f64| {
            let median = figure(rounds).nanoseconds_median();
            assert!((median - expected).abs() < 1e-9, "{median}");
        };
        near(vec![9.0], 9.0);
        near(vec![9.0, 1.0, 5.0], 5.0);
        near(vec![4.0, 100.0, 1.0, 2.0], 3.0);
    }
}
