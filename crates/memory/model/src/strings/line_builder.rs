//! Builder that cuts a stream of fences into line segments.
//!
//! The caller need not name an alphabet: all are tried, and the segment ends when the last one
//! fails. So a segment is as long as the best alphabet makes it.
//!
//! # What a shorter prefix costs
//!
//! A fence that does not share the prefix shortens it, and all coordinates change: the pending
//! leaves are fitted again. This is rare. An alphabet reads `symbol_count_max` bytes (8 to 19)
//! behind the prefix. When the prefix has lost that many bytes since the second leaf, the first two
//! fences, which shared them, have the same coordinate, and the alphabet fails. So a segment of n
//! leaves costs an alphabet at most n * (1 + `symbol_count_max`) admissions, each of amortized
//! constant time. All alphabets together need at most 107 per leaf, so the total is linear in the
//! number of fences, and in their bytes. That is the worst case. With random digits (numbers,
//! hashes) the prefix shrinks after some 10, 100, 1,000 leaves, and all refits together cost as
//! much as the leaves.

use core::mem;

use crate::builder::SegmentBuilder;
use crate::segment::{Segment, rounding_tolerance};
use crate::strings::alphabet::Alphabet;
use crate::strings::line::{ERROR_MAX, LineSegment, LineSegmentParts, StringLine};

/// Streaming piecewise linear regression over sorted strings: takes leaves' lower fences, and
/// returns segments.
///
/// Within a segment the coordinates of fences are strictly ascending, so no two fences share a
/// prediction for lack of bytes, and each fence is predicted within epsilon leaves.
///
/// Cost: linear in the fences and their bytes (the module explains why). Memory: 20 bytes per
/// pending leaf; for each remaining alphabet, a [`SegmentBuilder`] and 8 bytes per leaf; and two
/// fences.
///
/// ```
/// use farleaf_model::strings::{Alphabet, LineSegmentBuilder};
///
/// let mut builder = LineSegmentBuilder::new(0.5, 4096);
/// let mut segments = Vec::new();
/// for number in 0..1000 {
///     segments.extend(builder.push(format!("user:{:07}", 7 * number).as_bytes()));
/// }
/// segments.extend(builder.finish());
/// assert_eq!(segments.len(), 1);
/// assert_eq!(segments[0].parts().alphabet, Alphabet::Decimal);
/// assert_eq!(segments[0].position(b"user:0003500", 0), 500);
/// ```
#[derive(Debug)]
pub struct LineSegmentBuilder {
    epsilon: f64,
    leaf_count_max: u32,
    first_fence: Vec<u8>,
    last_fence: Vec<u8>,
    prefix_size: usize,
    /// Bytes of each pending fence behind the prefix, as many as coordinates read.
    windows: Vec<Window>,
    candidates: Vec<Candidate>,
    /// Space in which a refit is tried.
    spare: PendingFit,
}

impl LineSegmentBuilder {
    /// Creates a builder of segments with an error of at most `epsilon` leaves, apart from
    /// rounding, and at most `leaf_count_max` leaves each.
    ///
    /// # Panics
    ///
    /// If epsilon is not a number from 0 to 65,535, or `leaf_count_max` is 0.
    pub fn new(epsilon: f64, leaf_count_max: u32) -> Self {
        Self::with_alphabets(epsilon, leaf_count_max, &Alphabet::ALL)
    }

    /// Creates a builder that tries only some alphabets, for comparison or if the keys' bytes are
    /// known. Each alphabet costs time in proportion to the segments that it can hold.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new), or if there is no alphabet.
    pub fn with_alphabets(epsilon: f64, leaf_count_max: u32, alphabets: &[Alphabet]) -> Self {
        assert!(!alphabets.is_empty(), "coordinates need an alphabet");
        assert!(
            (0.0..ERROR_MAX).contains(&epsilon),
            "epsilon must be a number from 0 to 65,535, not {epsilon}"
        );
        let fit = || PendingFit {
            lines: SegmentBuilder::new(epsilon, leaf_count_max),
            coordinates: Vec::new(),
        };
        let candidate = |alphabet: &Alphabet| Candidate {
            alphabet: *alphabet,
            fit: fit(),
            state: CandidateState::Out,
        };
        Self {
            epsilon,
            leaf_count_max,
            first_fence: Vec::new(),
            last_fence: Vec::new(),
            prefix_size: 0,
            windows: Vec::new(),
            candidates: alphabets.iter().map(candidate).collect(),
            spare: fit(),
        }
    }

