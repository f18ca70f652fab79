//! Tests of the audit: each invariant is violated by hand, in every way that has its own finding,
//! and random bytes never cause a panic.

use farleaf_base::{OwnerWord, RemoteAddr, TableId};
use farleaf_leaf::words::LeafBuffer;
use farleaf_node::audit::Finding;
use farleaf_pool::catalog::{self, ENTRY_SIZE_WORDS, TableKind};
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};

use crate::audit::chunks;
use crate::catalog::{create, find};
use crate::crash::{load_into, loaded};
use crate::leaves::{overwrite, set_lock, tear};
use crate::pool::Pool;
use crate::scene::Scene;
use crate::tables::LEARNED;

/// Promise (LEAF-8): locks of the catalog, of leaves in use and of free leaves, and leased chunks
/// are found.
#[test]
fn whatever_is_held_is_found() {
    let scene = Scene::new();
    let owner = OwnerWord::from_word(7 << 48 | 1);
    let lock = scene.pool.layout.catalog_lock();
    scene.write(lock, &[owner.word()]);
    assert_eq!(scene.findings(), [Finding::CatalogLocked { owner }]);
    scene.write(lock, &[0]);

    let (free, linked) = scene.free_and_linked();
    let trained = scene.leaves[5];
    for leaf in [free, linked, trained, scene.entry.record.first_leaf] {
        set_lock(&scene.pool, &scene.entry, leaf, owner);
        assert_eq!(scene.findings(), [Finding::LeafLocked { leaf, owner }]);
        set_lock(&scene.pool, &scene.entry, leaf, OwnerWord::FREE);
    }

    for chunk in 0..chunks(&scene.pool).len() as u64 {
        let chunk = ChunkIndex(chunk);
        let place = scene.pool.layout.chunk_entry(chunk);
        scene.write(place, &[owner.word()]);
        assert_eq!(scene.findings(), [Finding::ChunkLeased { chunk, owner }]);
        scene.write(place, &[0]);
    }
    assert_eq!(scene.promises(), []);
}

/// Promise (LEAF-6): a gap, an overlap, misplaced records, an early end, a cycle and corruption are
/// found.
#[test]
fn a_chain_that_does_not_tile_is_found() {
    let scene = Scene::new();
    let (table, leaf) = (scene.table, scene.leaves[7]);
    let sound = scene.leaf(leaf);
    let (low, high) = (sound.image().low(), sound.image().high());

    let mut changed = sound;
    changed.set_high(high - 1);
    scene.set_leaf(leaf, changed);
    let next = scene.leaves[8];
    let of_next = scene.leaf(next);
    assert_eq!(
        scene.findings(),
        [Finding::RangeBroken {
            table,
            leaf: next,
            low: high + 1,
            high: of_next.image().high(),
            due: high,
        }]
    );

    for key in [sound.image().key(0), high + 1, low - 1] {
        let mut changed = sound;
        changed.set_record(1, key, 1);
        scene.set_leaf(leaf, changed);
        let found = scene.findings();
        assert_eq!(found, [Finding::RecordMisplaced { table, leaf }], "{key}");
    }

    overwrite(&scene.pool, &scene.entry, leaf, low, high, RemoteAddr::NULL);
    let due = high + 1;
    let short = Finding::ChainShort { table, due };
    assert_eq!(scene.findings(), [short], "and nothing that follows");

    overwrite(&scene.pool, &scene.entry, leaf, low, high, scene.leaves[3]);
    let again = Finding::LeafLinkedTwice {
        table,
        leaf: scene.leaves[3],
    };
    assert!(scene.findings().contains(&again));

    scene.set_leaf(leaf, sound);
    assert_eq!(scene.findings(), []);
    tear(&scene.pool, &scene.entry, leaf);
    assert_eq!(scene.findings(), [Finding::LeafDamaged { table, leaf }]);
}

