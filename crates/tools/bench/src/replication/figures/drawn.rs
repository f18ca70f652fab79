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

type Value<'v> = &'v dyn Fn(&ReplicationRow) -> Option<f64>;

/// Returns a line or a row of bars for each kind, of the measurements at these positions; missing
/// ones are left out.
fn series<'r>(
    rows: impl Fn(ReplicationKind, usize) -> Option<&'r ReplicationRow>,
    (places, value): (&[f64], Value<'_>),
) -> Vec<Series> {
    let kinds = [
        (ReplicationKind::None, Colour::Grey),
        (ReplicationKind::Sent, Colour::Blue),
        (ReplicationKind::Built, Colour::Orange),
    ];
    kinds
        .map(|(kind, colour)| {
            let each = places.iter().enumerate();
            Series {
                name: kind.to_string(),
                colour,
                is_dashed: false,
                values: each
                    .filter_map(|(index, at)| Some((*at, value(rows(kind, index)?)?)))
                    .collect(),
            }
        })
        .to_vec()
}

/// Returns the row of a kind and phase with one mix and growth factor.
fn find<'r>(
    rows: &'r [ReplicationRow],
    kind: ReplicationKind,
    phase: ReplicationPhase,
    (mix, growth_factor): (&str, u64),
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

/// Measure of a row that can be drawn: its name and unit.
const THROUGHPUT: (&str, &str) = ("throughput", "thousand operations a second, all work done");
const PROCESSOR: (&str, &str) = ("processor time", "microseconds for an operation");
const IO: (&str, &str) = ("I/O amplification", "device bytes for each byte of users");
const NETWORK: (&str, &str) = ("network amplification", "bytes sent for each byte of users");

fn measure(of: (&str, &str), row: &ReplicationRow) -> Option<f64> {
    Some(match of {
        THROUGHPUT => row.settled_operations_per_s() / 1e3,
        PROCESSOR => row.processor_ns_per_operation() / 1e3,
        IO => row.io_amplification(),
        NETWORK => row.network_amplification(),
        _ => return None,
    })
}

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

fn by_mix(rows: &[ReplicationRow], of: &[(&str, &str)]) -> Vec<Chart> {
    let places: Vec<f64> = (0..MIXES.len()).map(|it| it as f64).collect();
    let each = of.iter().flat_map(|of| PHASES.map(|phase| (*of, phase)));
    each.map(|(of, phase)| Chart {
        title: format!("{phase}: {}", of.0),
        x_label: "size mix".to_owned(),
        y_label: of.1.to_owned(),
        categories: MIXES.map(str::to_owned).to_vec(),
        series: series(
            |kind, place| find(rows, kind, phase, (MIXES[place], GROWTH_FACTOR)),
            (&places, &|row| measure(of, row)),
        ),
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
    of.map(|(phase, operation)| {
        let all = quantiles
            .iter()
            .enumerate()
            .flat_map(|(place, (_, value))| {
                series(
                    |kind, _| find(rows, kind, phase, (MIX, GROWTH_FACTOR)),
                    (&[place as f64], &|row| {
                        Some(value(row.tail(operation)?) as f64 / 1e3)
                    }),
                )
            });
        Chart {
            title: format!("{phase}: {operation}s"),
            x_label: "of all operations, so many are faster".to_owned(),
            y_label: "microseconds".to_owned(),
            categories: quantiles.map(|(name, _)| name.to_owned()).to_vec(),
            series: joined(all),
        }
    })
    .to_vec()
}

fn breakdown(rows: &[ReplicationRow]) -> Vec<Chart> {
    let names = [
        "operate", "merge", "send", "b. log", "b. take", "b. build", "look",
    ];
    LOAD_AND_A
        .map(|phase| {
            let all = Part::ALL.iter().enumerate().flat_map(|(place, part)| {
                series(
                    |kind, _| find(rows, kind, phase, (MIX, GROWTH_FACTOR)),
                    (&[place as f64], &|row| {
                        Some(row.part_ns_per_operation(*part) / 1e3)
                    }),
                )
            });
            Chart {
                title: phase.to_string(),
                x_label: "part (b.: of backups)".to_owned(),
                y_label: "microseconds for an operation".to_owned(),
                categories: names.map(str::to_owned).to_vec(),
                series: joined(all),
            }
        })
        .to_vec()
}

/// Concatenates the series of all positions.
fn joined(all: impl Iterator<Item = Series>) -> Vec<Series> {
    let mut joined: Vec<Series> = Vec::new();
    for one in all {
        match joined.iter_mut().find(|it| it.name == one.name) {
            Some(known) => known.values.extend(one.values),
            None => joined.push(one),
        }
    }
    joined
}

fn growth(rows: &[ReplicationRow]) -> Vec<Chart> {
    let places = GROWTH_FACTORS.map(|it| it as f64);
    over(&places, "growth factor", |kind, phase, place| {
        find(rows, kind, phase, (MIX, GROWTH_FACTORS[place]))
    })
}

fn small(rows: &[ReplicationRow]) -> Vec<Chart> {
    let shares = small_shares();
    let places = shares.map(|(share, _)| share);
    let names = shares.map(|(_, mix)| mix.to_string());
    over(&places, "small pairs (%)", |kind, phase, place| {
        find(rows, kind, phase, (&names[place], GROWTH_FACTOR))
    })
}

/// Returns lines of all kinds, in Load A and Run A.
fn over<'r>(
    places: &[f64],
    x_label: &str,
    find: impl Fn(ReplicationKind, ReplicationPhase, usize) -> Option<&'r ReplicationRow>,
) -> Vec<Chart> {
    let all = [THROUGHPUT, PROCESSOR, IO, NETWORK];
    let each = all
        .iter()
        .flat_map(|of| LOAD_AND_A.map(|phase| (*of, phase)));
    each.map(|(of, phase)| Chart {
        title: format!("{phase}: {}", of.0),
        x_label: x_label.to_owned(),
        y_label: of.1.to_owned(),
        categories: Vec::new(),
        series: series(
            |kind, place| find(kind, phase, place),
            (places, &|row| measure(of, row)),
        ),
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
