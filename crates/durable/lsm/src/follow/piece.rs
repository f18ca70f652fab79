//! Checksum that identifies a piece of a copy by its contents.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// SHA-256 of a piece's bytes. Pieces with equal checksums are interchangeable, wherever they come
/// from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PieceSum([u8; 32]);

impl PieceSum {
    /// Computes the checksum of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for PieceSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PieceSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Serializes as 64 hexadecimal digits.
impl Serialize for PieceSum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PieceSum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.as_bytes();
        let is_right = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != 64 || !digits.iter().all(is_right) {
            return Err(D::Error::custom("a sum has 64 hexadecimal digits"));
        }
        let mut sum = [0; 32];
        for (byte, pair) in sum.iter_mut().zip(digits.chunks_exact(2)) {
            let value = |digit: u8| match digit {
                b'0'..=b'9' => digit - b'0',
                _ => digit - b'a' + 10,
            };
            *byte = value(pair[0]) << 4 | value(pair[1]);
        }
        Ok(Self(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (format): a change needs a new version.
    #[test]
    fn a_sum_is_golden() {
        let sum = PieceSum::of(b"abc");
        let golden = "\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"";
        assert_eq!(serde_json::to_string(&sum).expect("JSON"), golden);
        assert_eq!(serde_json::from_str::<PieceSum>(golden).ok(), Some(sum));
        for wrong in [&golden[..65], &golden.to_uppercase(), "\"\"", "7"] {
            assert!(serde_json::from_str::<PieceSum>(wrong).is_err(), "{wrong}");
        }
    }
}
