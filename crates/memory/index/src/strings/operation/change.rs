//! Requested changes of a key, and their results.

/// Condition of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'v> {
    /// No condition.
    Always,
    /// The key must be absent.
    IfAbsent,
    /// The key must be present.
    IfPresent,
    /// The key must have this value; `None`: it must be absent.
    IfEqual(Option<&'v [u8]>),
}

/// Change of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'v> {
    /// Condition of the change.
    pub condition: Condition<'v>,
    /// New value; `None` removes the key.
    pub value: Option<&'v [u8]>,
    /// Whether to return the previous value. A previous value outside its page costs a round trip,
    /// and one more for each 256,000 bytes, while the page is locked.
    pub wants_previous: bool,
}

impl<'v> Change<'v> {
    /// Sets the value of a key, whether present or not.
    pub const fn put(value: &'v [u8]) -> Self {
        Self {
            condition: Condition::Always,
            value: Some(value),
            wants_previous: false,
        }
    }

    /// Removes a key.
    pub const fn delete() -> Self {
        Self {
            condition: Condition::Always,
            value: None,
            wants_previous: false,
        }
    }

    /// Sets the condition.
    #[must_use]
    pub const fn when(self, condition: Condition<'v>) -> Self {
        Self { condition, ..self }
    }

    /// Requests the previous value.
    #[must_use]
    pub const fn telling_previous(self) -> Self {
        Self {
            wants_previous: true,
            ..self
        }
    }

    /// Returns whether the previous value must be read.
    pub(super) const fn needs_previous(&self) -> bool {
        self.wants_previous || matches!(self.condition, Condition::IfEqual(Some(_)))
    }

    /// Returns whether the change applies to a key that is present or absent and has this value, if
    /// the value is needed.
    pub(super) fn applies_to(&self, is_present: bool, previous: Option<&[u8]>) -> bool {
        match self.condition {
            Condition::Always => true,
            Condition::IfAbsent | Condition::IfEqual(None) => !is_present,
            Condition::IfPresent => is_present,
            Condition::IfEqual(expected) => is_present && previous == expected,
        }
    }
}

/// Result of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Whether the condition held, so that the change was made.
    pub is_done: bool,
    /// Whether the key was present.
    pub was_present: bool,
    /// Previous value, if it was requested or a condition needed it.
    pub previous: Option<Vec<u8>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: each condition gives the documented result for an absent key, a key with the value,
    /// and a key with another value.
    #[test]
    fn conditions_hold_as_they_say() {
        let holds = |condition| {
            let change = Change::put(b"new").when(condition);
            [None, Some(&b"a"[..]), Some(b"b")]
                .map(|previous| change.applies_to(previous.is_some(), previous))
        };
        assert_eq!(holds(Condition::Always), [true, true, true]);
        assert_eq!(holds(Condition::IfAbsent), [true, false, false]);
        assert_eq!(holds(Condition::IfPresent), [false, true, true]);
        assert_eq!(holds(Condition::IfEqual(None)), [true, false, false]);
        assert_eq!(holds(Condition::IfEqual(Some(b"a"))), [false, true, false]);
        assert!(
            !Change::put(b"")
                .when(Condition::IfEqual(None))
                .needs_previous()
        );
        assert!(Change::delete().telling_previous().needs_previous());
    }
}