    /// Adds the next leaf's lower fence. Returns the closed segment if the fence does not fit into
    /// it, or if it is full: the fence is then the first of the next one.
    ///
    /// # Panics
    ///
    /// If the fence is not greater than the previous one.
    pub fn push(&mut self, fence: &[u8]) -> Option<LineSegment> {
        if self.windows.is_empty() {
            self.start(fence);
            return None;
        }
        assert!(
            *fence > *self.last_fence,
            "a fence is not greater than the one before it"
        );
        if self.admit(fence) {
            self.last_fence.clear();
            self.last_fence.extend_from_slice(fence);
            return None;
        }
        let segment = self.close();
        self.start(fence);
        Some(segment)
    }

    /// Closes the last segment; `None` if no fence is pending. The builder is then ready for new
    /// input, which may begin at any fence.
    pub fn finish(&mut self) -> Option<LineSegment> {
        if self.windows.is_empty() {
            return None;
        }
        let segment = self.close();
        self.windows.clear();
        Some(segment)
    }

    /// Returns the number of leaves in the segment that is not closed yet.
    pub fn pending_count(&self) -> u32 {
        self.windows.len() as u32
    }

    fn start(&mut self, fence: &[u8]) {
        self.first_fence = fence.to_vec();
        self.last_fence.clear();
        self.last_fence.extend_from_slice(fence);
        self.prefix_size = fence.len().min(u16::MAX.into());
        let window = Window::new(&fence[self.prefix_size..]);
        self.windows.clear();
        self.windows.push(window);
        for candidate in &mut self.candidates {
            candidate.start(window);
        }
    }

    /// Adds the fence to the candidates that accept it; others fail. If none accepts it, the
    /// candidates that lasted until now stay closed.
    fn admit(&mut self, fence: &[u8]) -> bool {
        if self.pending_count() == self.leaf_count_max {
            return false;
        }
        // Fences ascend, so all share what the first and the last one share.
        let shared_size = shared_size(&self.first_fence, fence).min(self.prefix_size);
        let window = Window::new(&fence[shared_size..]);
        if shared_size == self.prefix_size {
            for candidate in &mut self.candidates {
                candidate.append(window);
            }
            self.windows.push(window);
        } else {
            self.refit(shared_size, window);
        }
        if !self.candidates.iter().any(Candidate::is_running) {
            return false;
        }
        for candidate in &mut self.candidates {
            if !candidate.is_running() {
                candidate.state = CandidateState::Out;
            }
        }
        self.prefix_size = shared_size;
        true
    }

    /// Fits all pending leaves and one more with a shorter prefix.
    fn refit(&mut self, prefix_size: usize, window: Window) {
        let inserted = &self.first_fence[prefix_size..self.prefix_size];
        for window in &mut self.windows {
            window.put_before(inserted);
        }
        self.windows.push(window);
        for candidate in &mut self.candidates {
            candidate.refit(&self.windows, &mut self.spare);
        }
    }

    /// Returns the line with the smallest error, among candidates that held all leaves.
    fn close(&mut self) -> LineSegment {
        for candidate in &mut self.candidates {
            candidate.close();
        }
        let best = self.candidates.iter().filter_map(Candidate::measure);
        let best = best.min_by(|left, right| left.error.total_cmp(&right.error));
        let Measured {
            line,
            error,
            leaf_count,
        } = best.expect("some alphabet held all pending leaves");
        // The intercept was rounded to 24 bits.
        let tolerance = rounding_tolerance(self.epsilon, leaf_count) + self.epsilon * 1e-7;
        assert!(
            error <= self.epsilon + tolerance,
            "error {error} breaks the bound {} over {leaf_count} leaves",
            self.epsilon
        );
        let parts = LineSegmentParts {
            first_fence: mem::take(&mut self.first_fence),
            prefix_size: self.prefix_size as u16,
            alphabet: line.alphabet,
            slope: line.slope,
            intercept: line.intercept,
            leaf_count,
            error_max: (error as f32).next_up(),
        };
        LineSegment::from_parts(parts).expect("a training yields parts that are right")
    }
}

/// Returns the size in bytes of the common prefix of two strings.
pub(super) fn shared_size(left: &[u8], right: &[u8]) -> usize {
    let pairs = left.iter().zip(right);
    pairs.take_while(|(left, right)| left == right).count()
}

/// Bytes behind the prefix that a coordinate may read.
#[derive(Clone, Copy, Debug)]
struct Window {
    bytes: [u8; Alphabet::SYMBOL_COUNT_MAX],
    size: u8,
}

impl Window {
    fn new(suffix: &[u8]) -> Self {
        let size = suffix.len().min(Alphabet::SYMBOL_COUNT_MAX);
        let mut bytes = [0; Alphabet::SYMBOL_COUNT_MAX];
        bytes[..size].copy_from_slice(&suffix[..size]);
        Self {
            bytes,
            size: size as u8,
        }
    }