/// Promise: links that do not lead to live leaves of the table are found.
#[test]
fn a_link_that_leads_astray_is_found() {
    let scene = Scene::new();
    let (table, leaf) = (scene.table, scene.leaves[7]);
    let sound = scene.leaf(leaf);
    let (low, high) = (sound.image().low(), sound.image().high());
    let elsewhere = |leaf| Finding::LeafElsewhere { table, leaf };
    let node = scene.pool.layout.node;
    let end = scene.pool.layout.superblock.chunk_count;
    let last_block = scene.pool.layout.chunk_start(ChunkIndex(end)).block() - 1;
    let (free, _) = scene.free_and_linked();
    for link in [
        RemoteAddr::new(node, 1),
        RemoteAddr::new(node, last_block),
        RemoteAddr::new(node, RemoteAddr::BLOCK_COUNT_MAX - 1),
        RemoteAddr::new(farleaf_base::NodeId(9), 5000),
        scene.entry.root.place(),
        free.offset_blocks(1),
    ] {
        overwrite(&scene.pool, &scene.entry, leaf, low, high, link);
        assert_eq!(scene.findings(), [elsewhere(link)]);
    }

    let retired = LeafBuffer::new(scene.geometry(), 0, 0, scene.leaves[8].retired());
    scene.set_leaf(free, retired);
    overwrite(&scene.pool, &scene.entry, leaf, low, high, free);
    let found = scene.findings();
    assert_eq!(found[0], Finding::LeafRetired { table, leaf: free });
}

/// Promise: leaves that are both free and in use, or neither, and bits that stand for no leaf are
/// found.
#[test]
fn a_leaf_that_is_lost_or_free_twice_is_found() {
    let scene = Scene::new();
    let (table, geometry) = (scene.table, scene.geometry());
    let (index, chunk) = scene.leaf_chunk();
    let purpose = chunk.purpose.expect("known");
    let (free, linked) = scene.free_and_linked();
    let start = scene.pool.layout.chunk_start(index);
    let number = |leaf: RemoteAddr| (leaf.block() - start.block()) / geometry.stride_blocks();
    let without = |number| {
        let mut remaining = FreeLeaves::default();
        let all = chunk.free.iter(geometry.chunk_leaf_count());
        all.filter(|it| *it != number)
            .for_each(|it| remaining.insert(it));
        remaining
    };

    scene.set_chunk(index, purpose, without(number(free)));
    assert_eq!(scene.findings(), [Finding::LeafLost { table, leaf: free }]);

    for leaf in [linked, scene.entry.record.first_leaf] {
        let mut more = chunk.free;
        more.insert(number(leaf));
        scene.set_chunk(index, purpose, more);
        assert_eq!(
            scene.findings(),
            [Finding::LeafFreeAndUsed { table, leaf }],
            "also if it is the retired first leaf"
        );
    }

    let mut more = chunk.free;
    more.insert(geometry.chunk_leaf_count());
    scene.set_chunk(index, purpose, more);
    let possible = chunk.free.count();
    assert_eq!(
        scene.findings(),
        [Finding::FreeBeyondEnd {
            chunk: index,
            found: possible + 1,
            possible
        }]
    );
}

