//! Plans of tables of byte strings, with a random stream of their own.

use std::sync::Arc;

use farleaf::PageOptions;
use farleaf_index::LayerKind;
use farleaf_pool::layout::CHUNK_SIZE_BYTES;

use super::{ClientPlan, TablePlan, hold_tables};
use crate::history::Operation;
use crate::node::REGION_SIZE_BYTES;
use crate::strings::StringMap;
use farleaf_base::random::Random;

/// Page options with which plain keys and values fill and split pages.
const PLAIN_PAGES: PageOptions = PageOptions {
    page_size_bytes: 512,
    inline_value_size_bytes: 224,
};

const OF_BYTES: u64 = 0x6f66_5f62_7974_6573;

/// Stream of the random numbers for the tables' search layers and budgets.
const OF_BUDGETS: u64 = 0x6f66_5f62_7564_6765;
const OF_LISTINGS: u64 = 0x6f66_5f6c_6973_7473;

/// Maximal number of keys of one range deletion, unless it covers all following keys.
const RANGE_KEY_COUNT_MAX: u64 = 6;

/// Runs of 1000 with a table that the node holds.
const CALLED_PER_MILLE: u64 = 250;
/// Plans of 1000 with budgets, among those whose tables support them.
const BUDGETED_PER_MILLE: u64 = 500;

/// Turns the table, and second tables, into tables of byte strings, and draws the strings of the
/// numbers from 0 on.
pub(super) fn draw_bytes(
    seed: u64,
    key_count: usize,
    table: &mut TablePlan,
    clients: &mut [ClientPlan],
) -> Arc<StringMap> {
    let mut random = Random::new(seed ^ OF_BYTES);
    table.layer = LayerKind::Learned;
    draw_retraining(&mut random, table);
    let is_plain = random.chance(400);
    table.pages = Some(if is_plain {
        PLAIN_PAGES
    } else {
        draw_pages(&mut random)
    });
    let (reverse, range) = (
        *random.choose(&[0, 400, 900]),
        *random.choose(&[0, 100, 400]),
    );
    for client in &mut *clients {
        for operation in client.lanes.iter_mut().flatten() {
            vary(&mut random, operation, key_count as u64, reverse, range);
        }
    }
    draw_listings(seed, table, clients);
    let strings = StringMap::draw(&mut random, key_count, is_plain);
    // Drawn last, so that the other decisions of a seed do not change.
    if random.chance(CALLED_PER_MILLE) {
        hold_tables(&mut random, table, clients, 500);
    }
    draw_budgets(seed, table, clients);
    bound_loaded(&strings, &mut table.loaded);
    Arc::new(strings)
}

/// Removes the last records to load until the values fill at most three quarters of the pool:
/// otherwise it might be full before the run begins.
fn bound_loaded(strings: &StringMap, loaded: &mut Vec<(u64, u64)>) {
    let mut left_bytes = REGION_SIZE_BYTES / 4 * 3;
    let count = loaded.iter().take_while(|(_, value)| {
        let size_bytes = match strings.value(*value).len() as u64 {
            size_bytes if size_bytes > CHUNK_SIZE_BYTES => {
                size_bytes.next_multiple_of(CHUNK_SIZE_BYTES)
            }
            size_bytes => size_bytes,
        };
        let left = left_bytes.checked_sub(size_bytes);
        left_bytes = left.unwrap_or(0);
        left.is_some()
    });
    let count = count.count();
    loaded.truncate(count);
}

/// Gives clients metadata budgets if all tables support them: a session's budget is for all of its
/// tables.
fn draw_budgets(seed: u64, table: &TablePlan, clients: &mut [ClientPlan]) {
    let mut random = Random::new(seed ^ OF_BUDGETS);
    let operations = clients
        .iter()
        .flat_map(|client| client.lanes.iter().flatten());
    let are_learned = table.layer == LayerKind::Learned
        && operations.into_iter().all(|operation| match operation {
            Operation::Create(shape) => shape.layer == LayerKind::Learned,
            _ => true,
        });
    let has_budgets = are_learned && random.chance(BUDGETED_PER_MILLE);
    for client in clients {
        let bytes = *random.choose(&[1024, 1024, 1800, 3000, 20_000]);
        client.metadata_budget_bytes = has_budgets.then_some(bytes);
    }
}

/// Adds listings of pages to some tables.
fn draw_listings(seed: u64, table: &mut TablePlan, clients: &mut [ClientPlan]) {
    const LAYERS: [LayerKind; 3] = [LayerKind::Learned, LayerKind::Learned, LayerKind::RfTree];
    let mut random = Random::new(seed ^ OF_LISTINGS);
    table.layer = *random.choose(&LAYERS);
    for client in clients {
        client.link_count_max = Some(*random.choose(&[0, 0, 1, 3]));
        for shape in client.shapes() {
            shape.layer = *random.choose(&LAYERS);
        }
    }
}

/// Draws retraining: tables of a few pages are mostly due with their first split.
fn draw_retraining(random: &mut Random, table: &mut TablePlan) {
    if let Some(policy) = &mut table.retraining {
        policy.leaves_per_split = 1000;
        policy.split_count_min = *random.choose(&[1, 1, 2]);
    }
}

fn draw_pages(random: &mut Random) -> PageOptions {
    PageOptions {
        page_size_bytes: *random.choose(&[512, 512, 512, 1024, 2048]),
        inline_value_size_bytes: *random.choose(&[0, 8, 40, 128, 224]),
    }
}

/// Reverses some scans, and turns some deletes into range deletes.
fn vary(random: &mut Random, operation: &mut Operation, key_count: u64, reverse: u64, range: u64) {
    match operation {
        Operation::Other(inner) => vary(random, inner, key_count, reverse, range),
        Operation::Create(shape) => {
            shape.layer = LayerKind::Learned;
            shape.pages = Some(draw_pages(random));
        }
        Operation::Scan(from, limit) if random.chance(reverse) => {
            let to = if random.chance(300) { key_count } else { *from };
            *operation = Operation::ScanReverse(to, *limit);
        }
        Operation::Delete(key) if random.chance(range) => {
            let to = if random.chance(100) {
                key_count
            } else {
                (*key + random.between(0, RANGE_KEY_COUNT_MAX)).min(key_count)
            };
            *operation = Operation::DeleteRange(*key, to);
        }
        _ => {}
    }
}
