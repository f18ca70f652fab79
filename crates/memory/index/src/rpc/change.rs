//! Conditions and effects of writes.

use crate::operation::Decision;

/// Write to one key. The node executes it and replies with the previous value, from which the
/// client derives the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Set the key to this value, whether it is present or not.
    Put(u64),
    /// Set the key to this value if it is absent.
    Insert(u64),
    /// Set the key to this value if it is present.
    Update(u64),
    /// Remove the key.
    Delete,
    /// Set the key to `new` (`None`: remove it) if its value is `expected` (`None`: if it is
    /// absent).
    CompareSwap {
        /// Expected value.
        expected: Option<u64>,
        /// New value.
        new: Option<u64>,
    },
}

impl Change {
    /// Returns the decision for a key with this value.
    pub fn decide(self, found: Option<u64>) -> Decision {
        let set = |value: Option<u64>| value.map_or(Decision::Remove, Decision::Set);
        match self {
            Self::Put(value) => Decision::Set(value),
            Self::Insert(value) if found.is_none() => Decision::Set(value),
            Self::Update(value) if found.is_some() => Decision::Set(value),
            Self::Delete => Decision::Remove,
            Self::CompareSwap { expected, new } if found == expected => set(new),
            Self::Insert(_) | Self::Update(_) | Self::CompareSwap { .. } => Decision::Keep,
        }
    }
}
