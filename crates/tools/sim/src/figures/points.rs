//! All experiments of the figures, each as a value.

use farleaf_bench::distribution::Distribution;
use farleaf_bench::workload::{WorkloadLetter, WorkloadSpec};
use farleaf_index::LayerKind;

use super::config::{Experiments, Figure, FigureKind, RunSize, Servers};
use crate::experiment::plan::{TablePlan, WorkPlan, mixed};
use crate::nic::model::NetworkModel;

/// Where a measure stands in a chart.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    /// Over a name.
    Category(String),
    /// Over a number.
    Number(f64),
    /// Over the records inserted until the end of each window, in percent of those loaded.
    Growth { percent_per_window: f64 },
    /// Over the parts of operations' time, in this workload.
    Parts { workload: String },
    /// Over the time that has passed at the end of each window.
    Time { retrains: bool },
}

/// One experiment of one figure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) figure_index: usize,
    /// The chart's title, under which the figure's points are gathered.
    pub(super) chart: String,
    pub(super) layer: LayerKind,
    pub(super) place: Place,
    /// In the place of the testbed's memory nodes, if they are others.
    pub(super) servers: Option<Servers>,
    pub(super) table: TablePlan,
    /// None: only the tables are made.
    pub(super) work: Option<WorkPlan>,
}

/// What all points are made from.
pub(super) struct Maker<'a> {
    experiments: &'a Experiments,
    pub(super) size: RunSize,
    pub(super) points: Vec<Point>,
    machine_count: usize,
    threads_per_node: usize,
    /// The testbed's.
    pub(super) servers: Servers,
}

