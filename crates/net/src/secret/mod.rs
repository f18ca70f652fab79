//! Access rights: secrets, derived keys, and proofs of a secret that is never sent.
//!
//! A pool has one secret, which grants all rights. A key *derived* from it grants only writing, or
//! only reading. Each key is derived from a stronger one by HMAC-SHA-256: from the secret the key
//! to administer, from that the key to write, from that the key to read. So a holder can derive
//! weaker keys but no stronger ones, and the node needs no list of keys.
//!
//! Client and node prove to each other that they know the key for the requested rights. Each sends
//! the HMAC, under that key, of both greetings, which contain a random number of each side. A
//! recorded proof is useless later, and reveals nothing about the key.

mod agreement;
mod local_secret;
mod pass;
mod rotation;
mod scope;
mod strength;

use core::fmt;
use core::str::FromStr;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::{Arc, RwLock};
use std::time::Instant;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;

pub use agreement::{
    AgreementKey, AgreementSide, InvalidPublicKey, PUBLIC_KEY_SIZE_BYTES, PublicKey,
};
pub use local_secret::{LocalSecret, find_local_secret, given_or_created, local_secret_path};
pub use pass::{Pass, PassKey};
pub use scope::{KeyId, SCOPE_SIZE_BYTES_MAX, Scope};
pub use strength::WEAK_SECRET;

/// Size of the shortest secret in bytes. A shorter one could be guessed from a recorded proof.
pub const SECRET_SIZE_BYTES_MIN: usize = 16;
/// Size of the longest secret in bytes.
const SECRET_SIZE_BYTES_MAX: usize = 4096;
/// Bytes of white space that a file may have around a secret.
const FILE_SPARE_SIZE_BYTES: u64 = 1024;
const KEY_SIZE_BYTES: usize = 32;

/// Rights of a session, each including the previous ones (FABRIC-7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rights {
    /// READ everything.
    Read,
    /// Change leaves and their data.
    Write,
    /// Create and drop tables, and fence sessions of others.
    #[default]
    Admin,
}

impl Rights {
    /// All rights, the least first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// Returns the name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error: the name is not one of [`Rights`].
#[derive(Debug, Error)]
#[error("expected 'read', 'write' or 'admin', found '{0}'")]
pub struct UnknownRights(String);

impl FromStr for Rights {
    type Err = UnknownRights;

    fn from_str(name: &str) -> Result<Self, UnknownRights> {
        let named = Self::ALL.into_iter().find(|rights| rights.name() == name);
        named.ok_or_else(|| UnknownRights(name.to_owned()))
    }
}

/// A pool's or cluster's secret, or a key derived from it. `Debug` never prints its text.
///
/// Clones share one value, which can be [replaced](Self::replace) while it is in use: everything in
/// the process that holds a clone then proves the new secret, and for some time accepts both.
#[derive(Clone)]
pub struct Secret(Arc<RwLock<Keys>>);

/// A secret, and for some time the one before it.
struct Keys {
    current: Key,
    /// Earlier key, and the time at which it is no longer accepted.
    previous: Option<(Key, Instant)>,
}

/// Key of a secret.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    rights: Rights,
    scope: Scope,
    /// Whether somebody could guess it.
    is_weak: bool,
    bytes: [u8; KEY_SIZE_BYTES],
}

