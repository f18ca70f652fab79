//! Errors of string models that come from elsewhere.

/// Error: a stored model, or a set of them, cannot be the result of a training.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StringModelError {
    /// The number of the alphabet is unknown.
    #[error("unknown alphabet {code}; the model is corrupted, or a newer version has written it")]
    Alphabet {
        /// Number found.
        code: u8,
    },
    /// The prefix is longer than the fence that contains it.
    #[error(
        "a segment's prefix of {prefix_size} bytes is longer than its first fence of {fence_size} \
         bytes; the model is corrupted; load or train the table again"
    )]
    Prefix {
        /// Size of the prefix in bytes.
        prefix_size: usize,
        /// Size of the first fence in bytes.
        fence_size: usize,
    },
    /// A number of the line cannot be the result of a training.
    #[error(
        "a segment's {name} is {value}, which is not a valid result of training; the model is \
         corrupted; load or train the table again"
    )]
    Number {
        /// Name of the number.
        name: &'static str,
        /// Value found.
        value: f64,
    },
    /// A front-coded fence is invalid after the fences before it.
    #[error(
        "the front-coded fence of a segment's leaf {leaf} {what}; the model is corrupted; \
         load or train the table again"
    )]
    FrontCoded {
        /// Leaf of the segment; one more than the last represents data behind it.
        leaf: u32,
        /// Description of the fault.
        what: &'static str,
    },
    /// The directory has no segments.
    #[error("a directory requires a segment; train one over the table's leaves")]
    NoSegment,
    /// The segments are not in order.
    #[error(
        "segment {segment} does not begin after the previous one; the directory is corrupted; read \
         it again, or train the table again"
    )]
    Order {
        /// Index of the second one.
        segment: usize,
    },
    /// The directory cannot count this many items.
    #[error("{what} of a directory exceed 2^32; train fewer leaves, or shorter fences")]
    TooMany {
        /// Kind of items.
        what: &'static str,
    },
    /// The number of residuals does not match the segments.
    #[error(
        "expected {expected} {what} for the segments, found {actual}; the directory is corrupted; \
         read it again, or train the table again"
    )]
    Residuals {
        /// Kind of residuals.
        what: &'static str,
        /// Number that the segments need.
        expected: usize,
        /// Number found.
        actual: usize,
    },
    /// The unit of positions is finer than supported.
    #[error("positions are counted in units of 2^-{shift} leaves; the finest unit is 2^-8")]
    Shift {
        /// Shift found.
        shift: u32,
    },
}
