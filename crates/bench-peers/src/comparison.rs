//! Loads everything and runs the rounds, interleaved.
//!
//! All maps are loaded at once, and every round has all of them do the same work one after the
//! other, so that whatever else the machine does meanwhile hits all alike.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_bench::dataset::{Dataset, DatasetError, generate};
use thiserror::Error;

use crate::floor::{Floor, FloorManner, FloorMemory};
use crate::peer::{PeerError, Work};
use crate::peers::PeerName;
use crate::report::{Figure, Loaded, SubjectName};
use crate::requests::Requests;
use crate::subject::{Outcome, Subject, Task};

/// A scan does the work of many gets, so a round has fewer of them.
const OPERATIONS_PER_SCAN: usize = 20;

/// What is compared, and for how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Records in every map.
    pub record_count: usize,
    /// Gets, keys of multi-gets and puts of a thread in a round; scans are a twentieth of it.
    pub operation_count: usize,
    /// Rounds; figures are medians of them.
    pub round_count: usize,
    /// Numbers of threads to run with, each in every round.
    pub thread_counts: Vec<usize>,
    /// The kinds of work, in the order of a round.
    pub works: Vec<Work>,
    /// The maps. Farleaf should be among them: ratios are to its figures.
    pub peers: Vec<PeerName>,
    /// Decides the keys and the requests.
    pub seed: u64,
    /// Slots of Farleaf's leaves, and of the floor's.
    pub slots: u64,
}

/// What keeps a comparison from being made.
#[derive(Debug, Error)]
pub enum ComparisonError {
    /// The keys cannot be drawn.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// A map failed.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// Two maps hold different records: no figure means anything then.
    #[error("{other} found something else than {first} for the same {work:?} requests")]
    Disagreement {
        /// The first map of the round.
        first: &'static str,
        /// The one that differs.
        other: &'static str,
        /// The work.
        work: Work,
    },
}

/// Everything that a comparison measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// How long each map took to load.
    pub loaded: Vec<Loaded>,
    /// A figure for each subject, kind of work and number of threads.
    pub figures: Vec<Figure>,
    /// Whether the floor's mapping, and so Farleaf's, is of huge pages.
    pub has_huge_pages: bool,
}

/// Loads all maps and runs all rounds. `progress` is told what is done next.
///
/// # Errors
/// See [`ComparisonError`].
pub fn compare(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Measured, ComparisonError> {
    let keys = generate(&Dataset::Uniform, plan.record_count, plan.seed)?;
    let mut maps = Vec::new();
    let mut loaded = Vec::new();
    for peer in &plan.peers {
        progress(&format!("loading {}", peer.as_str()));
        let begun = Instant::now();
        maps.push((*peer, peer.load(&keys, plan.slots)?));
        loaded.push(Loaded {
            peer: *peer,
            seconds: begun.elapsed().as_secs_f64(),
        });
    }
    let floor = FloorMemory::new(plan.record_count, plan.slots, plan.seed)?;
    let mut rounds = Rounds {
        plan,
        keys: &keys,
        maps: &maps,
        floor: &floor,
        figures: Vec::new(),
        phase_count: 0,
    };
    for round in 0..plan.round_count {
        for thread_count in &plan.thread_counts {
            progress(&format!(
                "round {} of {}, threads: {thread_count}",
                round + 1,
                plan.round_count
            ));
            rounds.run(*thread_count)?;
        }
    }
    Ok(Measured {
        loaded,
        figures: rounds.figures,
        has_huge_pages: floor.page_kind() == farleaf::PageKind::Huge,
    })
}

type LoadedMap = (PeerName, Box<dyn Subject>);

struct Rounds<'a> {
    plan: &'a Plan,
    keys: &'a [u64],
    maps: &'a [LoadedMap],
    floor: &'a FloorMemory,
    figures: Vec<Figure>,
    /// Phases so far; decides the requests and the values of the next.
    phase_count: usize,
}

impl Rounds<'_> {
    /// One round with one number of threads: every kind of work by every subject.
    fn run(&mut self, thread_count: usize) -> Result<(), ComparisonError> {
        for work in self.plan.works.iter().copied() {
            self.phase_count += 1;
            let requests = self.draw(work, thread_count);
            let task = Task {
                work,
                version: self.phase_count as u64,
            };
            let mut expected = None;
            for (peer, map) in self.maps {
                let outcomes = run_threads(map.as_ref(), task, &requests)?;
                let checksum = checksum_of(&outcomes);
                let (first, known) = *expected.get_or_insert((peer.as_str(), checksum));
                if checksum != known {
                    let other = peer.as_str();
                    return Err(ComparisonError::Disagreement { first, other, work });
                }
                self.note(SubjectName::Peer(*peer), work, &requests, &outcomes);
            }
            for manner in FloorManner::ALL {
                if work == floor_work(manner) {
                    let memory = self.floor;
                    let outcomes = run_threads(&Floor { memory, manner }, task, &requests)?;
                    self.note(SubjectName::Floor(manner), work, &requests, &outcomes);
                }
            }
        }
        Ok(())
    }

    fn draw(&self, work: Work, thread_count: usize) -> Vec<Requests> {
        let count = match work {
            Work::Scan => self.plan.operation_count.div_ceil(OPERATIONS_PER_SCAN),
            _ => self.plan.operation_count,
        };
        // Stream 0 fills the floor's leaves.
        let first = 1 + self.phase_count * thread_count;
        (0..thread_count)
            .map(|thread| Requests::draw(self.keys, count, self.plan.seed, first + thread))
            .collect()
    }

    fn note(
        &mut self,
        subject: SubjectName,
        work: Work,
        requests: &[Requests],
        outcomes: &[Outcome],
    ) {
        let thread_count = requests.len();
        let longest = outcomes.iter().map(|outcome| outcome.duration).max();
        let count = requests[0].timed_keys().len();
        let nanoseconds = longest.unwrap_or(Duration::ZERO).as_nanos() as f64 / count as f64;
        let is_same = |figure: &&mut Figure| {
            (figure.subject, figure.work, figure.thread_count) == (subject, work, thread_count)
        };
        if let Some(figure) = self.figures.iter_mut().find(is_same) {
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

/// The work under which the floor lies.
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

/// Has as many threads as there are requests do their shares at the same time.
fn run_threads(
    subject: &dyn Subject,
    task: Task,
    requests: &[Requests],
) -> Result<Vec<Outcome>, PeerError> {
    let start = Barrier::new(requests.len());
    thread::scope(|scope| {
        let threads: Vec<_> = requests
            .iter()
            .map(|requests| scope.spawn(|| subject.run(task, requests, &start)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}
