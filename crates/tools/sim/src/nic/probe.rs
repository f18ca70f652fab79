//! Self-check of the model: raw READ and CAS rates, compared with published ones.
//!
//! All clients of the testbed keep one memory node busy with batches of one verb, without pauses.
//! The narrowest stage limits the resulting rate: the pipeline for small READs, the wire for large
//! ones, the locking table for CAS on one word.

use core::cell::Cell;

use farleaf_base::{NodeId, WordAddr};
use farleaf_fabric::{Batch, Endpoint};

use super::model::{Measure, NetworkModel, PublishedLatency, PublishedRate};
use super::network::Network;
pub use super::published::READ_SIZES_BYTES;
use crate::fabric::SharedWorld;
use crate::fabric::endpoint::SimEndpoint;
use crate::fabric::executor::{ExecutorOutcome, Tasks};
use crate::fabric::world::Nanos;
use farleaf_base::random::Random;

/// Greatest permitted deviation of the model from published numbers, in percent.
pub const TOLERANCE_PERCENT: f64 = 15.0;

/// Batches that one thread has in flight.
const IN_FLIGHT_COUNT: usize = 16;
/// Maximal number of batches that all threads have in flight together, if that leaves each thread
/// one. Many times what keeps any NIC busy; more would only take time.
const IN_FLIGHT_COUNT_OF_ALL: usize = 8192;
/// Words of the accessed memory: more than one NIC has locking slots.
const REGION_WORD_COUNT: usize = 1 << 16;
/// Numbers of verbs: before the measured ones, and measured.
const VERB_COUNTS: (u64, u64) = (20_000, 60_000);

/// Probe: one measured rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Measure of the probe.
    pub measure: Measure,
    /// Size of each READ; 8 for CAS.
    pub size_bytes: u64,
}

/// Result of a probe.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeResult {
    /// Probe that was made.
    pub probe: Probe,
    /// Verbs per second of one memory node, with all clients.
    pub rate_per_s: f64,
    /// Time of one verb without load, from before the post until it is polled.
    pub unloaded_ns: Nanos,
    /// Published rate, if any.
    pub published: Option<PublishedRate>,
    /// Published latency of one verb, if any.
    pub published_latency: Option<PublishedLatency>,
}

impl ProbeResult {
    /// Returns the ratio of the model's rate to the published one.
    pub fn ratio(&self) -> Option<f64> {
        let published = self.published.as_ref()?;
        Some(self.rate_per_s / published.rate_per_s)
    }

    /// Returns the ratio of the model's latency to the published one.
    pub fn latency_ratio(&self) -> Option<f64> {
        let published = self.published_latency.as_ref()?;
        Some(self.unloaded_ns as f64 / published.latency_ns)
    }

    /// Returns whether rate and latency are within [`TOLERANCE_PERCENT`] of published numbers, if
    /// there are any.
    pub fn is_near(&self) -> bool {
        let ratios = [self.ratio(), self.latency_ratio()];
        let mut ratios = ratios.into_iter().flatten();
        ratios.all(|ratio| (ratio - 1.0).abs() * 100.0 <= TOLERANCE_PERCENT)
    }
}

/// Verdict of the self-check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All published numbers are met within [`TOLERANCE_PERCENT`].
    Near,
    /// A published number is not met.
    Far,
    /// No numbers are published for such a testbed, so nothing is proven.
    NothingToCompare,
}

/// Results of the self-check.
#[derive(Clone, Debug, PartialEq)]
pub struct SelfCheck {
    /// Results of the probes.
    pub results: Vec<ProbeResult>,
}

impl SelfCheck {
    /// Returns the verdict.
    pub fn verdict(&self) -> Verdict {
        let is_compared =
            |it: &ProbeResult| it.published.is_some() || it.published_latency.is_some();
        if !self.results.iter().any(is_compared) {
            Verdict::NothingToCompare
        } else if self.results.iter().all(ProbeResult::is_near) {
            Verdict::Near
        } else {
            Verdict::Far
        }
    }

    /// Returns the verdict in two or three sentences.
    pub fn summary(&self) -> String {
        let rates = self.results.iter().filter_map(|it| it.published.as_ref());
        let latencies = || {
            self.results
                .iter()
                .filter_map(|it| it.published_latency.as_ref())
        };
        let of_rates = rates.map(|it| it.is_fitted);
        let is_fitted: Vec<bool> = of_rates.chain(latencies().map(|it| it.is_fitted)).collect();
        let fitted_count = is_fitted.iter().filter(|it| **it).count();
        let verdict = match self.verdict() {
            Verdict::NothingToCompare => {
                return "Nothing to compare: no figure is published of this testbed, and the model \
                        is not checked by anything."
                    .to_owned();
            }
            Verdict::Near => format!("All are within {TOLERANCE_PERCENT} % of what is published"),
            Verdict::Far => {
                format!("NOT all are within {TOLERANCE_PERCENT} % of what is published")
            }
        };
        let of_latency = if latencies().next().is_some() {
            ""
        } else {
            " No base latency is published of this testbed."
        };
        format!(
            "{verdict}: {fitted_count} figures that the parameters were set by (fitted), and {} \
             that check them.{of_latency}",
            is_fitted.len() - fitted_count
        )
    }
}

/// Number of probes of a self-check.
pub const PROBE_COUNT: usize = READ_SIZES_BYTES.len() + 2;

