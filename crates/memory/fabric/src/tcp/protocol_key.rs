//! Keys for the greetings of other protocols than this one, of who knows a pool's secret.
//!
//! Each protocol has a key of its own, made from the secret and the protocol's name. So a proof
//! that was listened to on one protocol is worth nothing on another, and whoever is given such a
//! key can neither make the secret from it nor the key of another protocol.

use core::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::tcp::secret::started;

/// Size of a proof, in bytes.
pub const PROTOCOL_PROOF_SIZE_BYTES: usize = 32;

/// What proofs of one protocol are made with; of [`Secret::protocol_key`](super::Secret).
#[derive(Clone)]
pub struct ProtocolKey([u8; 32]);

impl fmt::Debug for ProtocolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProtocolKey")
    }
}

impl ProtocolKey {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    fn mac(&self, said: &[&[u8]]) -> Hmac<Sha256> {
        started(&self.0, said)
    }

    /// What proves that the key is known to who has heard `said`. Its parts are not told apart, so
    /// each must have a size that is known, and the first one must say whose proof it is.
    pub fn prove(&self, said: &[&[u8]]) -> [u8; PROTOCOL_PROOF_SIZE_BYTES] {
        self.mac(said).finalize().into_bytes().into()
    }

    /// Whether that is the proof. Takes as long whatever is wrong with it.
    pub fn is_proven(&self, said: &[&[u8]], proof: &[u8; PROTOCOL_PROOF_SIZE_BYTES]) -> bool {
        self.mac(said).verify_slice(proof).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use crate::tcp::secret::hexadecimal;
    use crate::tcp::{Rights, Secret};

    fn secret(text: &str) -> Secret {
        Secret::from_text(text).expect("long enough")
    }

    /// Promise: a proof is good for its protocol, its secret and what was said; only the secret
    /// itself gives a key, and that is the same in every version.
    #[test]
    fn a_proof_is_good_for_one_protocol() {
        let own = secret("a secret of some length");
        let key = |secret: &Secret, name| secret.protocol_key(name).expect("it is no derived key");
        let said: &[&[u8]] = &[b"client", b"hello"];
        let proof = key(&own, "wire").prove(said);
        assert!(key(&own, "wire").is_proven(said, &proof));
        assert!(!key(&own, "other").is_proven(said, &proof));
        assert!(!key(&own, "wire").is_proven(&[b"server", b"hello"], &proof));
        let other = secret("another secret altogether");
        assert!(!key(&other, "wire").is_proven(said, &proof));
        for rights in [Rights::Read, Rights::Write] {
            let text = own.derived_text(rights).expect("derived");
            assert!(secret(&text).protocol_key("wire").is_none(), "{rights}");
        }
        assert_eq!(hexadecimal(&proof), GOLDEN);
        assert_eq!(format!("{:?}", key(&own, "wire")), "ProtocolKey");
    }

    /// Computed by another program's HMAC.
    const GOLDEN: &str = "bb0503960f5090f8a2d89483cafba62e359622a804fcc361af4207b9ad8afcaf";
}
