//! Snapshots come back as they were; damaged ones are refused, and say what is wrong.

use farleaf_model::strings::{
    Boundary, FrontCodedSegment, LineSegmentBuilder, Residuals, StringSegment, StringSegmentBuilder,
};
use farleaf_page::PageGeometry;
use farleaf_region::{PoolLayout, RegionLayout, Superblock};
use farleaf_types::{NodeId, RemoteAddr, TableId, crc32c};

use super::format::{CHECKSUM_WORD, Contents, HEADER_SIZE_WORDS};
use crate::directory::Run;

pub(super) fn layout() -> PoolLayout {
    PoolLayout::from(RegionLayout {
        node: NodeId(0),
        superblock: Superblock::new(64 << 20, 1).expect("large enough"),
    })
}

pub(super) fn geometry() -> PageGeometry {
    PageGeometry::new(1024).expect("allowed")
}

/// A page of the pool.
pub(super) fn page(number: u64) -> RemoteAddr {
    let first = layout().chunk_of(RemoteAddr::new(NodeId(0), 800_000));
    let start = layout().chunk_start(first.expect("a chunk"));
    start.offset_blocks(number * geometry().stride_blocks())
}

/// What a training over these fences finds; pages of every third model are listed.
pub(super) fn trained(fences: &[Vec<u8>], residuals: Residuals) -> Contents {
    let mut builder = StringSegmentBuilder::new(2.67, 512);
    let mut segments = Vec::new();
    for fence in fences {
        segments.extend(builder.push(fence));
    }
    segments.extend(builder.finish());
    let (mut runs, mut first) = (Vec::new(), 0);
    for (index, segment) in segments.iter().enumerate() {
        let count = segment.leaf_count();
        runs.push(if index % 3 == 1 {
            let pages = (0..u64::from(count)).rev();
            Run::listed(pages.map(|number| page(first + number)).collect(), 6)
        } else {
            Run::side_by_side(page(first), count, 14)
        });
        first += u64::from(count);
    }
    contents(fences, segments, runs, residuals)
}

fn contents(
    mut fences: &[Vec<u8>],
    segments: Vec<StringSegment>,
    runs: Vec<Run>,
    mut residuals: Residuals,
) -> Contents {
    for segment in &segments {
        let own;
        (own, fences) = fences.split_at(segment.leaf_count() as usize);
        residuals.push(segment, own.iter().map(|fence| Boundary::alone(fence)));
    }
    Contents {
        table: TableId(7),
        generation: 3,
        record_count: 1000,
        segments,
        runs,
        residuals,
    }
}

/// Residuals of each kind, none yet.
pub(super) fn kinds() -> [Residuals; 3] {
    let bytes = Residuals::Bytes {
        shift: 5,
        residuals: Vec::new(),
    };
    [
        bytes,
        Residuals::Packed { blocks: Vec::new() },
        Residuals::None,
    ]
}

/// Numbers, and names among them.
fn fences() -> Vec<Vec<u8>> {
    let numbers =
        |letter: char| (0..700).map(move |n| format!("{letter}{:05}", n * 7).into_bytes());
    let names = (0..900_u32).map(|n| {
        let (folder, name) = (n / 30 * n / 30, n.wrapping_mul(0x9E37_79B9) >> (n % 20));
        format!("m/{folder}/{name:x}").into_bytes()
    });
    let mut fences: Vec<_> = numbers('a').chain(names).chain(numbers('x')).collect();
    fences.sort();
    fences.dedup();
    fences
}

fn decode(words: &[u64]) -> Result<Contents, String> {
    Contents::decode(words, (&layout(), geometry()))
}

/// With the checksum that they should have.
pub(super) fn sealed(mut words: Vec<u64>) -> Vec<u64> {
    words[CHECKSUM_WORD] = 0;
    words[CHECKSUM_WORD] = u64::from(crc32c(&words));
    words
}

