//! Runs the experiments of the figures on several threads.
//!
//! Each experiment is a world of its own on one thread, so the number of threads changes only the
//! wall time. Tables that several experiments use are loaded once.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::config::{Experiments, FigureKind, RunSize, Servers};
use super::files::{PAGE_NAME, chart_name, csv_name};
use super::points::{Point, points};
use crate::display;
use crate::experiment::ExperimentError;
use crate::experiment::image::{Image, SESSION_COUNT_MAX};
use crate::experiment::keys::{KeySource, Keys};
use crate::experiment::plan::{ExperimentTablePlan, WorkPlan};
use crate::experiment::run::{Measurement, run};
use crate::nic::model::NetworkModel;
use crate::nic::probe::{SelfCheck, self_check};
use crate::nic::profile::Profile;

/// Experiments, their size and their network, which fit each other.
#[derive(Clone, Debug)]
pub struct Suite {
    experiments: Experiments,
    size_name: &'static str,
    size: RunSize,
    profile: Profile,
    points: Vec<Point>,
    /// Client threads for which the tables have sessions.
    thread_count: usize,
}

/// Errors of experiments that cannot run on a testbed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SuiteError {
    /// A figure requests more threads than the testbed's machines run.
    #[error(
        "threads_per_node of figure '{figure}' = {asked}: a compute node of profile '{profile}' \
         has {there} (compute.threads_per_node); use fewer, or another profile"
    )]
    MoreThreadsThanThere {
        /// Name of the figure.
        figure: String,
        /// Threads that it requests.
        asked: usize,
        /// Name of the testbed.
        profile: String,
        /// Threads of a compute node of the testbed.
        there: usize,
    },
    /// A memory node does not have sessions for all client threads.
    #[error(
        "profile '{profile}' has {machine_count} compute nodes of {threads_per_node} threads, and \
         a memory node has sessions for {SESSION_COUNT_MAX} threads in total; use fewer of either \
         (compute.node_count, compute.threads_per_node)"
    )]
    TooManySessions {
        /// Name of the testbed.
        profile: String,
        /// Number of its compute nodes.
        machine_count: usize,
        /// Threads of each compute node.
        threads_per_node: usize,
    },
    /// A file of keys cannot be read, or has too few.
    #[error("{origin}: {key} = '{keys}': {what}")]
    BadKeys {
        /// File of experiments.
        origin: String,
        /// Key in this file.
        key: String,
        /// Value of the key.
        keys: String,
        /// Description of the error.
        what: String,
    },
    /// A figure varies the memory nodes, on a testbed whose machines are compute and memory nodes
    /// at once.
    #[error(
        "servers of figure '{figure}': the compute nodes of profile '{profile}' are its memory \
         nodes (shared_machines), so their numbers cannot differ; use another profile"
    )]
    SharedServers {
        /// Name of the figure.
        figure: String,
        /// Name of the testbed.
        profile: String,
    },
    /// Two charts would have the same file.
    #[error(
        "figures '{}': two of their files would have the name '{name}'; rename one",
        .figures.join("' and '")
    )]
    SameFile {
        /// Names of the figures.
        figures: Vec<String>,
        /// Name of the file.
        name: String,
    },
}

/// Error of an experiment.
#[derive(Debug, thiserror::Error)]
#[error("figure '{figure}', {layer}: {source}")]
pub struct MeasureError {
    /// Name of the figure.
    pub figure: String,
    /// Search layer of the experiment.
    pub layer: &'static str,
    /// Cause of the error.
    pub source: ExperimentError,
}

/// Result of one experiment.
#[derive(Clone, Debug)]
pub(super) struct PointResult {
    pub(super) point: Point,
    pub(super) leaf_count: u64,
    pub(super) model_count: u64,
    pub(super) metadata_bytes: u64,
    pub(super) windows: Vec<Measurement>,
}

/// Results of all experiments.
#[derive(Clone, Debug)]
pub struct SuiteResults {
    pub(super) results: Vec<PointResult>,
    pub(super) self_check: SelfCheck,
}

impl SuiteResults {
    /// Returns the number of experiments.
    pub fn point_count(&self) -> usize {
        self.results.len()
    }

    /// Returns how close the network's rates and latencies are to published ones.
    pub fn self_check(&self) -> &SelfCheck {
        &self.self_check
    }
}

/// Points that use the same tables.
struct Group {
    table: ExperimentTablePlan,
    servers: Option<Servers>,
    left: AtomicUsize,
    image: Mutex<Option<Arc<Image>>>,
}

