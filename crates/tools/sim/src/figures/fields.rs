//! Parameters of a figure, as checks of the configuration see them: keys, numbers, and entries of
//! lists.

use core::fmt::Debug;

use farleaf_bench::distribution::Distribution;

use super::checks::{distinct_texts, slots, within};
use super::kinds::FigureKind;

/// Permitted numbers of a parameter, by its key.
const RANGES: [(&str, f64, f64); 12] = [
    ("epsilon_keys", 0.5, 1024.0),
    ("fill_percent", 25.0, 100.0),
    ("fill_percents", 25.0, 100.0),
    ("insert_percent", 1.0, 400.0),
    ("read_percents", 0.0, 100.0),
    ("record_per_mille", 1.0, 10_000.0),
    ("rest_window_count", 0.0, 100.0),
    // The sum of each entry.
    ("shares", 100.0, 100.0),
    ("threads_per_node", 1.0, 256.0),
    ("train_thread_counts", 0.0, 64.0),
    ("window_count", 1.0, 100.0),
    ("write_percent", 1.0, 100.0),
];

/// Parameter of a figure.
pub(super) struct Field {
    /// Key of the parameter.
    pub(super) key: &'static str,
    /// Numbers that are to be in the range of the key.
    numbers: Vec<f64>,
    /// Entries, if the parameter is a list; none may be there twice.
    entries: Option<Vec<String>>,
}

/// Returns a parameter whose value needs no check.
fn choice(key: &'static str) -> Field {
    Field {
        key,
        numbers: Vec::new(),
        entries: None,
    }
}

fn number(key: &'static str, number: f64) -> Field {
    Field {
        numbers: vec![number],
        ..choice(key)
    }
}

fn list<T: Debug>(key: &'static str, list: &[T]) -> Field {
    let entries = list.iter().map(|it| format!("{it:?}"));
    Field {
        entries: Some(entries.collect()),
        ..choice(key)
    }
}

fn numbers<T: Debug + Copy>(key: &'static str, of: &[T], as_number: fn(T) -> f64) -> Field {
    Field {
        numbers: of.iter().copied().map(as_number).collect(),
        ..list(key, of)
    }
}

fn by_name(distributions: &[Distribution]) -> Field {
    let names: Vec<&str> = distributions.iter().map(|it| it.name()).collect();
    list("distributions", &names)
}

fn epsilon(of: &[f64]) -> Field {
    numbers("epsilon_keys", of, |it| it)
}

fn inserts(percent: u64) -> Field {
    number("insert_percent", percent as f64)
}

impl FigureKind {
    /// Returns the parameters of the figure, besides those that every figure has.
    pub(super) fn fields(&self) -> Vec<Field> {
        let threads = |of: &[usize]| numbers("threads_per_node", of, |it| it as f64);
        match self {
            Self::Workloads {
                workloads: of,
                distributions,
            } => vec![list("workloads", of), by_name(distributions)],
            Self::Growth {
                insert_percent,
                window_count,
            } => vec![
                inserts(*insert_percent),
                number("window_count", *window_count as f64),
            ],
            Self::Timeline {
                insert_percent,
                write_percent,
                window_count,
                rest_window_count,
                threads_per_node,
            } => vec![
                threads(threads_per_node),
                inserts(*insert_percent),
                number("write_percent", (*write_percent).into()),
                number("window_count", *window_count as f64),
                number("rest_window_count", *rest_window_count as f64),
            ],
            Self::Ratios { read_percents } => {
                vec![numbers("read_percents", read_percents, f64::from)]
            }
            Self::Keys { keys, workloads } => {
                vec![list("workloads", workloads), list("keys", keys)]
            }
            Self::Threads {
                threads_per_node,
                workloads,
            } => vec![threads(threads_per_node), list("workloads", workloads)],
            Self::Epsilon {
                epsilon_keys,
                workloads,
            } => vec![list("workloads", workloads), epsilon(epsilon_keys)],
            Self::Slots { slots, workloads } => vec![
                list("workloads", workloads),
                numbers("slots", slots, |it| it as f64),
            ],
            Self::Clients {
                workloads,
                threads_per_node,
                ..
            }
            | Self::TimeParts {
                workloads,
                threads_per_node,
                ..
            } => vec![
                threads(threads_per_node),
                list("workloads", workloads),
                choice("distribution"),
            ],
            Self::Latencies { workloads, .. } => {
                vec![list("workloads", workloads), choice("distribution")]
            }
            _ => self.fields_of_nodes(),
        }
    }

    /// Returns the parameters of figures of memory nodes, and of those for which nothing is run.
    fn fields_of_nodes(&self) -> Vec<Field> {
        let fills = |of: &[u8]| numbers("fill_percents", of, f64::from);
        let fill = |percent: u8| number("fill_percent", percent.into());
        match self {
            Self::ModelCaches { caches, workloads } => {
                vec![list("workloads", workloads), list("caches", caches)]
            }
            Self::Speculation {
                fill_percent,
                distributions,
                ..
            } => vec![
                choice("workload"),
                fill(*fill_percent),
                by_name(distributions),
            ],
            Self::Training {
                train_thread_counts,
                fill_percent,
                insert_percent,
                distributions,
                speculation,
                ..
            } => vec![
                choice("shows"),
                fill(*fill_percent),
                inserts(*insert_percent),
                numbers("train_thread_counts", train_thread_counts, |it| it as f64),
                list("speculation", speculation),
                by_name(distributions),
            ],
            Self::Servers { servers, workloads } => {
                // Results are drawn over the number of NICs.
                let nic_counts: Vec<u32> = servers.iter().map(|it| it.nic_count()).collect();
                vec![list("workloads", workloads), list("servers", &nic_counts)]
            }
            Self::Mixes {
                shares,
                distributions,
            } => vec![
                numbers("shares", shares, |it| it.map(f64::from).iter().sum()),
                by_name(distributions),
            ],
            Self::Metadata {
                record_per_mille,
                fill_percents,
            } => vec![
                numbers("record_per_mille", record_per_mille, |it| it as f64),
                fills(fill_percents),
            ],
            Self::Models {
                fill_percents,
                epsilon_keys,
            } => vec![epsilon(epsilon_keys), fills(fill_percents)],
            _ => unreachable!("the caller names the kinds"),
        }
    }

    /// Refuses numbers that no run can have, and lists that are empty or have duplicates, each of
    /// which would be run twice and drawn over itself.
    pub(super) fn check(&self, figure_id: &str) -> Result<(), String> {
        let fields = self.fields();
        let key_of = |key: &str| format!("{key} of figure '{figure_id}'");
        for field in &fields {
            let key = key_of(field.key);
            if field.entries.as_ref().is_some_and(Vec::is_empty) {
                return Err(format!("{key}: expected at least one"));
            }
            let range = RANGES.iter().find(|(known, ..)| *known == field.key);
            for value in field.numbers.iter().copied() {
                match range {
                    Some((_, from, to)) => within(&key, value, *from, *to)?,
                    None => slots(&key, value as u64)?,
                }
            }
        }
        if let Self::Servers { servers, .. } = self {
            let key = key_of("servers");
            for of in servers {
                let (node_count, nic_count) = (of.node_count.into(), of.nics_per_node.into());
                within(&format!("{key}: node_count"), node_count, 1.0, 64.0)?;
                within(&format!("{key}: nics_per_node"), nic_count, 1.0, 8.0)?;
            }
        }
        let mut lists = fields
            .iter()
            .filter_map(|it| Some((it.key, it.entries.as_ref()?)));
        lists.try_for_each(|(key, entries)| distinct_texts(&key_of(key), entries))
    }
}
