//! Points: all experiments of the figures, each as a value.

use farleaf_bench::distribution::Distribution;
use farleaf_bench::workload::{WorkloadLetter, WorkloadSpec};
use farleaf_index::LayerKind;

use super::config::{Experiments, Figure, FigureKind, RunSize, Servers};
use crate::experiment::plan::{ExperimentTablePlan, WorkPlan, mixed};
use crate::nic::model::NetworkModel;

/// Position of a measure in a chart.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ChartPosition {
    /// At a category name.
    Category(String),
    /// At a number.
    Number(f64),
    /// At the records inserted until the end of each window, in percent of those loaded.
    Growth { percent_per_window: f64 },
    /// At the time parts of operations, in this workload.
    Parts { workload: String },
    /// At the time that has passed at the end of each window.
    Time { retrains: bool },
}

/// One experiment of one figure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) figure_index: usize,
    /// Title of the chart that shows the point.
    pub(super) chart: String,
    pub(super) layer: LayerKind,
    pub(super) place: ChartPosition,
    /// Memory nodes, if they are not the testbed's.
    pub(super) servers: Option<Servers>,
    pub(super) table: ExperimentTablePlan,
    /// Work of the clients; `None` if only the tables are created.
    pub(super) work: Option<WorkPlan>,
}

/// Builder of all points.
pub(super) struct PointBuilder<'a> {
    experiments: &'a Experiments,
    pub(super) size: RunSize,
    pub(super) points: Vec<Point>,
    /// Figure to which points are added.
    figure_index: usize,
    machine_count: usize,
    threads_per_node: usize,
    /// Memory nodes of the testbed.
    pub(super) servers: Servers,
}

/// Returns all points, figure by figure.
pub(super) fn points(experiments: &Experiments, size: RunSize, model: &NetworkModel) -> Vec<Point> {
    let mut builder = PointBuilder {
        experiments,
        size,
        points: Vec::new(),
        figure_index: 0,
        machine_count: model.compute.node_count.value as usize,
        threads_per_node: model.compute.threads_per_node.value as usize,
        servers: Servers::of(model),
    };
    for (index, figure) in experiments.figure.iter().enumerate() {
        builder.figure_index = index;
        for layer in figure.layers_or(&experiments.layers) {
            builder.add_figure(figure, *layer);
        }
    }
    let mut points = builder.points;
    // Tables that differ only in their space for inserts are created once, with space for all.
    let insert_counts: Vec<usize> = points
        .iter()
        .map(|point| {
            let alike = points.iter().filter(|other| {
                let other = ExperimentTablePlan {
                    insert_count: point.table.insert_count,
                    ..other.table.clone()
                };
                other == point.table
            });
            let counts = alike.map(|other| other.table.insert_count);
            counts.max().unwrap_or(0)
        })
        .collect();
    for (point, insert_count) in points.iter_mut().zip(insert_counts) {
        point.table.insert_count = insert_count;
    }
    points
}