/// All points, figure by figure.
pub(super) fn points(experiments: &Experiments, size: RunSize, model: &NetworkModel) -> Vec<Point> {
    let mut maker = Maker {
        experiments,
        size,
        points: Vec::new(),
        machine_count: model.compute.node_count.value as usize,
        threads_per_node: model.compute.threads_per_node.value as usize,
        servers: Servers::of(model),
    };
    for (index, figure) in experiments.figure.iter().enumerate() {
        for layer in figure.layers_or(&experiments.layers) {
            maker.add_figure(index, figure, *layer);
        }
    }
    let mut points = maker.points;
    // Tables that are alike but for their room for inserts are made once, with room for all.
    let insert_counts: Vec<usize> = points
        .iter()
        .map(|point| {
            let alike = points.iter().filter(|other| {
                let other = TablePlan {
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

impl Maker<'_> {
    fn table(&self, layer: LayerKind) -> TablePlan {
        let defaults = &self.experiments.defaults;
        TablePlan {
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
        // "Latest" is what D is about; nothing else is asked of it.
        let is_latest = workload.distribution == Distribution::Latest;
        WorkPlan {
            workload,
            distribution: (!is_latest).then_some(distribution),
            threads_per_node: self.threads_per_node,
            in_flight_count: defaults.in_flight_count.value,
            warm_up_count: self.size.warm_up_operation_count,
            window_counts: vec![self.size.window_operation_count],
            rest_window_counts: Vec::new(),
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
        index: usize,
        chart: &str,
        place: Place,
        table: TablePlan,
        work: WorkPlan,
    ) {
        let thread_count = self.machine_count * work.threads_per_node;
        let insert_count = work.insert_count(thread_count) as usize;
        self.points.push(Point {
            figure_index: index,
            chart: chart.to_owned(),
            layer: table.layer,
            place,
            servers: None,
            table: TablePlan {
                insert_count,
                ..table
            },
            work: Some(work),
        });
    }

    fn add_figure(&mut self, index: usize, figure: &Figure, layer: LayerKind) {
        let table = self.table(layer);
        match &figure.kind {
            FigureKind::Workloads {
                workloads,
                distributions,
            } => {
                for distribution in distributions {
                    for letter in workloads {
                        let place = Place::Category(letter.to_string());
                        let work = self.work(WorkloadSpec::of(*letter), *distribution);
                        self.push(index, distribution.name(), place, table.clone(), work);
                    }
                }
            }
            FigureKind::Growth {
                insert_percent,
                window_count,
            } => self.add_growth(index, *insert_percent, *window_count, table),
            FigureKind::Timeline { .. } => self.add_timeline(index, &figure.kind, &table),
            FigureKind::Ratios { read_percents } => {
                for percent in read_percents {
                    let reads = f64::from(*percent) / 100.0;
                    let workload = mixed(reads, 1.0 - reads, 0.0);
                    let work = self.work(workload, self.experiments.defaults.distribution.value);
                    let place = Place::Number((*percent).into());
                    self.push(index, "reads and updates", place, table.clone(), work);
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
                        let place = Place::Number(*threads as f64);
                        self.push(index, &ycsb(*letter), place, table.clone(), work);
                    }
                }
            }
            FigureKind::Keys { workloads, .. }
            | FigureKind::Epsilon { workloads, .. }
            | FigureKind::Slots { workloads, .. } => {
                self.add_tables(index, workloads, &varied(&figure.kind, &table));
            }
            FigureKind::Clients { .. }
            | FigureKind::Latencies { .. }
            | FigureKind::TimeParts { .. } => self.add_clients(index, &figure.kind, &table),
            FigureKind::ModelCaches { .. }
            | FigureKind::Speculation { .. }
            | FigureKind::Mixes { .. }
            | FigureKind::Training { .. } => self.add_called(index, &figure.kind, &table),
            FigureKind::Servers { servers, workloads } => {
                self.add_servers(index, workloads, servers, &table);
            }
            FigureKind::Metadata { .. } | FigureKind::Models { .. } => {
                self.add_counted(index, &figure.kind, &table);
            }
        }
    }

    /// Figures of tables that nothing is run on.
    fn add_counted(&mut self, index: usize, kind: &FigureKind, table: &TablePlan) {
        match kind {
            FigureKind::Metadata {
                record_per_mille,
                fill_percents,
            } => {
                for fill_percent in fill_percents {
                    for per_mille in record_per_mille {
                        let records = self.size.record_count as u64 * per_mille / 1000;
                        let table = TablePlan {
                            fill_percent: *fill_percent,
                            record_count: records.max(1000) as usize,
                            ..table.clone()
                        };
                        let (fill, epsilon) = (table.fill_percent, table.epsilon_keys);
                        let chart = format!("fill {fill} %, error {epsilon}");
                        self.add_still(index, chart, thousands(table.record_count), table);
                    }
                }
            }
            FigureKind::Models {
                fill_percents,
                epsilon_keys,
            } => {
                for epsilon_keys in epsilon_keys.iter().copied() {
                    for fill_percent in fill_percents.iter().copied() {
                        let table = TablePlan {
                            fill_percent,
                            epsilon_keys,
                            ..table.clone()
                        };
                        let chart = format!("error {epsilon_keys}");
                        self.add_still(index, chart, format!("fill {fill_percent} %"), table);
                    }
                }
            }
            _ => {}
        }
    }

    /// The same work on tables that differ: a chart a workload.
    fn add_tables(
        &mut self,
        index: usize,
        workloads: &[WorkloadLetter],
        tables: &[(String, TablePlan)],
    ) {
        for letter in workloads {
            for (name, table) in tables {
                let place = Place::Category(name.clone());
                let work = self.letter(*letter);
                self.push(index, &ycsb(*letter), place, table.clone(), work);
            }
        }
    }

    /// Tables that nothing is run on.
    fn add_still(&mut self, index: usize, chart: String, place: String, table: TablePlan) {
        self.points.push(Point {
            figure_index: index,
            chart,
            layer: table.layer,
            place: Place::Category(place),
            servers: None,
            table,
            work: None,
        });
    }

    fn add_growth(&mut self, index: usize, percent: u64, windows: u64, table: TablePlan) {
        let records = self.size.record_count as u64;
        let window = (records * percent / 100 / windows).max(1);
        let workload = mixed(0.0, 0.0, 1.0);
        let work = WorkPlan {
            // The first window begins when every thread has inserted something.
            warm_up_count: (window / 10).max(1),
            window_counts: vec![window; windows as usize],
            ..self.work(workload, Distribution::Uniform)
        };
        let place = Place::Growth {
            percent_per_window: percent as f64 / windows as f64,
        };
        self.push(index, "inserts", place, table, work);
    }
}

/// Where a table grows for a while, and is then only read: with retraining and without, in this
/// order.
impl Maker<'_> {
    fn add_timeline(&mut self, index: usize, kind: &FigureKind, table: &TablePlan) {
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
            // A tree is never trained, and what trains for clients always does.
            let courses = if self.experiments.retraining && table.layer.is_retrained() {
                vec![retraining, None]
            } else {
                vec![None]
            };
            for retraining in courses {
                let retrains = retraining.is_some();
                let work = WorkPlan {
                    threads_per_node: *threads,
                    // The first window begins when every thread has inserted something.
                    warm_up_count: (window / 20).max(1),
                    window_counts: vec![window; *window_count as usize],
                    rest_window_counts: vec![window; *rest_window_count as usize],
                    retraining,
                    ..self.work(mixed(1.0 - share, 0.0, share), Distribution::Uniform)
                };
                let place = Place::Time { retrains };
                self.push(index, &chart, place, table.clone(), work);
            }
        }
    }
}

/// The tables of a figure that varies tables, each with what is written under it.
fn varied(kind: &FigureKind, table: &TablePlan) -> Vec<(String, TablePlan)> {
    let changed = |name: String, change: &dyn Fn(&mut TablePlan)| {
        let mut table = table.clone();
        change(&mut table);
        (name, table)
    };
    match kind {
        FigureKind::Keys { keys, .. } => {
            let tables = keys.iter();
            let tables = tables.map(|it| changed(it.to_string(), &|table| table.keys = it.clone()));
            tables.collect()
        }
        FigureKind::Epsilon { epsilon_keys, .. } => {
            let tables = epsilon_keys.iter();
            let tables =
                tables.map(|it| changed(it.to_string(), &|table| table.epsilon_keys = *it));
            tables.collect()
        }
        FigureKind::Slots { slots, .. } => {
            let tables = slots.iter();
            let tables = tables.map(|it| changed(it.to_string(), &|table| table.slots = *it));
            tables.collect()
        }
        _ => Vec::new(),
    }
}

pub(super) fn ycsb(letter: WorkloadLetter) -> String {
    format!("YCSB {letter}")
}

/// A count in thousands or millions, as a category's name.
fn thousands(count: usize) -> String {
    if count >= 1_000_000 {
        format!("{} M", count as f64 / 1e6)
    } else {
        format!("{} k", count as f64 / 1e3)
    }
}
