//! Snapshots are decoded without change; corrupted ones are rejected with a reason.

use farleaf_base::{NodeId, RemoteAddr, TableId};
use farleaf_leaf::strings::PageGeometry;
use farleaf_model::strings::{
    Boundary, FrontCodedSegment, LineSegmentBuilder, Residuals, StringSegment, StringSegmentBuilder,
};
use farleaf_pool::{NodeLayout, PoolLayout, Superblock};

use super::contents::Contents;
use super::header::{CHECKSUM_WORD, HEADER_SIZE_WORDS, Header, PART_HEADER_SIZE_WORDS, checksum};
use super::heads::Heads;
use super::model::MODEL_SIZE_WORDS;
use super::part::{PART_CHECKSUM_WORD, part_checksum};
use crate::strings::directory::Run;

pub(super) fn layout() -> PoolLayout {
    PoolLayout::from(NodeLayout {
        node: NodeId(0),
        superblock: Superblock::new(64 << 20, 1).expect("large enough"),
    })
}

pub(super) fn geometry() -> PageGeometry {
    PageGeometry::new(1024).expect("allowed")
}

/// Returns a page address of the pool.
pub(super) fn page(number: u64) -> RemoteAddr {
    let first = layout().chunk_of(RemoteAddr::new(NodeId(0), 800_000));
    let start = layout().chunk_start(first.expect("a chunk"));
    start.offset_blocks(number * geometry().stride_blocks())
}

/// Returns the result of a training over these fences; pages of every third model are listed.
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

/// Returns an empty list of residuals of each kind.
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

/// Returns numbers, with names among them.
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
    Contents::decode(words, &layout(), geometry())
}

/// Recomputes the checksums.
pub(super) fn sealed(mut words: Vec<u64>) -> Vec<u64> {
    let shape_word = words[1];
    let header = Header::decode(&words).ok();
    let parts_at = header.map(|header| HEADER_SIZE_WORDS + header.table_size_words);
    let Some(parts_at) = parts_at.filter(|parts_at| *parts_at <= words.len()) else {
        return words;
    };
    let (header_and_table, mut parts) = words.split_at_mut(parts_at);
    header_and_table[CHECKSUM_WORD] = checksum(header_and_table);
    while parts.len() >= PART_HEADER_SIZE_WORDS {
        let size_words = (parts[4] >> 32) as usize;
        if !(PART_HEADER_SIZE_WORDS..=parts.len()).contains(&size_words) {
            break;
        }
        let own;
        (own, parts) = parts.split_at_mut(size_words);
        own[PART_CHECKSUM_WORD] = part_checksum(shape_word, own);
    }
    words
}

/// Promise: the words of a snapshot are these.
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
    let words = contents.encode(geometry());
    assert_eq!(words[0].to_le_bytes(), *b"FLBYTES\x03");
    assert_eq!(words[1], 7 | 3 << 32 | 1 << 48 | 5 << 56);
    assert_eq!(words[2..5], [1000, 2 | 5 << 32, 1 | 2 << 32]);
    assert_eq!(words[6..10], [25, 0, 2 << 32, page(0).word()]);
    assert_eq!(words[10].to_le_bytes(), *b"k1\0\0\0\0\0\0");
    let words = &words[11..];
    assert_eq!(
        words[..5],
        [5 | 2 << 32, 0, 5 | 3 << 32, 1 | 3 << 32, 2 | 25 << 32]
    );
    assert_eq!(words[6..8], [0, 0]);
    let (slope, errors) = (
        parts.slope.to_bits(),
        u64::from(parts.error_max.to_bits()) << 32,
    );
    let intercept = u64::from(parts.intercept.to_bits());
    let alphabet = u64::from(parts.alphabet.code());
    assert_eq!(
        words[8..11],
        [slope, errors | intercept, 3 | 1 << 32 | alphabet << 48]
    );
    assert_eq!(words[11..14], [2 | 6 << 32, page(0).word(), 0]);
    assert_eq!(words[14..17], [3, 0, 2 | 2 << 32 | 1 << 56]);
    assert_eq!(words[17..20], [3 | 14 << 32, 0, 0]);
    assert_eq!(words[20].to_le_bytes(), *b"k1x/a\0\0\0");
    assert_eq!(words[21].to_le_bytes(), *b"\x02bc\0\0\0\0\0");
    assert_eq!(words[22] >> 24, 0, "three residuals");
    assert_eq!(words[23..], [page(9).word(), page(4).word()]);
    let words = contents.encode(geometry());
    assert_eq!(sealed(words.clone()), words);
}

/// Promise: models of both kinds, with every kind of residuals and pages at any address, are
/// decoded as they were encoded.
#[test]
fn snapshots_come_back() {
    for kind in kinds() {
        let contents = trained(&fences(), kind);
        let coded = contents.segments.iter().filter(|it| it.is_front_coded());
        assert!(coded.count() > 0 && !contents.segments[0].is_front_coded());
        let words = contents.encode(geometry());
        assert!(words[4] as u32 > 2, "of several parts");
        let read = decode(&words).expect("it was written so");
        assert_eq!(
            (&read.segments, &read.runs),
            (&contents.segments, &contents.runs)
        );
        assert_eq!(read.residuals, contents.residuals);
        assert_eq!(read.encode(geometry()), words);
        let directory = read.into_directory(geometry()).expect("it fits together");
        for (number, fence) in fences().iter().enumerate() {
            let place = directory.locate(fence);
            let model = &contents.segments[directory.model_of(place.page.parent)];
            assert!(!model.is_front_coded() || place.page.parent as usize == number);
        }
    }
}

