//! What can be wrong with models over strings that come from elsewhere.

/// A stored model, or a set of them, that cannot be what a training wrote.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StringModelError {
    /// No alphabet has this number.
    #[error("no alphabet has the number {code}; the model is damaged, or of a newer version")]
    Alphabet {
        /// What was read.
        code: u8,
    },
    /// The prefix would be longer than the fence it is a part of.
    #[error(
        "a segment's prefix of {prefix_size} bytes is longer than its first fence of {fence_size} \
         bytes; the model is damaged, load or train the table anew"
    )]
    Prefix {
        /// Size of the prefix, in bytes.
        prefix_size: usize,
        /// Size of the first fence, in bytes.
        fence_size: usize,
    },
    /// A number of the line is not one that a training yields.
    #[error(
        "a segment's {name} is {value}, which no training yields; the model is damaged, load or \
         train the table anew"
    )]
    Number {
        /// Which number.
        name: &'static str,
        /// What was read.
        value: f64,
    },
    /// A front-coded fence that none is, after those before it.
    #[error(
        "the front-coded fence of a segment's leaf {leaf} {what}; the model is damaged, load or \
         train the table anew"
    )]
    FrontCoded {
        /// Which leaf of the segment; one behind the last stands for what follows that.
        leaf: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A directory without segments.
    #[error("a directory needs a segment; train one over the table's leaves")]
    NoSegment,
    /// Segments out of order.
    #[error(
        "segment {segment} does not begin behind the one before it; the directory is damaged, read \
         it again or train the table anew"
    )]
    Order {
        /// Index of the second one.
        segment: usize,
    },
    /// More than the directory can count.
    #[error("{what} of a directory exceed 2^32; train fewer leaves, or shorter fences")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
    },
    /// Residuals that do not belong to the segments.
    #[error(
        "{actual} {what} came with segments that need {expected}; the directory is damaged, read \
         it again or train the table anew"
    )]
    Residuals {
        /// What residuals consist of.
        what: &'static str,
        /// How many the segments need.
        expected: usize,
        /// How many there are.
        actual: usize,
    },
    /// Positions counted more finely than they can be.
    #[error("positions are counted in units of 2^-{shift} leaves, the finest unit is 2^-8")]
    Shift {
        /// What was given.
        shift: u32,
    },
}
