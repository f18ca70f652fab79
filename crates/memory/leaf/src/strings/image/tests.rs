//! Golden words, and searches of images.

use farleaf_base::{NodeId, RemoteAddr, TableId, crc32c};
use proptest::prelude::*;

use super::*;
use crate::strings::buffer::{NewFence, NewPage, NewPrefix, PageBuffer};
use crate::strings::record::{NewKey, NewRecord};
use crate::strings::words::Fingerprint;

const TABLE: TableId = TableId(3);
const ADDR: RemoteAddr = RemoteAddr::new(NodeId(0), 0x44);

fn geometry() -> PageGeometry {
    PageGeometry::new(512).expect("allowed")
}

fn reference(string: &[u8], block: u64) -> Reference {
    Reference::of(RemoteAddr::new(NodeId(1), block), string)
}

/// Returns a page with everything inline: prefix "pre-", from directly behind "pre-b" to before
/// "pre-wxyz".
fn sample() -> PageBuffer {
    let records = [
        NewRecord {
            key: NewKey::Inline(b"pre-key"),
            value: Value::Inline(b"a value"),
        },
        NewRecord {
            key: NewKey::Inline(b"pre-c"),
            value: Value::Outside(reference(b"far", 0x99)),
        },
    ];
    let low = Fence::Behind(b"pre-b".into());
    let high = Fence::Before(b"pre-wxyz".into());
    let page = NewPage {
        low: NewFence::inline(&low),
        high: NewFence::inline(&high),
        prefix: NewPrefix::inline(b"pre-"),
        link: RemoteAddr::new(NodeId(0), 0x55),
    };
    let mut page = PageBuffer::build(geometry(), &page, &records).expect("they have room");
    page.seal(ADDR, TABLE);
    page
}

/// Checks every word of a page, and what its checksum covers.
#[test]
fn page_words_are_golden() {
    let (words, size_words) = sample().page_words(0x77);
    assert_eq!(size_words, 64);
    assert_eq!(words[0], 0x77);
    assert_eq!(words[1] >> 32, 0x0001_0000, "version 1");
    assert_eq!(words[2], 1 << 21 | 1 << 8 | 0x3E, "behind, one byte, at 62");
    assert_eq!(words[3], 4 << 8 | 0x3D);
    assert_eq!(words[4..7], [0x55, 0b11, 4 << 8 | 0x3F]);
    let text = |word: usize| words[word].to_le_bytes();
    assert_eq!(&text(63), b"pre-\0\0\0\0");
    assert_eq!(&text(62), b"b\0\0\0\0\0\0\0");
    assert_eq!(&text(61), b"wxyz\0\0\0\0");
    assert_eq!([text(59), text(60)].concat(), b"keya value\0\0\0\0\0\0");
    assert_eq!(text(56)[0], b'c');
    let slot = SlotWord {
        offset_words: 59,
        key_size_bytes: 3,
        value_size_bytes: 7,
        key_is_outside: false,
        value_is_outside: false,
        fingerprint: Fingerprint::of(b"pre-key"),
    };
    assert_eq!(words[7], slot.word());
    assert_eq!(words[8] & (1 << 34) - 1, 1 << 33 | 16 << 21 | 1 << 8 | 0x38);
    assert!(words[9..56].iter().all(|word| *word == 0));
    let input = [&[0x44, 3 << 32 | 0x0001_0000], &words[2..64]].concat();
    assert_eq!(words[1] as u32, crc32c(&input));
}

/// Records are found by key, listed in key order, and returned as stored.
#[test]
fn records_are_found_by_key() {
    let (page, outside) = (sample(), Outside::new());
    let image = page.image();
    assert!(image.is_intact(ADDR, TABLE) && !image.was_never_written());
    assert!(
        !image.is_intact(ADDR.offset_blocks(1), TABLE),
        "bound to its address"
    );
    assert!(!image.is_intact(ADDR, TableId(4)), "and to its table");
    assert_eq!(image.find(b"pre-key", &outside), Found::Record(0));
    assert_eq!(image.find(b"pre-c", &outside), Found::Record(1));
    for absent in [&b"pre-"[..], b"pre-ke", b"pre-keya", b"xyz-key", b"", b"c"] {
        assert_eq!(image.find(absent, &outside), Found::Absent);
    }
    assert_eq!(image.value(0), Value::Inline(b"a value"));
    assert_eq!(image.value(1), Value::Outside(reference(b"far", 0x99)));
    assert_eq!(image.sorted_slots(&outside), Ok(vec![1, 0]));
    assert_eq!(image.whole_key(0, &outside), Ok(b"pre-key".to_vec()));
    assert_eq!(image.references(), [reference(b"far", 0x99)]);
    assert_eq!(image.low_in_page(), Some(Fence::Before(b"pre-b\0".into())));
}