    /// Inserts bytes at the front, for a prefix that is shorter by these bytes.
    fn put_before(&mut self, inserted: &[u8]) {
        let mut window = Self::new(inserted);
        let start = usize::from(window.size);
        let size = self.bytes().len().min(Alphabet::SYMBOL_COUNT_MAX - start);
        window.bytes[start..start + size].copy_from_slice(&self.bytes[..size]);
        window.size += size as u8;
        *self = window;
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.size)]
    }
}

/// Coordinates of pending fences, and the lines that fit them.
#[derive(Debug)]
struct PendingFit {
    lines: SegmentBuilder,
    coordinates: Vec<u64>,
}

impl PendingFit {
    /// Adds a coordinate. If it does not fit, returns the closed segment of all others.
    fn push(&mut self, coordinate: u64) -> Result<(), Segment> {
        let is_ascending = self
            .coordinates
            .last()
            .is_none_or(|last| *last < coordinate);
        let closed = if is_ascending {
            self.lines.push(coordinate)
        } else {
            self.lines.finish()
        };
        if let Some(segment) = closed {
            return Err(segment);
        }
        self.coordinates.push(coordinate);
        Ok(())
    }

    fn clear(&mut self) {
        self.lines.abandon();
        self.coordinates.clear();
    }
}

#[derive(Debug)]
enum CandidateState {
    /// The candidate holds all pending leaves.
    Running,
    /// The candidate held all pending leaves, but cannot add the next one.
    Closed(Segment),
    /// The candidate failed earlier than another.
    Out,
}

/// Alphabet that is tried.
#[derive(Debug)]
struct Candidate {
    alphabet: Alphabet,
    fit: PendingFit,
    state: CandidateState,
}

impl Candidate {
    fn is_running(&self) -> bool {
        matches!(self.state, CandidateState::Running)
    }

    fn start(&mut self, window: Window) {
        self.fit.clear();
        self.state = CandidateState::Running;
        self.append(window);
    }

    fn append(&mut self, window: Window) {
        if self.is_running()
            && let Err(segment) = self.fit.push(self.alphabet.coordinate(window.bytes()))
        {
            self.state = CandidateState::Closed(segment);
        }
    }

    fn refit(&mut self, windows: &[Window], spare: &mut PendingFit) {
        if !self.is_running() {
            return;
        }
        spare.clear();
        let mut coordinates = windows
            .iter()
            .map(|window| self.alphabet.coordinate(window.bytes()));
        if coordinates.all(|coordinate| spare.push(coordinate).is_ok()) {
            mem::swap(&mut self.fit, spare);
        } else {
            self.close();
        }
    }

    fn close(&mut self) {
        if self.is_running() {
            let segment = self.fit.lines.finish().expect("a leaf is pending");
            self.state = CandidateState::Closed(segment);
        }
    }

    /// Returns the line as it will be stored, and its error; `None` if the candidate failed
    /// earlier.
    fn measure(&self) -> Option<Measured> {
        let CandidateState::Closed(segment) = &self.state else {
            return None;
        };
        let line = StringLine {
            slope: segment.slope,
            first_coordinate: segment.first_x,
            intercept: segment.intercept as f32,
            alphabet: self.alphabet,
        };
        Some(Measured {
            line,
            error: line.measure_error_max(&self.fit.coordinates),
            leaf_count: segment.point_count,
        })
    }
}

/// Line over all pending leaves.
#[derive(Debug)]
struct Measured {
    line: StringLine,
    error: f64,
    leaf_count: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments are never refitted more often than the module says; some are as often, if each leaf
    /// shortens the prefix.
    #[test]
    fn refits_are_few() {
        let mut builder = LineSegmentBuilder::new(1e4, 4096);
        let (mut refit_count, mut refit_count_max) = (0, 0);
        for size in (0..2000).rev() {
            let mut fence = vec![b'0'; size];
            fence.push(b'1');
            let prefix_size = builder.prefix_size;
            if builder.push(&fence).is_some() {
                refit_count = 0;
            } else if builder.pending_count() > 2 && builder.prefix_size < prefix_size {
                refit_count += 1;
            }
            refit_count_max = refit_count_max.max(refit_count);
        }
        assert!((10..Alphabet::SYMBOL_COUNT_MAX).contains(&refit_count_max));
    }

    /// A window with a shorter prefix equals that of the whole string.
    #[test]
    fn windows_are_lengthened() {
        let string: Vec<u8> = (0..60).collect();
        for (longer, shorter) in [(30, 29), (30, 11), (30, 5), (55, 50), (60, 58), (60, 20)] {
            let mut window = Window::new(&string[longer..]);
            window.put_before(&string[shorter..longer]);
            assert_eq!(window.bytes(), Window::new(&string[shorter..]).bytes());
        }
    }

    #[test]
    #[should_panic(expected = "epsilon must be a number")]
    fn epsilon_must_be_a_number() {
        LineSegmentBuilder::new(f64::NAN, 3);
    }
}
