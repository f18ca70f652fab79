//! Strings of the shapes that keys have, and of unfavorable shapes.

use farleaf_model::strings::{
    Boundary, LineSegment, LineSegmentBuilder, Residuals, StringSegment, StringSegmentBuilder,
    byte_shift,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use rand_xoshiro::rand_core::Rng;

use crate::keys::prng;

/// Piece of a string: runs of the extremes, digits, text, anything.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (0_usize..12).prop_map(|count| vec![0; count]),
        (0_usize..12).prop_map(|count| vec![0xff; count]),
        vec(b'0'..=b'9', 0..12),
        vec(
            prop::sample::select(b"/:0123456789ABabyz_~ ".to_vec()),
            0..6
        ),
        vec(any::<u8>(), 0..4),
        prop::sample::select(vec![&b"user"[..], b"user:0000", b"a", b"\x00", b"\xff"])
            .prop_map(<[u8]>::to_vec),
    ]
}

/// String of a few pieces; often one begins with another.
pub(super) fn string() -> impl Strategy<Value = Vec<u8>> {
    vec(piece(), 0..4).prop_map(|pieces| pieces.concat())
}

/// Ascending distinct strings.
pub(super) fn strings(count_max: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    btree_set(string(), 1..count_max).prop_map(|strings| strings.into_iter().collect())
}

/// Returns every shape, by name, with about `count` ascending keys each.
pub(super) fn all_shapes(count: u64) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let prng = &mut prng(11);
    let mut draw = |key: &mut dyn FnMut(u64, u64) -> Vec<u8>| -> Vec<Vec<u8>> {
        (0..count)
            .map(|index| key(index, prng.next_u64()))
            .collect()
    };
    let mut shapes = vec![
        (
            "ycsb",
            draw(&mut |_, random| format!("user{random}").into_bytes()),
        ),
        (
            "sequential",
            draw(&mut |index, _| format!("user:{index:07}").into_bytes()),
        ),
        (
            "hex",
            draw(&mut |_, random| format!("{random:016x}").into_bytes()),
        ),
        (
            "hex, upper",
            draw(&mut |_, random| format!("k/{random:016X}").into_bytes()),
        ),
        (
            "binary",
            draw(&mut |_, random| random.to_be_bytes().to_vec()),
        ),
        (
            "binary, ascending",
            draw(&mut |index, _| (index * 3).to_be_bytes().to_vec()),
        ),
        ("identifiers", draw(&mut |_, random| identifier(random))),
        (
            "folders",
            draw(&mut |index, random| {
                let (folder, file) = (random % 50, random >> 40);
                format!("/srv/{folder}/part-{}/{file:x}.txt", index % 7).into_bytes()
            }),
        ),
        ("zeros", draw(&mut |index, _| vec![0; index as usize % 300])),
        (
            "ever shorter prefixes",
            draw(&mut |index, _| {
                let mut key = vec![b'a'; (count - index) as usize % 400];
                key.push(b'b');
                key
            }),
        ),
        (
            "each a prefix of the next",
            draw(&mut |index, _| vec![b'x'; index as usize % 400]),
        ),
    ];
    for (_, keys) in &mut shapes {
        keys.sort();
        keys.dedup();
    }
    shapes
}

fn identifier(random: u64) -> Vec<u8> {
    const LISTED: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let digits = (0..10).map(|digit| random / 62_u64.pow(digit) % 62);
    digits.map(|digit| LISTED[digit as usize]).collect()
}

/// Keys in leaves, as a training sees them.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) record_count: usize,
    /// Lower fence of each leaf: the empty string, then the shortest that separates the leaves.
    pub(super) fences: Vec<Vec<u8>>,
}

impl Sample {
    pub(super) fn new(keys: &[Vec<u8>], record_count: usize) -> Self {
        let mut fences = vec![Vec::new()];
        for first in (record_count..keys.len()).step_by(record_count) {
            let pairs = keys[first - 1].iter().zip(&keys[first]);
            let shared_size = pairs.take_while(|(left, right)| left == right).count();
            fences.push(keys[first][..=shared_size].to_vec());
        }
        Self {
            keys: keys.to_vec(),
            record_count,
            fences,
        }
    }

    /// Returns segments of lines only.
    pub(super) fn lines(&self, epsilon: f64, leaf_count_max: u32) -> Vec<StringSegment> {
        let lines = segments_of(&self.fences, epsilon, leaf_count_max);
        lines.into_iter().map(StringSegment::from).collect()
    }

    /// Returns the boundaries of `leaf_count` leaves from `first_leaf` on.
    fn boundaries(&self, first_leaf: usize, leaf_count: u32) -> Vec<Boundary<'_>> {
        let leaves = first_leaf..first_leaf + leaf_count as usize;
        let boundary = |leaf: usize| {
            let first = leaf * self.record_count;
            Boundary {
                last: first.checked_sub(1).map(|last| &*self.keys[last]),
                fence: &self.fences[leaf],
                first: &self.keys[first],
            }
        };
        leaves.map(boundary).collect()
    }

    /// Returns segments of either kind.
    pub(super) fn chosen(&self, epsilon: f64, leaf_count_max: u32) -> Vec<StringSegment> {
        let mut builder = StringSegmentBuilder::new(epsilon, leaf_count_max);
        let mut segments = Vec::new();
        for fence in &self.fences {
            segments.extend(builder.push(fence));
        }
        segments.extend(builder.finish());
        assert_eq!(builder.pending_count(), 0);
        segments
    }

    /// Returns residuals of the kind of `none_yet` for segments of either kind.
    pub(super) fn residuals(
        &self,
        segments: &[StringSegment],
        mut none_yet: Residuals,
    ) -> Residuals {
        let mut leaf = 0;
        for segment in segments {
            let count = segment.leaf_count();
            none_yet.push(segment, self.boundaries(leaf, count));
            leaf += count as usize;
        }
        none_yet
    }

    pub(super) fn bytes(&self, segments: &[StringSegment], epsilon: f64) -> Residuals {
        let (shift, residuals) = (byte_shift(epsilon + 0.2), Vec::new());
        self.residuals(segments, Residuals::Bytes { shift, residuals })
    }

    pub(super) fn blocks(&self, segments: &[StringSegment]) -> Residuals {
        self.residuals(segments, Residuals::Packed { blocks: Vec::new() })
    }
}

pub(super) fn segments_of(
    fences: &[Vec<u8>],
    epsilon: f64,
    leaf_count_max: u32,
) -> Vec<LineSegment> {
    let mut builder = LineSegmentBuilder::new(epsilon, leaf_count_max);
    let mut segments: Vec<_> = fences
        .iter()
        .filter_map(|fence| builder.push(fence))
        .collect();
    segments.extend(builder.finish());
    assert_eq!(builder.pending_count(), 0);
    segments
}
