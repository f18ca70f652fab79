//! Operations of clients, drawn from a seed.

use farleaf::ModelCache;
use farleaf_index::LayerKind;

use super::{ClientPlan, Profile};
use crate::history::{Operation, TableShape};
use farleaf_base::random::Random;

/// Weights of the kinds of operation. Each run has its own, and in many whole kinds are switched
/// off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights([u64; 8]);

impl Weights {
    pub(super) fn draw(random: &mut Random) -> Self {
        loop {
            let weights = core::array::from_fn(|_| *random.choose(&[0, 0, 1, 3, 10]));
            if weights.iter().sum::<u64>() > 0 {
                return Self(weights);
            }
        }
    }

    /// Increases the weight of writes to keys that are often absent, so that leaves split.
    pub(super) fn growing(mut self) -> Self {
        self.0[2] += 10;
        self.0[3] += 10;
        self
    }

    /// Increases the weight of deletes, so that leaves become underfull.
    pub(super) fn shrinking(mut self) -> Self {
        self.0[5] += 60;
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

/// Draws the keys of a run, ascending. Few, so that clients conflict; some runs have the extremes.
pub(super) fn draw_keys(random: &mut Random, profile: Profile) -> Vec<u64> {
    let count = match profile {
        // Enough for many leaves.
        Profile::Compaction => *random.choose(&[12, 20, 40]),
        Profile::Retraining => *random.choose(&[30, 60, 120]),
        _ => *random.choose(&[1, 4, 16, 40, 100]),
    };
    if profile == Profile::Bytes {
        // Their strings are drawn separately.
        return (0..count).collect();
    }
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

fn unique(next_value: &mut u64) -> u64 {
    *next_value += 1;
    *next_value
}

/// Returns a record of each key.
pub(super) fn all_records(keys: &[u64], next_value: &mut u64) -> Vec<(u64, u64)> {
    keys.iter().map(|key| (*key, unique(next_value))).collect()
}

pub(super) fn some_records(
    random: &mut Random,
    keys: &[u64],
    next_value: &mut u64,
) -> Vec<(u64, u64)> {
    let share = random.between(1, 1000);
    let mut records: Vec<(u64, u64)> = Vec::new();
    for key in keys {
        if random.chance(share) {
            records.push((*key, unique(next_value)));
        }
    }
    records
}

pub(super) fn draw_client(
    random: &mut Random,
    keys: &[u64],
    weights: Weights,
    lane_lengths: [usize; 3],
    next_value: &mut u64,
) -> ClientPlan {
    let lane_count = *random.choose(&[1, 1, 1, 2, 3]);
    let lane_length = *random.choose(&lane_lengths);
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
        metadata_budget_bytes: None,
        link_count_max: None,
        model_cache: ModelCache::All,
        does_not_speculate: false,
        compute_node: 0,
    }
}

/// Draws budgets of the clients' sessions, small enough that pages evict each other. All tables
/// must have a search layer that supports budgets.
pub(super) fn draw_budgets(random: &mut Random, clients: &mut [ClientPlan]) {
    for client in clients {
        if random.chance(700) {
            let bytes = *random.choose(&[1024, 1300, 1800, 2500, 20_000]);
            client.metadata_budget_bytes = Some(bytes);
        }
        for operation in client.lanes.iter_mut().flatten() {
            if let Operation::Create(shape) = operation {
                shape.layer = LayerKind::Learned;
            }
        }
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

/// Turns some of a lane's operations into ones on the second table, and creates and drops it.
pub(super) fn visit_other_table(
    random: &mut Random,
    lane: &mut Vec<Operation>,
    keys: &[u64],
    next_value: &mut u64,
) {
    let (visit, change) = (random.between(300, 950), random.between(20, 200));
    let load = *random.choose(&[0, 500]);
    let mut visited = Vec::with_capacity(lane.len());
    for operation in lane.drain(..) {
        if random.chance(change) {
            let (change, is_loaded) = (random.below(10), random.chance(load));
            visited.push(match change {
                0..4 => Operation::Create(draw_shape(random)),
                4..7 => Operation::Drop,
                7 => Operation::Open,
                _ => Operation::List,
            });
            if change < 4 && is_loaded {
                let load = Operation::Load(some_records(random, keys, next_value));
                visited.push(Operation::Other(Box::new(load)));
            }
        }
        if random.chance(visit) {
            visited.push(Operation::Other(Box::new(operation)));
        } else {
            visited.push(operation);
        }
    }
    *lane = visited;
}

fn draw_shape(random: &mut Random) -> TableShape {
    TableShape {
        layer: *random.choose(&[LayerKind::Learned, LayerKind::Rolex]),
        slots: *random.choose(&[8, 8, 12, 16]),
        fill_percent: *random.choose(&[50, 75, 100]),
        pages: None,
    }
}
