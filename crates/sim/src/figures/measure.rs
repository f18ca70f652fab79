//! The experiments of the figures are run, on several threads.
//!
//! Each is a world of its own on one thread, so that how many threads there are changes nothing but
//! the wall time. Tables that several experiments use are loaded once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::config::{Experiments, Figure, RunSize};
use super::points::{Point, points};
use crate::experiment::ExperimentError;
use crate::experiment::image::Image;
use crate::experiment::plan::{TablePlan, WorkPlan};
use crate::experiment::run::{Measurement, run};
use crate::nic::model::NetworkModel;

/// Which experiments, how large, over which network.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The experiments.
    pub experiments: Experiments,
    /// Their size's name: quick or full.
    pub size_name: &'static str,
    /// Their size.
    pub size: RunSize,
    /// The network.
    pub model: NetworkModel,
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
}

impl Measured {
    /// How many experiments there were.
    pub fn point_count(&self) -> usize {
        self.results.len()
    }
}

/// Points that use the same tables.
struct Group {
    table: TablePlan,
    left: AtomicUsize,
    image: Mutex<Option<Arc<Image>>>,
}

impl Suite {
    /// The network.
    pub fn model(&self) -> &NetworkModel {
        &self.model
    }

    /// What there is to do, in the unit that progress is told in: operations and loaded records.
    pub fn unit_count(&self) -> u64 {
        let points = points(&self.experiments, self.size, &self.model);
        points.iter().map(units).sum()
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
        let points = points(&self.experiments, self.size, &self.model);
        let mut groups: Vec<Group> = Vec::new();
        let mut jobs: Vec<(usize, usize)> = Vec::with_capacity(points.len());
        for (point_index, point) in points.iter().enumerate() {
            let known = groups.iter().position(|group| group.table == point.table);
            let group_index = known.unwrap_or_else(|| {
                groups.push(Group {
                    table: point.table.clone(),
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
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_unstable_by_key(|(point_index, _)| *point_index);
        let results = results.into_iter().map(|(_, result)| result);
        let results = results.collect::<Result<Vec<PointResult>, MeasureError>>()?;
        Ok(Measured { results })
    }

    fn measure_point(&self, group: &Group, point: &Point) -> Result<PointResult, MeasureError> {
        let failed = |source: ExperimentError| MeasureError {
            figure: self.experiments.figure[point.figure_index].id.clone(),
            layer: point.layer.name(),
            source,
        };
        let image = self.image(group).map_err(failed)?;
        let windows = match &point.work {
            Some(work) => run(&image, work, &self.model).map_err(failed)?,
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
        let memory_count = self.model.memory.node_count.value as usize;
        let machine_count = self.model.compute.node_count.value as usize;
        let wanted = &self.experiments;
        let of_figures = wanted.figure.iter().map(Figure::threads_max);
        let threads = of_figures.max().unwrap_or(0);
        let threads = threads.max(wanted.defaults.threads_per_node) * machine_count;
        let loaded = Image::load(&group.table, memory_count, threads.min(1000))?;
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
