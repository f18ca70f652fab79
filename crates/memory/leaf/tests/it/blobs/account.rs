//! Checker: every piece and every chunk of the table is free, referred to, or held by a live
//! session; and what is referred to is intact.

use std::collections::{BTreeMap, BTreeSet};

use farleaf_base::{BLOCK_SIZE_WORDS, OwnerWord, RemoteAddr, crc32c_bytes};
use farleaf_executor::block_on;
use farleaf_fabric::Batch;
use farleaf_leaf::blobs::{
    BODY_WORD, BlockAccess, CopyOutcome, FatPointer, Form, HOLDER_WORD, SHAPE_WORD, SizeClass,
};
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_pool::layout::CHUNK_SIZE_BLOCKS;

use crate::blobs::world::{TABLE, World, string};

const CHUNK_SIZE_WORDS: usize = (CHUNK_SIZE_BLOCKS * BLOCK_SIZE_WORDS) as usize;

/// Numbers of blocks of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) free_pieces: u64,
    pub(crate) linked: u64,
    pub(crate) held: u64,
}

/// Checks that every piece and chunk is accounted for exactly once.
///
/// # Panics
///
/// If one is missing or counted twice.
pub(crate) fn account(world: &World) -> Account {
    let mut account = Account::default();
    let linked = world.all_linked();
    let mut places: BTreeMap<RemoteAddr, FatPointer> = BTreeMap::new();
    for pointer in &linked {
        assert!(
            places.insert(pointer.place(), *pointer).is_none(),
            "{pointer} twice"
        );
        check_whole(world, *pointer);
    }
    let mut parts = parts_of(world, &linked);
    account.linked = linked.len() as u64;
    let (mut unlinked, mut held_parts) = (Vec::new(), BTreeSet::new());
    let mut extent_end = None;
    for (chunk, entry) in world.chunks() {
        assert!(entry.owner.is_free(), "{chunk:?} is leased: {entry:?}");
        let start = world.layout.chunk_start(chunk);
        match entry.purpose {
            Some(ChunkPurpose::Blocks { class }) => {
                assert_eq!(entry.table, TABLE);
                let class = SizeClass::from_number(class).expect("a class");
                let held = account_pieces(world, start, class, &entry, &mut places, &mut account);
                let of_held = held.into_iter();
                held_parts.extend(of_held.flat_map(|place| parts_of_held(world, place)));
            }
            Some(ChunkPurpose::Extent { position: 0 }) => {
                let pointer = places.remove(&start);
                let is_part = parts.remove(&start);
                if pointer.is_none() && !is_part {
                    unlinked.push(start);
                }
                extent_end = Some((chunk.0 + 1, 1));
            }
            Some(ChunkPurpose::Extent { position }) => {
                assert_eq!(
                    extent_end,
                    Some((chunk.0, position)),
                    "{chunk:?} is an orphan"
                );
                extent_end = Some((chunk.0 + 1, position + 1));
            }
            Some(ChunkPurpose::Free) => {
                check_zero(world, start);
            }
            Some(ChunkPurpose::Snapshot { .. } | ChunkPurpose::Models) => {}
            other => panic!("{chunk:?} is for {other:?}"),
        }
    }
    for start in unlinked {
        if !held_parts.contains(&start) {
            account.held += check_held(world, start);
        }
    }
    assert!(
        places.is_empty() && parts.is_empty(),
        "nowhere: {places:?} {parts:?}"
    );
    account
}

/// Accounts for each piece of a chunk; returns the held ones.
fn account_pieces(
    world: &World,
    start: RemoteAddr,
    class: SizeClass,
    entry: &ChunkEntry,
    places: &mut BTreeMap<RemoteAddr, FatPointer>,
    account: &mut Account,
) -> Vec<RemoteAddr> {
    let mut held = Vec::new();
    for piece in 0..class.piece_count() {
        let place = start.offset_blocks(piece * class.stride_blocks());
        let pointer = places.remove(&place);
        if let Some(pointer) = pointer {
            let is_in = [Form::Piece(class), Form::List(class)];
            assert!(is_in.contains(&pointer.form()), "{pointer} in {entry:?}");
        }
        match (entry.free.contains(piece), pointer.is_some()) {
            (true, true) => panic!("{pointer:?} is free and referred to"),
            (true, false) => account.free_pieces += 1,
            (false, true) => {}
            (false, false) => {
                account.held += check_held(world, place);
                held.push(place);
            }
        }
    }
    held
}

/// Checks that a free chunk is zeroed.
fn check_zero(world: &World, start: RemoteAddr) {
    let words = world.words(start.word_at(0), CHUNK_SIZE_WORDS);
    assert!(
        words.iter().all(|word| *word == 0),
        "{start} is free and not zero"
    );
}

/// Checks that an unreferenced block has a live holder; otherwise it has leaked.
fn check_held(world: &World, place: RemoteAddr) -> u64 {
    let holder = OwnerWord::from_word(world.word(place.word_at(HOLDER_WORD)));
    assert!(
        world.alive().contains(&holder),
        "{place} leaked: holder {holder}"
    );
    1
}

/// Returns the parts of lists that the page refers to.
fn parts_of(world: &World, linked: &[FatPointer]) -> BTreeSet<RemoteAddr> {
    let mut parts = BTreeSet::new();
    for list in linked {
        if !matches!(list.form(), Form::List(_)) {
            continue;
        }
        for place in parts_at(world, list.place()) {
            assert!(parts.insert(place), "a part of two lists at {place}");
        }
    }
    parts
}

/// Returns the parts of a held block, if it is a list: in limbo it holds them.
fn parts_of_held(world: &World, place: RemoteAddr) -> Vec<RemoteAddr> {
    let shape = world.word(place.word_at(SHAPE_WORD));
    let (role, is_list) = (shape >> 48 & 0x1F, shape >> 53 & 1 == 1);
    if role == 0 || !is_list {
        return Vec::new();
    }
    parts_at(world, place)
}

fn parts_at(world: &World, list: RemoteAddr) -> Vec<RemoteAddr> {
    let body = list.word_at(BODY_WORD);
    let words = world.words(body.offset(1), world.word(body) as usize);
    let places = words
        .into_iter()
        .map(|word| RemoteAddr::from_word(word).place());
    places.collect()
}

/// Checks that a block that is referred to is as written.
///
/// # Panics
///
/// If it is not.
pub(crate) fn check_whole(world: &World, pointer: FatPointer) {
    let place = pointer.place();
    let size = world.word(place.word_at(SHAPE_WORD)) as u32;
    let first = match pointer.form() {
        Form::List(_) => RemoteAddr::from_word(world.word(place.word_at(BODY_WORD + 1))),
        Form::Piece(_) | Form::Extent => place,
    };
    let seed = world.word(first.place().word_at(BODY_WORD));
    let expected = string(seed, size as usize);
    let endpoint = world.endpoint();
    let access = BlockAccess {
        endpoint: &endpoint,
        layout: &world.layout,
        table: TABLE,
        owner: world.node,
    };
    let (mut batch, mut found) = (Batch::new(), Vec::new());
    let read = access.read(
        &mut batch,
        pointer,
        size,
        crc32c_bytes(&expected),
        &mut found,
    );
    let read = block_on(read, || 0).expect("it is possible");
    assert_eq!(
        (read, found.len()),
        (CopyOutcome::Whole, expected.len()),
        "{pointer}"
    );
    assert!(found == expected, "{pointer}");
}
