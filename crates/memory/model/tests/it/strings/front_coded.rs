//! Front-coded segments: every key leads to the right leaf, and invalid data are rejected.

use farleaf_model::strings::{
    FrontCodedSegment, FrontCodedSegmentParts, Residuals, StringDirectory, StringModelError,
    StringSegment,
};
use proptest::prelude::*;

use crate::strings::samples::{Sample, all_shapes, string, strings};

fn encode(fences: &[Vec<u8>]) -> FrontCodedSegment {
    FrontCodedSegment::encode(fences.iter().map(|fence| &**fence))
}

fn parts(segment: &FrontCodedSegment) -> FrontCodedSegmentParts {
    FrontCodedSegmentParts {
        first_fence: segment.first_fence().to_vec(),
        prefix_size: segment.prefix_size(),
        leaf_count: segment.leaf_count(),
        entries: segment.entries().into(),
    }
}

/// Returns keys at a fence and as near to it as possible.
fn near(fence: &[u8]) -> Vec<Vec<u8>> {
    let behind = |byte| [fence, &[byte]].concat();
    let mut near = vec![fence.to_vec(), behind(0), behind(0xff)];
    for size in 0..fence.len() {
        near.push(fence[..size].to_vec());
        for change in [1, 0xff] {
            let mut other = fence.to_vec();
            other[size] = other[size].wrapping_add(change);
            near.push(other);
        }
    }
    near
}

/// Checks that a segment alone, read back, and in a directory finds the same leaf of each key as a
/// search in all fences.
fn check<'a>(fences: &[Vec<u8>], keys: impl IntoIterator<Item = &'a Vec<u8>>) {
    let segment = encode(fences);
    assert_eq!(segment.leaf_count() as usize, fences.len());
    let read = FrontCodedSegment::from_parts(parts(&segment));
    assert_eq!(read.as_ref(), Ok(&segment));
    let third = fences.len().div_ceil(3);
    let segments: Vec<StringSegment> = fences
        .chunks(third)
        .map(|part| encode(part).into())
        .collect();
    let directory = StringDirectory::build(&segments, Residuals::None).expect("in order");
    assert_eq!(directory.front_coded_count(), segments.len());
    for key in keys {
        let above = fences.partition_point(|fence| fence <= key);
        let leaf = above.saturating_sub(1) as u32;
        assert_eq!(segment.find(key), leaf, "{key:?}");
        let located = directory.locate(key);
        assert_eq!((located.leaf, located.also), (leaf, None), "{key:?}");
        assert_eq!(directory.predicted_range(key), (leaf, leaf), "{key:?}");
    }
}

/// Tests keys of every shape, and the empty one.
#[test]
fn every_shape_is_found() {
    for (_, keys) in all_shapes(2000) {
        for record_count in [1, 6] {
            let sample = Sample::new(&keys, record_count);
            check(&sample.fences, keys.iter().chain([&Vec::new()]));
            check(&sample.fences[1..], keys.iter().chain([&Vec::new()]));
        }
    }
}

proptest! {
    /// Tests random strings, including runs of extreme bytes and prefixes of each other: present,
    /// absent, before the first, behind the last.
    #[test]
    fn random_strings_are_found(
        fences in strings(120),
        others in prop::collection::vec(string(), 0..60),
    ) {
        let near: Vec<_> = fences.iter().flat_map(|fence| near(fence)).collect();
        check(&fences, near.iter().chain(&others).chain([&Vec::new()]));
    }

    /// Tests long common prefixes, of all fences and of neighbors, and long suffixes.
    #[test]
    fn long_strings_are_found(
        tails in strings(50),
        prefix_size in 0_usize..1100,
        middle_size in 0_usize..300,
    ) {
        let (prefix, middle) = (vec![b'p'; prefix_size], vec![0xff; middle_size]);
        let long = |tail: &Vec<u8>| [&prefix[..], &tail[..tail.len() / 2], &middle, tail].concat();
        let mut fences: Vec<_> = tails.iter().map(long).collect();
        fences.sort();
        fences.dedup();
        let near: Vec<_> = fences.iter().step_by(10).flat_map(|fence| near(fence)).collect();
        check(&fences, near.iter().chain(&fences));
    }

    /// Any bytes are rejected as entries, or are those of ascending fences, and any key is then in
    /// an existing leaf.
    #[test]
    fn changed_entries_are_refused_or_right(
        fences in strings(80),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        count_change in -1_i64..=1,
        keys in prop::collection::vec(string(), 1..20),
    ) {
        let mut parts = parts(&encode(&fences));
        for (place, byte) in changes {
            if !parts.entries.is_empty() {
                let at = place.index(parts.entries.len());
                parts.entries[at] = byte;
            }
        }
        parts.leaf_count = (i64::from(parts.leaf_count) + count_change) as u32;
        check_any(&parts, &keys);
    }

    #[test]
    fn any_entries_are_refused_or_right(
        first_fence in string(),
        prefix_size in 0_u16..8,
        leaf_count in 0_u32..40,
        entries in prop::collection::vec(prop_oneof![0_u8..4, any::<u8>()], 0..60),
        keys in prop::collection::vec(string(), 1..20),
    ) {
        let entries = entries.into();
        check_any(&FrontCodedSegmentParts { first_fence, prefix_size, leaf_count, entries }, &keys);
    }
}

