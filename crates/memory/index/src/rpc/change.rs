//! What a write is to make of what it finds.

use crate::operation::Decision;

/// A write to one key. Whoever executes it answers with what was there before; the rest follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key gets this value, present or not.
    Put(u64),
    /// It gets this value if it is absent.
    Insert(u64),
    /// It gets this value if it is present.
    Update(u64),
    /// It is removed.
    Delete,
    /// It gets the value `new` (`None`: it is removed) if its value is `expected` (`None`: if it is
    /// absent).
    CompareSwap {
        /// What has to be there.
        expected: Option<u64>,
        /// What is to be there then.
        new: Option<u64>,
    },
}

impl Change {
    /// What becomes of a key of which this was found.
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
