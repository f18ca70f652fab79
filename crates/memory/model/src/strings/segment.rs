//! A segment of either kind.

use crate::strings::front_coded::FrontCodedSegment;
use crate::strings::line::LineSegment;

/// How the leaf of a key is found among consecutive leaves.
#[derive(Clone, Debug, PartialEq)]
pub enum StringSegment {
    /// By a line, and what corrects it: about right.
    Line(LineSegment),
    /// By the leaves' lower fences: right.
    FrontCoded(FrontCodedSegment),
}

impl StringSegment {
    /// Lower fence of the first leaf.
    pub fn first_fence(&self) -> &[u8] {
        match self {
            Self::Line(segment) => &segment.parts().first_fence,
            Self::FrontCoded(segment) => segment.first_fence(),
        }
    }

    /// Number of leaves; at least 1.
    pub fn leaf_count(&self) -> u32 {
        match self {
            Self::Line(segment) => segment.parts().leaf_count,
            Self::FrontCoded(segment) => segment.leaf_count(),
        }
    }

    /// Whether it has its fences.
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
