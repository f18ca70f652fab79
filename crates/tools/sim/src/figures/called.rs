//! Figures of the work that memory nodes do for clients: models that they train, calls that they
//! answer, and the number of nodes.

use farleaf_bench::workload::{OperationKind, WorkloadLetter};

use super::config::{FigureKind, Servers};
use super::points::{ChartPosition, PointBuilder, ycsb};
use crate::experiment::plan::{ExperimentTablePlan, WorkPlan, mixed};

impl PointBuilder<'_> {
    /// Adds the figures of how models of memory nodes are used, and of production-like mixes.
    pub(super) fn add_called(&mut self, kind: &FigureKind, table: &ExperimentTablePlan) {
        match kind {
            FigureKind::ModelCaches { caches, workloads } => {
                for letter in workloads {
                    for cache in caches {
                        let mut work = self.letter(*letter);
                        work.models.cache = *cache;
                        let place = ChartPosition::Category(cache.to_string());
                        self.push(&ycsb(*letter), place, table.clone(), work);
                    }
                }
            }
            FigureKind::Speculation {
                workload,
                fill_percent,
                distributions,
            } => {
                let table = ExperimentTablePlan {
                    fill_percent: *fill_percent,
                    ..table.clone()
                };
                for distribution in distributions {
                    for is_speculative in [true, false] {
                        let mut work = self.letter(*workload);
                        work.distribution = Some(*distribution);
                        work.models.is_speculative = is_speculative;
                        let place = ChartPosition::Category(miss_policy(is_speculative).to_owned());
                        self.push(distribution.name(), place, table.clone(), work);
                    }
                }
            }
            FigureKind::Mixes {
                shares,
                distributions,
            } => {
                for distribution in distributions {
                    for share in shares {
                        let [read, update, insert] = share.map(|it| f64::from(it) / 100.0);
                        let work = self.work(mixed(read, update, insert), *distribution);
                        let [read, update, insert] = share;
                        let place = ChartPosition::Category(format!("{read}:{update}:{insert}"));
                        self.push(distribution.name(), place, table.clone(), work);
                    }
                }
            }
            FigureKind::Training { .. } => self.add_training(kind, table),
            _ => {}
        }
    }

    /// Adds the figures of training while leaves split.
    fn add_training(&mut self, kind: &FigureKind, table: &ExperimentTablePlan) {
        let FigureKind::Training {
            train_thread_counts,
            fill_percent,
            insert_percent,
            distributions,
            speculation,
            ..
        } = kind
        else {
            return;
        };
        let table = ExperimentTablePlan {
            fill_percent: *fill_percent,
            ..table.clone()
        };
        let base = self.letter(WorkloadLetter::D);
        let share = base.workload.mix.share(OperationKind::Insert);
        let inserts = self.size.record_count as f64 * *insert_percent as f64 / 100.0;
        let half = (inserts / share / 2.0).ceil().max(1.0) as u64;
        for distribution in distributions {
            for is_speculative in speculation {
                let chart = format!("{}, {}", distribution.name(), miss_policy(*is_speculative));
                for train_thread_count in train_thread_counts {
                    let mut work = WorkPlan {
                        distribution: Some(*distribution),
                        warm_up_count: half,
                        window_counts: vec![half],
                        ..base.clone()
                    };
                    work.models.is_speculative = *is_speculative;
                    work.models.train_thread_count = *train_thread_count;
                    let place = ChartPosition::Number(*train_thread_count as f64);
                    self.push(&chart, place, table.clone(), work);
                }
            }
        }
    }

    /// Adds the same work on other memory nodes.
    pub(super) fn add_servers(
        &mut self,
        workloads: &[WorkloadLetter],
        servers: &[Servers],
        table: &ExperimentTablePlan,
    ) {
        for letter in workloads {
            for of in servers {
                let (place, work) = (
                    ChartPosition::Number(of.nic_count().into()),
                    self.letter(*letter),
                );
                self.push(&ycsb(*letter), place, table.clone(), work);
                let point = self.points.last_mut().expect("pushed");
                point.servers = Some(*of).filter(|of| *of != self.servers);
            }
        }
    }
}

/// Returns the name of the method that deals with a wrong model.
fn miss_policy(is_speculative: bool) -> &'static str {
    if is_speculative {
        "one link first"
    } else {
        "asked at once"
    }
}
