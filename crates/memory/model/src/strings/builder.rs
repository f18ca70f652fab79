//! The stream that chooses: lines where they are small and tell leaves apart, fences elsewhere.
//!
//! Lines are closed as if there were nothing else, and each is then weighed against the fences of
//! its leaves. A leaf is *blurred* if its fence is predicted so near to the one before that keys of
//! both leaves may share a point of the grid: who looks for them reads two leaves, or a wrong one
//! where several in a row are. That is a round trip, so no bytes make up for it: where more leaves
//! are blurred than of random keys, one a leaf, ever are, fences are taken. Elsewhere whatever
//! takes fewer bytes is. Neighbours that fences are taken for become one front-coded segment.

use core::mem;

use crate::strings::front_coded::{FrontCodedSegment, RESTART_INTERVAL, entry_size};
use crate::strings::line::LineSegment;
use crate::strings::line_builder::{LineSegmentBuilder, shared_size};
use crate::strings::segment::StringSegment;

/// Bytes of a segment in memory, beside its first fence: entry, error, and what leads to it.
const SEGMENT_SIZE_BYTES: usize = 44;
/// Positions are compared in units of 2^-6 leaves, the grid of packed residuals.
const BLUR_SHIFT: u32 = 6;
/// Fences no further apart than this blur, in units.
const BLUR_MAX: i64 = 1;
/// One of so many leaves may be blurred. Of random keys, one a leaf, one in 43 is; some more are if
/// fences are short, as these then have but few places.
const LEAVES_PER_BLURRED: usize = 16;
/// Front-coded segments have no more leaves than this, about 3 KB of fences: who holds only a part
/// of a directory reads one as a whole, and who retrains walks all leaves of one. A segment more
/// takes about 150 bytes in all, so that larger ones would save less than 5 %.
const CODED_LEAF_COUNT_MAX: u32 = 256;
/// What a restart takes beside its fence: where it is.
const RESTART_SIZE_BYTES: usize = 4;

/// Streaming training: leaves' lower fences in, segments of either kind out.
///
/// Cost: as of [`LineSegmentBuilder`], and twice the bytes of the fences; it holds the fences of
/// the leaves that are pending, at most twice `leaf_count_max`.
///
/// ```
/// use farleaf_model::strings::StringSegmentBuilder;
///
/// let mut builder = StringSegmentBuilder::new(0.5, 4096);
/// let mut segments = Vec::new();
/// for number in 0..1000 {
///     segments.extend(builder.push(format!("user:{:07}", 7 * number).as_bytes()));
/// }
/// segments.extend(builder.push(b"worn"));
/// for name in ["out", "over", "overt", "own", "owner"] {
///     segments.extend(builder.push(format!("x/{name}").as_bytes()));
/// }
/// segments.extend(builder.finish());
/// let kinds = segments.iter().map(|segment| segment.is_front_coded());
/// assert_eq!(kinds.collect::<Vec<_>>(), [false, true]);
/// ```
#[derive(Debug)]
pub struct StringSegmentBuilder {
    lines: LineSegmentBuilder,
    coded_leaf_count_max: u32,
    /// Fences of leaves that no line is closed over.
    open: Fences,
    /// Fences of the leaves before these that are to be front-coded.
    coded: Fences,
}

impl StringSegmentBuilder {
    /// A builder whose lines have an error of at most `epsilon` leaves, apart from rounding, and
    /// whose segments have at most `leaf_count_max` leaves each. Epsilon must be a number from 0 to
    /// 65,535, `leaf_count_max` at least 1 (asserted).
    pub fn new(epsilon: f64, leaf_count_max: u32) -> Self {
        Self {
            lines: LineSegmentBuilder::new(epsilon, leaf_count_max),
            coded_leaf_count_max: leaf_count_max.min(CODED_LEAF_COUNT_MAX),
            open: Fences::default(),
            coded: Fences::default(),
        }
    }