impl PointBuilder<'_> {
    fn table(&self, layer: LayerKind) -> ExperimentTablePlan {
        let defaults = &self.experiments.defaults;
        ExperimentTablePlan {
            layer,
            slots: defaults.slots.value,
            fill_percent: defaults.fill_percent.value,
            epsilon_keys: defaults.epsilon_keys.value,
            keys: defaults.keys.value.clone(),
            record_count: self.size.record_count,
            insert_count: 0,
            seed: self.experiments.seed,
        }
    }

    pub(super) fn work(&self, workload: WorkloadSpec, distribution: Distribution) -> WorkPlan {
        let defaults = &self.experiments.defaults;
        // Workload D is defined by "latest"; it has no other distribution.
        let is_latest = workload.distribution == Distribution::Latest;
        WorkPlan {
            workload,
            distribution: (!is_latest).then_some(distribution),
            threads_per_node: self.threads_per_node,
            in_flight_count: defaults.in_flight_count.value,
            warm_up_count: self.size.warm_up_operation_count,
            window_counts: vec![self.size.window_operation_count],
            read_only_window_counts: Vec::new(),
            retraining: self.experiments.retraining(),
            models: self.experiments.defaults.models(),
        }
    }

    pub(super) fn letter(&self, letter: WorkloadLetter) -> WorkPlan {
        let distribution = self.experiments.defaults.distribution.value;
        self.work(WorkloadSpec::of(letter), distribution)
    }

    pub(super) fn push(
        &mut self,
        chart: &str,
        place: ChartPosition,
        table: ExperimentTablePlan,
        work: WorkPlan,
    ) {
        let thread_count = self.machine_count * work.threads_per_node;
        let insert_count = work.insert_count(thread_count) as usize;
        self.points.push(Point {
            figure_index: self.figure_index,
            chart: chart.to_owned(),
            layer: table.layer,
            place,
            servers: None,
            table: ExperimentTablePlan {
                insert_count,
                ..table
            },
            work: Some(work),
        });
    }

    fn add_figure(&mut self, figure: &Figure, layer: LayerKind) {
        let table = self.table(layer);
        match &figure.kind {
            FigureKind::Workloads {
                workloads,
                distributions,
            } => {
                for distribution in distributions {
                    for letter in workloads {
                        let place = ChartPosition::Category(letter.to_string());
                        let work = self.work(WorkloadSpec::of(*letter), *distribution);
                        self.push(distribution.name(), place, table.clone(), work);
                    }
                }
            }
            FigureKind::Growth {
                insert_percent,
                window_count,
            } => self.add_growth(*insert_percent, *window_count, table),
            FigureKind::Timeline { .. } => self.add_timeline(&figure.kind, &table),
            FigureKind::Ratios { read_percents } => {
                for percent in read_percents {
                    let reads = f64::from(*percent) / 100.0;
                    let workload = mixed(reads, 1.0 - reads, 0.0);
                    let work = self.work(workload, self.experiments.defaults.distribution.value);
                    let place = ChartPosition::Number((*percent).into());
                    self.push("reads and updates", place, table.clone(), work);
                }
            }
            FigureKind::Threads {
                threads_per_node,
                workloads,
            } => {
                for letter in workloads {
                    for threads in threads_per_node {
                        let work = WorkPlan {
                            threads_per_node: *threads,
                            ..self.letter(*letter)
                        };
                        let place = ChartPosition::Number(*threads as f64);
                        self.push(&ycsb(*letter), place, table.clone(), work);
                    }
                }
            }
            FigureKind::Keys { workloads, .. }
            | FigureKind::Epsilon { workloads, .. }
            | FigureKind::Slots { workloads, .. } => {
                self.add_tables(workloads, &varied(&figure.kind, &table));
            }
            FigureKind::Clients { .. }
            | FigureKind::Latencies { .. }
            | FigureKind::TimeParts { .. } => self.add_clients(&figure.kind, &table),
            FigureKind::ModelCaches { .. }
            | FigureKind::Speculation { .. }
            | FigureKind::Mixes { .. }
            | FigureKind::Training { .. } => self.add_called(&figure.kind, &table),
            FigureKind::Servers { servers, workloads } => {
                self.add_servers(workloads, servers, &table);
            }
            FigureKind::Metadata { .. } | FigureKind::Models { .. } => {
                self.add_counted(&figure.kind, &table);
            }
        }
    }

    /// Adds figures of tables on which no operation is run.
    fn add_counted(&mut self, kind: &FigureKind, table: &ExperimentTablePlan) {
        match kind {
            FigureKind::Metadata {
                record_per_mille,
                fill_percents,
            } => {
                for fill_percent in fill_percents {
                    for per_mille in record_per_mille {
                        let records = self.size.record_count as u64 * per_mille / 1000;
                        let table = ExperimentTablePlan {
                            fill_percent: *fill_percent,
                            record_count: records.max(1000) as usize,
                            ..table.clone()
                        };
                        let (fill, epsilon) = (table.fill_percent, table.epsilon_keys);
                        let chart = format!("fill {fill} %, error {epsilon}");
                        self.add_still(chart, thousands(table.record_count), table);
                    }
                }
            }
            FigureKind::Models {
                fill_percents,
                epsilon_keys,
            } => {
                for epsilon_keys in epsilon_keys.iter().copied() {
                    for fill_percent in fill_percents.iter().copied() {
                        let table = ExperimentTablePlan {
                            fill_percent,
                            epsilon_keys,
                            ..table.clone()
                        };
                        let chart = format!("error {epsilon_keys}");
                        self.add_still(chart, format!("fill {fill_percent} %"), table);
                    }
                }
            }
            _ => {}
        }
    }

    /// Adds the same work on tables that differ: one chart for each workload.
    fn add_tables(
        &mut self,
        workloads: &[WorkloadLetter],
        tables: &[(String, ExperimentTablePlan)],
    ) {
        for letter in workloads {
            for (name, table) in tables {
                let place = ChartPosition::Category(name.clone());
                let work = self.letter(*letter);
                self.push(&ycsb(*letter), place, table.clone(), work);
            }
        }
    }

    /// Adds tables on which no operation is run.
    fn add_still(&mut self, chart: String, place: String, table: ExperimentTablePlan) {
        self.points.push(Point {
            figure_index: self.figure_index,
            chart,
            layer: table.layer,
            place: ChartPosition::Category(place),
            servers: None,
            table,
            work: None,
        });
    }

    fn add_growth(&mut self, percent: u64, windows: u64, table: ExperimentTablePlan) {
        let records = self.size.record_count as u64;
        let window = (records * percent / 100 / windows).max(1);
        let workload = mixed(0.0, 0.0, 1.0);
        let work = WorkPlan {
            // The first window begins when every thread has inserted records.
            warm_up_count: (window / 10).max(1),
            window_counts: vec![window; windows as usize],
            ..self.work(workload, Distribution::Uniform)
        };
        let place = ChartPosition::Growth {
            percent_per_window: percent as f64 / windows as f64,
        };
        self.push("inserts", place, table, work);
    }
}

