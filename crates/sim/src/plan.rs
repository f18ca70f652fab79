//! One run as a value: everything that is decided before it begins. What the world draws while it
//! runs follows from the seed and the plan, so a plan that lost an operation or a fault is another
//! run, which may break the same promise.

use core::fmt;
use core::str::FromStr;

use farleaf_index::LayerKind;

use crate::fabric::Freedoms;
use crate::fabric::world::Nanos;
use crate::history::Operation;
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
    Cancel {
        /// Which client.
        client: usize,
        /// Which lane.
        lane: usize,
    },
    /// The node's agent does not run for so long.
    AgentPause {
        /// How long.
        duration: Nanos,
    },
    /// The node restarts with empty memory.
    NodeLoss,
}

/// When a mishap strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At a time.
    At(Nanos),
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

/// The table of a run.
#[derive(Clone, Debug)]
pub struct TablePlan {
    /// Its search layer.
    pub layer: LayerKind,
    /// Slots of its leaves.
    pub slots: u64,
    /// How full a load makes them.
    pub fill_percent: u8,
    /// What it holds before anybody begins.
    pub loaded: Vec<(u64, u64)>,
    /// Whether all memory has been handed out once, so that what is freed is used again at once.
    pub is_memory_reused: bool,
}

/// One client: lanes of operations, each done one after the other, all lanes at once, on one
/// session.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// The lanes.
    pub lanes: Vec<Vec<Operation>>,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of what the world draws.
    pub seed: u64,
    /// How freely.
    pub freedoms: Freedoms,
    /// The table.
    pub table: TablePlan,
    /// The clients.
    pub clients: Vec<ClientPlan>,
    /// What befalls them.
    pub faults: Vec<Fault>,
}

/// Which mishaps there are, and so what must be survived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// None: only the fabric's freedoms.
    Calm,
    /// Clients die, pause, come back as zombies and lose their connections; the agent pauses. All
    /// of it must be survived: nothing acknowledged is lost, no lock and no leaf stays with the
    /// dead, and nobody waits for ever (D8, F6).
    #[default]
    Crashes,
    /// All that, and the node restarts empty. What it held is gone, which nobody can survive
    /// without replicas; but every operation that meets it must say so: no answer may be made up
    /// from empty memory.
    NodeLoss,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Calm, Self::Crashes, Self::NodeLoss];

    /// The name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Crashes => "crashes",
            Self::NodeLoss => "node-loss",
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
#[error("'{0}' is no profile; there are 'calm', 'crashes' and 'node-loss'")]
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

/// Weights of the kinds of operation, each run its own: whole kinds are switched off in many.
#[derive(Clone, Copy, Debug)]
struct Weights([u64; 8]);

impl Weights {
    fn draw(random: &mut Random) -> Self {
        loop {
            let weights = core::array::from_fn(|_| *random.choose(&[0, 0, 1, 3, 10]));
            if weights.iter().sum::<u64>() > 0 {
                return Self(weights);
            }
        }
    }

    /// The same with many writes of keys that are absent as likely as not: leaves split.
    fn growing(mut self) -> Self {
        self.0[2] += 10;
        self.0[3] += 10;
        self
    }

    fn pick(&self, random: &mut Random) -> usize {
        let mut left = random.below(self.0.iter().sum());
        for (kind, weight) in self.0.iter().enumerate() {
            if left < *weight {
                return kind;
            }
            left -= weight;
        }
        unreachable!("the weights add up to more than what is left")
    }
}

