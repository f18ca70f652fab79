//! Comparison: loads all maps and runs the rounds, interleaved.
//!
//! All maps are loaded at once, and in every round all of them execute the same work one after the
//! other. Other work on the machine thus affects all alike.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_bench::dataset::{Dataset, DatasetError, generate};
use thiserror::Error;

use crate::floor::{Floor, FloorManner, FloorMemory};
use crate::peer::{PeerError, Work};
use crate::peers::{PeerName, StringOptions};
use crate::records::{Records, StringRecords, WordRecords};
use crate::report::{Figure, LoadTime, SkippedPeer, SubjectName};
use crate::requests::Requests;
use crate::subject::{Outcome, Subject, Task, joined};

/// A scan does the work of many gets, so a round has fewer of them.
const OPERATIONS_PER_SCAN: usize = 20;

/// Settings of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonPlan {
    /// Records in every map.
    pub record_count: usize,
    /// Number of gets, keys of multi-gets, and puts per thread and round; scans are a twentieth of
    /// it.
    pub operation_count: usize,
    /// Number of rounds; results are medians over them.
    pub round_count: usize,
    /// Numbers of threads, each used in every round.
    pub thread_counts: Vec<usize>,
    /// Kinds of work, in the order of a round.
    pub works: Vec<Work>,
    /// Maps to compare. Farleaf should be among them: ratios are relative to it.
    pub peers: Vec<PeerName>,
    /// Seed of the keys and the requests.
    pub seed: u64,
    /// Kind of keys and values.
    pub kind: Kind,
}

/// Kind of keys and values.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Integers of 64 bits.
    Words {
        /// Slots of Farleaf's leaves, and of the floor's.
        slots: u64,
    },
    /// Byte strings, without a floor.
    Strings(StringOptions),
}

/// Errors of a comparison.
#[derive(Debug, Error)]
pub enum ComparisonError {
    /// The keys cannot be drawn.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// A map failed.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// Two maps hold different records, so that the results are meaningless.
    #[error("{other} and {first} returned different records for the same {work:?} requests")]
    Disagreement {
        /// First map of the round.
        first: &'static str,
        /// Map that differs.
        other: &'static str,
        /// Kind of work.
        work: Work,
    },
}

/// Results of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonResults {
    /// Load time of each map.
    pub loaded: Vec<LoadTime>,
    /// Maps that are not available on this host, or do not hold such records, with the reason.
    pub skipped: Vec<SkippedPeer>,
    /// Result for each subject, kind of work and number of threads.
    pub figures: Vec<Figure>,
    /// Whether the floor's mapping, and therefore Farleaf's, has huge pages; only for integers.
    pub has_huge_pages: Option<bool>,
}

/// Loads all maps and runs all rounds. `progress` is called with the next step, and with skipped
/// maps.
pub fn compare(
    plan: &ComparisonPlan,
    mut progress: impl FnMut(&str),
) -> Result<ComparisonResults, ComparisonError> {
    let numbers = generate(&Dataset::Uniform, plan.record_count, plan.seed)?;
    match &plan.kind {
        Kind::Words { slots } => {
            let records = WordRecords::new(numbers);
            let load = |peer: PeerName| peer.load_words(&records, *slots);
            let maps = Maps::load(plan, load, &mut progress)?;
            let memory = FloorMemory::new(plan.record_count, *slots, plan.seed)?;
            let floors = FloorManner::ALL.map(|manner| {
                let memory = &memory;
                let floor: Box<dyn Subject<WordRecords> + '_> = Box::new(Floor { memory, manner });
                (manner, floor)
            });
            let mut measured = maps.measure(plan, &records, &floors, &mut progress)?;
            measured.has_huge_pages = Some(memory.page_kind() == farleaf::PageKind::Huge);
            Ok(measured)
        }
        Kind::Strings(options) => {
            let (key_size, value_size) = (options.key_size_bytes, options.value_size_bytes);
            let records = StringRecords::new(&numbers, key_size, value_size);
            let load = |peer: PeerName| peer.load_strings(&records, options);
            let maps = Maps::load(plan, load, &mut progress)?;
            maps.measure(plan, &records, &[], &mut progress)
        }
    }
}

/// All loaded maps.
struct Maps<R> {
    named: Vec<(PeerName, Box<dyn Subject<R>>)>,
    loaded: Vec<LoadTime>,
    skipped: Vec<SkippedPeer>,
}

type NamedFloor<'a, R> = (FloorManner, Box<dyn Subject<R> + 'a>);

