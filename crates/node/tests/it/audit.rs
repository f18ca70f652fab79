//! What must hold of a region in which nobody works and which was swept.

use std::collections::{BTreeMap, BTreeSet};

use farleaf_executor::block_on;
use farleaf_fabric::Batch;
use farleaf_fabric::mapped::MappedRegion;
use farleaf_leaf::{LeafGeometry, LeafImage};
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::catalog::{CatalogEntry, EntryState};
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_region::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};
use farleaf_types::{BLOCK_SIZE_WORDS, OwnerWord, RemoteAddr};

use crate::pool::Pool;

/// What a table holds.
pub(crate) type Model = BTreeMap<u64, u64>;

/// Chunks in use, by what for. Equal regions have used equally much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) leaves: u64,
    pub(crate) runs: u64,
    pub(crate) snapshots: u64,
}

pub(crate) fn chunks(pool: &Pool) -> Vec<ChunkEntry> {
    let endpoint = pool.endpoint();
    let allocator = ChunkAllocator::new(&endpoint, &pool.layout, OwnerWord::FREE);
    block_on(allocator.entries(), || 0).expect("the chunk table is readable")
}

pub(crate) fn usage(pool: &Pool) -> Usage {
    let mut usage = Usage::default();
    for chunk in chunks(pool) {
        match chunk.purpose.expect("known") {
            ChunkPurpose::Free => {}
            ChunkPurpose::Leaves { .. } => usage.leaves += 1,
            ChunkPurpose::Run { .. } => usage.runs += 1,
            ChunkPurpose::Snapshot { .. } => usage.snapshots += 1,
        }
    }
    usage
}

/// Checks the whole region: the catalog's lock, every chunk, and every table against its model, by
/// name. Tables that were dropped are left to [`assert_reclaimed`].
pub(crate) fn audit(pool: &mut Pool, models: &[(&str, &Model)]) {
    let owner = pool.register();
    assert_eq!(pool.word(pool.layout.catalog_lock()), 0, "the catalog lock");
    let catalog = pool.catalog();
    let live: Vec<_> = catalog
        .iter()
        .filter(|entry| entry.state == EntryState::Live)
        .collect();
    let names: BTreeSet<_> = live
        .iter()
        .map(|entry| entry.record.name.as_str())
        .collect();
    let expected: BTreeSet<_> = models.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, expected, "the tables");
    let chunks = chunks(pool);
    for (index, chunk) in chunks.iter().enumerate() {
        assert!(chunk.owner.is_free(), "chunk {index} is leased: {chunk:?}");
        if chunk.purpose == Some(ChunkPurpose::Free) {
            assert_zero(pool, ChunkIndex(index as u64));
        } else {
            let known = catalog.iter().any(|entry| entry.record.id == chunk.table);
            assert!(known, "chunk {index} is of no table: {chunk:?}");
        }
    }
    for entry in live {
        let (_, model) = models
            .iter()
            .find(|(name, _)| *name == entry.record.name)
            .expect("names agree");
        let linked = assert_chain(pool, owner, entry, model);
        assert_leaves(pool, entry, &chunks, &linked);
    }
    pool.fence(owner);
}

/// A4.
fn assert_zero(pool: &Pool, chunk: ChunkIndex) {
    let start = pool.layout.chunk_start(chunk).word_at(0).index() as usize;
    let mut words = vec![0; (CHUNK_SIZE_BLOCKS * BLOCK_SIZE_WORDS) as usize];
    MappedRegion::copy_out(&pool.region.words()[start..start + words.len()], &mut words);
    assert!(
        words.iter().all(|word| *word == 0),
        "{chunk:?} is free and not zero"
    );
}

/// D6, and what the leaves hold; returns the leaves in order.
fn assert_chain(
    pool: &Pool,
    owner: OwnerWord,
    entry: &CatalogEntry,
    model: &Model,
) -> Vec<RemoteAddr> {
    let client = pool.client(owner, entry);
    let index = client.index();
    let (mut batch, mut survey) = (Batch::new(), index.survey());
    let (mut linked, mut records) = (Vec::new(), 0);
    let mut next_low = Some(0);
    while let Some(leaf) =
        block_on(index.survey_next(&mut batch, &mut survey), || 0).expect("no leaf is damaged")
    {
        assert_eq!(Some(leaf.low), next_low, "D6: ranges follow each other");
        assert!(leaf.low <= leaf.high && leaf.is_sound, "{leaf:?}");
        assert_eq!(leaf.lock, 0, "nobody works here");
        next_low = leaf.high.checked_add(1);
        records += leaf.record_count;
        linked.push(leaf.addr);
        assert!(linked.len() < 10_000, "the chain ends");
    }
    assert_eq!(
        next_low, None,
        "D6: the last leaf ends with the largest key"
    );
    assert_eq!(records, model.len(), "leaves hold each record once");
    let distinct: BTreeSet<_> = linked.iter().collect();
    assert_eq!(distinct.len(), linked.len(), "each leaf is linked once");
    // A root that is not installed although its load is committed would leave the old one here.
    let is_loaded = !linked.contains(&entry.record.first_leaf);
    assert_eq!(
        entry.root.spare() != 0,
        is_loaded,
        "B4: the root is the chain's"
    );
    linked
}