/// Promise: corrupted snapshots are rejected with a reason, whether their checksums match or not.
#[test]
fn damage_is_refused() {
    let words = trained(&fences(), kinds()[0].clone()).encode(geometry());
    let refused = |change: &dyn Fn(&mut Vec<u64>)| {
        let mut words = words.clone();
        change(&mut words);
        decode(&sealed(words)).expect_err("it cannot be right")
    };
    let header = Header::decode(&words).expect("it is right");
    let part = HEADER_SIZE_WORDS + header.table_size_words;
    for (word, expected) in [
        (
            HEADER_SIZE_WORDS + 1,
            "checksum mismatch in its header or part table",
        ),
        (part + 20, "checksum mismatch in a part"),
    ] {
        let mut flipped = words.clone();
        flipped[word] ^= 1 << 20;
        assert_eq!(decode(&flipped).err().as_deref(), Some(expected));
    }
    assert_eq!(
        decode(&words[..5]).err().as_deref(),
        Some("its header is truncated")
    );
    let version = "it has format version 2, expected 3";
    assert_eq!(refused(&|words| words[0] ^= 1 << 56), version);
    let magic = "it has an invalid magic number";
    assert_eq!(refused(&|words| words[0] ^= 1), magic);
    let kind = "unknown residual kind 7";
    assert_eq!(refused(&|words| words[1] |= 7 << 48), kind);
    let sizes = "its sizes are invalid";
    assert_eq!(refused(&|words| words.truncate(words.len() - 1)), sizes);
    assert_eq!(refused(&|words| words[4] |= 1 << 31), sizes);
    assert_eq!(refused(&|words| words[6] += 1), sizes);
    let table = "its part table is inconsistent";
    assert_eq!(refused(&|words| words[HEADER_SIZE_WORDS + 3] = 0), table);
    let size = 1_u64 << 32;
    for head in [1, 4] {
        // Fences that are longer than all of them together, in sum or individually.
        let long = |words: &mut Vec<u64>| words[HEADER_SIZE_WORDS + head] += 4000 * size;
        assert_eq!(refused(&long), table);
    }
    let fence = HEADER_SIZE_WORDS + 3 * (words[4] as u32 as usize);
    let fences = "the fences of its part table are not in ascending order";
    assert_eq!(refused(&|words| words[fence] = u64::MAX), fences);
    // The first fence of the snapshot, as its part stores it.
    let first = part + PART_HEADER_SIZE_WORDS + MODEL_SIZE_WORDS * (words[part] >> 32) as usize;
    let first = refused(&|words| words[first] ^= 0xFF);
    assert_eq!(first, "a part contradicts the part table");
    let contradicts = "a part contradicts the part table";
    let second = HEADER_SIZE_WORDS + 3;
    assert_eq!(refused(&|words| words[second] += 1), contradicts);
    let outside = refused(&|words| words[HEADER_SIZE_WORDS + 2] = 0);
    assert!(outside.ends_with("is outside the pool"), "{outside}");
    let cut_off = "a part is truncated";
    assert_eq!(refused(&|words| words[part + 4] &= 0xFFFF_FFFF), cut_off);
    assert_eq!(refused(&|words| words[part] ^= 1 << 63), sizes);
    assert_eq!(
        refused(&|words| words[part + 2] -= 1),
        "its fences are truncated"
    );
    let header = "its models contradict its header";
    assert_eq!(refused(&|words| words[part] += 1), header);
    let parts = "its parts contradict each other";
    let neighbour = refused(&|words| words[part + 7] = page(20).word());
    assert_eq!(neighbour, parts);
    let outside = refused(&|words| words[part + 7] = u64::MAX);
    assert!(
        outside.contains("beside a part is outside the pool"),
        "{outside}"
    );
    let first = part + PART_HEADER_SIZE_WORDS + 2;
    let kind = "unknown model kind 9";
    assert_eq!(refused(&|words| words[first] |= 9 << 56), kind);
    let outside = refused(&|words| words[first + 2] |= 0xFF << 56);
    assert!(outside.ends_with("is outside the pool"), "{outside}");
}

/// Promise: for every thinning of the heads, a head leads to each key and page: to the part that
/// contains it, or to several parts read as one.
#[test]
fn fewer_heads_lead_to_more_at_once() {
    let contents = trained(&fences(), kinds()[1].clone());
    let words = contents.encode(geometry());
    let header = Header::decode(&words).expect("it is right");
    let parts_at = HEADER_SIZE_WORDS + header.table_size_words;
    let whole = decode(&words).expect("it was written so");
    let whole = whole.into_directory(geometry()).expect("it fits together");
    let (layout, geometry) = (&layout(), geometry());
    let mut counts = Vec::new();
    for size_bytes_max in [u64::MAX, 400, 200, 0] {
        let heads = Heads::decode(&header, &words[..parts_at], layout, geometry);
        let heads = heads.expect("it is right");
        let heads = heads.thinned(size_bytes_max);
        assert!(heads.size_bytes() <= size_bytes_max || heads.count() == 1);
        counts.push(heads.count());
        let read = |number: usize| {
            let words = &words[parts_at..][heads.words_of(number)];
            let part = heads.decode_part(number, words, layout, geometry);
            part.expect("it is right")
        };
        for fence in fences() {
            let page = whole.locate(&fence).page;
            let number = heads.of_key(&fence);
            let part = read(number);
            let pages = part.first_page..part.first_page + part.page_count;
            assert!(pages.contains(&page.parent), "{fence:?}");
            assert_eq!(heads.of_page(page.parent), number);
            assert_eq!(heads.first_page(number).1, part.first_addr(geometry));
        }
    }
    assert!(
        counts.is_sorted_by(|more, fewer| more >= fewer),
        "{counts:?}"
    );
    assert_eq!(counts[3], 1);
}