impl Suite {
    /// Prepares experiments of a size, given by its name, on a testbed. Reads files of keys once to
    /// check them.
    ///
    /// # Errors
    /// The experiments do not fit: the testbed has too few threads for a figure, or too many for a
    /// memory node; two figures would write the same file; or a file of keys is invalid.
    pub fn new(
        experiments: Experiments,
        size_name: &'static str,
        size: RunSize,
        profile: Profile,
    ) -> Result<Self, SuiteError> {
        let compute = &profile.model.compute;
        let machine_count = compute.node_count.value as usize;
        let threads_per_node = compute.threads_per_node.value as usize;
        let name = || profile.model.name.clone();
        for figure in &experiments.figure {
            let has_servers = matches!(figure.kind, FigureKind::Servers { .. });
            if has_servers && profile.model.shared_machines.is_some() {
                return Err(SuiteError::SharedServers {
                    figure: figure.id.clone(),
                    profile: name(),
                });
            }
            let asked = figure.threads_max();
            if asked > threads_per_node {
                return Err(SuiteError::MoreThreadsThanThere {
                    figure: figure.id.clone(),
                    asked,
                    profile: name(),
                    there: threads_per_node,
                });
            }
        }
        let thread_count = machine_count * threads_per_node;
        if thread_count > SESSION_COUNT_MAX {
            return Err(SuiteError::TooManySessions {
                profile: name(),
                machine_count,
                threads_per_node,
            });
        }
        let suite = Self {
            points: points(&experiments, size, &profile.model),
            experiments,
            size_name,
            size,
            profile,
            thread_count,
        };
        suite.check_files()?;
        suite.check_keys()?;
        Ok(suite)
    }

