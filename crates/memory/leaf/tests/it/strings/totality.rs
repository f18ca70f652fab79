//! Every function returns for any words in far memory, with a valid checksum or not.

use farleaf_base::{NodeId, OwnerWord, RemoteAddr, TableId};
use farleaf_fabric::Batch;
use farleaf_leaf::strings::{
    Fence, InPlace, KeyPlacement, NewFence, NewKey, NewPage, NewPrefix, NewRecord, Outside,
    PageBuffer, PageChange, PageGeometry, PageImage, Reference, Repair, SplitRequest, Value,
    plan_merge, plan_rewrite,
};
use proptest::prelude::*;

pub(crate) const ADDR: RemoteAddr = RemoteAddr::new(NodeId(0), 64);
pub(crate) const TABLE: TableId = TableId(1);

/// Bytes of two outside keys, and of a page's prefix.
const LONG: [u8; 600] = [b'p'; 600];

fn reference(string: &[u8], block: u64) -> Reference {
    Reference::of(RemoteAddr::new(NodeId(1), block), string)
}

pub(crate) fn strings() -> Outside {
    let mut outside = Outside::new();
    for (block, string) in [&LONG[..], &LONG[..500], &LONG[..40]]
        .into_iter()
        .enumerate()
    {
        assert!(outside.insert(reference(string, block as u64), string));
    }
    outside
}

/// Returns a page with all kinds of contents, inline or outside.
pub(crate) fn sample(geometry: PageGeometry, is_outside: bool, record_count: usize) -> PageBuffer {
    let keys: Vec<Vec<u8>> = (0..record_count)
        .map(|number| [&LONG[..40], format!("{number:03}").as_bytes()].concat())
        .collect();
    let mut records = vec![];
    for key in &keys {
        records.push(NewRecord {
            key: NewKey::Inline(key),
            value: Value::Inline(b"a value"),
        });
    }
    records.push(NewRecord {
        key: NewKey::Outside(&LONG[..500], reference(&LONG[..500], 1)),
        value: Value::Outside(reference(b"", 9)),
    });
    let low = Fence::Before(LONG[..40].to_vec());
    let high = Fence::Behind(LONG.to_vec());
    let short = Fence::Before([&LONG[..40], b"z"].concat());
    let (high, prefix) = if is_outside {
        let high = NewFence {
            fence: &high,
            block: Some(reference(&LONG, 0)),
        };
        let prefix = NewPrefix {
            bytes: &LONG[..40],
            block: Some(reference(&LONG[..40], 2)),
        };
        (high, prefix)
    } else {
        (NewFence::inline(&short), NewPrefix::inline(&LONG[..10]))
    };
    let page = NewPage {
        low: NewFence::inline(&low),
        high,
        prefix,
        link: RemoteAddr::new(NodeId(0), 128),
    };
    PageBuffer::build(geometry, &page, &records).expect("these have room")
}

/// Calls every query of an image, intact or not.
pub(crate) fn ask(image: PageImage<'_>, keys: &[&[u8]], outside: &Outside) {
    for key in keys {
        let _ = (image.placement(key, outside), image.find(key, outside));
    }
    let _ = (image.is_well_formed(), image.is_retired(), image.version());
    let _ = (
        image.low(),
        image.high(),
        image.prefix(),
        image.low_in_page(),
    );
    let _ = (image.sorted_slots(outside), image.references());
    let _ = image.whole_fence(image.high(), outside);
    for slot in 0..64 {
        let _ = (
            image.key(slot),
            image.value(slot),
            image.whole_key(slot, outside),
        );
    }
    let _ = Repair::of(image, None, outside);
    let _ = Repair::of(
        image,
        Some(&Fence::Before(b"ppppppppppppp".to_vec())),
        outside,
    );
    let _ = Repair::of(image, Some(&Fence::Before(LONG[..41].to_vec())), outside);
}

