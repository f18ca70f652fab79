//! Replication over any fabric: for the tests of `tests/it`, and for those of `tests/over_verbs`,
//! which are a separate test binary.
//!
//! | module | contents |
//! |---|---|
//! | `replicating` | a primary with writers, a backup on a thread, and its promotion |
//! | `node` | a memory node with sessions, over `tcp`, and over `verbs` if it has a device |

pub(crate) mod node;
pub(crate) mod replicating;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use farleaf_base::{NodeId, WordAddr};
use farleaf_fabric::Endpoint;
use farleaf_fabric::mapped::MappedMemory;
use farleaf_lsm::EngineOptions;
use farleaf_lsm::engine::{Direction, Snapshot, WorkDone};
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::inspect::{Inspection, compare};
use farleaf_lsm::log::record::EngineId;
use farleaf_lsm::storage::Storage;
use farleaf_replica::{Layout, Primary, PrimaryWorkDone, ReplicationOptions};

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn engine_options() -> EngineOptions {
    EngineOptions {
        l0_entry_count_max: 24,
        level_1_tree_count_max: 2,
        growth_factor: 3,
        merge_step_entry_count: 20,
        delay: Duration::ZERO,
        ..EngineOptions::new().with_id(EngineId(77))
    }
}

pub(crate) const fn options(index: IndexKind) -> ReplicationOptions {
    ReplicationOptions {
        index,
        behind_count_max: 2,
    }
}

/// First word of a backup, different from the start of the memory.
pub(crate) const FIRST_WORD: u64 = 128;

/// Returns the layout of these tests' backups.
pub(crate) fn layout() -> Layout {
    Layout::new(WordAddr::new(NodeId(0), FIRST_WORD), 2).expect("two are enough")
}

/// Returns slightly more than the size that they take.
pub(crate) fn memory_size_bytes() -> u64 {
    (layout().word_count() + FIRST_WORD) * 8
}

/// Makes a primary send everything pending, and compares its files with those of its backups, byte
/// by byte. `farleaf_lsm::inspect::compare` documents the permitted differences. At rest, a backup
/// has all trees, and the whole log except for a mark that was added with its last sync.
pub(crate) fn assert_equal<E: Endpoint + Send + 'static>(
    primary: &Primary<E>,
    own: &Arc<dyn Storage>,
    backups: &[Arc<dyn Storage>],
    index: IndexKind,
) {
    while primary.maintain().expect("no fault is set") != PrimaryWorkDone::Engine(WorkDone::Nothing)
    {
    }
    primary.sync().expect("no fault is set");
    let inspect = |storage| Inspection::read(storage).expect("its manifest is whole");
    let own = inspect(own);
    for backup in backups {
        let comparison = compare(&own, &inspect(backup), index).expect("both can be read");
        assert!(comparison.is_equal(), "{index:?}: {comparison:#?}");
    }
}

pub(crate) fn memory() -> Arc<MappedMemory> {
    Arc::new(MappedMemory::anonymous(memory_size_bytes()).expect("memory"))
}

pub(crate) fn scanned(snapshot: &Snapshot) -> Model {
    let range = (Bound::Unbounded, Bound::Unbounded);
    let scan = snapshot.scan(range, Direction::Ascending);
    let pairs = scan.expect("it can be read");
    pairs.map(|pair| pair.expect("it can be read")).collect()
}
