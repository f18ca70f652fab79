//! Decides whether the operations on one key are linearizable: some order explains all answers and
//! keeps the order of operations that did not overlap.
//!
//! The algorithm is Wing and Gong's search with Lowe's memory of tried states ("Testing for
//! linearizability", 2016). It takes an operation before whose call no unplaced operation had
//! finished, checks its answer against the value, and goes on. A set of placed operations with a
//! value that failed once is not tried again.
//!
//! Two properties of the runs keep the search short:
//!
//! - Every write of a run writes a distinct value, and every answered change returns what it found,
//!   so that mostly only one order is possible.
//! - A read whose answer fits can be placed at once: it excludes no other order.

use std::collections::HashSet;

/// Effect of one operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Found this value, or none.
    Read(Option<u64>),
    /// Found some value, which it does not return.
    Found,
    /// Found some value and removed it.
    Removed,
    /// Found one state and left another.
    Change {
        /// State before.
        from: Option<u64>,
        /// State after.
        to: Option<u64>,
    },
    /// Found a value or none, does not return which value, and left this state.
    Wrote {
        /// Whether there was a value.
        was_present: bool,
        /// State after.
        to: Option<u64>,
    },
    /// Removed whatever it found.
    Cleared,
    /// May have happened, or may still happen, at any time after its call.
    Perhaps(Attempt),
}

/// An operation without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Writes in any case.
    Put(u64),
    /// Writes if the key is absent.
    Insert(u64),
    /// Writes if the key is present.
    Update(u64),
    /// Removes the key.
    Delete,
    /// Replaces the expected value.
    Swap {
        /// Expected value.
        expected: Option<u64>,
        /// New value.
        new: Option<u64>,
    },
}

/// One operation on one key.
#[derive(Clone, Copy, Debug)]
pub struct KeyEvent {
    /// Moment of the call.
    pub called: u64,
    /// Moment of the answer; `u64::MAX` if there was none.
    pub answered: u64,
    /// Effect of the operation.
    pub effect: Effect,
}

impl Effect {
    /// Returns whether the operation can happen when this is the value before it.
    fn fits(self, value: Option<u64>) -> bool {
        match self {
            Self::Read(found) | Self::Change { from: found, .. } => found == value,
            Self::Found | Self::Removed => value.is_some(),
            Self::Wrote { was_present, .. } => value.is_some() == was_present,
            Self::Cleared | Self::Perhaps(_) => true,
        }
    }

    /// Returns the value after the operation.
    fn apply(self, value: Option<u64>) -> Option<u64> {
        match self {
            Self::Read(_) | Self::Found => value,
            Self::Removed | Self::Cleared => None,
            Self::Change { to, .. } | Self::Wrote { to, .. } => to,
            Self::Perhaps(attempt) => match attempt {
                Attempt::Put(new) => Some(new),
                Attempt::Insert(new) => value.or(Some(new)),
                Attempt::Update(new) => value.map(|_| new),
                Attempt::Delete => None,
                Attempt::Swap { expected, new } if expected == value => new,
                Attempt::Swap { .. } => value,
            },
        }
    }

    fn must_happen(self) -> bool {
        !matches!(self, Self::Perhaps(_))
    }
}

/// Returns whether some order explains all operations on a key that had the value `initial`.
pub fn is_linearizable(events: &[KeyEvent], initial: Option<u64>) -> bool {
    let mut events = events.to_vec();
    events.sort_by_key(|event| event.called);
    Search {
        tried: HashSet::new(),
        placed: vec![0; events.len().div_ceil(64)],
        events,
    }
    .go_on(initial)
}

struct Search {
    events: Vec<KeyEvent>,
    /// Bit per event: whether it is placed.
    placed: Vec<u64>,
    tried: HashSet<(Vec<u64>, Option<u64>)>,
}

impl Search {
    fn is_placed(&self, index: usize) -> bool {
        self.placed[index / 64] >> (index % 64) & 1 != 0
    }

    fn flip(&mut self, index: usize) {
        self.placed[index / 64] ^= 1 << (index % 64);
    }

    fn go_on(&mut self, value: Option<u64>) -> bool {
        let mut placed_reads = Vec::new();
        // First take the reads that fit, as long as there are any.
        while let Some(index) = self.next_read(value) {
            self.flip(index);
            placed_reads.push(index);
        }
        let found = self.place_change(value);
        for index in placed_reads {
            self.flip(index);
        }
        found
    }

    /// Returns the earliest answer of an unplaced operation: only an operation called before it can
    /// come next.
    fn horizon(&self) -> u64 {
        let unplaced = (0..self.events.len()).filter(|index| !self.is_placed(*index));
        let due = unplaced.filter(|index| self.events[*index].effect.must_happen());
        due.map(|index| self.events[index].answered)
            .min()
            .unwrap_or(0)
    }

    fn next_read(&self, value: Option<u64>) -> Option<usize> {
        let horizon = self.horizon();
        let called = self.events.partition_point(|event| event.called < horizon);
        (0..called).find(|index| {
            let fits = self.events[*index].effect == Effect::Read(value);
            fits && !self.is_placed(*index)
        })
    }