/// Changes an intact page in every way.
pub(crate) fn change(page: &PageBuffer, keys: &[&[u8]], outside: &Outside) {
    let geometry = page.geometry();
    let change = PageChange {
        geometry,
        addr: ADDR,
        table: TABLE,
        next: OwnerWord::FREE,
    };
    let image = page.image();
    let mut batch = Batch::new();
    for key in keys {
        if image.placement(key, outside) != KeyPlacement::Here {
            continue;
        }
        let suffix_size_bytes = key.len() - image.prefix_size_bytes();
        let record = NewRecord {
            key: if geometry.is_suffix_inline(suffix_size_bytes) {
                NewKey::Inline(key)
            } else {
                NewKey::Outside(key, reference(key, 5))
            },
            value: Value::Inline(&[7; 100]),
        };
        let _ = change.insert(&mut batch, &mut page.clone(), &record);
        let request = SplitRequest {
            record,
            sibling: RemoteAddr::new(NodeId(0), 256),
            counter: None,
        };
        if let Ok(InPlace::Split(plan)) = change.plan_split(page, &request, outside) {
            change.split(&mut batch, &mut page.clone(), &plan);
        }
        if let Ok(plan) = plan_rewrite(image, Some(&record), outside) {
            let drafts = [Some(plan.left), plan.right];
            for mut draft in drafts.into_iter().flatten() {
                let wanted = draft.wanted().into_iter();
                let wanted: Vec<_> = wanted.map(|(it, string)| (it, string.to_vec())).collect();
                for (place, string) in wanted {
                    draft.give(place, reference(&string, 6));
                }
                draft.build(RemoteAddr::NULL);
            }
        }
    }
    let _ = plan_merge(&[image], outside);
    let _ = plan_merge(&[image, image], outside);
    for slot in image.slots().iter() {
        let _ = change.update(&mut batch, &mut page.clone(), slot, Value::Inline(&[9; 60]));
        change.delete(&mut batch, &mut page.clone(), slot);
    }
    change.retire(&mut batch, &mut page.clone(), RemoteAddr::NULL);
}

fn sizes() -> impl Strategy<Value = PageGeometry> {
    let sizes = prop::sample::select(vec![512_u64, 1024, 2048]);
    sizes.prop_map(|size_bytes| PageGeometry::new(size_bytes).expect("allowed"))
}

pub(crate) fn keys() -> Vec<Vec<u8>> {
    let inside = [&LONG[..40], b"0015"].concat();
    vec![
        vec![],
        inside,
        LONG.to_vec(),
        LONG[..500].to_vec(),
        LONG[..30].to_vec(),
        vec![255; 50],
    ]
}

proptest! {
    /// Random words are not a page, and all queries return.
    #[test]
    fn any_words_can_be_looked_at(
        geometry in sizes(),
        words in prop::collection::vec(any::<u64>(), 255),
        is_read: bool,
    ) {
        let image = PageImage::new(geometry, &words);
        prop_assert!(!image.is_intact(ADDR, TABLE));
        let keys = keys();
        let keys: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        ask(image, &keys, &if is_read { strings() } else { Outside::new() });
    }

    /// A page with some foreign words and a valid checksum can be queried, and changed in every way
    /// if it passes as a page.
    #[test]
    fn mutated_words_with_a_right_checksum_are_survived(
        geometry in sizes(),
        is_outside: bool,
        is_read in prop::bool::weighted(0.8),
        record_count in 0_usize..6,
        // Change header, slots and heap alike, and single bits more often than whole words.
        changes in prop::collection::vec((0_usize..255, any::<u64>(), 0_u32..64, 0..8_u8), 0..5),
    ) {
        let page = sample(geometry, is_outside, record_count);
        let mut words = page.image().words().to_vec();
        for (place, word, bit, mutation) in changes {
            let place = match mutation {
                0..4 => 1 + place % 14,
                _ => place % words.len(),
            };
            match mutation % 4 {
                0 => words[place] = word,
                _ => words[place] ^= 1 << bit % if place < 4 { 24 } else { 64 },
            }
        }
        let mut page = PageBuffer::copy_of(PageImage::new(geometry, &words));
        page.seal(ADDR, TABLE);
        let (keys, outside) = (keys(), if is_read { strings() } else { Outside::new() });
        let keys: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        ask(page.image(), &keys, &outside);
        prop_assert_eq!(page.image().is_intact(ADDR, TABLE), page.image().is_well_formed());
        if page.image().is_well_formed() {
            change(&page, &keys, &outside);
        }
    }
}

/// The sample is a page, so the test above does change something.
#[test]
fn the_sample_is_a_page() {
    for size_bytes in [512, 1024, 2048] {
        let geometry = PageGeometry::new(size_bytes).expect("allowed");
        for is_outside in [false, true] {
            let mut page = sample(geometry, is_outside, 5);
            page.seal(ADDR, TABLE);
            assert!(page.image().is_intact(ADDR, TABLE));
            let keys = keys();
            let here = keys
                .iter()
                .filter(|key| page.image().placement(key, &strings()) == KeyPlacement::Here);
            assert!(here.count() > 1);
        }
    }
}
