//! What is asked of a key, and what became of it.

/// When a key is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'v> {
    /// Whatever is there.
    Always,
    /// Only if it is absent.
    IfAbsent,
    /// Only if it is present.
    IfPresent,
    /// Only if it has this value; `None`: if it is absent.
    IfEqual(Option<&'v [u8]>),
}

/// A change of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'v> {
    /// When it is made.
    pub condition: Condition<'v>,
    /// The new value; `None`: the key is removed.
    pub value: Option<&'v [u8]>,
    /// Whether the value that was there before is to be told. One that is outside costs a round
    /// trip, and one more for each 256,000 bytes, with the page's lock in hand.
    pub wants_previous: bool,
}

impl<'v> Change<'v> {
    /// Gives a key a value, present or not.
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

    /// The same under a condition.
    #[must_use]
    pub const fn when(self, condition: Condition<'v>) -> Self {
        Self { condition, ..self }
    }

    /// The same, and the value that was there before is told.
    #[must_use]
    pub const fn telling_previous(self) -> Self {
        Self {
            wants_previous: true,
            ..self
        }
    }

    /// Whether the value that is there has to be known.
    pub(super) const fn needs_previous(&self) -> bool {
        self.wants_previous || matches!(self.condition, Condition::IfEqual(Some(_)))
    }

    /// Whether the change is made of a key that is present or not, with this value, if that has to
    /// be known.
    pub(super) fn applies_to(&self, is_present: bool, previous: Option<&[u8]>) -> bool {
        match self.condition {
            Condition::Always => true,
            Condition::IfAbsent | Condition::IfEqual(None) => !is_present,
            Condition::IfPresent => is_present,
            Condition::IfEqual(expected) => is_present && previous == expected,
        }
    }
}

/// What became of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Whether its condition held, so that it is made.
    pub is_done: bool,
    /// Whether the key was present.
    pub was_present: bool,
    /// The value that was there before, if that was to be told, or a condition needed it.
    pub previous: Option<Vec<u8>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each condition, on an absent key, one with the value, and one with another.
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