fn check_any(parts: &FrontCodedSegmentParts, keys: &[Vec<u8>]) {
    let Ok(segment) = FrontCodedSegment::from_parts(parts.clone()) else {
        return;
    };
    let leaves: Vec<u32> = {
        let mut keys = keys.to_vec();
        keys.sort();
        keys.iter().map(|key| segment.find(key)).collect()
    };
    assert!(leaves.is_sorted(), "what is read is in order");
    assert!(leaves.iter().all(|leaf| *leaf < parts.leaf_count));
}

/// Many keys that differ only in their last bytes are distinguished.
#[test]
fn last_bytes_tell_keys_apart() {
    let key = |number: u32| [&[b'k'; 1000][..], &number.to_be_bytes()].concat();
    let fences: Vec<_> = (0..100_000).step_by(5).map(key).collect();
    let segments: Vec<StringSegment> = fences
        .chunks(4096)
        .map(|part| encode(part).into())
        .collect();
    let directory = StringDirectory::build(&segments, Residuals::None).expect("in order");
    for number in 0..100_000 {
        assert_eq!(directory.locate(&key(number)).leaf, number / 5);
    }
    let size_bytes = directory.size_bytes() - segments.len() * 1100;
    assert!(size_bytes < 3 * fences.len(), "{size_bytes} B");
}

/// Errors describe the fault and name the leaf.
#[test]
fn parts_are_checked() {
    let segment = encode(&[
        b"k".to_vec(),
        b"ka".to_vec(),
        b"kabc".to_vec(),
        b"kad".to_vec(),
    ]);
    // A restart with `a`; cut nothing, `bc`; cut two, `d`.
    assert_eq!(segment.entries(), b"\x01a\x02bc\x21d");
    assert_eq!(
        (segment.first_fence(), segment.prefix_size()),
        (&b"k"[..], 1)
    );
    let refused = |change: &dyn Fn(&mut FrontCodedSegmentParts)| {
        let mut parts = parts(&segment);
        change(&mut parts);
        FrontCodedSegment::from_parts(parts).expect_err("it cannot be right")
    };
    let entries = |bytes: &'static [u8]| {
        let error = refused(&|parts| parts.entries = bytes.into());
        match error {
            StringModelError::FrontCoded { leaf, what } => (leaf, what),
            other => panic!("{other}"),
        }
    };
    let not_above = "is not greater than the previous fence";
    assert_eq!(entries(b"\x01a\x02bc\x21b"), (3, not_above));
    assert_eq!(entries(b"\x01a\x02bc\x20"), (3, not_above));
    assert_eq!(entries(b"\x00\x02bc\x21d"), (1, not_above));
    assert_eq!(
        entries(b"\x01a\x02bc\x41d"),
        (3, "cuts more bytes than there are")
    );
    assert_eq!(
        entries(b"\x11a\x02bc\x21d"),
        (1, "cuts bytes at a restart point")
    );
    assert_eq!(entries(b"\x01a\x02bc\x22d"), (3, "is truncated"));
    assert_eq!(entries(b"\x01a\x02bc"), (3, "is truncated"));
    assert_eq!(
        entries(b"\x01a\x0f\xff\xff\xff\xff\xff\xff"),
        (2, "is truncated")
    );
    assert_eq!(
        entries(b"\x01a\x02bc\x21d\x01e"),
        (4, "exceeds the number of leaves")
    );
    assert!(matches!(
        refused(&|parts| parts.prefix_size = 2),
        StringModelError::Prefix { .. }
    ));
    assert!(matches!(
        refused(&|parts| parts.leaf_count = 0),
        StringModelError::Number { .. }
    ));
}

/// Tests numbers beyond four bits, of one byte and more.
#[test]
fn long_sizes_are_read() {
    for size in [14, 15, 16, 14 + 128, 15 + 128, 4096] {
        let fences = [
            b"a".to_vec(),
            b"b".to_vec(),
            [&b"b"[..], &vec![b'x'; size]].concat(),
            b"by".to_vec(),
        ];
        let near: Vec<_> = fences
            .iter()
            .map(|fence| [&fence[..], b"0"].concat())
            .collect();
        check(&fences, fences.iter().chain(&near));
    }
}
