//! Pages with randomly changed bytes, and the old checksum or, as from a malicious node, a valid
//! one.

use farleaf_base::fuzzing::run;
use farleaf_base::random::Random;
use farleaf_leaf::strings::{Outside, PageBuffer, PageGeometry, PageImage};

use crate::strings::totality::{ADDR, TABLE, ask, change, keys, sample, strings};

/// Returns a changed copy of the words.
fn changed(random: &mut Random, words: &[u64]) -> Vec<u64> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    random.mutate(&mut bytes);
    bytes.resize(words.len() * 8, 0);
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Promise: every function returns for any words, and words that pass as a page can be changed in
/// every way.
#[test]
fn fuzz_pages() {
    run("pages", |random| {
        let size_bytes = [512, 1024, 2048][random.index(3)];
        let geometry = PageGeometry::new(size_bytes).expect("allowed");
        let mut page = sample(geometry, random.one_in(2), random.index(6));
        page.seal(ADDR, TABLE);
        let words = changed(random, page.image().words());
        let mut read = PageBuffer::copy_of(PageImage::new(geometry, &words));
        if random.one_in(2) {
            read.seal(ADDR, TABLE);
        } else if words != page.image().words() {
            assert!(!read.image().is_intact(ADDR, TABLE), "a checksum tells it");
        }
        let outside = if random.one_in(4) {
            Outside::new()
        } else {
            strings()
        };
        let keys = keys();
        let keys: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        ask(read.image(), &keys, &outside);
        if read.image().is_intact(ADDR, TABLE) {
            change(&read, &keys, &outside);
        }
    });
}