/// Measures READs of all sizes, and CAS on spread words and on one; takes some seconds. Calls
/// `progress` for each probe that is done.
pub fn self_check(model: &NetworkModel, progress: &dyn Fn()) -> SelfCheck {
    // Published numbers are of NICs with a wire between them.
    let model = &NetworkModel {
        shared_machines: None,
        ..model.clone()
    };
    let reads = READ_SIZES_BYTES.into_iter().map(|size_bytes| Probe {
        measure: Measure::Read,
        size_bytes,
    });
    let atomics = [Measure::CasSpread, Measure::CasOneWord].map(|measure| Probe {
        measure,
        size_bytes: 8,
    });
    let probes = reads.chain(atomics).map(|probe| {
        let of_probe =
            |measure, size_bytes| (measure, size_bytes) == (probe.measure, probe.size_bytes);
        let mut rates = model.published.iter();
        let mut latencies = model.published_latency.iter();
        let (rate_per_s, unloaded_ns) = (rate(model, probe), unloaded(model, probe));
        progress();
        ProbeResult {
            probe,
            rate_per_s,
            unloaded_ns,
            published: rates
                .find(|it| of_probe(it.measure, it.size_bytes))
                .cloned(),
            published_latency: latencies
                .find(|it| of_probe(it.measure, it.size_bytes))
                .cloned(),
        }
    });
    SelfCheck {
        results: probes.collect(),
    }
}

/// Counters that the verbs of a run share.
struct VerbCounters {
    done: Cell<u64>,
    started_at: Cell<Nanos>,
    ended_at: Cell<Nanos>,
}

/// Returns the verbs per second of a probe.
fn rate(model: &NetworkModel, probe: Probe) -> f64 {
    let world = world(model);
    let tally = VerbCounters {
        done: Cell::new(0),
        started_at: Cell::new(0),
        ended_at: Cell::new(0),
    };
    let tasks = Tasks::new(&world);
    let machine_count = model.compute.node_count.value as usize;
    let thread_count = model.compute.threads_per_node.value as usize;
    // The NICs of a memory node are not aware of each other's atomics. Each word therefore belongs
    // to one NIC, and only the threads that use the first one access it.
    let stride = match probe.measure {
        Measure::CasOneWord => model.memory.nics_per_node.value as usize,
        Measure::Read | Measure::CasSpread => 1,
    };
    let all_count = machine_count * thread_count.div_ceil(stride);
    let in_flight_count = (IN_FLIGHT_COUNT_OF_ALL / all_count).clamp(1, IN_FLIGHT_COUNT);
    for machine in 0..machine_count {
        for thread in (0..thread_count).step_by(stride) {
            for turn in 0..in_flight_count {
                let endpoint = SimEndpoint::new(&world);
                world
                    .modelled()
                    .machines
                    .place(endpoint.client(), machine, thread);
                let number = (machine * thread_count + thread) * in_flight_count + turn;
                tasks.spawn(ask(&world, endpoint, probe, number as u64, &tally));
            }
        }
    }
    let ended = tasks.run(u64::MAX);
    assert_eq!(ended, ExecutorOutcome::Done, "the verbs are counted");
    let duration_ns = (tally.ended_at.get() - tally.started_at.get()).max(1);
    VERB_COUNTS.1 as f64 * 1e9 / duration_ns as f64
}

fn world(model: &NetworkModel) -> SharedWorld {
    let memories = vec![vec![0; REGION_WORD_COUNT]; model.memory.node_count.value as usize];
    SharedWorld::with_machines(memories, Network::new(model), Random::new(1))
}

async fn ask(
    world: &SharedWorld,
    endpoint: SimEndpoint,
    probe: Probe,
    number: u64,
    tally: &VerbCounters,
) {
    let mut batch = Batch::new();
    let mut random = Random::new(number);
    while tally.done.get() < VERB_COUNTS.0 + VERB_COUNTS.1 {
        batch.clear();
        add(&mut batch, probe, &mut random);
        if endpoint.execute(&mut batch).await.is_err() {
            return;
        }
        tally.done.set(tally.done.get() + 1);
        if tally.done.get() == VERB_COUNTS.0 {
            tally.started_at.set(world.borrow().now());
        }
        if tally.done.get() == VERB_COUNTS.0 + VERB_COUNTS.1 {
            tally.ended_at.set(world.borrow().now());
        }
    }
}

fn add(batch: &mut Batch, probe: Probe, random: &mut Random) {
    let size_words = probe.size_bytes.div_ceil(8);
    let at = |word: u64| WordAddr::new(NodeId(0), word);
    let anywhere = random.below(REGION_WORD_COUNT as u64 - size_words);
    match probe.measure {
        Measure::Read => {
            batch.read(at(anywhere), size_words as usize);
        }
        Measure::CasSpread => {
            batch.compare_swap(at(anywhere), 0, 0);
        }
        Measure::CasOneWord => {
            batch.compare_swap(at(0), 0, 0);
        }
    }
}

/// Returns the time of one verb in an idle network.
pub fn unloaded(model: &NetworkModel, probe: Probe) -> Nanos {
    let world = world(model);
    let took = Cell::new(0);
    let endpoint = SimEndpoint::new(&world);
    let tasks = Tasks::new(&world);
    tasks.spawn(async {
        let mut batch = Batch::new();
        add(&mut batch, probe, &mut Random::new(1));
        let started_at = world.borrow().now();
        if endpoint.execute(&mut batch).await.is_ok() {
            took.set(world.borrow().now() - started_at);
        }
    });
    tasks.run(u64::MAX);
    drop(tasks);
    took.get()
}