    /// Adds the next leaf's lower fence, which must be greater than the one before it (asserted).
    ///
    /// Returns the segments that are closed by it: those of the first leaves that are pending.
    pub fn push(&mut self, fence: &[u8]) -> Vec<StringSegment> {
        let closed = match self.lines.push(fence) {
            None => Vec::new(),
            Some(line) => self.choose(line),
        };
        self.open.push(fence);
        closed
    }

    /// Closes what is pending: no segment if no fence is. The builder then is ready for new input,
    /// which may begin at any fence.
    pub fn finish(&mut self) -> Vec<StringSegment> {
        let line = self.lines.finish();
        let mut closed = line.map_or_else(Vec::new, |line| self.choose(line));
        closed.extend(self.close_coded());
        closed
    }

    /// Number of leaves in segments that are not closed yet.
    pub fn pending_count(&self) -> u32 {
        (self.coded.count() + self.open.count()) as u32
    }

    /// Takes the line that is closed over all open fences, or the fences.
    fn choose(&mut self, line: LineSegment) -> Vec<StringSegment> {
        let open = mem::take(&mut self.open);
        // Where fences were taken before, they will be again: a line then is two segments more.
        let count = 1 + usize::from(self.coded.count() > 0);
        let is_smaller = line_size_bytes(&line, count) <= coded_size_bytes(&open, &self.coded);
        if is_smaller && tells_apart(&line, &open) {
            let mut closed: Vec<_> = self.close_coded().into_iter().collect();
            closed.push(line.into());
            return closed;
        }
        let mut closed = Vec::new();
        for fence in open.iter() {
            if self.coded.count() == self.coded_leaf_count_max as usize {
                closed.extend(self.close_coded());
            }
            self.coded.push(fence);
        }
        closed
    }

    fn close_coded(&mut self) -> Option<StringSegment> {
        let coded = mem::take(&mut self.coded);
        (coded.count() > 0).then(|| FrontCodedSegment::encode(coded.iter()).into())
    }
}

/// Whether a line tells the leaves apart that have these fences.
fn tells_apart(line: &LineSegment, fences: &Fences) -> bool {
    let mut before = i64::MIN;
    let blurred = fences.iter().filter(|fence| {
        let position = line.position(fence, BLUR_SHIFT);
        let distance = position.saturating_sub(before);
        before = position;
        distance <= BLUR_MAX
    });
    blurred.count() * LEAVES_PER_BLURRED <= fences.count()
}

/// What a line takes, with residuals of a byte and so many segments instead of none.
fn line_size_bytes(line: &LineSegment, segment_count: usize) -> usize {
    let parts = line.parts();
    segment_count * (SEGMENT_SIZE_BYTES + parts.first_fence.len()) + parts.leaf_count as usize
}

/// About what fences take, in a segment of their own or with those before them.
fn coded_size_bytes(fences: &Fences, before: &Fences) -> usize {
    let first = before.first().or(fences.first()).unwrap_or_default();
    let shared = shared_size(first, fences.last().unwrap_or_default());
    let (mut size_bytes, mut restarts_size_bytes) = (0, 0);
    let mut last = before.last();
    for fence in fences.iter() {
        size_bytes += match last {
            Some(last) => entry_size(last, fence),
            None => SEGMENT_SIZE_BYTES + fence.len(),
        };
        restarts_size_bytes += RESTART_SIZE_BYTES + fence.len() - shared;
        last = Some(fence);
    }
    size_bytes + restarts_size_bytes / RESTART_INTERVAL
}

/// Strings, one after the other.
#[derive(Debug, Default)]
struct Fences {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Fences {
    fn push(&mut self, fence: &[u8]) {
        self.bytes.extend_from_slice(fence);
        self.ends.push(self.bytes.len());
    }

    fn count(&self) -> usize {
        self.ends.len()
    }

    fn first(&self) -> Option<&[u8]> {
        self.ends.first().map(|end| &self.bytes[..*end])
    }

    fn last(&self) -> Option<&[u8]> {
        let last = self.count().checked_sub(1)?;
        let start = last.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..])
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let starts = core::iter::once(&0).chain(&self.ends);
        let ranges = starts.zip(&self.ends);
        ranges.map(|(start, end)| &self.bytes[*start..*end])
    }
}
