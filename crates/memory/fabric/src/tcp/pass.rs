//! Passes: how a session shows at the guests of its pool that it is its own.
//!
//! A pool's home registers sessions, and its guests let them in. With each session's name the home
//! gives a *pass*, the HMAC-SHA-256 of the name under a key that is made from the pool's secret and
//! the number of the home's region. Home and guests know that key; so does who may administer, and
//! nobody of lesser rights can make it. A guest thus knows whose a session is without asking.

use core::fmt;

use farleaf_types::OwnerWord;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::tcp::secret::started;

/// Size of a pass, in bytes.
pub(super) const PASS_SIZE_BYTES: usize = 16;

/// What the home gives to the owner of a session besides its name. All zeros: none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Pass(pub(super) [u8; PASS_SIZE_BYTES]);

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pass")
    }
}

/// What the passes of one pool are made with.
#[derive(Clone)]
pub struct PassKey([u8; 32]);

impl fmt::Debug for PassKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PassKey")
    }
}

impl PassKey {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    fn mac(&self, owner: OwnerWord) -> Hmac<Sha256> {
        started(&self.0, &[&owner.word().to_le_bytes()])
    }

    /// The pass of a session.
    pub fn pass(&self, owner: OwnerWord) -> Pass {
        let whole = self.mac(owner).finalize().into_bytes();
        let mut pass = [0; PASS_SIZE_BYTES];
        pass.copy_from_slice(&whole[..PASS_SIZE_BYTES]);
        Pass(pass)
    }

    /// Whether this is it. Takes as long whatever is wrong with it.
    pub fn is_pass(&self, owner: OwnerWord, pass: &Pass) -> bool {
        self.mac(owner).verify_truncated_left(&pass.0).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::secret::{Rights, Secret};
    use farleaf_types::{Incarnation, SessionId};

    fn owner(number: u64) -> OwnerWord {
        let session = SessionId::new(7).expect("not 0");
        OwnerWord::new(session, Incarnation::new(number))
    }

    /// Promise (V3): a pass is good for one session of one pool, and who holds a key for lesser
    /// rights cannot make any.
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