    /// Reads each file of keys, for as many keys as the largest table takes from it.
    fn check_keys(&self) -> Result<(), SuiteError> {
        let mut known: Vec<(&KeySource, &Point)> = Vec::new();
        for point in self
            .points
            .iter()
            .filter(|it| it.table.keys.file().is_some())
        {
            let wanted = |point: &Point| point.table.record_count + point.table.insert_count;
            match known
                .iter_mut()
                .find(|(keys, _)| **keys == point.table.keys)
            {
                Some((_, largest)) if wanted(largest) >= wanted(point) => {}
                Some((_, largest)) => *largest = point,
                None => known.push((&point.table.keys, point)),
            }
        }
        for (keys, point) in known {
            let table = &point.table;
            let counts = (table.record_count, table.insert_count);
            let Err(error) = Keys::generate(keys, counts.0, counts.1, table.seed) else {
                continue;
            };
            let figure = &self.experiments.figure[point.figure_index];
            let key = figure.keys_key();
            let cause = error.source().map(|it| format!(": {it}"));
            return Err(SuiteError::BadKeys {
                origin: self.experiments.origin.clone(),
                key: key.unwrap_or_else(|| "defaults.keys".to_owned()),
                keys: display::text(&keys.to_string()),
                what: format!("{error}{}", cause.unwrap_or_default()),
            });
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), SuiteError> {
        let files = self.files();
        for (index, (figure, name)) in files.iter().enumerate() {
            let before = files[..index].iter();
            let mut same = before.filter(|(_, other)| other.eq_ignore_ascii_case(name));
            if let Some((other, _)) = same.next() {
                return Err(SuiteError::SameFile {
                    figures: vec![(*other).to_owned(), (*figure).to_owned()],
                    name: name.clone(),
                });
            }
        }
        Ok(())
    }

    /// Returns the files to write except the page, each with its figure's id.
    fn files(&self) -> Vec<(&str, String)> {
        let mut files = vec![("", PAGE_NAME.to_owned())];
        for (index, figure) in self.experiments.figure.iter().enumerate() {
            let id = figure.id.as_str();
            files.push((id, csv_name(id)));
            let of_figure = self.points.iter().filter(|it| it.figure_index == index);
            let mut charts: Vec<&str> = of_figure.map(|it| it.chart.as_str()).collect();
            // Points of both layers are in one chart.
            let mut known = BTreeSet::new();
            charts.retain(|chart| known.insert(*chart));
            files.extend(charts.iter().map(|chart| (id, chart_name(id, chart))));
        }
        files
    }

    /// Returns the names of the files to write.
    pub fn file_names(&self) -> Vec<String> {
        let files = self.files().into_iter();
        files.map(|(_, name)| name).collect()
    }

    /// Returns the network.
    pub fn model(&self) -> &NetworkModel {
        &self.profile.model
    }

    /// Returns the network with other memory nodes.
    fn model_of(&self, servers: Option<Servers>) -> NetworkModel {
        let mut model = self.model().clone();
        if let Some(servers) = servers {
            servers.put_into(&mut model);
        }
        model
    }

    /// Returns the network with its origin.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the experiments.
    pub fn experiments(&self) -> &Experiments {
        &self.experiments
    }

    /// Returns the size with its name.
    pub fn size(&self) -> (&'static str, RunSize) {
        (self.size_name, self.size)
    }

    /// Returns whether the network equals the testbed of the figures' paper in every number. If
    /// not, the paper's numbers are from different machines.
    pub fn is_papers_testbed(&self) -> bool {
        self.profile.is_built_in(&self.experiments.paper_profile)
    }

    /// Returns the total work in the unit of progress: operations and loaded records.
    pub fn unit_count(&self) -> u64 {
        let to_run = self.to_run();
        let points = self.points.iter().zip(to_run).enumerate();
        let own = points.filter(|(index, (_, of))| index == of);
        own.map(|(_, (point, _))| units(point)).sum()
    }

    /// Returns, for each point, the first point with the same experiment, which is run for both.
    fn to_run(&self) -> Vec<usize> {
        let points = self.points.iter().enumerate();
        let first = points.map(|(index, point)| {
            let mut before = self.points[..index].iter();
            let of = |point: &Point| (point.table.clone(), point.work.clone(), point.servers);
            let same = before.position(|it| of(it) == of(point));
            same.unwrap_or(index)
        });
        first.collect()
    }

    /// Runs all experiments. Any thread calls `progress` with the number of units done since the
    /// last call.
    ///
    /// # Errors
    /// An experiment failed, for example because a key was not found. The others are cancelled.
    pub fn measure(
        &self,
        thread_count: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<SuiteResults, MeasureError> {
        let points = &self.points;
        let to_run = self.to_run();
        let mut groups: Vec<Group> = Vec::new();
        let mut jobs: Vec<(usize, usize)> = Vec::with_capacity(points.len());
        for (point_index, point) in points.iter().enumerate() {
            if to_run[point_index] != point_index {
                continue;
            }
            let known = groups
                .iter()
                .position(|group| (&group.table, group.servers) == (&point.table, point.servers));
            let group_index = known.unwrap_or_else(|| {
                groups.push(Group {
                    table: point.table.clone(),
                    servers: point.servers,
                    left: AtomicUsize::new(0),
                    image: Mutex::default(),
                });
                groups.len() - 1
            });
            groups[group_index].left.fetch_add(1, Ordering::Relaxed);
            jobs.push((group_index, point_index));
        }
        // Group by group, so that few tables are in memory at a time.
        jobs.sort_unstable();
        let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let results = Mutex::new(Vec::with_capacity(points.len()));
        std::thread::scope(|scope| {
            for _ in 0..thread_count.clamp(1, jobs.len().max(1)) {
                scope.spawn(|| {
                    while !has_failed.load(Ordering::Relaxed) {
                        let job = jobs.get(next.fetch_add(1, Ordering::Relaxed));
                        let Some((group, point)) = job else { return };
                        let result = self.measure_point(&groups[*group], &points[*point]);
                        has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
                        progress(units(&points[*point]));
                        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                        results.push((*point, result));
                    }
                });
            }
        });
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        let own = results
            .into_iter()
            .map(|(index, result)| Ok((index, result?)));
        let own = own.collect::<Result<BTreeMap<usize, PointResult>, MeasureError>>()?;
        let results = points.iter().zip(to_run).map(|(point, of)| PointResult {
            point: point.clone(),
            ..own[&of].clone()
        });
        let results = results.collect();
        let self_check = self_check(self.model(), &|| {});
        Ok(SuiteResults {
            results,
            self_check,
        })
    }

    fn measure_point(&self, group: &Group, point: &Point) -> Result<PointResult, MeasureError> {
        let failed = |source: ExperimentError| MeasureError {
            figure: self.experiments.figure[point.figure_index].id.clone(),
            layer: point.layer.name(),
            source,
        };
        let image = self.image(group).map_err(failed)?;
        let windows = match &point.work {
            Some(work) => run(&image, work, &self.model_of(point.servers)).map_err(failed)?,
            None => Vec::new(),
        };
        let result = PointResult {
            point: point.clone(),
            leaf_count: image.leaf_count(),
            model_count: image.model_count() as u64,
            metadata_bytes: image.metadata_bytes(),
            windows,
        };
        if group.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            group.lock().take();
        }
        Ok(result)
    }

    /// Returns the group's tables; the first caller loads them, and the others wait.
    fn image(&self, group: &Group) -> Result<Arc<Image>, ExperimentError> {
        let mut image = group.lock();
        if let Some(image) = &*image {
            return Ok(Arc::clone(image));
        }
        let model = self.model_of(group.servers);
        let memory_count = model.memory.node_count.value as usize;
        let loaded = Image::load(&group.table, memory_count, self.thread_count)?;
        Ok(Arc::clone(image.insert(Arc::new(loaded))))
    }
}

impl Group {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Image>>> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the size of a point for progress: loading a record takes a tenth of an operation's time.
fn units(point: &Point) -> u64 {
    let operations = point.work.as_ref().map_or(0, WorkPlan::operation_count);
    operations + point.table.record_count as u64 / 10
}
