//! Figures of the measurements: charts with all of their values.

use farleaf_chart::chart::{Chart, Colour, Series};
use farleaf_chart::csv::quoted;

use super::suite::{GROWTH_FACTOR, GROWTH_FACTORS, MIX, MIXES, small_shares};
use crate::replication::names::{ReplicationKind, ReplicationPhase};
use crate::replication::processor::Part;
use crate::replication::rows::ReplicationRow;
use crate::replication::tails::Tail;
use crate::workload::{OperationKind, WorkloadLetter};

const PHASES: [ReplicationPhase; 5] = [
    ReplicationPhase::Load,
    ReplicationPhase::Run(WorkloadLetter::A),
    ReplicationPhase::Run(WorkloadLetter::B),
    ReplicationPhase::Run(WorkloadLetter::C),
    ReplicationPhase::Run(WorkloadLetter::D),
];
/// Phases that the paper examines more closely.
const LOAD_AND_A: [ReplicationPhase; 2] = [PHASES[0], PHASES[1]];

/// One figure.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    /// Identifier, from which the names of the files are formed.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) note: &'static str,
    pub(super) charts: Vec<Chart>,
    /// All values: chart, position, kind, value.
    pub(super) values: Vec<[String; 4]>,
}

impl Figure {
    fn new(id: &'static str, title: &'static str, note: &'static str, charts: Vec<Chart>) -> Self {
        let values = charts.iter().flat_map(values_of).collect();
        Self {
            id,
            title,
            note,
            charts,
            values,
        }
    }

    pub(super) fn csv_name(&self) -> String {
        format!("{}.csv", self.id)
    }

    /// Returns the name of the file of a chart.
    pub(super) fn chart_name(&self, title: &str) -> String {
        let words = title.split(|letter: char| !letter.is_ascii_alphanumeric());
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        format!("{}-{}.svg", self.id, words.join("-").to_ascii_lowercase())
    }

    pub(super) fn csv(&self) -> String {
        let mut text = "chart,at,kind,value\n".to_owned();
        for row in &self.values {
            text += &row.each_ref().map(|cell| quoted(cell)).join(",");
            text.push('\n');
        }
        text
    }
}

fn values_of(chart: &Chart) -> Vec<[String; 4]> {
    let name = format!("{} ({})", chart.title, chart.y_label);
    let each = chart.series.iter().flat_map(|series| {
        let values = series.values.iter();
        values.map(|(at, value)| (series.name.clone(), *at, *value))
    });
    each.map(|(kind, at, value)| {
        let place = match chart.categories.get(at.max(0.0) as usize) {
            Some(category) => category.clone(),
            None => at.to_string(),
        };
        [name.clone(), place, kind, value.to_string()]
    })
    .collect()
}

/// Returns a line or a row of bars for each kind, of the values at these positions; missing ones
/// are left out.
fn series(places: &[f64], value: impl Fn(ReplicationKind, usize) -> Option<f64>) -> Vec<Series> {
    let kinds = [
        (ReplicationKind::None, Colour::Grey),
        (ReplicationKind::Sent, Colour::Blue),
        (ReplicationKind::Built, Colour::Orange),
    ];
    let of_kind = |(kind, colour): (ReplicationKind, Colour)| {
        let each = places.iter().enumerate();
        Series {
            name: kind.to_string(),
            colour,
            is_dashed: false,
            values: each
                .filter_map(|(index, at)| Some((*at, value(kind, index)?)))
                .collect(),
        }
    };
    kinds.map(of_kind).to_vec()
}

/// Returns the positions of bars.
fn bar_places(count: usize) -> Vec<f64> {
    (0..count).map(|it| it as f64).collect()
}

/// Returns the row of a kind and phase with one mix and growth factor.
fn find<'r>(
    rows: &'r [ReplicationRow],
    kind: ReplicationKind,
    phase: ReplicationPhase,
    mix: &str,
    growth_factor: u64,
) -> Option<&'r ReplicationRow> {
    rows.iter().find(|row| {
        row.kind == kind
            && row.phase == phase
            && row.growth_factor == growth_factor
            && row.value_size == shown(mix)
    })
}

/// Returns the name of a mix in rows, where `S` is 9 bytes.
fn shown(mix: &str) -> String {
    mix.parse::<crate::runner::ValueSize>()
        .map_or_else(|_| mix.to_owned(), |size| size.to_string())
}

/// Measure of a row that can be drawn.
#[derive(Clone, Copy)]
struct Measure {
    name: &'static str,
    unit: &'static str,
    value: fn(&ReplicationRow) -> f64,
}

const THROUGHPUT: Measure = Measure {
    name: "throughput",
    unit: "thousand operations a second, all work done",
    value: |row| row.settled_operations_per_s() / 1e3,
};
const PROCESSOR: Measure = Measure {
    name: "processor time",
    unit: "microseconds for an operation",
    value: |row| row.processor_ns_per_operation() / 1e3,
};
const IO: Measure = Measure {
    name: "I/O amplification",
    unit: "device bytes for each byte of users",
    value: ReplicationRow::io_amplification,
};
const NETWORK: Measure = Measure {
    name: "network amplification",
    unit: "bytes sent for each byte of users",
    value: ReplicationRow::network_amplification,
};