/// Promise: free chunks that are not zero, and chunks without table, load, leaf or valid purpose
/// are found.
#[test]
fn a_chunk_that_nobody_needs_is_found() {
    let scene = Scene::new();
    let table = scene.table;
    let free = scene.add_chunk(ChunkPurpose::Free);
    assert_eq!(scene.findings(), []);
    let inside = scene.pool.layout.chunk_start(free).word_at(99);
    scene.write(inside, &[1]);
    assert_eq!(scene.findings(), [Finding::ChunkNotZero { chunk: free }]);
    scene.write(inside, &[0]);

    let chunk = free;
    let place = scene.pool.layout.chunk_entry(chunk);
    let generation = scene.entry.root.spare();
    let other = generation + 1;
    let slots = scene.entry.record.kind.slots().expect("of words");
    let unnamed = |generation| Finding::ChunkOfNoLoad {
        chunk,
        table,
        generation,
    };
    let (of_run, of_snapshot) = (
        |generation| ChunkPurpose::Run { slots, generation },
        |generation| ChunkPurpose::Snapshot { generation },
    );
    for (purpose, finding) in [
        (of_run(other), unnamed(other)),
        (of_run(generation), unnamed(generation)),
        (of_snapshot(other), unnamed(other)),
        (of_snapshot(generation), unnamed(generation)),
        (
            ChunkPurpose::Leaves { slots: 16 },
            Finding::ChunkOfOtherSlots {
                chunk,
                table,
                slots: 16,
            },
        ),
    ] {
        scene.set_chunk(chunk, purpose, FreeLeaves::default());
        assert_eq!(scene.findings(), [finding], "{purpose:?}");
    }
    scene.write(place.offset(1), &[77 << 56 | u64::from(table.0)]);
    assert_eq!(scene.findings(), [Finding::PurposeUnknown { chunk }]);
    scene.write(place.offset(1), &[0x0200_0000_0000_0063]);
    let nobody = TableId(99);
    assert_eq!(
        scene.findings(),
        [Finding::ChunkOfNoTable {
            chunk,
            table: nobody
        }]
    );
}

/// Promise: a missing chunk of a snapshot or a run is found.
#[test]
fn a_chunk_that_is_missing_is_found() {
    for is_missing in [
        |it: &ChunkEntry| {
            let of_root = |generation| generation > 0;
            matches!(it.purpose, Some(ChunkPurpose::Snapshot { generation }) if of_root(generation))
        },
        |it: &ChunkEntry| matches!(it.purpose, Some(ChunkPurpose::Run { .. })),
        |it: &ChunkEntry| matches!(it.purpose, Some(ChunkPurpose::Leaves { .. })),
    ] {
        let scene = Scene::new();
        let (index, _) = scene.chunk(is_missing);
        let zeros = vec![0; (CHUNK_SIZE_BLOCKS * 8) as usize];
        scene.write(scene.pool.layout.chunk_start(index).word_at(0), &zeros);
        scene.write(scene.pool.layout.chunk_entry(index), &[0; 8]);
        assert_ne!(scene.findings(), [], "{index:?}");
    }
}

/// Promise: a committed load whose root was not swapped in, roots that lead elsewhere, and
/// snapshots that are corrupted or of other leaves are found.
#[test]
fn a_root_that_is_not_the_chains_is_found() {
    let scene = Scene::new();
    let (table, root) = (scene.table, scene.entry.root);
    let layout = &scene.pool.layout;
    let (root_word, pending_word) = (
        catalog::root_addr(layout, scene.entry.index),
        catalog::pending_root_addr(layout, scene.entry.index),
    );
    let (first, _) = scene.chunk(|it| it.purpose == Some(ChunkPurpose::Snapshot { generation: 0 }));
    let old = layout.chunk_start(first);
    scene.write(root_word, &[old.word()]);
    let found = scene.findings();
    let contradiction = Finding::RootContradictsFirstLeaf {
        table,
        generation: 0,
        is_retired: true,
    };
    let unfinished = Finding::RootUnfinished {
        table,
        root: old,
        pending: root,
    };
    assert!(found.contains(&contradiction), "{found:?}");
    assert!(found.contains(&unfinished), "{found:?}");

    scene.write(root_word, &[root.word()]);
    scene.write(pending_word, &[0]);
    assert_eq!(scene.findings(), [], "R1: as after a retraining");
    scene.write(pending_word, &[old.word()]);
    let unfinished = Finding::RootUnfinished {
        table,
        root,
        pending: old,
    };
    assert_eq!(scene.findings(), [unfinished]);
    scene.write(pending_word, &[root.word()]);

    let astray = root.offset_blocks(1).with_spare(root.spare());
    scene.write(root_word, &[astray.word()]);
    scene.write(pending_word, &[astray.word()]);
    let elsewhere = Finding::RootElsewhere {
        table,
        root: astray,
    };
    assert_eq!(scene.findings(), [elsewhere]);
    scene.write(root_word, &[root.word()]);
    scene.write(pending_word, &[root.word()]);

    for word in [0, 2, 9, 16, 20] {
        let place = root.place().word_at(word);
        let sound = scene.pool.word(place);
        scene.write(place, &[sound ^ 1 << 30]);
        let found = scene.findings();
        assert!(
            matches!(found[..], [Finding::SnapshotDamaged { .. }]),
            "{word}: {found:?}"
        );
        scene.write(place, &[sound]);
    }
    assert_eq!(scene.findings(), []);
}