/// Timelines: a table grows for a while, and is then only read; with retraining and without, in
/// this order.
impl PointBuilder<'_> {
    fn add_timeline(&mut self, kind: &FigureKind, table: &ExperimentTablePlan) {
        let FigureKind::Timeline {
            insert_percent,
            write_percent,
            window_count,
            rest_window_count,
            threads_per_node,
        } = kind
        else {
            return;
        };
        let share = f64::from(*write_percent) / 100.0;
        let inserts = self.size.record_count as f64 * *insert_percent as f64 / 100.0;
        let window = (inserts / share / *window_count as f64).ceil().max(1.0) as u64;
        for threads in threads_per_node {
            let chart = match threads {
                1 => "1 thread a compute node".to_owned(),
                _ => format!("{threads} threads a compute node"),
            };
            let retraining = self.experiments.retraining();
            // A tree is never trained, and layers trained by the node always are.
            let courses = if self.experiments.retraining && table.layer.is_retrained() {
                vec![retraining, None]
            } else {
                vec![None]
            };
            for retraining in courses {
                let retrains = retraining.is_some();
                let work = WorkPlan {
                    threads_per_node: *threads,
                    // The first window begins when every thread has inserted records.
                    warm_up_count: (window / 20).max(1),
                    window_counts: vec![window; *window_count as usize],
                    read_only_window_counts: vec![window; *rest_window_count as usize],
                    retraining,
                    ..self.work(mixed(1.0 - share, 0.0, share), Distribution::Uniform)
                };
                let place = ChartPosition::Time { retrains };
                self.push(&chart, place, table.clone(), work);
            }
        }
    }
}

/// Returns the tables of a figure that varies tables, each with its label.
fn varied(kind: &FigureKind, table: &ExperimentTablePlan) -> Vec<(String, ExperimentTablePlan)> {
    fn each<T: ToString>(
        values: &[T],
        table: &ExperimentTablePlan,
        change: impl Fn(&mut ExperimentTablePlan, &T),
    ) -> Vec<(String, ExperimentTablePlan)> {
        let tables = values.iter().map(|value| {
            let mut table = table.clone();
            change(&mut table, value);
            (value.to_string(), table)
        });
        tables.collect()
    }
    match kind {
        FigureKind::Keys { keys, .. } => each(keys, table, |it, keys| it.keys = keys.clone()),
        FigureKind::Epsilon { epsilon_keys, .. } => {
            each(epsilon_keys, table, |it, bound| it.epsilon_keys = *bound)
        }
        FigureKind::Slots { slots, .. } => each(slots, table, |it, slots| it.slots = *slots),
        _ => Vec::new(),
    }
}

pub(super) fn ycsb(letter: WorkloadLetter) -> String {
    format!("YCSB {letter}")
}

/// Returns a count in thousands or millions, as a category name.
fn thousands(count: usize) -> String {
    if count >= 1_000_000 {
        format!("{} M", count as f64 / 1e6)
    } else {
        format!("{} k", count as f64 / 1e3)
    }
}