impl<R: Records> Maps<R> {
    fn load(
        plan: &ComparisonPlan,
        load: impl Fn(PeerName) -> Result<Box<dyn Subject<R>>, PeerError>,
        progress: &mut impl FnMut(&str),
    ) -> Result<Self, ComparisonError> {
        let mut all = Self {
            named: Vec::new(),
            loaded: Vec::new(),
            skipped: Vec::new(),
        };
        for peer in plan.peers.iter().copied() {
            progress(&format!("loading {}", peer.as_str()));
            let started_at = Instant::now();
            match load(peer) {
                Ok(map) => all.named.push((peer, map)),
                Err(PeerError::Unavailable(why)) => {
                    progress(&format!("skipped: {}: {why}", peer.as_str()));
                    all.skipped.push(SkippedPeer { peer, why });
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let seconds = started_at.elapsed().as_secs_f64();
            all.loaded.push(LoadTime { peer, seconds });
        }
        Ok(all)
    }

    fn measure(
        self,
        plan: &ComparisonPlan,
        records: &R,
        floors: &[NamedFloor<'_, R>],
        progress: &mut impl FnMut(&str),
    ) -> Result<ComparisonResults, ComparisonError> {
        let mut rounds = Rounds {
            plan,
            records,
            maps: &self.named,
            floors,
            figures: Vec::new(),
            phase_count: 0,
        };
        for round in 1..=plan.round_count {
            for thread_count in &plan.thread_counts {
                let of = plan.round_count;
                progress(&format!("round {round} of {of}, threads: {thread_count}"));
                rounds.run(*thread_count)?;
            }
        }
        Ok(ComparisonResults {
            figures: rounds.figures,
            loaded: self.loaded,
            skipped: self.skipped,
            has_huge_pages: None,
        })
    }
}

struct Rounds<'a, R> {
    plan: &'a ComparisonPlan,
    records: &'a R,
    maps: &'a [(PeerName, Box<dyn Subject<R>>)],
    floors: &'a [NamedFloor<'a, R>],
    figures: Vec<Figure>,
    /// Number of phases so far, from which the requests and the values of the next are derived.
    phase_count: usize,
}

impl<R: Records> Rounds<'_, R> {
    /// Runs one round with one number of threads: every kind of work by every subject.
    fn run(&mut self, thread_count: usize) -> Result<(), ComparisonError> {
        for work in self.plan.works.iter().copied() {
            self.phase_count += 1;
            let requests = self.draw(work, thread_count);
            let task = Task {
                work,
                version: self.phase_count as u64,
            };
            let mut expected = None;
            for (peer, map) in self.maps.iter().filter(|(peer, _)| peer.does(work)) {
                let outcomes = run_threads(map.as_ref(), task, &requests)?;
                let checksum = checksum_of(&outcomes);
                let (first, known) = *expected.get_or_insert((peer.as_str(), checksum));
                if checksum != known {
                    let other = peer.as_str();
                    return Err(ComparisonError::Disagreement { first, other, work });
                }
                self.note(SubjectName::Peer(*peer), work, &requests, &outcomes);
            }
            for (manner, floor) in self.floors {
                if work == floor_work(*manner) {
                    let outcomes = run_threads(floor.as_ref(), task, &requests)?;
                    self.note(SubjectName::Floor(*manner), work, &requests, &outcomes);
                }
            }
        }
        Ok(())
    }

    fn draw(&self, work: Work, thread_count: usize) -> Vec<Requests<R>> {
        let count = match work {
            Work::Scan => self.plan.operation_count.div_ceil(OPERATIONS_PER_SCAN),
            _ => self.plan.operation_count,
        };
        // Stream 0 fills the floor's leaves.
        let first = 1 + self.phase_count * thread_count;
        (0..thread_count)
            .map(|thread| Requests::draw(self.records, count, self.plan.seed, first + thread))
            .collect()
    }

    fn note(
        &mut self,
        subject: SubjectName,
        work: Work,
        requests: &[Requests<R>],
        outcomes: &[Outcome],
    ) {
        let thread_count = requests.len();
        let longest = outcomes.iter().map(|outcome| outcome.duration).max();
        let count = requests[0].timed_count();
        let nanoseconds = longest.unwrap_or(Duration::ZERO).as_nanos() as f64 / count as f64;
        let mut figures = self.figures.iter_mut();
        if let Some(figure) = figures.find(|it| it.is_of(subject, work, thread_count)) {
            figure.nanoseconds_by_round.push(nanoseconds);
            return;
        }
        self.figures.push(Figure {
            subject,
            work,
            thread_count,
            nanoseconds_by_round: vec![nanoseconds],
        });
    }
}

/// Returns the kind of work for which the floor is a lower bound.
fn floor_work(manner: FloorManner) -> Work {
    match manner {
        FloorManner::Dependent | FloorManner::Independent => Work::Get,
        FloorManner::Grouped => Work::MultiGet,
    }
}

fn checksum_of(outcomes: &[Outcome]) -> u64 {
    outcomes
        .iter()
        .fold(0, |sum, outcome| sum.wrapping_add(outcome.checksum))
}

/// Runs one thread for each list of requests, all at the same time.
fn run_threads<R: Records>(
    subject: &dyn Subject<R>,
    task: Task,
    requests: &[Requests<R>],
) -> Result<Vec<Outcome>, PeerError> {
    let start = Barrier::new(requests.len());
    thread::scope(|scope| {
        let threads: Vec<_> = requests
            .iter()
            .map(|requests| scope.spawn(|| subject.run(task, requests, &start)))
            .collect();
        joined(threads).collect()
    })
}
