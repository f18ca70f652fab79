//! The stream of fences that closes segments.
//!
//! Which alphabet suits, nobody has to say: every one is tried, and the segment ends when the last
//! one fails. So a segment is as long as any alphabet makes it.
//!
//! # What a shorter prefix costs
//!
//! A fence that does not share the prefix shortens it, and all coordinates change: the pending
//! leaves are fitted anew. That is never often. An alphabet looks at `symbol_count_max` bytes
//! behind the prefix, 8 to 19; when the prefix has become shorter by as many since the second leaf,
//! the first two fences, which had that much more in common, have one coordinate, and the alphabet
//! has failed. So a segment of n leaves costs an alphabet at most n * (1 + `symbol_count_max`)
//! admissions, each of constant time, amortized, and all of them 107 a leaf: the whole is linear in
//! the number of fences, and in their bytes. That is the worst; of what came out of a radix tree
//! (numbers, hashes) a prefix becomes shorter after some 10, 100, 1,000 leaves, and all refits
//! together cost as much as the leaves.

use core::mem;

use crate::builder::SegmentBuilder;
use crate::segment::{Segment, rounding_tolerance};
use crate::strings::alphabet::Alphabet;
use crate::strings::line::{ERROR_MAX, LineSegment, LineSegmentParts, StringLine};

/// Streaming piecewise linear regression over sorted strings: leaves' lower fences in, segments
/// out.
///
/// Within a segment the coordinates of fences are strictly ascending, so that no two fences share a
/// prediction for lack of bytes, and each fence is predicted within epsilon leaves.
///
/// Cost: linear in the fences and their bytes (the module has the reason); 20 bytes per pending
/// leaf, and per alphabet that is still in the running what a [`SegmentBuilder`] holds and 8 bytes;
/// two fences.
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
    /// Of each pending fence, the bytes behind the prefix, as many as coordinates look at.
    windows: Vec<Window>,
    candidates: Vec<Candidate>,
    /// Where a refit is tried.
    spare: Fit,
}

impl LineSegmentBuilder {
    /// A builder of segments with an error of at most `epsilon` leaves, apart from rounding, and at
    /// most `leaf_count_max` leaves each. Epsilon must be a number from 0 to 65,535,
    /// `leaf_count_max` at least 1 (asserted).
    pub fn new(epsilon: f64, leaf_count_max: u32) -> Self {
        Self::with_alphabets(epsilon, leaf_count_max, &Alphabet::ALL)
    }

    /// One that tries only some alphabets, at least one (asserted): for comparison, or where it is
    /// known what keys are made of. Each costs time in proportion to the segments it holds out for.
    pub fn with_alphabets(epsilon: f64, leaf_count_max: u32, alphabets: &[Alphabet]) -> Self {
        assert!(!alphabets.is_empty(), "coordinates need an alphabet");
        assert!(
            (0.0..ERROR_MAX).contains(&epsilon),
            "epsilon must be a number from 0 to 65,535, not {epsilon}"
        );
        let fit = || Fit {
            lines: SegmentBuilder::new(epsilon, leaf_count_max),
            coordinates: Vec::new(),
        };
        let candidate = |alphabet: &Alphabet| Candidate {
            alphabet: *alphabet,
            fit: fit(),
            state: State::Out,
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

    /// Adds the next leaf's lower fence, which must be greater than the one before it (asserted).
    ///
    /// Returns the closed segment when the fence does not fit into it, or when it is full: the
    /// fence then is the first of the next one.
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

    /// Closes the last segment; `None` if no fence is pending. The builder then is ready for new
    /// input, which may begin at any fence.
    pub fn finish(&mut self) -> Option<LineSegment> {
        if self.windows.is_empty() {
            return None;
        }
        let segment = self.close();
        self.windows.clear();
        Some(segment)
    }

    /// Number of leaves in the segment that is not closed yet.
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

    /// Takes the fence in if a candidate can; those that cannot are out. If none can, all that
    /// could until now are left closed.
    fn admit(&mut self, fence: &[u8]) -> bool {
        if self.pending_count() == self.leaf_count_max {
            return false;
        }
        // Fences ascend, so what the first and the last one share, all do.
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
                candidate.state = State::Out;
            }
        }
        self.prefix_size = shared_size;
        true
    }

    /// Fits all pending leaves and one more under a shorter prefix.
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

    /// Of the candidates that held all leaves, the line with the smallest error.
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

/// How many bytes two strings have in common at their beginning.
pub(super) fn shared_size(left: &[u8], right: &[u8]) -> usize {
    let pairs = left.iter().zip(right);
    pairs.take_while(|(left, right)| left == right).count()
}

/// The bytes behind the prefix that a coordinate may look at.
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

    /// Makes it the window of a prefix that is shorter by these bytes.
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

/// The coordinates of pending fences, and the lines that fit them.
#[derive(Debug)]
struct Fit {
    lines: SegmentBuilder,
    coordinates: Vec<u64>,
}

impl Fit {
    /// Adds a coordinate; if it does not fit, what is closed has all but that.
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
enum State {
    /// Holds all pending leaves.
    Running,
    /// Did, and cannot take the next one.
    Closed(Segment),
    /// Failed earlier than another.
    Out,
}

/// An alphabet that is tried.
#[derive(Debug)]
struct Candidate {
    alphabet: Alphabet,
    fit: Fit,
    state: State,
}

impl Candidate {
    fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    fn start(&mut self, window: Window) {
        self.fit.clear();
        self.state = State::Running;
        self.append(window);
    }

    fn append(&mut self, window: Window) {
        if self.is_running()
            && let Err(segment) = self.fit.push(self.alphabet.coordinate(window.bytes()))
        {
            self.state = State::Closed(segment);
        }
    }

    fn refit(&mut self, windows: &[Window], spare: &mut Fit) {
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
            self.state = State::Closed(segment);
        }
    }

    /// The line as it will be stored, and its error; `None` if it was out before.
    fn measure(&self) -> Option<Measured> {
        let State::Closed(segment) = &self.state else {
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

/// A line over all pending leaves.
#[derive(Debug)]
struct Measured {
    line: StringLine,
    error: f64,
    leaf_count: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However often prefixes become shorter, no segment is fitted anew more often than the module
    /// says; where they do with each leaf, some are as often.
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

    /// A window under a shorter prefix is the one that the whole string would have had.
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
