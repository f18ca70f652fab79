//! Passes: proof of a session at nodes of its pool other than the main node.
//!
//! A pool's main node registers sessions, and the other nodes admit them. With each session's name
//! the main node returns a *pass*: the HMAC-SHA-256 of the name under a key that is derived from
//! the pool's secret and the number of the main node's memory. The nodes and administrators can
//! compute that key; holders of lesser rights cannot. So a node can verify a session without asking
//! the main node.

use core::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use farleaf_base::OwnerWord;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::secret::{KEY_SIZE_BYTES, Secret, started};

/// Size of a pass in bytes.
const PASS_SIZE_BYTES: usize = 16;

/// Pass that the main node returns to a session's owner besides the name. All zeros: none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Pass(pub [u8; PASS_SIZE_BYTES]);

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pass")
    }
}

/// Key for the passes of one pool. It follows the pool's secret when that is replaced, and still
/// recognizes passes from before: they prove only that a session was registered, and a client that
/// shows one has proven the secret of today.
#[derive(Clone)]
pub struct PassKey {
    secret: Secret,
    pool_id: u64,
    /// Keys of this process so far, the oldest first.
    known: Arc<Mutex<Vec<[u8; KEY_SIZE_BYTES]>>>,
}

impl fmt::Debug for PassKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PassKey")
    }
}

impl PassKey {
    pub(crate) fn new(secret: Secret, pool_id: u64) -> Self {
        let key = key_of(&secret, pool_id);
        let known = Arc::new(Mutex::new(vec![key]));
        Self {
            secret,
            pool_id,
            known,
        }
    }

    /// Returns the pass of a session.
    pub fn pass(&self, owner: OwnerWord) -> Pass {
        let key = key_of(&self.secret, self.pool_id);
        let whole = mac_of(&key, owner).finalize().into_bytes();
        let mut pass = [0; PASS_SIZE_BYTES];
        pass.copy_from_slice(&whole[..PASS_SIZE_BYTES]);
        Pass(pass)
    }

    /// Returns true if the pass is the session's. Takes constant time for each secret that the pool
    /// has had.
    pub fn is_pass(&self, owner: OwnerWord, pass: &Pass) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for secret in self.secret.accepted() {
            let key = key_of(&secret, self.pool_id);
            if !known.contains(&key) {
                known.push(key);
            }
        }
        let mut keys = known.iter();
        keys.any(|key| mac_of(key, owner).verify_truncated_left(&pass.0).is_ok())
    }
}

fn key_of(secret: &Secret, pool_id: u64) -> [u8; KEY_SIZE_BYTES] {
    secret.purpose_key(&[b"farleaf 1 passes", &pool_id.to_le_bytes()])
}

fn mac_of(key: &[u8], owner: OwnerWord) -> Hmac<Sha256> {
    started(key, &[&owner.word().to_le_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Rights;
    use farleaf_base::{Incarnation, SessionId};

    fn owner(number: u64) -> OwnerWord {
        let session = SessionId::new(7).expect("not 0");
        OwnerWord::new(session, Incarnation::new(number))
    }

    /// Promise: a pass is valid for one session of one pool, and a key for lesser rights cannot
    /// produce any.
    #[test]
    fn a_pass_is_good_for_one_session_of_one_pool() {
        let secret = Secret::from_text("a secret of a pool").expect("long enough");
        let key = secret.pass_key(77).expect("it is the secret itself");
        let pass = key.pass(owner(1));
        assert!(key.is_pass(owner(1), &pass));
        assert!(!key.is_pass(owner(2), &pass), "another session's");
        assert!(!key.is_pass(owner(1), &Pass::default()), "none");
        let other = secret.pass_key(78).expect("it is the secret itself");
        assert!(!other.is_pass(owner(1), &pass), "another pool's");
        for rights in [Rights::Read, Rights::Write] {
            let derived = secret.derived_text(rights).expect("it can be derived");
            let derived = Secret::from_text(&derived).expect("a key");
            assert!(derived.pass_key(77).is_none(), "{rights}");
        }
    }

    /// Promise: after the secret was replaced, new passes are those of the new secret, and passes
    /// from before are still recognized, even after the overlap. A process that never knew the old
    /// secret does not recognize them.
    #[test]
    fn passes_outlive_a_replaced_secret() {
        let secret = |text| Secret::from_text(text).expect("long enough");
        let held = secret("a secret of a pool");
        let key = held.pass_key(77).expect("it is the secret itself");
        let before = key.pass(owner(1));
        held.replace(
            &secret("the next secret of a pool"),
            core::time::Duration::ZERO,
        );
        let after = key.pass(owner(1));
        assert_ne!(before, after);
        assert!(key.is_pass(owner(1), &before) && key.is_pass(owner(1), &after));
        let other = secret("the next secret of a pool").pass_key(77);
        let other = other.expect("it is the secret itself");
        assert!(other.is_pass(owner(1), &after) && !other.is_pass(owner(1), &before));
    }
}
