//! Randomly changed node memory: superblock, member table, catalog, and the blocks of sessions and
//! chunks. A checksum detects accidents; half of the cases have a valid one all the same, as from a
//! malicious node.

use farleaf_base::fuzzing::run;
use farleaf_base::random::Random;
use farleaf_base::{NodeId, RemoteAddr, TableId, crc32c};

use crate::catalog::{
    CatalogEntry, ENTRY_SIZE_WORDS, EntryState, TableKind, TableRecord, live_word,
};
use crate::chunk::{CHUNK_ENTRY_SIZE_WORDS, ChunkEntry};
use crate::layout::SUPERBLOCK_SIZE_WORDS;
use crate::members::{MEMBER_SIZE_WORDS, Member, MemberState};
use crate::part::{PartRecord, PartitionedTableId};
use crate::session::{SESSION_SIZE_WORDS, SessionRecord};
use crate::{NodeLayout, Superblock};

/// Returns a changed copy of the words.
fn changed<const COUNT: usize>(random: &mut Random, words: &[u64]) -> [u64; COUNT] {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    random.mutate(&mut bytes);
    bytes.resize(COUNT * 8, 0);
    core::array::from_fn(|index| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
        u64::from_le_bytes(word)
    })
}

fn text(random: &mut Random, size_bytes_max: usize) -> String {
    let count = random.index(size_bytes_max + 1);
    let letters = (0..count).map(|_| if random.one_in(9) { 'ä' } else { 'a' });
    let mut text: String = letters.collect();
    text.truncate(text.floor_char_boundary(size_bytes_max));
    text
}

fn superblock(random: &mut Random) -> Superblock {
    let size_bytes = (64 << 20) + (random.bits() >> random.below(40));
    Superblock::new(size_bytes, random.bits()).expect("large enough")
}

/// Promise: any words of the member table decode to an entry or to nothing; a decoded entry encodes
/// and decodes to the same.
#[test]
fn fuzz_members() {
    run("member tables", |random| {
        let node = NodeId(random.bits() as u8);
        let superblock = superblock(random);
        let member = Member {
            layout: NodeLayout { node, superblock },
            address: text(random, 88),
        };
        let states = [1, 2, 3, 4].map(|word| MemberState::from_word(word).expect("a state"));
        let state = states[random.index(4)];
        let honest = member.encode(state);
        assert_eq!(Member::decode(node, &honest), Some((member, state)));
        let mut words: [u64; MEMBER_SIZE_WORDS] = changed(random, &honest);
        if random.one_in(2) {
            words[15] = u64::from(crc32c(&words[1..15]));
        }
        if let Some((member, state)) = Member::decode(node, &words) {
            let again = Member::decode(node, &member.encode(state));
            assert_eq!(again, Some((member, state)));
        }
    });
}

/// Promise: any superblock is rejected, or describes a memory of exactly that layout that is no
/// larger than what is mapped.
#[test]
fn fuzz_superblocks() {
    run("superblocks", |random| {
        let honest = superblock(random);
        let mut words: [u64; SUPERBLOCK_SIZE_WORDS] = changed(random, &honest.encode());
        if random.one_in(2) {
            words[7] = u64::from(crc32c(&words[..7]));
        }
        let mapped_bytes = random.bits() >> random.below(40);
        if let Ok(read) = Superblock::decode(&words, mapped_bytes) {
            assert!(read.size_bytes <= mapped_bytes);
            assert_eq!(read.encode(), words);
        }
    });
}

fn part(random: &mut Random) -> Option<PartRecord> {
    let count = 2 + random.below(1 << 15) as u16;
    let low = random.bits();
    random.one_in(2).then(|| PartRecord {
        table: PartitionedTableId(random.bits() | 1),
        number: random.below(count.into()) as u16,
        count,
        low,
        high: low | random.bits(),
    })
}

fn kind(random: &mut Random) -> TableKind {
    match random.below(2) {
        0 => TableKind::Words {
            slots: random.bits() as u8,
        },
        _ => TableKind::Bytes {
            page_size_blocks: random.bits() as u8,
            inline_value_size_bytes: random.bits() as u16,
        },
    }
}

/// Promise: any catalog entry decodes as live, dropped, free or corrupted. Blocks of sessions and
/// chunks always decode, and list no more free leaves than a chunk can have.
#[test]
fn fuzz_catalogs() {
    run("catalogs", |random| {
        let id = TableId(random.bits() as u32);
        let record = TableRecord {
            id,
            name: format!("t{}", text(random, 63)),
            kind: kind(random),
            search_layer: random.bits() as u8,
            fill_percent: random.bits() as u8,
            epsilon_milli: random.bits() as u32,
            first_leaf: RemoteAddr::from_word(random.bits()),
            part: part(random),
        };
        let root = RemoteAddr::new(NodeId(1), 1 + random.below(1 << 20));
        let mut honest = vec![live_word(id)];
        honest.extend(record.encode_body(root));
        let read = CatalogEntry::decode(3, &honest)
            .expect("good")
            .expect("live");
        assert_eq!((read.state, &read.record), (EntryState::Live, &record));
        let words: [u64; ENTRY_SIZE_WORDS] = changed(random, &honest);
        if let Ok(Some(entry)) = CatalogEntry::decode(3, &words) {
            assert!(entry.state == EntryState::Dropped || !entry.root.is_null());
        }
        let words: [u64; CHUNK_ENTRY_SIZE_WORDS] = changed(random, &words);
        let chunk = ChunkEntry::decode(&words);
        let leaf_count = random.bits() >> random.below(60);
        let free: Vec<u64> = chunk.free.iter(leaf_count).collect();
        assert!(free.iter().all(|leaf| *leaf < leaf_count));
        assert!(free.len() as u64 <= chunk.free.count());
        let words: [u64; SESSION_SIZE_WORDS] = changed(random, &words);
        let session = SessionRecord::decode(&words);
        assert_eq!(session.alive().is_some(), words[0] >> 48 == 1);
    });
}
