//! The experiments of the figures are run, on several threads.
//!
//! Each is a world of its own on one thread, so that how many threads there are changes nothing but
//! the wall time. Tables that several experiments use are loaded once.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::config::{Experiments, FigureKind, RunSize, Servers};
use super::points::{Point, points};
use super::write::{PAGE_NAME, chart_name, csv_name};
use crate::experiment::ExperimentError;
use crate::experiment::image::{Image, SESSION_COUNT_MAX};
use crate::experiment::keys::{KeySource, Keys};
use crate::experiment::plan::{TablePlan, WorkPlan};
use crate::experiment::run::{Measurement, run};
use crate::nic::model::NetworkModel;
use crate::nic::probe::{SelfCheck, self_check};
use crate::nic::profile::Profile;
use crate::shown;

/// Which experiments, how large, over which network; they fit each other.
#[derive(Clone, Debug)]
pub struct Suite {
    experiments: Experiments,
    size_name: &'static str,
    size: RunSize,
    profile: Profile,
    points: Vec<Point>,
    /// Client threads that the tables have sessions for.
    thread_count: usize,
}

/// Why experiments cannot run on a testbed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SuiteError {
    /// A figure asks for more threads than the testbed's machines run.
    #[error(
        "threads_per_node of figure '{figure}' = {asked}: a compute node of profile '{profile}' \
         has {there} (compute.threads_per_node); take fewer, or another profile"
    )]
    MoreThreadsThanThere {
        /// Which figure.
        figure: String,
        /// Threads that it asks for.
        asked: usize,
        /// On which testbed.
        profile: String,
        /// Threads of a compute node there.
        there: usize,
    },
    /// A memory node has no sessions for so many.
    #[error(
        "profile '{profile}' has {machine_count} compute nodes of {threads_per_node} threads, and \
         a memory node has sessions for {SESSION_COUNT_MAX} threads in all; take fewer of either \
         (compute.node_count, compute.threads_per_node)"
    )]
    TooManySessions {
        /// Which testbed.
        profile: String,
        /// Its compute nodes.
        machine_count: usize,
        /// Threads of each.
        threads_per_node: usize,
    },
    /// A file of keys cannot be read, or has too few.
    #[error("{origin}: {key} = '{keys}': {what}")]
    BadKeys {
        /// The file of experiments.
        origin: String,
        /// The key in it.
        key: String,
        /// What it says.
        keys: String,
        /// What is wrong with that.
        what: String,
    },
    /// A figure of other memory nodes, on a testbed whose machines are both.
    #[error(
        "servers of figure '{figure}': the compute nodes of profile '{profile}' are its memory \
         nodes (shared_machines), and there are as many of either; take another profile"
    )]
    SharedServers {
        /// Which figure.
        figure: String,
        /// On which testbed.
        profile: String,
    },
    /// Two charts would be one file.
    #[error(
        "figures '{}': two of their files would be called {name}; rename one",
        .figures.join("' and '")
    )]
    SameFile {
        /// Which figures.
        figures: Vec<String>,
        /// The file.
        name: String,
    },
}

/// Why a figure cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("figure '{figure}', {layer}: {source}")]
pub struct MeasureError {
    /// Which figure.
    pub figure: String,
    /// With which layer.
    pub layer: &'static str,
    /// Why.
    pub source: ExperimentError,
}

/// What one experiment found.
#[derive(Clone, Debug)]
pub(super) struct PointResult {
    pub(super) point: Point,
    pub(super) leaf_count: u64,
    pub(super) model_count: u64,
    pub(super) metadata_bytes: u64,
    pub(super) windows: Vec<Measurement>,
}

/// What all experiments found.
#[derive(Clone, Debug)]
pub struct Measured {
    pub(super) results: Vec<PointResult>,
    pub(super) self_check: SelfCheck,
}

impl Measured {
    /// How many experiments there were.
    pub fn point_count(&self) -> usize {
        self.results.len()
    }

    /// How near the network's rates and latencies are to published ones.
    pub fn self_check(&self) -> &SelfCheck {
        &self.self_check
    }
}

/// Points that use the same tables.
struct Group {
    table: TablePlan,
    servers: Option<Servers>,
    left: AtomicUsize,
    image: Mutex<Option<Arc<Image>>>,
}

impl Suite {
    /// Experiments of some size, by its name, on a testbed. Files of keys are read once to see
    /// whether they will do.
    ///
    /// # Errors
    /// They do not fit: the testbed has too few threads for a figure, or too many for a memory
    /// node; two figures would write the same file; or a file of keys will not do.
    pub fn new(
        experiments: Experiments,
        (size_name, size): (&'static str, RunSize),
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

    /// Reads each file of keys, for as many as the largest table of it takes.
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
                keys: shown::text(&keys.to_string()),
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

    /// The files that are written of it, each with its figure's id; the page has none.
    fn files(&self) -> Vec<(&str, String)> {
        let mut files = vec![("", PAGE_NAME.to_owned())];
        for (index, figure) in self.experiments.figure.iter().enumerate() {
            let id = figure.id.as_str();
            files.push((id, csv_name(id)));
            let of_figure = self.points.iter().filter(|it| it.figure_index == index);
            let mut charts: Vec<&str> = of_figure.map(|it| it.chart.as_str()).collect();
            // Both layers' points stand in one chart.
            let mut known = BTreeSet::new();
            charts.retain(|chart| known.insert(*chart));
            files.extend(charts.iter().map(|chart| (id, chart_name(id, chart))));
        }
        files
    }

    /// The names of the files that are written of it.
    pub fn file_names(&self) -> Vec<String> {
        let files = self.files().into_iter();
        files.map(|(_, name)| name).collect()
    }

    /// The network.
    pub fn model(&self) -> &NetworkModel {
        &self.profile.model
    }

    /// The same with other memory nodes.
    fn model_of(&self, servers: Option<Servers>) -> NetworkModel {
        let mut model = self.model().clone();
        if let Some(servers) = servers {
            servers.put_into(&mut model);
        }
        model
    }

    /// The network, and where it was read from.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The experiments.
    pub fn experiments(&self) -> &Experiments {
        &self.experiments
    }

    /// Their size, with its name.
    pub fn size(&self) -> (&'static str, RunSize) {
        (self.size_name, self.size)
    }

    /// Whether the network is the testbed of the paper whose figures these are, in every number:
    /// otherwise the paper's numbers are not of the same machines.
    pub fn is_papers_testbed(&self) -> bool {
        self.profile.is_built_in(&self.experiments.paper_profile)
    }

    /// What there is to do, in the unit that progress is told in: operations and loaded records.
    pub fn unit_count(&self) -> u64 {
        let to_run = self.to_run();
        let points = self.points.iter().zip(to_run).enumerate();
        let own = points.filter(|(index, (_, of))| index == of);
        own.map(|(_, (point, _))| units(point)).sum()
    }

    /// For each point the first one that is the same experiment, which is run for both.
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

    /// Runs everything. `progress` is told, from any thread, how many more units are done.
    ///
    /// # Errors
    /// An experiment failed: a key was not found, say. The others are given up then.
    pub fn measure(
        &self,
        thread_count: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Measured, MeasureError> {
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
        Ok(Measured {
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

    /// The group's tables; whoever comes first loads them, and the others wait.
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

/// How much a point is, for progress: a loaded record takes a tenth of an operation's time.
fn units(point: &Point) -> u64 {
    let operations = point.work.as_ref().map_or(0, WorkPlan::operation_count);
    operations + point.table.record_count as u64 / 10
}