/// Reason why a secret is invalid.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The secret is short enough to be guessed, or too long.
    #[error(
        "a secret must have {SECRET_SIZE_BYTES_MIN} to {SECRET_SIZE_BYTES_MAX} bytes, found \
         {size_bytes}; create one with `farleaf secret new`"
    )]
    Size {
        /// Size in bytes, without white space around the secret.
        size_bytes: usize,
    },
    /// The text has the prefix of a derived key, but is not a valid one.
    #[error(
        "invalid derived key: expected 64 hexadecimal digits after '{prefix}', and for a limited key \
         ':' and more digits"
    )]
    Derived {
        /// Prefix of the text.
        prefix: &'static str,
    },
    /// The file cannot be read.
    #[error("cannot read the secret in '{path}': {source}")]
    File {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file does not contain a valid secret.
    #[error("'{path}' does not contain a valid secret: {source}")]
    InFile {
        /// Path of the file.
        path: String,
        /// Reason why the content is invalid.
        source: Box<SecretError>,
    },
    /// All rights were requested for a derived key.
    #[error("only the secret itself grants 'admin' rights; derive a key for 'read' or 'write'")]
    NotDerived,
    /// The requested rights are stronger than those of the key.
    #[error("a key for '{wanted}' cannot be derived from a key for '{has}'; use the pool's secret")]
    TooWeak {
        /// Rights of the key.
        has: Rights,
        /// Requested rights.
        wanted: Rights,
    },
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.rights())
    }
}

impl Secret {
    /// Decodes a pool's secret, or a derived key as written by
    /// [`derived_text`](Self::derived_text). White space around it is ignored.
    ///
    /// # Errors
    /// The text is too short, too long, or an invalid derived key.
    pub fn from_text(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        for rights in [Rights::Read, Rights::Write] {
            let prefix = prefix_of(rights);
            if let Some(digits) = text.strip_prefix(prefix) {
                let key = parse_derived(digits).ok_or(SecretError::Derived { prefix })?;
                let (bytes, scope) = key;
                return Ok(Self::limited(rights, scope, bytes));
            }
        }
        let size_bytes = text.len();
        if !(SECRET_SIZE_BYTES_MIN..=SECRET_SIZE_BYTES_MAX).contains(&size_bytes) {
            return Err(SecretError::Size { size_bytes });
        }
        let key = mac(text.as_bytes(), &[b"farleaf 1 admin"]);
        let secret = Self::new(Rights::Admin, key);
        Ok(if strength::is_weak(text) {
            secret.weak()
        } else {
            secret
        })
    }