/// Promise: the words are these.
#[test]
fn words_are_golden() {
    let mut line = LineSegmentBuilder::new(0.5, 9);
    let fences = [&b"k1"[..], b"k2", b"k4", b"x/a", b"x/bc"];
    fences[..3].iter().for_each(|fence| drop(line.push(fence)));
    let line = line.finish().expect("three leaves");
    let parts = line.parts().clone();
    let coded = FrontCodedSegment::encode(fences[3..].iter().copied());
    let runs = vec![
        Run::side_by_side(page(0), 3, 6),
        Run::listed([page(9), page(4)].into(), 14),
    ];
    let segments = vec![line.into(), coded.into()];
    let fences: Vec<_> = fences.iter().map(|fence| fence.to_vec()).collect();
    let [bytes, ..] = kinds();
    let contents = contents(&fences, segments, runs, bytes);
    let words = contents.encode();
    assert_eq!(words[0].to_le_bytes(), *b"FLBYTES\x02");
    assert_eq!(words[1], 7 | 3 << 32 | 1 << 48 | 5 << 56);
    assert_eq!(words[2..5], [1000, 2 | 5 << 32, 5]);
    assert_eq!(words[6..9], [2, 3, 1 | 3 << 32]);
    let (slope, errors) = (
        parts.slope.to_bits(),
        u64::from(parts.error_max.to_bits()) << 32,
    );
    let intercept = u64::from(parts.intercept.to_bits());
    let alphabet = u64::from(parts.alphabet.code());
    assert_eq!(
        words[9..12],
        [slope, errors | intercept, 3 | 1 << 32 | alphabet << 48]
    );
    assert_eq!(words[12..15], [2 | 6 << 32, page(0).word(), 0]);
    assert_eq!(words[15..18], [3, 0, 2 | 2 << 32 | 1 << 56]);
    assert_eq!(words[18..21], [3 | 14 << 32, 0, 0]);
    assert_eq!(words[21].to_le_bytes(), *b"k1x/a\0\0\0");
    assert_eq!(words[22].to_le_bytes(), *b"\x02bc\0\0\0\0\0");
    assert_eq!(words[23] >> 24, 0, "three residuals");
    assert_eq!(words[24..], [page(9).word(), page(4).word()]);
    assert_eq!(sealed(words.clone()), words);
}

/// Promise: models of both kinds, every kind of residuals and pages anywhere come back as they
/// were.
#[test]
fn snapshots_come_back() {
    for kind in kinds() {
        let contents = trained(&fences(), kind);
        let coded = contents.segments.iter().filter(|it| it.is_front_coded());
        assert!(coded.count() > 0 && !contents.segments[0].is_front_coded());
        let words = contents.encode();
        let read = decode(&words).expect("it was written so");
        assert_eq!(
            (&read.segments, &read.runs),
            (&contents.segments, &contents.runs)
        );
        assert_eq!(read.residuals, contents.residuals);
        assert_eq!(read.encode(), words);
        let directory = read.into_directory(geometry()).expect("it fits together");
        for (number, fence) in fences().iter().enumerate() {
            let place = directory.locate(fence);
            let model = &contents.segments[directory.model_of(place.page.parent)];
            assert!(!model.is_front_coded() || place.page.parent as usize == number);
        }
    }
}

/// Promise: what is not as it was written is refused, with what is wrong, a right checksum or not.
#[test]
fn damage_is_refused() {
    let words = trained(&fences(), kinds()[0].clone()).encode();
    let refused = |change: &dyn Fn(&mut Vec<u64>)| {
        let mut words = words.clone();
        change(&mut words);
        decode(&sealed(words)).expect_err("it cannot be right")
    };
    let mut flipped = words.clone();
    flipped[HEADER_SIZE_WORDS + 100] ^= 1 << 40;
    assert_eq!(
        decode(&flipped).err().as_deref(),
        Some("its checksum does not match")
    );
    assert_eq!(
        decode(&words[..5]).err().as_deref(),
        Some("its header is cut off")
    );
    let version = "its format has version 1, not 2";
    assert_eq!(refused(&|words| words[0] ^= 3 << 56), version);
    assert_eq!(refused(&|words| words[0] ^= 1), "it does not begin as one");
    let sizes = "its sizes cannot be right";
    assert_eq!(refused(&|words| words.truncate(words.len() - 1)), sizes);
    assert_eq!(refused(&|words| words[7] += 8), sizes);
    assert_eq!(refused(&|words| words[8] += 1 << 63), sizes);
    assert_eq!(
        refused(&|words| words[7] -= 1),
        "its front-coded fences are cut off"
    );
    assert_eq!(refused(&|words| words[4] -= 1), "its fences are cut off");
    let header = "its models contradict its header";
    assert_eq!(refused(&|words| words[8] -= 1), header);
    let first = HEADER_SIZE_WORDS + 2;
    let kind = "no kind of models has the number 9";
    assert_eq!(refused(&|words| words[first] |= 9 << 56), kind);
    let outside = refused(&|words| words[first + 2] |= 0xFF << 56);
    assert!(outside.ends_with("leaves the pool"), "{outside}");
}
