//! Fuzz test of snapshots: bytes are changed at random. Half of the snapshots get a matching
//! checksum, as from a malicious node.

use farleaf_base::fuzzing::run;
use farleaf_base::random::Random;

use super::contents::Contents;
use super::header::{HEADER_SIZE_WORDS, Header};
use super::heads::Heads;
use super::tests::{geometry, kinds, layout, sealed, trained};

/// Returns ascending strings: some are numbers, some are nested.
fn fences(random: &mut Random) -> Vec<Vec<u8>> {
    let count = 1 + random.index(60);
    let step = 1 + random.below(1000);
    let is_text = random.one_in(2);
    let string = |index: u64| {
        let number = index * step;
        if !is_text {
            return format!("k{number:06}").into_bytes();
        }
        let (word, byte) = (random.below(4), random.bits() as u8);
        let size_max = if random.one_in(9) { 300 } else { 9 };
        let size = random.index(size_max);
        [&b"folder/"[..word as usize], &vec![b'n'; size], &[byte]].concat()
    };
    let mut fences: Vec<_> = (0..count as u64).map(string).collect();
    fences.sort();
    fences.dedup();
    fences
}

/// Reads a snapshot like a session with a metadata budget. An accepted part table leads each key to
/// some words, which are a part or are rejected.
fn read_in_parts(words: &[u64], random: &mut Random, fences: &[Vec<u8>]) {
    let (layout, geometry) = (&layout(), geometry());
    let Ok(header) = Header::decode(words) else {
        return;
    };
    let parts_at = HEADER_SIZE_WORDS + header.table_size_words;
    if words.len() as u64 != header.size_words() {
        return;
    }
    let Ok(heads) = Heads::decode(&header, &words[..parts_at], layout, geometry) else {
        return;
    };
    let heads = heads.thinned(random.below(400));
    for fence in fences {
        let number = heads.of_key(fence);
        let part_words = &words[parts_at..][heads.words_of(number)];
        let Ok(part) = heads.decode_part(number, part_words, layout, geometry) else {
            continue;
        };
        assert_eq!(heads.of_page(part.first_page), number);
        let last = part.first_page + part.page_count - 1;
        assert_eq!(heads.of_page(last), number);
    }
}

/// Promise: every snapshot is rejected with a reason, or becomes a directory. In a directory, each
/// key is in a page of the pool, and greater keys are in the same or later models. What was decoded
/// is encoded and decoded again without change.
#[test]
fn fuzz_snapshots() {
    run("snapshots", |random| {
        let fences = fences(random);
        let kind = kinds()[random.index(3)].clone();
        let honest = trained(&fences, kind).encode(geometry());
        let mut bytes: Vec<u8> = honest.iter().flat_map(|word| word.to_le_bytes()).collect();
        random.mutate(&mut bytes);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let (words, _) = bytes.as_chunks();
        let mut words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        if random.one_in(2) && words.len() > 8 {
            words = sealed(words);
        }
        read_in_parts(&words, random, &fences);
        let Ok(read) = Contents::decode(&words, &layout(), geometry()) else {
            return;
        };
        assert_eq!(read.encode(geometry()).len(), words.len());
        let again = Contents::decode(&read.encode(geometry()), &layout(), geometry());
        let again = again.expect("it was read");
        assert_eq!(
            (&again.runs, &again.residuals),
            (&read.runs, &read.residuals)
        );
        let Ok(directory) = read.into_directory(geometry()) else {
            return;
        };
        let models = fences.iter().map(|fence| {
            let place = directory.locate(fence);
            assert!(layout().chunk_of(place.page.addr).is_some());
            assert!(place.page.parent < directory.page_count());
            directory.model_of(place.page.parent)
        });
        assert!(models.is_sorted());
    });
}
