//! Key agreement: two processes compute a secret without sending it, by X25519 with one-time keys.
//!
//! Each side draws a key pair and sends the public key. Both compute the secret by HKDF-SHA-256
//! from the X25519 result. A secret that both know already, if any, is the salt. The purpose of the
//! secret and both public keys are bound into it. An attacker with a recording of everything cannot
//! compute it, even if the salt is learned later. An attacker who can change messages can
//! impersonate the sides only with the salt, or if there is none.

use core::fmt;
use std::io;

use hmac::Mac;
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use thiserror::Error;

use crate::secret::{Secret, started};

/// Size of a public key in bytes.
pub const PUBLIC_KEY_SIZE_BYTES: usize = 32;

/// The public half of a key pair, which is sent.
pub type PublicKey = [u8; PUBLIC_KEY_SIZE_BYTES];

/// Key pair for one agreement.
pub struct AgreementKey {
    private: EphemeralPrivateKey,
    public: PublicKey,
}

impl fmt::Debug for AgreementKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgreementKey")
    }
}

/// Error: the peer's public key is not a valid result of X25519.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the peer's public key is invalid; check that it runs the same version of farleaf")]
pub struct InvalidPublicKey;

/// Role of this process, which determines the order of the two public keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgreementSide {
    /// This process sent the request.
    Asking,
    /// This process sent the reply.
    Answering,
}

impl AgreementKey {
    /// Draws a key pair.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn draw() -> io::Result<Self> {
        let failed = |_| io::Error::other("cannot get random numbers for a key from the system");
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new());
        let private = private.map_err(failed)?;
        let computed = private.compute_public_key().map_err(failed)?;
        let public = PublicKey::try_from(computed.as_ref());
        let Ok(public) = public else {
            unreachable!("a public key of X25519 has 32 bytes")
        };
        Ok(Self { private, public })
    }

    /// Returns the public key, to be sent.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Computes the secret. Both sides get the same one if each has the other's public key and both
    /// have the same `known` secret and `purpose`. While an earlier known secret is valid, too, the
    /// result is valid in both forms, so that a side that does not know the new one yet agrees.
    ///
    /// The parts of the purpose are concatenated, so each must have a fixed size.
    ///
    /// # Errors
    /// [`InvalidPublicKey`].
    pub fn agree(
        self,
        side: AgreementSide,
        other: &PublicKey,
        known: Option<&Secret>,
        purpose: &[&[u8]],
    ) -> Result<Secret, InvalidPublicKey> {
        let public = self.public;
        let (asking, answering) = match side {
            AgreementSide::Asking => (&public, other),
            AgreementSide::Answering => (other, &public),
        };
        let peer = UnparsedPublicKey::new(&X25519, other);
        let agreed = agree_ephemeral(self.private, &peer, |shared| {
            let with_salt = |salt: &[u8; 32]| {
                let extracted = started(salt, &[shared]).finalize().into_bytes();
                let label: &[u8] = b"farleaf 1 agreement";
                let said = [&[label], purpose, &[asking, answering, &[1]]].concat();
                Secret::agreed(started(&extracted, &said).finalize().into_bytes().into())
            };
            match known {
                None => with_salt(&[0; 32]),
                Some(known) => known.follow(|it| with_salt(&it.agreement_salt())),
            }
        });
        agreed.map_err(|_| InvalidPublicKey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::{Rights, Side};

    fn keys() -> (AgreementKey, AgreementKey) {
        let draw = || AgreementKey::draw().expect("there is randomness");
        (draw(), draw())
    }

    fn known(text: &str) -> Secret {
        Secret::from_text(text).expect("long enough")
    }

    /// Returns the secrets of two sides, each computed with its own known secret and purpose.
    fn agreed(
        one_knows: Option<&Secret>,
        one_for: &[u8],
        other_knows: Option<&Secret>,
        other_for: &[u8],
    ) -> (Vec<u8>, Vec<u8>) {
        let (one, other) = keys();
        let (to_one, to_other) = (other.public(), one.public());
        let one = one.agree(AgreementSide::Asking, &to_one, one_knows, &[one_for]);
        let other = other.agree(
            AgreementSide::Answering,
            &to_other,
            other_knows,
            &[other_for],
        );
        let proof = |secret: Secret| {
            assert_eq!(secret.rights(), Rights::Admin);
            let proof = secret.prove(Rights::Admin, Side::Client, &[b"said"]);
            proof.expect("it grants all rights").0.to_vec()
        };
        let [one, other] = [one, other].map(|it| proof(it.expect("both keys are valid")));
        (one, other)
    }

    /// Promise: both sides compute the same secret, a new one each time. It differs from that of a
    /// side with another known secret or purpose.
    #[test]
    fn both_sides_agree() {
        let (secret, wrong) = (
            known("a secret of some length"),
            known("another secret of it"),
        );
        let (secret, wrong) = (Some(&secret), Some(&wrong));
        let mut seen = Vec::new();
        for knows in [None, secret] {
            let (one, other) = agreed(knows, b"a", knows, b"a");
            assert_eq!(one, other);
            assert!(!seen.contains(&one));
            seen.push(one);
        }
        for ((one_knows, one_for), (other_knows, other_for)) in [
            ((secret, b"a"), (wrong, b"a")),
            ((secret, b"a"), (None, b"a")),
            ((secret, b"a"), (secret, b"b")),
        ] {
            let (one, other) = agreed(one_knows, one_for, other_knows, other_for);
            assert_ne!(one, other);
        }
    }

    /// Promise: public keys that would make the secret predictable are refused.
    #[test]
    fn weak_public_keys_are_refused() {
        let mut one = [0; PUBLIC_KEY_SIZE_BYTES];
        for first in [0, 1] {
            one[0] = first;
            let agreed = keys().0.agree(AgreementSide::Asking, &one, None, &[b"a"]);
            assert_eq!(agreed.err(), Some(InvalidPublicKey));
        }
    }

    /// Promise: while the known secret of one side has been replaced and that of the other has not,
    /// both still have a secret in common, for the time of the overlap.
    #[test]
    fn sides_agree_while_the_known_secret_changes() {
        let (old, new) = (
            known("a secret of some length"),
            known("another secret of it"),
        );
        for overlap in [
            core::time::Duration::from_mins(1),
            core::time::Duration::ZERO,
        ] {
            let changed = known("a secret of some length");
            changed.replace(&new, overlap);
            let (one, other) = keys();
            let (to_one, to_other) = (other.public(), one.public());
            let one = one.agree(AgreementSide::Asking, &to_one, Some(&changed), &[]);
            let other = other.agree(AgreementSide::Answering, &to_other, Some(&old), &[]);
            let [one, other] = [one, other].map(|it| it.expect("both keys are valid"));
            let proof = other.prove(Rights::Admin, Side::Client, &[b"said"]);
            let proof = proof.expect("it grants all rights");
            let accepted = one.accepted();
            let mut accepted = accepted.iter();
            let is_common =
                accepted.any(|it| it.is_proven(Rights::Admin, Side::Client, &[b"said"], &proof));
            assert_eq!(is_common, !overlap.is_zero());
        }
    }
}