/// `low` is inclusive, `high` is exclusive, and keys without the prefix are placed by comparing it.
#[test]
fn placement_compares_prefix_and_fences() {
    use KeyPlacement::{Here, Left, Right};
    let (page, outside) = (sample(), Outside::new());
    for (key, placement) in [
        (&b""[..], Left),
        (b"pre", Left),
        (b"pre-", Left),
        (b"pre,zzzz", Left),
        (b"pre-b", Left),
        (b"pre-b\0", Here),
        (b"pre-wxy", Here),
        (b"pre-wxyz", Right),
        (b"pre.", Right),
        (b"q", Right),
    ] {
        assert_eq!(page.image().placement(key, &outside), placement, "{key:?}");
    }
}

/// Returns a page whose prefix, fences and one key are outside.
fn outside_sample() -> (PageBuffer, Outside, [Vec<u8>; 4]) {
    let prefix = vec![b'p'; 40];
    let end = |byte: u8| [&prefix[..], &[b'm'; 70], &[byte]].concat();
    let (low, key, high) = (end(b'b'), end(b'k'), end(b'y'));
    let strings = [prefix, low, key, high];
    let mut outside = Outside::new();
    let references: [_; 4] = core::array::from_fn(|index| {
        let reference = reference(&strings[index], index as u64);
        assert!(outside.insert(reference, &strings[index]));
        reference
    });
    let fences = [1, 3].map(|index: usize| Fence::Before(strings[index].clone()));
    let page = NewPage {
        low: NewFence {
            fence: &fences[0],
            block: Some(references[1]),
        },
        high: NewFence {
            fence: &fences[1],
            block: Some(references[3]),
        },
        prefix: NewPrefix {
            bytes: &strings[0],
            block: Some(references[0]),
        },
        link: RemoteAddr::NULL,
    };
    let record = NewRecord {
        key: NewKey::Outside(&strings[2], references[2]),
        value: Value::Inline(b"v"),
    };
    let mut page = PageBuffer::build(geometry(), &page, &[record]).expect("it has room");
    page.seal(ADDR, TABLE);
    (page, outside, strings)
}

/// Outside strings are requested only if the page alone does not suffice.
#[test]
fn what_lies_outside_is_asked_for() {
    let (page, read, strings) = outside_sample();
    let (image, unread) = (page.image(), Outside::new());
    let references: Vec<_> = (0..4)
        .map(|index| reference(&strings[index], index as u64))
        .collect();
    assert!(image.is_intact(ADDR, TABLE) && !image.is_self_contained());
    assert_eq!(image.low_in_page(), None);
    let key = &strings[2];
    let unsure = |index: usize| KeyPlacement::Unsure(references[index]);
    assert_eq!(image.placement(b"elsewhere", &unread), unsure(0));
    assert_eq!(image.placement(b"elsewhere", &read), KeyPlacement::Left);
    assert_eq!(image.placement(b"z", &read), KeyPlacement::Right);
    // The heads of the fences decide, unless the key begins with them.
    let near = |rest: &[u8]| [&strings[0][..], rest].concat();
    assert_eq!(image.placement(&near(b"a"), &unread), KeyPlacement::Left);
    assert_eq!(
        image.placement(&near(&[b'm'; 32]), &unread),
        KeyPlacement::Left
    );
    assert_eq!(image.placement(&near(b"n"), &unread), KeyPlacement::Right);
    assert_eq!(image.placement(key, &unread), unsure(3));
    assert_eq!(image.placement(key, &read), KeyPlacement::Here);
    assert_eq!(image.placement(&strings[1], &read), KeyPlacement::Here);
    assert_eq!(image.placement(&strings[3], &read), KeyPlacement::Right);
    assert_eq!(image.find(key, &unread), Found::Unsure(SlotSet(1)));
    assert_eq!(image.find(key, &read), Found::Record(0));
    assert_eq!(image.find(&strings[1], &unread), Found::Absent);
    assert_eq!(image.sorted_slots(&unread), Err(Unread(references[2])));
    assert_eq!(image.whole_key(0, &read).as_ref(), Ok(key));
}

proptest! {
    /// A torn READ is never accepted as a page that did not exist: every word counts.
    #[test]
    fn any_changed_word_is_seen(word in 0_usize..63, flip in 1_u64..) {
        let mut words = sample().image().words().to_vec();
        words[word] ^= flip;
        prop_assert!(!PageImage::new(geometry(), &words).is_intact(ADDR, TABLE));
    }
}