    /// Reads a secret from a file, as [`from_text`](Self::from_text) does.
    ///
    /// # Errors
    /// The file cannot be read, or does not contain a valid secret.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let at = || path.display().to_string();
        let mut text = String::new();
        // Read no more than needed to see that the content is too long: some files do not end.
        let limit = SECRET_SIZE_BYTES_MAX as u64 + FILE_SPARE_SIZE_BYTES;
        let read = std::fs::File::open(path);
        let read = read.and_then(|file| file.take(limit).read_to_string(&mut text));
        read.map_err(|source| SecretError::File { path: at(), source })?;
        Self::from_text(&text).map_err(|source| SecretError::InFile {
            path: at(),
            source: Box::new(source),
        })
    }

    /// Draws a new random secret, and returns it with its text.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn random() -> io::Result<(Self, String)> {
        let mut bytes = [0; KEY_SIZE_BYTES];
        fill_randomly(&mut bytes)?;
        let text = hexadecimal(&bytes);
        let key = mac(text.as_bytes(), &[b"farleaf 1 admin"]);
        Ok((Self::new(Rights::Admin, key), text))
    }

    /// Returns the rights that the secret grants.
    pub fn rights(&self) -> Rights {
        self.current().rights
    }

    /// Returns the part of the data to which this key is limited.
    pub fn scope(&self) -> Scope {
        self.current().scope
    }

    /// Returns an id of the key for logs, which does not help to find the key.
    pub fn key_id(&self) -> KeyId {
        let [a, b, c, d, ..] = self.purpose_key(&[b"farleaf 1 key id"]);
        KeyId(u32::from_be_bytes([a, b, c, d]))
    }

    /// Returns the text of a derived key that grants only these rights on everything that this one
    /// gives access to.
    ///
    /// # Errors
    /// This secret does not grant them, or they are all rights: that would be the secret itself,
    /// whose text is not kept.
    pub fn derived_text(&self, rights: Rights) -> Result<String, SecretError> {
        self.limited_text(rights, &Scope::default())
    }

    /// Returns the text of a derived key like [`derived_text`](Self::derived_text), limited to a
    /// part of the data.
    ///
    /// # Errors
    /// As for [`derived_text`](Self::derived_text); or this key is itself limited.
    pub fn limited_text(&self, rights: Rights, scope: &Scope) -> Result<String, SecretError> {
        let too_weak = SecretError::TooWeak {
            has: self.rights(),
            wanted: rights,
        };
        let derived = self.derived(rights, scope).ok_or(too_weak)?.current();
        if rights == Rights::Admin {
            return Err(SecretError::NotDerived);
        }
        let mut text = format!("{}{}", prefix_of(rights), hexadecimal(&derived.bytes));
        if !scope.is_everything() {
            text.push(':');
            text.push_str(&hexadecimal(scope.bytes()));
        }
        Ok(text)
    }

    /// Returns the key that grants only these rights on a part of the data; `None` if this one does
    /// not grant them there.
    pub fn derived(&self, rights: Rights, scope: &Scope) -> Option<Self> {
        let own = self.current();
        if own.scope == *scope {
            let bytes = self.key_for(rights)?;
            return Some(Self::limited(rights, scope.clone(), bytes));
        }
        if !own.scope.is_everything() {
            return None;
        }
        let bytes = mac(&self.key_for(rights)?, &[b"farleaf 1 scope", scope.bytes()]);
        Some(Self::limited(rights, scope.clone(), bytes))
    }

    /// Returns the key that proves these rights; `None` if this secret does not grant them.
    fn key_for(&self, rights: Rights) -> Option<[u8; KEY_SIZE_BYTES]> {
        let own = self.current();
        // From a limited key no weaker one is derived, since the server derives it from the
        // secret's key for the same rights.
        if rights > own.rights || rights < own.rights && !own.scope.is_everything() {
            return None;
        }
        let mut key = own.bytes;
        for weaker in Rights::ALL.into_iter().rev() {
            if weaker < own.rights && weaker >= rights {
                key = mac(&key, &[b"farleaf 1 ", weaker.name().as_bytes()]);
            }
        }
        Some(key)
    }

    /// Returns the key for the passes of the pool whose main node's memory has this number; `None`
    /// if this is a derived key, from which it cannot be computed.
    pub fn pass_key(&self, pool_id: u64) -> Option<PassKey> {
        let is_secret = self.rights() == Rights::Admin && self.scope().is_everything();
        is_secret.then(|| PassKey::new(self.clone(), pool_id))
    }

    /// Returns the secret from a key agreement, with all rights.
    pub(crate) fn agreed(key: [u8; KEY_SIZE_BYTES]) -> Self {
        Self::new(Rights::Admin, key)
    }

    /// Returns the salt for key agreements between holders of this secret.
    pub(crate) fn agreement_salt(&self) -> [u8; KEY_SIZE_BYTES] {
        self.purpose_key(&[b"farleaf 1 agreement salt"])
    }

    /// Returns a key that is derived from this one for a purpose.
    fn purpose_key(&self, purpose: &[&[u8]]) -> [u8; KEY_SIZE_BYTES] {
        mac(&self.current().bytes, purpose)
    }

    /// Returns a proof that this side knows the key for `rights`; `None` if it does not.
    pub fn prove(&self, rights: Rights, side: Side, transcript: &[&[u8]]) -> Option<Proof> {
        let key = self.key_for(rights)?;
        Some(Proof(
            mac_of(&key, side, transcript)
                .finalize()
                .into_bytes()
                .into(),
        ))
    }

    /// Returns true if the other side's proof is correct. Takes constant time.
    pub fn is_proven(
        &self,
        rights: Rights,
        side: Side,
        transcript: &[&[u8]],
        proof: &Proof,
    ) -> bool {
        let key = self.key_for(rights);
        key.is_some_and(|key| {
            mac_of(&key, side, transcript)
                .verify_slice(&proof.0)
                .is_ok()
        })
    }
}

/// Side of a proof: the proof of one side must not serve as the other's.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    /// The side that connects.
    Client,
    /// The side that listens.
    Node,
}

/// Proof that a side knows a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof(pub [u8; 32]);

