//! Segment of either kind.

use crate::strings::front_coded::FrontCodedSegment;
use crate::strings::line::LineSegment;

/// Model that finds the leaf of a key among consecutive leaves.
#[derive(Clone, Debug, PartialEq)]
pub enum StringSegment {
    /// Line, which residuals correct: approximate.
    Line(LineSegment),
    /// Lower fences of the leaves: exact.
    FrontCoded(FrontCodedSegment),
}

impl StringSegment {
    /// Returns the lower fence of the first leaf.
    pub fn first_fence(&self) -> &[u8] {
        match self {
            Self::Line(segment) => &segment.parts().first_fence,
            Self::FrontCoded(segment) => segment.first_fence(),
        }
    }

    /// Returns the number of leaves; at least 1.
    pub fn leaf_count(&self) -> u32 {
        match self {
            Self::Line(segment) => segment.parts().leaf_count,
            Self::FrontCoded(segment) => segment.leaf_count(),
        }
    }

    /// Returns whether the segment is front-coded.
    pub const fn is_front_coded(&self) -> bool {
        matches!(self, Self::FrontCoded(_))
    }
}

impl From<LineSegment> for StringSegment {
    fn from(segment: LineSegment) -> Self {
        Self::Line(segment)
    }
}

impl From<FrontCodedSegment> for StringSegment {
    fn from(segment: FrontCodedSegment) -> Self {
        Self::FrontCoded(segment)
    }
}
