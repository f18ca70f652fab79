//! Faults: what happens to which client or node and when, and the profiles that select them.

use farleaf_fabric::ProtocolPhase;

use crate::fabric::world::Nanos;
use farleaf_base::random::Random;

/// Fault of a client or a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The client stops forever; the node notices and fences it after this time.
    Death {
        /// Number of the client.
        client: usize,
        /// Time until it is fenced.
        fenced_after: Nanos,
    },
    /// The client does not run for this time.
    Pause {
        /// Number of the client.
        client: usize,
        /// Duration of the pause.
        duration: Nanos,
    },
    /// The client does not run for this time, is fenced meanwhile, and then continues as a zombie.
    Zombie {
        /// Number of the client.
        client: usize,
        /// Time until it is fenced.
        fenced_after: Nanos,
        /// Time until it continues.
        duration: Nanos,
    },
    /// The client's connection breaks.
    Break {
        /// Number of the client.
        client: usize,
    },
    /// One of the client's lanes is dropped at any point, while the session and the other lanes
    /// continue. If it has no such lane, the task that closes its session is dropped, and closes it
    /// again.
    Cancel {
        /// Number of the client.
        client: usize,
        /// Number of the lane.
        lane: usize,
    },
    /// The node's agent stops forever, at any point; it is fenced, and another one starts.
    AgentDeath {
        /// Time until then.
        fenced_after: Nanos,
    },
    /// The node's agent does not run for this time.
    AgentPause {
        /// Duration of the pause.
        duration: Nanos,
    },
    /// A session of one of the node's workers or trainers loses its connection: the outcome of its
    /// batch in flight is unknown, and another session replaces it.
    WorkerBreak {
        /// Number among the current ones; it wraps around.
        number: usize,
    },
    /// The node restarts with empty memory.
    NodeLoss,
    /// A data node is drained: the main node moves its leaves to other nodes, and then stops it.
    /// No operation may fail because of that.
    Drain {
        /// Number of the node.
        node: u8,
    },
    /// A node of the pool other than its main node is lost with its data. Operations that need it
    /// report that; all others continue.
    MemberLoss {
        /// Number of the node.
        node: u8,
    },
}

/// Moment of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMoment {
    /// At this time.
    At(Nanos),
    /// In the middle of a batch of the node's agent, or of the next agent if it dies before that.
    DuringAgent {
        /// Number of the batch among those that are large enough.
        number: u64,
        /// Number of verbs of a batch that is large enough.
        verb_count_min: usize,
    },
    /// In the middle of a batch of a worker or a trainer, which then has the fault.
    DuringWorker {
        /// Number among the current ones; it wraps around.
        worker: usize,
        /// Number of its batch among those that are large enough.
        number: u64,
        /// Number of verbs of a batch that is large enough.
        verb_count_min: usize,
    },
    /// In the middle of a batch of the node's agent while its retraining is in this phase.
    DuringRetraining {
        /// Phase of the retraining.
        phase: ProtocolPhase,
        /// Number of its batch.
        number: u64,
    },
    /// After a client has drawn a ticket of the queue, and before it has written the entry.
    DuringEnqueueing {
        /// Number of the client.
        client: usize,
    },
    /// Between any two effects of a client's batch: the `number`-th, counted from 1, that has at
    /// least this many verbs.
    During {
        /// Number of the client.
        client: usize,
        /// Number of the batch among those that are large enough.
        number: u64,
        /// Number of verbs of a batch that is large enough.
        verb_count_min: usize,
    },
}

/// Fault with its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Moment of the fault.
    pub when: FaultMoment,
    /// Kind of fault.
    pub mishap: FaultKind,
}

/// Verbs of a split that change memory: sibling, link, high, state, unlock. Loads and the return of
/// leaves have as many.
const SPLIT_VERB_COUNT_MIN: usize = 5;

pub(super) fn draw_faults(random: &mut Random, client_count: usize) -> Vec<Fault> {
    let fault_count = *random.choose(&[0, 1, 3, 5, 8]);
    (0..fault_count)
        .map(|_| {
            let client = random.below(client_count as u64) as usize;
            let fenced_after = match random.below(2) {
                0 => 0,
                _ => random.magnitude(200_000),
            };
            let duration = fenced_after + random.magnitude(300_000);
            let mishap = match random.below(14) {
                0..6 => FaultKind::Death {
                    client,
                    fenced_after,
                },
                6 => FaultKind::Pause { client, duration },
                7..9 => FaultKind::Zombie {
                    client,
                    fenced_after,
                    duration,
                },
                9 => FaultKind::Break { client },
                10 => FaultKind::Cancel {
                    client,
                    lane: random.below(4) as usize,
                },
                11..13 => FaultKind::AgentDeath { fenced_after },
                _ => FaultKind::AgentPause { duration },
            };
            let when = match mishap {
                FaultKind::AgentDeath { .. } if random.chance(700) => FaultMoment::DuringAgent {
                    number: 1 + random.magnitude(30),
                    verb_count_min: *random.choose(&[1, 3, SPLIT_VERB_COUNT_MIN]),
                },
                _ => draw_when(random, client),
            };
            Fault { when, mishap }
        })
        .collect()
}