fn mac_of(key: &[u8], side: Side, transcript: &[&[u8]]) -> Hmac<Sha256> {
    let side: &[u8] = match side {
        Side::Client => b"farleaf 1 client",
        Side::Node => b"farleaf 1 node",
    };
    started(key, &[&[side], transcript].concat())
}

fn mac(key: &[u8], transcript: &[&[u8]]) -> [u8; KEY_SIZE_BYTES] {
    started(key, transcript).finalize().into_bytes().into()
}

pub(crate) fn started(key: &[u8], transcript: &[&[u8]]) -> Hmac<Sha256> {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of any size")
    };
    for part in transcript {
        mac.update(part);
    }
    mac
}

/// Fills the bytes with cryptographically secure random numbers; at most 256 bytes per call.
///
/// # Errors
/// The system has no randomness.
pub fn fill_randomly(bytes: &mut [u8]) -> io::Result<()> {
    let flags = rustix::rand::GetRandomFlags::empty();
    // Up to 256 bytes the system returns all or nothing.
    let count = rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut *bytes, flags))?;
    if count == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::other(
            "cannot get enough random bytes from the system",
        ))
    }
}

const fn prefix_of(rights: Rights) -> &'static str {
    match rights {
        Rights::Read => "farleaf-read:",
        Rights::Write => "farleaf-write:",
        Rights::Admin => "farleaf-admin:",
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or_default();
    let digits = bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    digits.collect()
}

/// Decodes a derived key after its prefix: the key, and its scope if it is limited.
fn parse_derived(digits: &str) -> Option<([u8; KEY_SIZE_BYTES], Scope)> {
    let Some((key, scope)) = digits.split_once(':') else {
        return Some((parse_key(digits)?, Scope::default()));
    };
    let is_hexadecimal = scope.bytes().all(|byte| byte.is_ascii_hexdigit());
    if scope.is_empty() || !scope.len().is_multiple_of(2) || !is_hexadecimal {
        return None;
    }
    let pairs = scope.as_bytes().chunks_exact(2);
    let bytes = pairs.map(|pair| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok());
    let bytes: Option<Vec<u8>> = bytes.collect();
    Some((parse_key(key)?, Scope::new(&bytes?)?))
}

