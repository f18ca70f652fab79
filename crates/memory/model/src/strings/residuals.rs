//! Corrections of the predictions of lines.

use crate::strings::boundary::{Boundary, byte_residuals};
use crate::strings::error::StringModelError;
use crate::strings::line::SHIFT_MAX;
use crate::strings::packed::{PackedBlock, packed_blocks};
use crate::strings::segment::StringSegment;

/// Corrections for the leaves of all lines, in order; front-coded segments need none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Residuals {
    /// No corrections: the leaf that the line points to is used.
    None,
    /// One byte per leaf.
    Bytes {
        /// Shift of positions, in units of 2^-`shift` leaves.
        shift: u32,
        /// Results of [`byte_residuals`], line after line.
        residuals: Vec<i8>,
    },
    /// 16 bytes per 30 leaves, or fewer at a line's end: for leaves of one record.
    Packed {
        /// Results of [`packed_blocks`], line after line.
        blocks: Vec<PackedBlock>,
    },
}

impl Residuals {
    /// Returns empty residuals of the same kind.
    #[must_use]
    pub fn emptied(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Bytes { shift, .. } => Self::Bytes {
                shift: *shift,
                residuals: Vec::new(),
            },
            Self::Packed { .. } => Self::Packed { blocks: Vec::new() },
        }
    }

    /// Returns the number of residuals or blocks of this kind for a segment.
    pub fn count_of(&self, segment: &StringSegment) -> usize {
        match (self, segment) {
            (Self::None, _) | (_, StringSegment::FrontCoded(_)) => 0,
            (Self::Bytes { .. }, StringSegment::Line(_)) => segment.leaf_count() as usize,
            (Self::Packed { .. }, StringSegment::Line(_)) => {
                PackedBlock::count_for(segment.leaf_count())
            }
        }
    }

    /// Appends the residuals of the next segment.
    ///
    /// # Panics
    ///
    /// If there is not a boundary for each leaf of a line, in order.
    pub fn push<'a>(
        &mut self,
        segment: &StringSegment,
        boundaries: impl IntoIterator<Item = Boundary<'a>>,
    ) {
        match (self, segment) {
            (Self::None, _) | (_, StringSegment::FrontCoded(_)) => {}
            (Self::Bytes { shift, residuals }, StringSegment::Line(line)) => {
                residuals.extend(byte_residuals(line, boundaries, *shift));
            }
            (Self::Packed { blocks }, StringSegment::Line(line)) => {
                blocks.extend(packed_blocks(line, boundaries));
            }
        }
    }

    /// Appends a range of others of the same kind; appends nothing if the kinds differ.
    pub fn extend_from(&mut self, others: &Self, range: core::ops::Range<usize>) {
        match (self, others) {
            (
                Self::Bytes { residuals, .. },
                Self::Bytes {
                    residuals: from, ..
                },
            ) => {
                residuals.extend_from_slice(&from[range]);
            }
            (Self::Packed { blocks }, Self::Packed { blocks: from }) => {
                blocks.extend_from_slice(&from[range]);
            }
            _ => {}
        }
    }

    /// Returns the bytes of memory behind this value.
    pub(super) fn heap_size_bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes { residuals, .. } => size_of_val(&**residuals),
            Self::Packed { blocks } => size_of_val(&**blocks),
        }
    }

    /// Returns the residuals without spare capacity, if their number matches the segments.
    pub(super) fn checked(mut self, segments: &[StringSegment]) -> Result<Self, StringModelError> {
        let counts = segments.iter().map(|segment| self.count_of(segment));
        let expected: usize = counts.sum();
        let (what, actual) = match &mut self {
            Self::None => return Ok(self),
            Self::Bytes { shift, .. } if *shift > SHIFT_MAX => {
                return Err(StringModelError::Shift { shift: *shift });
            }
            Self::Bytes { residuals, .. } => {
                residuals.shrink_to_fit();
                ("residuals", residuals.len())
            }
            Self::Packed { blocks } => {
                blocks.shrink_to_fit();
                ("blocks of thresholds", blocks.len())
            }
        };
        if expected != actual {
            return Err(StringModelError::Residuals {
                what,
                expected,
                actual,
            });
        }
        Ok(self)
    }
}