    fn place_change(&mut self, value: Option<u64>) -> bool {
        let horizon = self.horizon();
        if horizon == 0 {
            // All answered operations are placed.
            return true;
        }
        if !self.tried.insert((self.placed.clone(), value)) {
            return false;
        }
        let called = self.events.partition_point(|event| event.called < horizon);
        for index in 0..called {
            let effect = self.events[index].effect;
            if self.is_placed(index) || matches!(effect, Effect::Read(_)) {
                continue;
            }
            if !effect.fits(value) {
                continue;
            }
            let next = effect.apply(value);
            // An unanswered operation that would change nothing need not have happened.
            if !effect.must_happen() && next == value {
                continue;
            }
            self.flip(index);
            let found = self.go_on(next);
            self.flip(index);
            if found {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(called: u64, answered: u64, effect: Effect) -> KeyEvent {
        KeyEvent {
            called,
            answered,
            effect,
        }
    }

    fn put(called: u64, answered: u64, from: Option<u64>, to: u64) -> KeyEvent {
        let to = Some(to);
        event(called, answered, Effect::Change { from, to })
    }

    #[test]
    fn a_read_may_not_go_back_in_time() {
        let read = |called, value| event(called, called + 1, Effect::Read(value));
        let events = [put(1, 10, None, 7), read(2, Some(7)), read(4, None)];
        assert!(!is_linearizable(&events, None));
        let events = [put(1, 10, None, 7), read(2, None), read(4, Some(7))];
        assert!(is_linearizable(&events, None));
    }

    #[test]
    fn a_lost_update_is_seen() {
        let events = [
            put(1, 2, None, 1),
            put(3, 6, Some(1), 2),
            put(4, 5, Some(1), 3),
        ];
        assert!(!is_linearizable(&events, None));
    }

    #[test]
    fn an_unanswered_write_may_happen_late_once_or_never() {
        let lost = event(1, u64::MAX, Effect::Perhaps(Attempt::Put(9)));
        let read = |called, value| event(called, called + 1, Effect::Read(value));
        assert!(is_linearizable(
            &[lost, read(2, None), read(4, Some(9))],
            None
        ));
        assert!(is_linearizable(&[lost, read(2, None), read(4, None)], None));
        assert!(!is_linearizable(
            &[lost, read(2, Some(9)), read(4, None)],
            None
        ));
        let delete = event(
            6,
            7,
            Effect::Change {
                from: Some(9),
                to: None,
            },
        );
        let twice = [lost, read(4, Some(9)), delete, read(8, Some(9))];
        assert!(!is_linearizable(&twice, None), "once only");
    }

    /// Test oracle: tries every order of every subset that has all answered operations.
    fn by_brute_force(events: &[KeyEvent], value: Option<u64>) -> bool {
        if !events.iter().any(|event| event.effect.must_happen()) {
            return true;
        }
        (0..events.len()).any(|next| {
            let first = events[next];
            let precedes =
                |other: &KeyEvent| other.effect.must_happen() && other.answered < first.called;
            let after = first.effect.apply(value);
            let mut rest = events.to_vec();
            rest.remove(next);
            first.effect.fits(value) && !rest.iter().any(precedes) && by_brute_force(&rest, after)
        })
    }

    fn any_effect() -> impl Strategy<Value = Effect> {
        let value = || prop::option::of(1_u64..4);
        prop_oneof![
            value().prop_map(Effect::Read),
            (value(), value()).prop_map(|(from, to)| Effect::Change { from, to }),
            (any::<bool>(), value())
                .prop_map(|(was_present, to)| Effect::Wrote { was_present, to }),
            Just(Effect::Cleared),
            (1_u64..4).prop_map(|new| Effect::Perhaps(Attempt::Put(new))),
            (1_u64..4).prop_map(|new| Effect::Perhaps(Attempt::Insert(new))),
            (1_u64..4).prop_map(|new| Effect::Perhaps(Attempt::Update(new))),
            Just(Effect::Perhaps(Attempt::Delete)),
            (value(), value())
                .prop_map(|(expected, new)| Effect::Perhaps(Attempt::Swap { expected, new })),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// Promise: the search and the oracle agree on small histories, about half of which are
        /// linearizable.
        #[test]
        fn the_search_agrees_with_brute_force(
            drawn in prop::collection::vec((0_u64..20, 1_u64..8, any_effect()), 0..7),
            initial in prop::option::of(1_u64..4),
        ) {
            // Moments are distinct, like those of a history.
            let events: Vec<KeyEvent> = (0..)
                .zip(drawn)
                .map(|(index, (called, duration, effect)): (u64, _)| {
                    let answered = if effect.must_happen() {
                        (called + duration) * 16 + index + 8
                    } else {
                        u64::MAX
                    };
                    event(called * 16 + index, answered, effect)
                })
                .collect();
            prop_assert_eq!(
                is_linearizable(&events, initial),
                by_brute_force(&events, initial)
            );
        }
    }
}