/// Promise: a table that was never loaded has its first root and its first leaf. A pending root is
/// accepted, and the root of a load is found.
#[test]
fn a_root_of_a_load_that_never_happened_is_found() {
    let scene = Scene::of(loaded(LEARNED, 0));
    let (index, root) = (scene.entry.index, scene.entry.root);
    let layout = &scene.pool.layout;
    scene.write(catalog::pending_root_addr(layout, index), &[12345]);
    assert_eq!(scene.findings(), []);
    scene.write(
        catalog::root_addr(layout, index),
        &[root.with_spare(3).word()],
    );
    let contradiction = Finding::RootContradictsFirstLeaf {
        table: scene.table,
        generation: 3,
        is_retired: false,
    };
    assert_eq!(scene.findings()[0], contradiction);
}

/// Promise: an intact snapshot that names unlinked leaves is found.
#[test]
fn a_snapshot_of_other_leaves_is_found() {
    let scene = Scene::new();
    let (table, leaf) = (scene.table, scene.leaves[7]);
    let (before, after) = (scene.leaves[6], scene.leaves[8]);
    // The chain omits a trained leaf, and still tiles.
    let high = scene.leaf(leaf).image().high();
    let mut wide = scene.leaf(before);
    wide.set_high(high);
    wide.set_link(after);
    scene.set_leaf(before, wide);
    let lost = Finding::TrainedLeafNotLinked { table, leaf };
    assert_eq!(scene.findings(), [lost]);
}

/// Promise: a table whose run and snapshot take many chunks, with leaves across two of them, is
/// sound, and a chunk of its snapshot with a wrong purpose is found.
#[test]
fn large_tables_are_counted_right() {
    let mut pool = Pool::with_size(96 << 20);
    load_into(&mut pool, LEARNED, 0);
    let owner = pool.register();
    let entry = find(&pool, "records").expect("it was made");
    let records: Vec<_> = (0..600_000_u64)
        .map(|key| (key * key / 7 + key, key))
        .collect();
    let mut client = pool.client(owner, &entry);
    client.load(&records).expect("there is room");
    drop(client);
    pool.fence(owner);
    pool.sweep();
    let scene = Scene::of(pool);
    assert_eq!(scene.findings(), []);
    let geometry = scene.geometry();
    let last_block = |leaf: RemoteAddr| leaf.offset_blocks(geometry.stride_blocks() - 1);
    let layout = &scene.pool.layout;
    let lies_across =
        |leaf: &&RemoteAddr| layout.chunk_of(**leaf) != layout.chunk_of(last_block(**leaf));
    assert!(scene.leaves.iter().any(|leaf| lies_across(&leaf)));

    let generation = scene.entry.root.spare();
    let purpose = ChunkPurpose::Snapshot { generation };
    let all = chunks(&scene.pool);
    let snapshot = (0..all.len()).filter(|index| all[*index].purpose == Some(purpose));
    let snapshot: Vec<_> = snapshot.map(|index| ChunkIndex(index as u64)).collect();
    assert!(snapshot.len() > 1, "{snapshot:?}");
    scene.set_chunk(snapshot[1], ChunkPurpose::Free, FreeLeaves::default());
    let found = scene.findings();
    let is_missing = |finding: &Finding| match finding {
        Finding::NamedChunkMissing {
            found, expected, ..
        } => found + 1 == *expected,
        _ => false,
    };
    assert!(found.iter().any(is_missing), "{found:?}");
}

