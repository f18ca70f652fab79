//! What befalls whom and when, and the profiles that say which of it there is.

use core::fmt;
use core::str::FromStr;

use farleaf_fabric::ProtocolPhase;

use crate::fabric::world::Nanos;
use crate::random::Random;

/// What befalls whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// The client stops for ever; the node notices after so long and fences it.
    Death {
        /// Which client.
        client: usize,
        /// Until it is fenced.
        fenced_after: Nanos,
    },
    /// The client does not run for so long.
    Pause {
        /// Which client.
        client: usize,
        /// How long.
        duration: Nanos,
    },
    /// The client does not run for so long, is fenced meanwhile, and then wakes up as a zombie.
    Zombie {
        /// Which client.
        client: usize,
        /// Until it is fenced.
        fenced_after: Nanos,
        /// Until it goes on.
        duration: Nanos,
    },
    /// The client's connection breaks.
    Break {
        /// Which client.
        client: usize,
    },
    /// One of the client's lanes is dropped where it stands; the session and the other lanes go on.
    /// If it has no such lane, it is the task that closes its session, which then does it again.
    Cancel {
        /// Which client.
        client: usize,
        /// Which lane.
        lane: usize,
    },
    /// The node's agent stops for ever, wherever it is; it is fenced, and another one begins.
    AgentDeath {
        /// Until then.
        fenced_after: Nanos,
    },
    /// The node's agent does not run for so long.
    AgentPause {
        /// How long.
        duration: Nanos,
    },
    /// A session of a worker or a trainer of the node loses its connection: what it has under way
    /// is of unknown outcome, and another takes its place (V6).
    WorkerBreak {
        /// Of those that there are then, which, counted around.
        number: usize,
    },
    /// The node restarts with empty memory.
    NodeLoss,
    /// A node of the pool, not its home, is to be left: its leaves are moved to the others, and
    /// then it is stopped (U5, V5). Nobody may notice.
    Drain {
        /// Which node.
        node: u8,
    },
    /// A node of the pool, not its home, is lost, and what was on it (U4). Operations that need it
    /// say so; all others go on.
    MemberLoss {
        /// Which node.
        node: u8,
    },
}

/// When a mishap strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At a time.
    At(Nanos),
    /// In the middle of a batch of the node's agent; or of the next one, if it dies before that.
    DuringAgent {
        /// Which, of those that are large enough.
        number: u64,
        /// How many verbs are enough.
        verb_count_min: usize,
    },
    /// The same of a worker or a trainer, which is then the one that it befalls.
    DuringWorker {
        /// Of those that there are, which, counted around.
        worker: usize,
        /// Which of its batches, of those that are large enough.
        number: u64,
        /// How many verbs are enough.
        verb_count_min: usize,
    },
    /// The same of a batch of the node's agent while its retraining is in this phase.
    DuringRetraining {
        /// The phase.
        phase: ProtocolPhase,
        /// Which of its batches.
        number: u64,
    },
    /// After a client has drawn a ticket of the queue, and before it has written the entry (Q1).
    DuringEnqueueing {
        /// Which client.
        client: usize,
    },
    /// Between any two effects of a batch of a client: of the `number`-th (from 1) that has at
    /// least so many verbs.
    During {
        /// Whose batch.
        client: usize,
        /// Which, of those that are large enough.
        number: u64,
        /// How many verbs are enough.
        verb_count_min: usize,
    },
}

/// A mishap and its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When.
    pub when: When,
    /// What.
    pub mishap: Mishap,
}

/// Which mishaps there are, and so what must be survived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// None: only the fabric's freedoms.
    Calm,
    /// Clients die, pause, come back as zombies and lose their connections; the agent pauses. All
    /// of it must be survived: nothing acknowledged is lost, no lock and no leaf stays with the
    /// dead, and nobody waits for ever (D8, F6). In pools of several nodes, one may be lost with
    /// what is on it, and nothing else (U4).
    #[default]
    Crashes,
    /// All that, on a table that is retrained all the time, in memory that is reused at once, and
    /// retrainers die in the middle of it; nodes are drained. Nothing may be lost (R1 to R7, X1 to
    /// X9, T1 to T5, V5).
    Retraining,
    /// All that of `Crashes`, and the node restarts empty. What it held is gone, which nobody can
    /// survive without replicas; but every operation that meets it must say so: no answer may be
    /// made up from empty memory.
    NodeLoss,
    /// All that of `Crashes`, on tables with a tree, whose nodes are so small that they split often
    /// (I1 to I6).
    Trees,
    /// All that of `Trees`, on tables that lose most of what they have and are compacted all the
    /// time; retrainers die in the middle of it, and nodes are drained (K1 to K6).
    Compaction,
    /// All that of `Crashes`, on tables whose records the memory node holds: every operation is a
    /// call (J1 to J6, E1 to E9).
    Calls,
    /// All that of `Calls`, on tables whose leaves the node changes, and whose models it trains all
    /// the time (Y1 to Y7, Z1 to Z3); workers and trainers lose their connections, and other nodes
    /// of the pool are lost.
    Xstore,
    /// All that of `Crashes`, on tables of byte strings, with values in pages and outside of them
    /// (BP1 to BP6, BV1 to BV11).
    Bytes,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Calm,
        Self::Crashes,
        Self::Retraining,
        Self::NodeLoss,
        Self::Trees,
        Self::Compaction,
        Self::Calls,
        Self::Xstore,
        Self::Bytes,
    ];

    /// The name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Crashes => "crashes",
            Self::Retraining => "retraining",
            Self::NodeLoss => "node-loss",
            Self::Trees => "trees",
            Self::Compaction => "compaction",
            Self::Calls => "calls",
            Self::Xstore => "xstore",
            Self::Bytes => "bytes",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no profile has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no profile; there are 'calm', 'crashes', 'retraining', 'node-loss', 'trees', \
     'compaction', 'calls', 'xstore' and 'bytes'"
)]
pub struct UnknownProfile(pub String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

/// Sibling, link, high, state, unlock: splits have so many verbs that change something, loads, and
/// the return of leaves.
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
                0..6 => Mishap::Death {
                    client,
                    fenced_after,
                },
                6 => Mishap::Pause { client, duration },
                7..9 => Mishap::Zombie {
                    client,
                    fenced_after,
                    duration,
                },
                9 => Mishap::Break { client },
                10 => Mishap::Cancel {
                    client,
                    lane: random.below(4) as usize,
                },
                11..13 => Mishap::AgentDeath { fenced_after },
                _ => Mishap::AgentPause { duration },
            };
            let when = match mishap {
                Mishap::AgentDeath { .. } if random.chance(700) => When::DuringAgent {
                    number: 1 + random.magnitude(30),
                    verb_count_min: *random.choose(&[1, 3, SPLIT_VERB_COUNT_MIN]),
                },
                _ => draw_when(random, client),
            };
            Fault { when, mishap }
        })
        .collect()
}

