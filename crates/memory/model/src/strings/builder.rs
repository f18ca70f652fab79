//! Builder that chooses lines where they are small and distinguish leaves, and fences elsewhere.
//!
//! Lines are closed first, and each is then compared with the fences of its leaves. A leaf is
//! *blurred* if its fence is predicted so near to the previous one that keys of both leaves may
//! share a grid point. A lookup of such a key reads two leaves, or a wrong one if several leaves in
//! a row are blurred. That costs a round trip, which no saved bytes justify. So fences are used if
//! more leaves are blurred than random keys, one per leaf, ever cause. Otherwise the smaller kind
//! is used. Neighboring stretches of fences become one front-coded segment.

use core::mem;

use crate::strings::front_coded::{FrontCodedSegment, RESTART_INTERVAL, entry_size};
use crate::strings::line::LineSegment;
use crate::strings::line_builder::{LineSegmentBuilder, shared_size};
use crate::strings::segment::StringSegment;

/// Size in bytes of a segment in memory, besides its first fence: entry, error, and route.
const SEGMENT_SIZE_BYTES: usize = 44;
/// Shift of the grid for comparing positions: units of 2^-6 leaves, as for packed residuals.
const BLUR_SHIFT: u32 = 6;
/// Largest distance of blurred fences, in units.
const BLUR_MAX: i64 = 1;
/// Number of leaves per allowed blurred leaf. Of random keys, one per leaf, one in 43 is blurred;
/// somewhat more if fences are short, because these have fewer places.
const LEAVES_PER_BLURRED: usize = 16;
/// Largest number of leaves of a front-coded segment, about 3 KB of fences: a partial directory
/// reads one as a whole, and retraining walks all of its leaves. Another segment takes about 150
/// bytes, so larger segments would save less than 5 %.
const CODED_LEAF_COUNT_MAX: u32 = 256;
/// Size in bytes of a restart besides its fence: its place.
const RESTART_SIZE_BYTES: usize = 4;

/// Streaming training: takes leaves' lower fences, and returns segments of either kind.
///
/// Cost: that of [`LineSegmentBuilder`], plus twice the bytes of the fences. Holds the fences of
/// the pending leaves, at most twice `leaf_count_max`.
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
    /// Fences of leaves without a closed line.
    open: Fences,
    /// Fences of the leaves before these that are to be front-coded.
    coded: Fences,
}

impl StringSegmentBuilder {
    /// Creates a builder whose lines have an error of at most `epsilon` leaves, apart from
    /// rounding, and whose segments have at most `leaf_count_max` leaves each.
    ///
    /// # Panics
    ///
    /// If epsilon is not a number from 0 to 65,535, or `leaf_count_max` is 0.
    pub fn new(epsilon: f64, leaf_count_max: u32) -> Self {
        Self {
            lines: LineSegmentBuilder::new(epsilon, leaf_count_max),
            coded_leaf_count_max: leaf_count_max.min(CODED_LEAF_COUNT_MAX),
            open: Fences::default(),
            coded: Fences::default(),
        }
    }

    /// Adds the next leaf's lower fence. Returns the segments that it closes: those of the first
    /// pending leaves.
    ///
    /// # Panics
    ///
    /// If the fence is not greater than the previous one.
    pub fn push(&mut self, fence: &[u8]) -> Vec<StringSegment> {
        let closed = match self.lines.push(fence) {
            None => Vec::new(),
            Some(line) => self.choose(line),
        };
        self.open.push(fence);
        closed
    }

    /// Closes all pending leaves; returns no segment if there are none. The builder is then ready
    /// for new input, which may begin at any fence.
    pub fn finish(&mut self) -> Vec<StringSegment> {
        let line = self.lines.finish();
        let mut closed = line.map_or_else(Vec::new, |line| self.choose(line));
        closed.extend(self.close_coded());
        closed
    }

    /// Returns the number of leaves in segments that are not closed yet.
    pub fn pending_count(&self) -> u32 {
        (self.coded.count() + self.open.count()) as u32
    }

    /// Chooses the line that was closed over all open fences, or the fences.
    fn choose(&mut self, line: LineSegment) -> Vec<StringSegment> {
        let open = mem::take(&mut self.open);
        // Fences follow if they were used before: a line then costs two more segments.
        let count = 1 + usize::from(self.coded.count() > 0);
        let is_smaller = line_size_bytes(&line, count) <= coded_size_bytes(&open, &self.coded);
        if is_smaller && distinguishes(&line, &open) {
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

/// Returns whether a line distinguishes the leaves with these fences.
fn distinguishes(line: &LineSegment, fences: &Fences) -> bool {
    let mut before = i64::MIN;
    let blurred = fences.iter().filter(|fence| {
        let position = line.position(fence, BLUR_SHIFT);
        let distance = position.saturating_sub(before);
        before = position;
        distance <= BLUR_MAX
    });
    blurred.count() * LEAVES_PER_BLURRED <= fences.count()
}

/// Returns the size of a line with residual bytes and `segment_count` segments.
fn line_size_bytes(line: &LineSegment, segment_count: usize) -> usize {
    let parts = line.parts();
    segment_count * (SEGMENT_SIZE_BYTES + parts.first_fence.len()) + parts.leaf_count as usize
}

/// Returns the approximate size of fences, in their own segment or joined with those before.
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

/// Concatenated strings.
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
