//! The secret that opens a backup's memory to its primary. It is never sent: both sides agree on it
//! with keys for this one attachment ([`AgreementKey`]).

use std::fmt;

use farleaf_net::secret::Secret;
use farleaf_net::secret::{AgreementKey, AgreementSide, PUBLIC_KEY_SIZE_BYTES, PublicKey};
use serde::{Deserialize, Serialize};

use crate::peer::ReplicaName;

/// Public key of one side: 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct AttachmentKey(pub(crate) PublicKey);

impl fmt::Debug for AttachmentKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&String::from(*self))
    }
}

impl From<AttachmentKey> for String {
    fn from(key: AttachmentKey) -> Self {
        let digits = key.0.iter().map(|byte| format!("{byte:02x}"));
        digits.collect()
    }
}

impl TryFrom<String> for AttachmentKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let invalid = || "expected a public key of 64 lower-case hexadecimal digits".to_owned();
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 2 * PUBLIC_KEY_SIZE_BYTES || !text.bytes().all(is_digit) {
            return Err(invalid());
        }
        let mut key = [0; PUBLIC_KEY_SIZE_BYTES];
        for (at, byte) in key.iter_mut().enumerate() {
            let digits = &text[2 * at..2 * at + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| invalid())?;
        }
        Ok(Self(key))
    }
}

/// Draws the key pair of one side.
pub(crate) fn draw() -> Result<AgreementKey, String> {
    AgreementKey::draw().map_err(|error| error.to_string())
}

/// Returns the secret of this attachment of a backup, requested by the primary. `known` is the
/// servers' secret, or the cluster's.
pub(crate) fn secret(
    own: AgreementKey,
    side: AgreementSide,
    other: AttachmentKey,
    known: Option<&Secret>,
    name: ReplicaName,
    attachment: u64,
) -> Result<Secret, String> {
    let numbers = [
        name.region.0,
        name.replica.0,
        name.epoch.0,
        name.primary.0,
        attachment,
    ];
    let numbers: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
    let purpose: [&[u8]; 2] = [b"backup memory", &numbers];
    let agreed = own.agree(side, &other.0, known, &purpose);
    agreed.map_err(|error| error.to_string())
}