/// Breaks of connections of the node's own workers and trainers, in a stream of their own.
pub(super) fn draw_worker_faults(random: &mut Random) -> Vec<Fault> {
    let fault_count = *random.choose(&[0, 0, 1, 2, 4]);
    (0..fault_count)
        .map(|_| {
            let number = random.below(8) as usize;
            let when = if random.chance(800) {
                When::DuringWorker {
                    worker: number,
                    number: 1 + random.magnitude(20),
                    verb_count_min: *random.choose(&[1, 1, 3, SPLIT_VERB_COUNT_MIN]),
                }
            } else {
                When::At(random.magnitude(400_000))
            };
            let mishap = Mishap::WorkerBreak { number };
            Fault { when, mishap }
        })
        .collect()
}

/// Phases in which a retrainer dies, most often in the one that leaves a run half done.
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
/// Phases of whoever finishes that (R6).
const ADOPTING_PHASES: [ProtocolPhase; 6] = [
    ProtocolPhase::Adopt,
    ProtocolPhase::Redirect,
    ProtocolPhase::Tables,
    ProtocolPhase::Snapshot,
    ProtocolPhase::RootSwap,
    ProtocolPhase::GiveBack,
];

/// Deaths of retrainers, each in a phase of its own, some of them in the middle of what another one
/// has left half done; and of clients that ask for a retraining.
pub(super) fn draw_retraining_faults(random: &mut Random, client_count: usize) -> Vec<Fault> {
    let mut faults = Vec::new();
    // In most runs none: what is found when memory is reused too early takes one that lives.
    for number in 0..*random.choose(&[0, 0, 0, 0, 2, 3]) {
        // Who comes next begins with what the one before has left.
        let is_next = number > 0 && random.chance(700);
        let when = When::DuringRetraining {
            phase: if is_next {
                *random.choose(&ADOPTING_PHASES)
            } else {
                *random.choose(&RETRAINING_PHASES)
            },
            number: 1 + random.magnitude(3),
        };
        let fenced_after_max = *random.choose(&[1, 20_000]);
        let fenced_after = random.magnitude(fenced_after_max);
        let mishap = Mishap::AgentDeath { fenced_after };
        faults.push(Fault { when, mishap });
    }
    if random.chance(150) {
        let client = random.below(client_count as u64) as usize;
        let fenced_after = random.magnitude(200_000);
        faults.push(Fault {
            when: When::DuringEnqueueing { client },
            mishap: Mishap::Death {
                client,
                fenced_after,
            },
        });
    }
    faults
}

/// What befalls the nodes of a pool that has several. `is_drained`: whether its table can be moved
/// away from a node.
pub(super) fn draw_node_faults(
    random: &mut Random,
    node_count: u8,
    (client_count, is_drained): (usize, bool),
) -> Vec<Fault> {
    let mut faults = Vec::new();
    if node_count == 1 {
        return faults;
    }
    let draw_node = |random: &mut Random| random.between(1, u64::from(node_count) - 1) as u8;
    if is_drained && random.chance(500) {
        let node = draw_node(random);
        let when = When::At(random.magnitude(200_000));
        faults.push(Fault {
            when,
            mishap: Mishap::Drain { node },
        });
    }
    if random.chance(300) {
        let node = draw_node(random);
        let client = random.below(client_count as u64) as usize;
        let when = match random.below(4) {
            0 if is_drained => When::DuringRetraining {
                phase: *random.choose(&RETRAINING_PHASES),
                number: 1 + random.magnitude(3),
            },
            1 => When::DuringAgent {
                number: 1 + random.magnitude(30),
                verb_count_min: *random.choose(&[1, 3, SPLIT_VERB_COUNT_MIN]),
            },
            _ => draw_when(random, client),
        };
        faults.push(Fault {
            when,
            mishap: Mishap::MemberLoss { node },
        });
    }
    faults
}

/// A moment, mostly in the middle of something that the client does.
pub(super) fn draw_when(random: &mut Random, client: usize) -> When {
    match random.below(6) {
        0 => When::At(random.magnitude(400_000)),
        1 => When::During {
            client,
            number: 1 + random.magnitude(100),
            verb_count_min: 1,
        },
        _ => When::During {
            client,
            number: 1 + random.magnitude(3),
            verb_count_min: SPLIT_VERB_COUNT_MIN,
        },
    }
}