/// Promise: corrupted catalog entries, tables with impossible leaves, and duplicate tables are
/// found.
#[test]
fn a_catalog_that_is_damaged_is_found() {
    let scene = Scene::new();
    let layout = &scene.pool.layout;
    let entry = layout.catalog_entry(scene.entry.index);
    let sound = scene.words(entry, ENTRY_SIZE_WORDS as u64);

    let copy = layout.catalog_entry(scene.entry.index + 5);
    scene.write(copy, &sound);
    let index = scene.entry.index + 5;
    let table = scene.table;
    assert!(
        scene
            .findings()
            .contains(&Finding::EntryTwice { index, table })
    );
    scene.write(copy, &[0]);

    let mut record = scene.entry.record.clone();
    record.kind = TableKind::Words { slots: 9 };
    scene.write(entry.offset(1), &record.encode_body(scene.entry.root));
    let found = scene.findings();
    assert_eq!(found[0], Finding::SlotsUnknown { table, slots: 9 });

    scene.write(entry, &sound);
    scene.write(entry.offset(2), &[sound[2] ^ 1]);
    let index = scene.entry.index;
    assert_eq!(scene.findings()[0], Finding::EntryDamaged { index });
}

/// Promise: tables are audited separately; dropped ones are skipped.
#[test]
fn what_is_wrong_with_one_table_is_found_in_that_one() {
    let mut pool = Pool::new();
    load_into(&mut pool, LEARNED, 40);
    let owner = pool.register();
    create(&pool, &pool.plain, owner, "other", LEARNED).expect("it can be made");
    pool.fence(owner);
    let other = find(&pool, "other").expect("it was made");
    let scene = Scene::of(pool);
    assert_eq!(scene.findings(), []);
    let (table, leaf) = (other.record.id, other.record.first_leaf);
    tear(&scene.pool, &other, leaf);
    assert_eq!(scene.findings(), [Finding::LeafDamaged { table, leaf }]);
    let entry = scene.pool.layout.catalog_entry(other.index);
    scene.write(entry, &[catalog::dropped_word(table)]);
    assert_eq!(scene.findings(), []);
}

/// Promise: with any words, the audit ends with the same findings each time, or none. Seeded; words
/// near each other and all over the memory, small, huge and shifted.
#[test]
fn no_bytes_make_an_audit_panic() {
    let scene = Scene::new();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut draw = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let layout = &scene.pool.layout;
    let first_chunk = layout.chunk_start(ChunkIndex(0)).word_at(0);
    let used_words = chunks(&scene.pool).len() as u64 * CHUNK_SIZE_BLOCKS * 8;
    let mut finding_count = 0;
    for round in 0..1500 {
        let place = match round % 4 {
            0 => layout.catalog_entry(0).offset(draw() % 32),
            1 => layout.chunk_entry(ChunkIndex(0)).offset(draw() % 64),
            2 => scene.entry.root.place().word_at(draw() % 64),
            _ => first_chunk.offset(draw() % used_words),
        };
        let sound = scene.pool.word(place);
        let damaged = match draw() % 4 {
            0 => draw(),
            1 => sound ^ 1 << (draw() % 64),
            2 => u64::MAX - draw() % 16,
            _ => sound.wrapping_add(draw() % 5),
        };
        scene.write(place, &[damaged]);
        finding_count += usize::from(!scene.findings().is_empty());
        scene.write(place, &[sound]);
    }
    assert!(finding_count > 300, "{finding_count} of 1500 were found");
    assert_eq!(scene.findings(), [], "nothing was written");
}