/// Returns all figures; without rows, with all of their names.
pub(super) fn figures(rows: &[ReplicationRow]) -> Vec<Figure> {
    vec![
        Figure::new(
            "throughput",
            "Throughput and efficiency, by size mix",
            "Throughput until all background work is done that a phase has caused, at primaries \
             and backups; and processor time of both servers for an operation, in the place of \
             the paper's cycles.",
            by_mix(rows, &[THROUGHPUT, PROCESSOR]),
        ),
        Figure::new(
            "amplification",
            "I/O and network amplification, by size mix",
            "Bytes that engines read from and write to their files, logs and trees of primaries \
             and backups, for each byte of keys and values that was put or found; and bytes \
             between the servers. There is no network between clients and servers here, which \
             the paper's network traffic has.",
            by_mix(rows, &[IO, NETWORK]),
        ),
        Figure::new(
            "tails",
            "Tails of latencies, small-dominated mix",
            "As clients see them, on processors that they share with the servers.",
            tails(rows),
        ),
        Figure::new(
            "breakdown",
            "Processor time by part, small-dominated mix",
            "Of both servers, for an operation. What brings the log to backups is part of \
             operations: the processor that posts verbs executes them, in a NIC's place.",
            breakdown(rows),
        ),
        Figure::new(
            "growth",
            "Growth factor, small-dominated mix",
            "How much larger a level is than the one above.",
            growth(rows),
        ),
        Figure::new(
            "small",
            "Share of small pairs",
            "The others are medium and large, of each as many.",
            small(rows),
        ),
    ]
}

fn by_mix(rows: &[ReplicationRow], measures: &[Measure]) -> Vec<Chart> {
    let places = bar_places(MIXES.len());
    let each = measures.iter();
    let each = each.flat_map(|measure| PHASES.map(|phase| (measure, phase)));
    each.map(|(measure, phase)| Chart {
        title: format!("{phase}: {}", measure.name),
        x_label: "size mix".to_owned(),
        y_label: measure.unit.to_owned(),
        categories: MIXES.map(str::to_owned).to_vec(),
        series: series(&places, |kind, place| {
            find(rows, kind, phase, MIXES[place], GROWTH_FACTOR).map(measure.value)
        }),
    })
    .collect()
}

/// Accessor of one of the latencies of a tail, in nanoseconds.
type Quantile = fn(&Tail) -> u64;

fn tails(rows: &[ReplicationRow]) -> Vec<Chart> {
    let quantiles: [(&str, Quantile); 5] = [
        ("p50", |it| it.p50_ns),
        ("p90", |it| it.p90_ns),
        ("p99", |it| it.p99_ns),
        ("p99.9", |it| it.p999_ns),
        ("p99.99", |it| it.p9999_ns),
    ];
    let of = [
        (LOAD_AND_A[0], OperationKind::Insert),
        (LOAD_AND_A[1], OperationKind::Read),
        (LOAD_AND_A[1], OperationKind::Update),
    ];
    of.map(|(phase, operation)| Chart {
        title: format!("{phase}: {operation}s"),
        x_label: "of all operations, so many are faster".to_owned(),
        y_label: "microseconds".to_owned(),
        categories: quantiles.map(|(name, _)| name.to_owned()).to_vec(),
        series: series(&bar_places(quantiles.len()), |kind, place| {
            let row = find(rows, kind, phase, MIX, GROWTH_FACTOR)?;
            let (_, quantile) = quantiles[place];
            Some(quantile(row.tail(operation)?) as f64 / 1e3)
        }),
    })
    .to_vec()
}

fn breakdown(rows: &[ReplicationRow]) -> Vec<Chart> {
    let names = [
        "operate", "merge", "send", "b. log", "b. take", "b. build", "look",
    ];
    LOAD_AND_A
        .map(|phase| Chart {
            title: phase.to_string(),
            x_label: "part (b.: of backups)".to_owned(),
            y_label: "microseconds for an operation".to_owned(),
            categories: names.map(str::to_owned).to_vec(),
            series: series(&bar_places(names.len()), |kind, place| {
                let row = find(rows, kind, phase, MIX, GROWTH_FACTOR)?;
                Some(row.part_ns_per_operation(Part::ALL[place]) / 1e3)
            }),
        })
        .to_vec()
}

fn growth(rows: &[ReplicationRow]) -> Vec<Chart> {
    let places = GROWTH_FACTORS.map(|it| it as f64);
    over(&places, "growth factor", |kind, phase, place| {
        find(rows, kind, phase, MIX, GROWTH_FACTORS[place])
    })
}

fn small(rows: &[ReplicationRow]) -> Vec<Chart> {
    let shares = small_shares();
    let places = shares.map(|(share, _)| share);
    let names = shares.map(|(_, mix)| mix.to_string());
    over(&places, "small pairs (%)", |kind, phase, place| {
        find(rows, kind, phase, &names[place], GROWTH_FACTOR)
    })
}

/// Returns lines of all kinds, in Load A and Run A.
fn over<'r>(
    places: &[f64],
    x_label: &str,
    find: impl Fn(ReplicationKind, ReplicationPhase, usize) -> Option<&'r ReplicationRow>,
) -> Vec<Chart> {
    let each = [THROUGHPUT, PROCESSOR, IO, NETWORK].into_iter();
    let each = each.flat_map(|measure| LOAD_AND_A.map(|phase| (measure, phase)));
    each.map(|(measure, phase)| Chart {
        title: format!("{phase}: {}", measure.name),
        x_label: x_label.to_owned(),
        y_label: measure.unit.to_owned(),
        categories: Vec::new(),
        series: series(places, |kind, place| {
            find(kind, phase, place).map(measure.value)
        }),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Promise: file names are distinct.
    #[test]
    fn files_have_names_of_their_own() {
        let figures = figures(&[]);
        let names: Vec<String> = figures
            .iter()
            .flat_map(|figure| figure.charts.iter().map(|it| figure.chart_name(&it.title)))
            .collect();
        let different: BTreeSet<&String> = names.iter().collect();
        assert_eq!((different.len(), names.len()), (41, 41));
        assert_eq!(names[0], "throughput-load-a-throughput.svg");
    }
}
