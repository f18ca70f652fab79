//! Strength of the text of a secret.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::secret::Secret;

/// Reason, after an address, why a listener there rejects a weak secret.
pub const WEAK_SECRET: &str = "can be reached from other hosts, and the secret could be guessed: \
    it is a phrase, repeats characters, or has fewer than 128 bits; use the text that `farleaf secret \
    new` prints";
/// Smallest number of bits that the text of a strong secret can express.
const STRENGTH_BITS_MIN: f64 = 128.0;
/// Smallest number of different characters in a strong secret.
const CHARACTER_KIND_COUNT_MIN: usize = 8;

impl Secret {
    /// Returns whether the secret could be guessed, with a recorded greeting or in many attempts:
    /// its text is a phrase, repeats characters, or has fewer than 128 bits. Such a secret is
    /// accepted only on loopback. A derived key does not show how strong its secret is.
    pub fn is_weak(&self) -> bool {
        self.current().is_weak
    }

    /// Returns whether the secret is too [weak](Self::is_weak) for a listener at this address: it
    /// is weak, and other hosts can reach the address.
    pub fn is_too_weak_for(&self, address: SocketAddr) -> bool {
        self.is_weak() && !address.ip().is_loopback()
    }
}

/// Estimates whether a text was chosen by a person, or has too few random characters.
pub(super) fn is_weak(text: &str) -> bool {
    let kinds: BTreeSet<char> = text.chars().collect();
    let has = |is_kind: fn(&char) -> bool| kinds.iter().any(is_kind);
    let alphabet_size = [
        (has(char::is_ascii_digit), 10.0),
        (has(char::is_ascii_lowercase), 26.0),
        (has(char::is_ascii_uppercase), 26.0),
        (has(|it| !it.is_ascii_alphanumeric()), 32.0),
    ];
    let used = alphabet_size.iter().filter(|(is_used, _)| *is_used);
    let alphabet_size: f64 = used.map(|(_, size)| size).sum();
    let is_hexadecimal = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let alphabet_size = if is_hexadecimal { 16.0 } else { alphabet_size };
    let bits = text.chars().count() as f64 * alphabet_size.max(1.0).log2();
    let is_phrase = text.contains(char::is_whitespace);
    is_phrase || kinds.len() < CHARACTER_KIND_COUNT_MIN || bits < STRENGTH_BITS_MIN
}

#[cfg(test)]
mod tests {
    use crate::secret::Secret;

    /// Promise: secrets that a program has generated are strong, and those that people think of are
    /// weak.
    #[test]
    fn weak_secrets_are_recognized() {
        let is_weak = |text: &str| Secret::from_text(text).expect("long enough").is_weak();
        for weak in [
            "aaaaaaaaaaaaaaaa",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "abababababababababababababababababababababab",
            "correct horse battery staple and some more",
            "1234567890123456",
            "Passw0rd!Passw0rd",
        ] {
            assert!(is_weak(weak), "{weak}");
        }
        let generated = Secret::random().expect("randomness");
        assert!(!generated.0.is_weak() && !is_weak(&generated.1));
        for strong in [
            // 16 random bytes in hexadecimal and base64.
            "9f86d081884c7d659a2feaa0c55ad015",
            "n4bQgYhMfWWaL+qgxVrQFQ==",
        ] {
            assert!(!is_weak(strong), "{strong}");
        }
    }
}