fn parse_key(digits: &str) -> Option<[u8; KEY_SIZE_BYTES]> {
    let is_whole = digits.len() == 2 * KEY_SIZE_BYTES;
    if !is_whole || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut key = [0; KEY_SIZE_BYTES];
    for (byte, pair) in key.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a secret of some length";

    fn secret() -> Secret {
        Secret::from_text(TEXT).expect("long enough")
    }

    /// Promise: to a holder of the secret, a derived key proves its rights and lesser ones, and no
    /// stronger ones.
    #[test]
    fn keys_go_downwards_only() {
        let transcript: &[&[u8]] = &[b"hello", b"challenge"];
        for given in Rights::ALL {
            let holder = match given {
                Rights::Admin => secret(),
                lesser => {
                    let text = secret().derived_text(lesser).expect("derived");
                    Secret::from_text(&text).expect("a derived key")
                }
            };
            assert_eq!(holder.rights(), given);
            for wanted in Rights::ALL {
                let proof = holder.prove(wanted, Side::Client, transcript);
                assert_eq!(proof.is_some(), wanted <= given, "{given} {wanted}");
                let Some(proof) = proof else { continue };
                assert!(secret().is_proven(wanted, Side::Client, transcript, &proof));
                for other in Rights::ALL.into_iter().filter(|other| *other != wanted) {
                    assert!(!secret().is_proven(other, Side::Client, transcript, &proof));
                }
            }
            for wanted in Rights::ALL {
                let may = wanted <= given && wanted < Rights::Admin;
                assert_eq!(holder.derived_text(wanted).is_ok(), may, "{given} {wanted}");
            }
        }
    }

    /// Promise: a limited key proves its rights on its part of the data and nothing else, and no
    /// other key can be derived from it.
    #[test]
    fn a_limited_key_is_good_for_its_scope() {
        let said: &[&[u8]] = &[b"hello"];
        let scope = |bytes: &[u8]| Scope::new(bytes).expect("short enough");
        for rights in [Rights::Read, Rights::Write] {
            let text = secret().limited_text(rights, &scope(b"one")).expect("all");
            let holder = Secret::from_text(&text).expect("a key");
            assert_eq!((holder.rights(), holder.scope()), (rights, scope(b"one")));
            let proof = holder.prove(rights, Side::Client, said).expect("its own");
            for (wanted, claimed) in [
                (rights, scope(b"one")),
                (rights, scope(b"two")),
                (rights, scope(b"on")),
                (rights, Scope::default()),
                (Rights::Admin, scope(b"one")),
            ] {
                let key = secret().derived(wanted, &claimed).expect("all rights");
                let is_proven = key.is_proven(wanted, Side::Client, said, &proof);
                let is_own = wanted == rights && claimed == scope(b"one");
                assert_eq!(is_proven, is_own, "{wanted} {claimed:?}");
            }
            assert!(holder.limited_text(rights, &scope(b"two")).is_err());
            assert!(holder.derived_text(Rights::Read).is_err());
            assert!(holder.pass_key(1).is_none());
        }
        assert!(Scope::new(&[0; SCOPE_SIZE_BYTES_MAX + 1]).is_none());
        let key = "a".repeat(64);
        let long = format!("farleaf-read:{key}:{}", "00".repeat(128));
        for text in [
            format!("farleaf-read:{key}:"),
            format!("farleaf-read:{key}:1"),
            long,
        ] {
            assert!(Secret::from_text(&text).is_err(), "{text}");
        }
    }

    /// Promise: a proof is valid only for its messages, its side and its secret.
    #[test]
    fn a_proof_is_good_for_one_thing() {
        let transcript: &[&[u8]] = &[b"hello", b"challenge"];
        let proof = secret()
            .prove(Rights::Write, Side::Client, transcript)
            .expect("admin");
        let other = Secret::from_text("another secret altogether").expect("long enough");
        let right = Rights::Write;
        assert!(secret().is_proven(right, Side::Client, transcript, &proof));
        assert!(!secret().is_proven(right, Side::Node, transcript, &proof));
        assert!(!secret().is_proven(right, Side::Client, &[b"hello", b"another"], &proof));
        assert!(!other.is_proven(right, Side::Client, transcript, &proof));
        let mut bent = proof;
        bent.0[31] ^= 1;
        assert!(!secret().is_proven(right, Side::Client, transcript, &bent));
    }

    /// Promise: invalid secrets are refused with a reason; white space around a secret is ignored.
    #[test]
    fn texts_are_checked() {
        let spaced = Secret::from_text(&format!("  {TEXT}\n")).expect("the same");
        assert!(spaced.current() == secret().current());
        let bad = [
            ("", "found 0"),
            ("   fifteen bytes    ", "found 13"),
            ("farleaf-read:12", "64 hexadecimal digits"),
            (
                &format!("farleaf-write:{}", "é".repeat(32)),
                "64 hexadecimal digits",
            ),
            (&"x".repeat(5000), "found 5000"),
        ];
        for (text, transcript) in bad {
            let error = Secret::from_text(text).expect_err("must be refused");
            assert!(error.to_string().contains(transcript), "{error}");
        }
        let error = Secret::from_file(Path::new("/nowhere/secret")).expect_err("not there");
        assert!(error.to_string().contains("/nowhere/secret"), "{error}");
        assert_eq!(format!("{:?}", secret()), "Secret(admin)");
    }

    /// Promise: the keys are these, so that a derived key remains valid in later versions.
    #[test]
    fn keys_are_golden() {
        let text = secret().derived_text(Rights::Read).expect("derived");
        assert_eq!(text, GOLDEN);
    }

    /// Computed by another program's HMAC.
    const GOLDEN: &str =
        "farleaf-read:a12dc2003111c7015fd1cba9c92020645fe95564ad331648591062234e0e9380";
}
