//! Passes: proof of a session at nodes of its pool other than the main node.
//!
//! A pool's main node registers sessions, and the other nodes admit them. With each session's name
//! the main node returns a *pass*: the HMAC-SHA-256 of the name under a key that is derived from
//! the pool's secret and the number of the main node's memory. The nodes and administrators can
//! compute that key; holders of lesser rights cannot. So a node can verify a session without asking
//! the main node.

use core::fmt;

use farleaf_base::OwnerWord;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::secret::started;

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

/// Key for the passes of one pool.
#[derive(Clone)]
pub struct PassKey([u8; 32]);

impl fmt::Debug for PassKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PassKey")
    }
}

impl PassKey {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    fn mac(&self, owner: OwnerWord) -> Hmac<Sha256> {
        started(&self.0, &[&owner.word().to_le_bytes()])
    }

    /// Returns the pass of a session.
    pub fn pass(&self, owner: OwnerWord) -> Pass {
        let whole = self.mac(owner).finalize().into_bytes();
        let mut pass = [0; PASS_SIZE_BYTES];
        pass.copy_from_slice(&whole[..PASS_SIZE_BYTES]);
        Pass(pass)
    }

    /// Returns true if the pass is the session's. Takes constant time.
    pub fn is_pass(&self, owner: OwnerWord, pass: &Pass) -> bool {
        self.mac(owner).verify_truncated_left(&pass.0).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::{Rights, Secret};
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
}
