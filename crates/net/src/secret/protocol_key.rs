//! Keys by which holders of a pool's secret prove it in other protocols.
//!
//! Each protocol has its own key, derived from the secret and the protocol's name. So a proof
//! recorded on one protocol is useless on another, and the holder of such a key can compute neither
//! the secret nor another protocol's key.

use core::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::secret::started;

/// Size of a proof in bytes.
pub const PROTOCOL_PROOF_SIZE_BYTES: usize = 32;

/// Key for the proofs of one protocol, from [`Secret::protocol_key`](super::Secret).
#[derive(Clone)]
pub struct ProtocolKey([u8; 32]);

impl fmt::Debug for ProtocolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProtocolKey")
    }
}

impl ProtocolKey {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    fn mac(&self, transcript: &[&[u8]]) -> Hmac<Sha256> {
        started(&self.0, transcript)
    }

    /// Returns a proof, over the messages `transcript`, that this side knows the key. The parts of
    /// `transcript` are concatenated, so each must have a fixed size, and the first part must
    /// identify the side that proves.
    pub fn prove(&self, transcript: &[&[u8]]) -> [u8; PROTOCOL_PROOF_SIZE_BYTES] {
        self.mac(transcript).finalize().into_bytes().into()
    }

    /// Returns true if the proof is correct. Takes constant time.
    pub fn is_proven(&self, transcript: &[&[u8]], proof: &[u8; PROTOCOL_PROOF_SIZE_BYTES]) -> bool {
        self.mac(transcript).verify_slice(proof).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use crate::secret::hexadecimal;
    use crate::secret::{Rights, Secret};

    fn secret(text: &str) -> Secret {
        Secret::from_text(text).expect("long enough")
    }

    /// Promise: a proof is valid only for its protocol, its secret and its messages. Only the
    /// secret itself yields a key, which is the same in every version.
    #[test]
    fn a_proof_is_good_for_one_protocol() {
        let own = secret("a secret of some length");
        let key = |secret: &Secret, name| secret.protocol_key(name).expect("it is no derived key");
        let transcript: &[&[u8]] = &[b"client", b"hello"];
        let proof = key(&own, "wire").prove(transcript);
        assert!(key(&own, "wire").is_proven(transcript, &proof));
        assert!(!key(&own, "other").is_proven(transcript, &proof));
        assert!(!key(&own, "wire").is_proven(&[b"server", b"hello"], &proof));
        let other = secret("another secret altogether");
        assert!(!key(&other, "wire").is_proven(transcript, &proof));
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