/// Keys of a run, ascending. Few, so that clients meet; some runs have the extremes.
fn draw_keys(random: &mut Random) -> Vec<u64> {
    let count = *random.choose(&[1, 4, 16, 40, 100]);
    let (base, step) = *random.choose(&[
        (0, 1),
        (1000, 10),
        (u64::MAX - 2000, 7),
        (0, u64::MAX / 128),
    ]);
    let mut keys: Vec<u64> = (0..count).map(|index| base + index * step).collect();
    if random.chance(300) {
        keys.extend([0, 1, u64::MAX - 1, u64::MAX]);
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64, profile: Profile) -> Self {
        let mut random = Random::new(seed);
        let freedoms = Freedoms::draw(&mut random);
        let keys = draw_keys(&mut random);
        let mut weights = Weights::draw(&mut random);
        let mut table = draw_table(&mut random, &keys);
        if random.chance(600) {
            weights = weights.growing();
            table.fill_percent = 100;
        }
        let client_count = random.between(1, 5);
        let mut next_value = 0;
        let mut clients: Vec<ClientPlan> = (0..client_count)
            .map(|_| draw_client(&mut random, &keys, weights, &mut next_value))
            .collect();
        if table.loaded.is_empty() && random.chance(400) {
            let records = some_records(&mut random, &keys, &mut next_value);
            clients[0].lanes[0].insert(0, Operation::Load(records));
        }
        if random.chance(400) {
            for lane in clients.iter_mut().flat_map(|client| &mut client.lanes) {
                visit_other_table(&mut random, lane);
            }
        }
        let faults = match profile {
            Profile::Calm => Vec::new(),
            Profile::Crashes => draw_faults(&mut random, clients.len()),
            Profile::NodeLoss => {
                let mut faults = draw_faults(&mut random, clients.len());
                faults.push(Fault {
                    when: draw_when(&mut random, 0),
                    mishap: Mishap::NodeLoss,
                });
                faults
            }
        };
        Self {
            seed: random.bits(),
            freedoms,
            table,
            clients,
            faults,
        }
    }

    /// All keys that anybody touches, ascending.
    pub fn keys(&self) -> Vec<u64> {
        let operations = self
            .clients
            .iter()
            .flat_map(|client| &client.lanes)
            .flatten();
        let mut keys: Vec<u64> = self.table.loaded.iter().map(|(key, _)| *key).collect();
        for operation in operations {
            match operation.on_table() {
                Operation::Get(key)
                | Operation::Put(key, _)
                | Operation::Insert(key, _)
                | Operation::Update(key, _)
                | Operation::Delete(key)
                | Operation::CompareSwap(key, _) => keys.push(*key),
                Operation::MultiGet(asked) => keys.extend(asked),
                Operation::Load(records) => keys.extend(records.iter().map(|(key, _)| key)),
                Operation::Scan(..)
                | Operation::Create
                | Operation::Drop
                | Operation::Open
                | Operation::Other(_) => {}
            }
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// How many operations there are.
    pub fn operation_count(&self) -> usize {
        let lanes = self.clients.iter().flat_map(|client| &client.lanes);
        lanes.map(Vec::len).sum()
    }
}

fn unique(next_value: &mut u64) -> u64 {
    *next_value += 1;
    *next_value
}

fn some_records(random: &mut Random, keys: &[u64], next_value: &mut u64) -> Vec<(u64, u64)> {
    let share = random.between(1, 1000);
    let mut records: Vec<(u64, u64)> = Vec::new();
    for key in keys {
        if random.chance(share) {
            records.push((*key, unique(next_value)));
        }
    }
    records
}

fn draw_table(random: &mut Random, keys: &[u64]) -> TablePlan {
    let mut value = 1 << 32;
    let loaded = match random.below(3) {
        0 => Vec::new(),
        _ => some_records(random, keys, &mut value),
    };
    TablePlan {
        layer: *random.choose(&[LayerKind::Learned, LayerKind::Learned, LayerKind::Rolex]),
        slots: *random.choose(&[8, 8, 12, 16]),
        fill_percent: *random.choose(&[50, 75, 100]),
        loaded,
        is_memory_reused: random.chance(500),
    }
}

fn draw_client(
    random: &mut Random,
    keys: &[u64],
    weights: Weights,
    next_value: &mut u64,
) -> ClientPlan {
    let lane_count = *random.choose(&[1, 1, 1, 2, 3]);
    let lane_length = *random.choose(&[3, 10, 30]);
    // Each client may keep to a part of the keys, so that some leaves are crowded.
    let part = random.between(1, keys.len() as u64) as usize;
    let first = random.below((keys.len() - part) as u64 + 1) as usize;
    let keys = &keys[first..first + part];
    let lanes = (0..lane_count).map(|_| {
        (0..lane_length)
            .map(|_| draw_operation(random, keys, weights, next_value))
            .collect()
    });
    ClientPlan {
        lanes: lanes.collect(),
    }
}

fn draw_operation(
    random: &mut Random,
    keys: &[u64],
    weights: Weights,
    next_value: &mut u64,
) -> Operation {
    let key = *random.choose(keys);
    match weights.pick(random) {
        0 => Operation::Get(key),
        1 => {
            let count = random.between(1, 20);
            Operation::MultiGet((0..count).map(|_| *random.choose(keys)).collect())
        }
        2 => Operation::Put(key, unique(next_value)),
        3 => Operation::Insert(key, unique(next_value)),
        4 => Operation::Update(key, unique(next_value)),
        5 => Operation::Delete(key),
        6 => {
            let new = (!random.chance(250)).then(|| unique(next_value));
            Operation::CompareSwap(key, new)
        }
        _ => Operation::Scan(key, random.between(1, 60) as usize),
    }
}

/// Sends a part of a lane's operations to the table that comes and goes, and lets it come and go.
fn visit_other_table(random: &mut Random, lane: &mut Vec<Operation>) {
    let (visit, change) = (random.below(600), random.below(200));
    let mut visited = Vec::with_capacity(lane.len());
    for operation in lane.drain(..) {
        if random.chance(change) {
            let changes = [Operation::Create, Operation::Drop, Operation::Open];
            visited.push(random.choose(&changes).clone());
        }
        let is_load = matches!(operation, Operation::Load(_));
        if !is_load && random.chance(visit) {
            visited.push(Operation::Other(Box::new(operation)));
        } else {
            visited.push(operation);
        }
    }
    *lane = visited;
}

/// Sibling, link, high, state, unlock: splits have so many verbs that change something, loads, and
/// the return of leaves.
const SPLIT_VERB_COUNT_MIN: usize = 5;

fn draw_faults(random: &mut Random, client_count: usize) -> Vec<Fault> {
    let fault_count = *random.choose(&[0, 1, 2, 3, 5]);
    (0..fault_count)
        .map(|_| {
            let client = random.below(client_count as u64) as usize;
            let fenced_after = match random.below(2) {
                0 => 0,
                _ => random.magnitude(200_000),
            };
            let duration = fenced_after + random.magnitude(300_000);
            let mishap = match random.below(11) {
                0..5 => Mishap::Death {
                    client,
                    fenced_after,
                },
                5 => Mishap::Pause { client, duration },
                6..8 => Mishap::Zombie {
                    client,
                    fenced_after,
                    duration,
                },
                8 => Mishap::Break { client },
                9 => Mishap::Cancel {
                    client,
                    lane: random.below(3) as usize,
                },
                _ => Mishap::AgentPause { duration },
            };
            let when = draw_when(random, client);
            Fault { when, mishap }
        })
        .collect()
}

/// A moment, mostly in the middle of something that the client does.
fn draw_when(random: &mut Random, client: usize) -> When {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed is a plan, and plans differ.
    #[test]
    fn a_seed_is_a_plan() {
        let text = |seed| format!("{:?}", Plan::draw(seed, Profile::Crashes));
        assert_eq!(text(5), text(5));
        assert_ne!(text(5), text(6));
    }

    /// Every kind of operation and of mishap is drawn by some seed, and switched off by others.
    #[test]
    fn plans_have_everything_between_them() {
        let texts: Vec<String> = (0..200)
            .map(|seed| format!("{:?}", Plan::draw(seed, Profile::Crashes)))
            .collect();
        let words = [
            "Get(",
            "MultiGet(",
            "Put(",
            "Insert(",
            "Update(",
            "Delete(",
            "CompareSwap(",
            "Scan(",
            "Load(",
            "Death",
            "Pause",
            "Zombie",
            "Break",
            "AgentPause",
            "Cancel",
            "Create",
            "Drop",
            "Open",
            "Other(",
            "Rolex",
            "Learned",
        ];
        for word in words {
            let count = texts.iter().filter(|text| text.contains(word)).count();
            assert!(count > 0, "no seed draws {word}");
            assert!(count < texts.len(), "every seed draws {word}");
        }
    }

    /// Values are unique: the checkers count on it.
    #[test]
    fn no_two_writes_write_the_same_value() {
        for seed in 0..50 {
            let plan = Plan::draw(seed, Profile::Calm);
            let mut values: Vec<u64> = plan.table.loaded.iter().map(|(_, value)| *value).collect();
            for operation in plan
                .clients
                .iter()
                .flat_map(|client| &client.lanes)
                .flatten()
            {
                match operation {
                    Operation::Put(_, value)
                    | Operation::Insert(_, value)
                    | Operation::Update(_, value)
                    | Operation::CompareSwap(_, Some(value)) => values.push(*value),
                    Operation::Load(records) => {
                        values.extend(records.iter().map(|(_, value)| value));
                    }
                    _ => {}
                }
            }
            let count = values.len();
            values.sort_unstable();
            values.dedup();
            assert_eq!(values.len(), count);
        }
    }
}
