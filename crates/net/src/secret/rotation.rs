//! Replacement of a secret while it is in use.
//!
//! A server accepts the new secret from then on, and the previous one for some time. A client
//! proves the new one, and for that time the previous one if a server does not know the new one
//! yet. So the secret of a group of servers can be replaced on one after the other.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::greeting::WRONG_PROOF_DELAY;
use crate::secret::{KEY_SIZE_BYTES, Key, Keys, Rights, Scope, Secret};

/// Longest overlap: a hundred years, so that its end can be computed.
const OVERLAP_MAX: Duration = Duration::from_hours(100 * 365 * 24);

impl Secret {
    pub(super) fn new(rights: Rights, bytes: [u8; KEY_SIZE_BYTES]) -> Self {
        Self::limited(rights, Scope::default(), bytes)
    }

    pub(super) fn limited(rights: Rights, scope: Scope, bytes: [u8; KEY_SIZE_BYTES]) -> Self {
        Self(Arc::new(RwLock::new(Keys {
            current: Key {
                rights,
                scope,
                is_weak: false,
                bytes,
            },
            previous: None,
        })))
    }

    /// Returns the secret, marked as one that could be guessed.
    pub(super) fn weak(self) -> Self {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .current
            .is_weak = true;
        self
    }

    pub(super) fn current(&self) -> Key {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.current.clone()
    }

    /// Returns the secrets that are valid now, the current one first, each as a value of its own.
    pub fn accepted(&self) -> Vec<Self> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let previous = keys.previous.as_ref();
        let previous = previous.filter(|(_, until)| Instant::now() < *until);
        let accepted = [Some(&keys.current), previous.map(|(key, _)| key)];
        let accepted = accepted.into_iter().flatten();
        accepted
            .map(|key| Self::limited(key.rights, key.scope.clone(), key.bytes))
            .collect()
    }

    /// Returns a secret that is derived from this one by `derive`, and for the time for which an
    /// earlier one is valid, also from that.
    pub(super) fn follow(&self, derive: impl Fn(&Self) -> Self) -> Self {
        let until = {
            let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
            keys.previous.as_ref().map(|(_, until)| *until)
        };
        let mut accepted = self.accepted().into_iter().map(|secret| derive(&secret));
        let (Some(current), earlier) = (accepted.next(), accepted.next()) else {
            unreachable!("the current secret is valid")
        };
        let Some((earlier, until)) = earlier.zip(until) else {
            return current;
        };
        earlier.replace(&current, until.saturating_duration_since(Instant::now()));
        earlier
    }

    /// Calls a function with the current secret. If that is a wrong one, and an earlier one is
    /// valid, too, calls it with that: the peer may not know the new one yet.
    ///
    /// # Errors
    /// The error of the last call.
    pub fn prove_any<T, E>(
        &self,
        mut prove: impl FnMut(&Self) -> Result<T, E>,
        is_wrong_secret: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let mut valid = self.accepted().into_iter().peekable();
        loop {
            let Some(secret) = valid.next() else {
                unreachable!("the current secret is valid, and the last error is returned")
            };
            match prove(&secret) {
                Err(error) if is_wrong_secret(&error) && valid.peek().is_some() => {}
                outcome => return outcome,
            }
        }
    }

    /// Returns the time limit of a greeting: at least as long as a peer takes to say that it knows
    /// another secret, if there is one that can be proven instead.
    pub fn greeting_time(&self, time: Duration) -> Duration {
        if self.accepted().len() > 1 {
            time.max(WRONG_PROOF_DELAY * 3)
        } else {
            time
        }
    }

    /// Replaces the secret in all clones. The previous one remains valid for `overlap`. Returns
    /// false, and changes nothing, if both are the same.
    ///
    /// # Panics
    /// If the rights differ: a holder would get or lose rights that it has already used.
    pub fn replace(&self, new: &Self, overlap: Duration) -> bool {
        let new = new.current();
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(
            keys.current.rights, new.rights,
            "the rights must not change"
        );
        if keys.current == new {
            return false;
        }
        let previous = std::mem::replace(&mut keys.current, new);
        keys.previous = Some((previous, Instant::now() + overlap.min(OVERLAP_MAX)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Side;

    fn secret(text: &str) -> Secret {
        Secret::from_text(text).expect("long enough")
    }

    /// Promise: after a replacement all clones prove the new secret and accept both for the
    /// overlap, and then only the new one.
    #[test]
    fn the_previous_secret_is_valid_for_a_while() {
        let held = secret("the first secret of these");
        let clone = held.clone();
        assert!(!held.replace(&secret("the first secret of these"), Duration::from_mins(1)));
        let is_accepted = |text: &str| {
            let proof = secret(text).prove(Rights::Read, Side::Client, &[b"said"]);
            let proof = proof.expect("it grants all rights");
            let is_proven =
                |it: &Secret| it.is_proven(Rights::Read, Side::Client, &[b"said"], &proof);
            clone.accepted().iter().any(is_proven)
        };
        assert!(held.replace(
            &secret("the second secret of these"),
            Duration::from_mins(1)
        ));
        assert!(is_accepted("the first secret of these"));
        assert!(is_accepted("the second secret of these"));
        assert!(clone.current() == secret("the second secret of these").current());
        assert!(held.replace(&secret("the third secret of these"), Duration::MAX));
        assert!(is_accepted("the second secret of these"), "for ever");
        assert!(held.replace(&secret("the second secret of these"), Duration::MAX));
        assert!(held.replace(&secret("the third secret of these"), Duration::ZERO));
        assert!(!is_accepted("the first secret of these"));
        assert!(!is_accepted("the second secret of these"));
        assert!(is_accepted("the third secret of these"));
    }

    /// Promise: the earlier secret is proven only after the current one was a wrong one, and not
    /// after another error.
    #[test]
    fn the_earlier_secret_is_proven_after_the_current_one() {
        let held = secret("the first secret of these");
        held.replace(
            &secret("the second secret of these"),
            Duration::from_mins(1),
        );
        let second = secret("the second secret of these").key_id();
        for (error, call_count) in [("wrong secret", 2), ("gone", 1)] {
            let mut proven = Vec::new();
            let outcome: Result<(), &str> = held.prove_any(
                |secret| {
                    proven.push(secret.key_id());
                    Err(error)
                },
                |error| *error == "wrong secret",
            );
            assert_eq!((outcome, proven.len()), (Err(error), call_count));
            assert_eq!(proven[0], second);
        }
        let second_time = held.greeting_time(Duration::from_secs(1));
        assert!(second_time > WRONG_PROOF_DELAY);
        let only = secret("the only secret of these");
        assert_eq!(
            only.greeting_time(Duration::from_secs(1)),
            Duration::from_secs(1)
        );
    }
}
