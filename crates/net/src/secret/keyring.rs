//! The secrets that a server accepts: its own, and for some time the previous one.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::secret::Secret;

/// Secret of a server, which can be replaced while it runs. Clones share the same secrets.
#[derive(Clone, Debug)]
pub struct Keyring(Arc<RwLock<Keys>>);

#[derive(Debug)]
struct Keys {
    current: Secret,
    /// Earlier secret, and the time at which it is no longer accepted.
    previous: Option<(Secret, Instant)>,
}

impl Keyring {
    /// Creates a keyring with one secret.
    pub fn new(secret: Secret) -> Self {
        Self(Arc::new(RwLock::new(Keys {
            current: secret,
            previous: None,
        })))
    }

    /// Returns the current secret.
    pub fn current(&self) -> Secret {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.current.clone()
    }

    /// Returns the secrets that are accepted now, the current one first.
    pub fn accepted(&self) -> Vec<Secret> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let previous = keys.previous.as_ref();
        let previous = previous.filter(|(_, until)| Instant::now() < *until);
        let mut accepted = vec![keys.current.clone()];
        accepted.extend(previous.map(|(secret, _)| secret.clone()));
        accepted
    }

    /// Replaces the secret. The previous one remains accepted for `overlap`. Returns false, and
    /// changes nothing, if it is the current one.
    pub fn replace(&self, secret: Secret, overlap: Duration) -> bool {
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if keys.current.is_same(&secret) {
            return false;
        }
        let previous = std::mem::replace(&mut keys.current, secret);
        keys.previous = Some((previous, Instant::now() + overlap));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::{Rights, Side};

    fn secret(text: &str) -> Secret {
        Secret::from_text(text).expect("long enough")
    }

    /// Promise: after a replacement both secrets are accepted for the overlap, and then only the
    /// new one.
    #[test]
    fn the_previous_secret_is_accepted_for_a_while() {
        let keyring = Keyring::new(secret("the first secret of these"));
        assert!(!keyring.replace(secret("the first secret of these"), Duration::MAX / 4));
        let proof = |text| {
            let proof = secret(text).prove(Rights::Read, Side::Client, &[b"said"]);
            proof.expect("it grants all rights")
        };
        let is_accepted = |text| {
            let proof = proof(text);
            let is_proven =
                |it: &Secret| it.is_proven(Rights::Read, Side::Client, &[b"said"], &proof);
            keyring.accepted().iter().any(is_proven)
        };
        assert!(keyring.replace(secret("the second secret of these"), Duration::from_mins(1)));
        assert!(is_accepted("the first secret of these"));
        assert!(is_accepted("the second secret of these"));
        assert!(keyring.replace(secret("the third secret of these"), Duration::ZERO));
        assert!(!is_accepted("the first secret of these"));
        assert!(!is_accepted("the second secret of these"));
        assert!(is_accepted("the third secret of these"));
    }
}