/// No leaf and no chunk of a table is lost, and none is free and in use.
fn assert_leaves(pool: &Pool, entry: &CatalogEntry, chunks: &[ChunkEntry], linked: &[RemoteAddr]) {
    let geometry = LeafGeometry::new(entry.record.slots.into()).expect("made here");
    let (mut runs, mut snapshots, mut inside) = (BTreeSet::new(), 0, 0);
    for (index, chunk) in chunks.iter().enumerate() {
        let index = ChunkIndex(index as u64);
        if chunk.table != entry.record.id {
            continue;
        }
        match chunk.purpose.expect("known") {
            ChunkPurpose::Free => unreachable!("free chunks are of no table"),
            ChunkPurpose::Run { generation, .. } => {
                assert_eq!(generation, entry.root.spare(), "W4: {index:?}");
                runs.insert(index);
            }
            ChunkPurpose::Snapshot { generation } => {
                let root = entry.root.spare();
                assert!(generation == root || generation == 0, "W4: {index:?}");
                snapshots += 1;
            }
            ChunkPurpose::Leaves { .. } => {
                inside += assert_leased_leaves(pool, entry, (index, chunk), geometry, linked);
            }
        }
    }
    let of_runs: BTreeSet<_> = linked
        .iter()
        .map(|leaf| pool.layout.chunk_of(*leaf).expect("leaves lie in chunks"))
        .filter(|chunk| runs.contains(chunk))
        .collect();
    assert_eq!(of_runs, runs, "a run's chunks hold its leaves");
    let in_runs = linked
        .iter()
        .filter(|leaf| {
            pool.layout
                .chunk_of(**leaf)
                .is_some_and(|it| runs.contains(&it))
        })
        .count();
    assert_eq!(
        inside + in_runs,
        linked.len(),
        "leaves lie in the table's chunks"
    );
    let root_snapshots = 1 + usize::from(entry.root.spare() != 0);
    assert_eq!(
        snapshots, root_snapshots,
        "the first snapshot and the root's"
    );
}

/// Free leaves, linked leaves and the retired first leaf make up the chunk. Returns how many are
/// linked.
fn assert_leased_leaves(
    pool: &Pool,
    entry: &CatalogEntry,
    (index, chunk): (ChunkIndex, &ChunkEntry),
    geometry: LeafGeometry,
    linked: &[RemoteAddr],
) -> usize {
    let start = pool.layout.chunk_start(index);
    let free: BTreeSet<u64> = chunk.free.iter(geometry.chunk_leaf_count()).collect();
    assert_eq!(
        free.len() as u64,
        chunk.free.count(),
        "only leaves are free"
    );
    let mut linked_count = 0;
    for number in 0..geometry.chunk_leaf_count() {
        let leaf = start.offset_blocks(number * geometry.stride_blocks());
        assert_eq!(pool.word(geometry.lock(leaf)), 0, "the lock of {leaf}");
        let is_linked = linked.contains(&leaf);
        let is_kept = is_linked || leaf == entry.record.first_leaf;
        assert_eq!(
            free.contains(&number),
            !is_kept,
            "leaf {number} of {index:?}, {leaf}"
        );
        linked_count += usize::from(is_linked);
        if is_kept && !is_linked {
            assert_retired(pool, entry, geometry, leaf);
        }
    }
    linked_count
}

/// The first leaf of a loaded table stays what it is: retired, with a way to the new one.
fn assert_retired(pool: &Pool, entry: &CatalogEntry, geometry: LeafGeometry, leaf: RemoteAddr) {
    let mut words = vec![0; geometry.image_size_words()];
    let start = geometry.state(leaf).index() as usize;
    MappedRegion::copy_out(&pool.region.words()[start..start + words.len()], &mut words);
    let image = LeafImage::new(geometry, &words);
    assert!(image.is_intact(leaf, entry.record.id) && image.is_retired());
    assert!(!image.link().is_null(), "it leads to its successor");
}

/// Nothing is in use for a table any more.
pub(crate) fn assert_reclaimed(pool: &mut Pool) {
    assert_eq!(pool.catalog(), [], "the catalog entry is free");
    assert_eq!(usage(pool), Usage::default(), "all chunks are free");
    audit(pool, &[]);
}