/// Draws broken connections of the node's own workers and trainers, with a random stream of their
/// own.
pub(super) fn draw_worker_faults(random: &mut Random) -> Vec<Fault> {
    let fault_count = *random.choose(&[0, 0, 1, 2, 4]);
    (0..fault_count)
        .map(|_| {
            let number = random.below(8) as usize;
            let when = if random.chance(800) {
                FaultMoment::DuringWorker {
                    worker: number,
                    number: 1 + random.magnitude(20),
                    verb_count_min: *random.choose(&[1, 1, 3, SPLIT_VERB_COUNT_MIN]),
                }
            } else {
                FaultMoment::At(random.magnitude(400_000))
            };
            let mishap = FaultKind::WorkerBreak { number };
            Fault { when, mishap }
        })
        .collect()
}

/// Phases in which a retrainer dies, most often the one that leaves a run half done.
const RETRAINING_PHASES: [ProtocolPhase; 10] = [
    ProtocolPhase::Gather,
    ProtocolPhase::Steps,
    ProtocolPhase::Steps,
    ProtocolPhase::Steps,
    ProtocolPhase::Redirect,
    ProtocolPhase::Tables,
    ProtocolPhase::Snapshot,
    ProtocolPhase::RootSwap,
    ProtocolPhase::GiveBack,
    ProtocolPhase::Announce,
];
/// Phases of a retrainer that continues the work of a dead one.
const ADOPTING_PHASES: [ProtocolPhase; 6] = [
    ProtocolPhase::Adopt,
    ProtocolPhase::Redirect,
    ProtocolPhase::Tables,
    ProtocolPhase::Snapshot,
    ProtocolPhase::RootSwap,
    ProtocolPhase::GiveBack,
];

/// Draws deaths of retrainers, each in some phase, some of them while they continue the work of
/// another; and deaths of clients that request a retraining.
pub(super) fn draw_retraining_faults(random: &mut Random, client_count: usize) -> Vec<Fault> {
    let mut faults = Vec::new();
    // Mostly none: only a living retrainer reveals that memory is reused too early.
    for number in 0..*random.choose(&[0, 0, 0, 0, 2, 3]) {
        // The next retrainer begins with what the previous one has left.
        let is_next = number > 0 && random.chance(700);
        let when = FaultMoment::DuringRetraining {
            phase: if is_next {
                *random.choose(&ADOPTING_PHASES)
            } else {
                *random.choose(&RETRAINING_PHASES)
            },
            number: 1 + random.magnitude(3),
        };
        let fenced_after_max = *random.choose(&[1, 20_000]);
        let fenced_after = random.magnitude(fenced_after_max);
        let mishap = FaultKind::AgentDeath { fenced_after };
        faults.push(Fault { when, mishap });
    }
    if random.chance(150) {
        let client = random.below(client_count as u64) as usize;
        let fenced_after = random.magnitude(200_000);
        faults.push(Fault {
            when: FaultMoment::DuringEnqueueing { client },
            mishap: FaultKind::Death {
                client,
                fenced_after,
            },
        });
    }
    faults
}

/// Draws the faults of the nodes of a pool with several. `is_drained`: whether its table can be
/// moved off a node.
pub(super) fn draw_node_faults(
    random: &mut Random,
    node_count: u8,
    client_count: usize,
    is_drained: bool,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    if node_count == 1 {
        return faults;
    }
    let draw_node = |random: &mut Random| random.between(1, u64::from(node_count) - 1) as u8;
    if is_drained && random.chance(500) {
        let node = draw_node(random);
        let when = FaultMoment::At(random.magnitude(200_000));
        faults.push(Fault {
            when,
            mishap: FaultKind::Drain { node },
        });
    }
    if random.chance(300) {
        let node = draw_node(random);
        let client = random.below(client_count as u64) as usize;
        let when = match random.below(4) {
            0 if is_drained => FaultMoment::DuringRetraining {
                phase: *random.choose(&RETRAINING_PHASES),
                number: 1 + random.magnitude(3),
            },
            1 => FaultMoment::DuringAgent {
                number: 1 + random.magnitude(30),
                verb_count_min: *random.choose(&[1, 3, SPLIT_VERB_COUNT_MIN]),
            },
            _ => draw_when(random, client),
        };
        faults.push(Fault {
            when,
            mishap: FaultKind::MemberLoss { node },
        });
    }
    faults
}

/// Draws a moment, mostly in the middle of an operation of the client.
pub(super) fn draw_when(random: &mut Random, client: usize) -> FaultMoment {
    match random.below(6) {
        0 => FaultMoment::At(random.magnitude(400_000)),
        1 => FaultMoment::During {
            client,
            number: 1 + random.magnitude(100),
            verb_count_min: 1,
        },
        _ => FaultMoment::During {
            client,
            number: 1 + random.magnitude(3),
            verb_count_min: SPLIT_VERB_COUNT_MIN,
        },
    }
}
