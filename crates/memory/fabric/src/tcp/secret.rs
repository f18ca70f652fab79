//! Who may do what: secrets, rights, and how a secret is proven without being sent.
//!
//! A pool has one secret. Whoever knows it may do everything; whoever is given a key *derived* from
//! it may only write, or only read. Keys go downwards: from the secret the key to administer, from
//! that the one to write, from that the one to read, each by HMAC-SHA-256, so that a holder can
//! make weaker keys and no stronger ones, and the node needs no list of them.
//!
//! Client and node prove to each other that they know the key for the rights that are asked for:
//! each sends the HMAC, under that key, of both greetings, in which each has put a random number of
//! its own. A proof that was listened to is worth nothing later, and tells nothing of the key.

use core::fmt;
use core::str::FromStr;
use std::io::{self, Read as _};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;

use crate::tcp::pass::PassKey;
use crate::tcp::protocol_key::ProtocolKey;

/// The shortest secret, in bytes. A short one can be guessed from a proof that was listened to.
pub const SECRET_SIZE_BYTES_MIN: usize = 16;
const SECRET_SIZE_BYTES_MAX: usize = 4096;
/// White space that a file may have around a secret.
const FILE_SPARE_SIZE_BYTES: u64 = 1024;
const KEY_SIZE_BYTES: usize = 32;

/// What a session may do, each including what stands before it (F7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rights {
    /// READ everything.
    Read,
    /// Change leaves, and what belongs to them.
    Write,
    /// Create and drop tables, and fence sessions of others.
    #[default]
    Admin,
}

impl Rights {
    /// All of them, the least first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// The name that users give.
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

/// A name that is none of [`Rights`].
#[derive(Debug, Error)]
#[error("'{0}' is none of the rights; there are 'read', 'write' and 'admin'")]
pub struct UnknownRights(String);

impl FromStr for Rights {
    type Err = UnknownRights;

    fn from_str(name: &str) -> Result<Self, UnknownRights> {
        let named = Self::ALL.into_iter().find(|rights| rights.name() == name);
        named.ok_or_else(|| UnknownRights(name.to_owned()))
    }
}

/// A pool's secret, or a key derived from it. Its text is never printed by `Debug`.
#[derive(Clone)]
pub struct Secret {
    rights: Rights,
    key: [u8; KEY_SIZE_BYTES],
}

/// Why a text is no secret.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Too short to be hard to guess, or absurdly long.
    #[error(
        "a secret has {SECRET_SIZE_BYTES_MIN} to {SECRET_SIZE_BYTES_MAX} bytes, this has {size_bytes}; \
         `farleaf secret new` makes a good one"
    )]
    Size {
        /// Its size without white space around it.
        size_bytes: usize,
    },
    /// It begins like a derived key and is none.
    #[error("the derived key is damaged: after '{prefix}' there must be 64 hexadecimal digits")]
    Derived {
        /// What it begins with.
        prefix: &'static str,
    },
    /// The file cannot be read.
    #[error("cannot read the secret in {path}: {source}")]
    File {
        /// Where it was looked for.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// What is in the file is none.
    #[error("the secret in {path} is none: {source}")]
    InFile {
        /// Where.
        path: String,
        /// What is wrong with it.
        source: Box<SecretError>,
    },
    /// Stronger rights than the key has.
    #[error(
        "this key gives the right to {has}, from which none to {wanted} can be derived; take the pool's secret itself"
    )]
    TooWeak {
        /// What it gives.
        has: Rights,
        /// What was asked for.
        wanted: Rights,
    },
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.rights)
    }
}

impl Secret {
    /// A pool's secret, or a derived key as [`derived_text`](Self::derived_text) writes it; white
    /// space around it does not count.
    ///
    /// # Errors
    /// It is too short, too long, or a damaged derived key.
    pub fn from_text(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        for rights in [Rights::Read, Rights::Write] {
            let prefix = prefix_of(rights);
            if let Some(digits) = text.strip_prefix(prefix) {
                let key = parse_key(digits).ok_or(SecretError::Derived { prefix })?;
                return Ok(Self { rights, key });
            }
        }
        let size_bytes = text.len();
        if !(SECRET_SIZE_BYTES_MIN..=SECRET_SIZE_BYTES_MAX).contains(&size_bytes) {
            return Err(SecretError::Size { size_bytes });
        }
        Ok(Self {
            rights: Rights::Admin,
            key: mac(text.as_bytes(), &[b"farleaf 1 admin"]),
        })
    }

    /// [`from_text`](Self::from_text) of a file.
    ///
    /// # Errors
    /// It cannot be read, or what is in it is no secret.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let at = || path.display().to_string();
        let mut text = String::new();
        // No more than shows that it is too much: there are files that do not end.
        let limit = SECRET_SIZE_BYTES_MAX as u64 + FILE_SPARE_SIZE_BYTES;
        let read = std::fs::File::open(path);
        let read = read.and_then(|file| file.take(limit).read_to_string(&mut text));
        read.map_err(|source| SecretError::File { path: at(), source })?;
        Self::from_text(&text).map_err(|source| SecretError::InFile {
            path: at(),
            source: Box::new(source),
        })
    }

    /// A secret that nobody knows yet, and its text.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn random() -> io::Result<(Self, String)> {
        let mut bytes = [0; KEY_SIZE_BYTES];
        fill_randomly(&mut bytes)?;
        let text = hexadecimal(&bytes);
        let secret = Self {
            rights: Rights::Admin,
            key: mac(text.as_bytes(), &[b"farleaf 1 admin"]),
        };
        Ok((secret, text))
    }

    /// What it gives the right to.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The text of a key that gives only these rights.
    ///
    /// # Errors
    /// This one does not give them itself, or all are asked for: that is the secret itself, which
    /// is not kept.
    pub fn derived_text(&self, rights: Rights) -> Result<String, SecretError> {
        let too_weak = SecretError::TooWeak {
            has: self.rights,
            wanted: rights,
        };
        match self.key_for(rights) {
            Some(key) if rights < Rights::Admin => {
                Ok(format!("{}{}", prefix_of(rights), hexadecimal(&key)))
            }
            _ => Err(too_weak),
        }
    }

    /// The key that is proven by who asks for these rights; `None`: this does not give them.
    fn key_for(&self, rights: Rights) -> Option<[u8; KEY_SIZE_BYTES]> {
        if rights > self.rights {
            return None;
        }
        let mut key = self.key;
        for weaker in Rights::ALL.into_iter().rev() {
            if weaker < self.rights && weaker >= rights {
                key = mac(&key, &[b"farleaf 1 ", weaker.name().as_bytes()]);
            }
        }
        Some(key)
    }

    /// What the passes of a pool are made with, by the number of its home's region; `None`: this is
    /// a derived key, of which none can be made.
    pub fn pass_key(&self, pool_id: u64) -> Option<PassKey> {
        let said: &[&[u8]] = &[b"farleaf 1 passes", &pool_id.to_le_bytes()];
        (self.rights == Rights::Admin).then(|| PassKey::new(mac(&self.key, said)))
    }

    /// What the greetings of another protocol are proven with; `None`: this is a derived key, which
    /// opens nothing but what it was made for.
    pub fn protocol_key(&self, protocol: &str) -> Option<ProtocolKey> {
        let said: &[&[u8]] = &[b"farleaf 1 protocol ", protocol.as_bytes()];
        (self.rights == Rights::Admin).then(|| ProtocolKey::new(mac(&self.key, said)))
    }

    /// The secret that two sides have agreed on, with all rights.
    pub(super) const fn agreed(key: [u8; KEY_SIZE_BYTES]) -> Self {
        Self {
            rights: Rights::Admin,
            key,
        }
    }

    /// What an agreement is salted with of those who know this secret already.
    pub(super) fn agreement_salt(&self) -> [u8; KEY_SIZE_BYTES] {
        mac(&self.key, &[b"farleaf 1 agreement salt"])
    }

    /// What proves to the other side that the key for `rights` is known; `None`: it is not.
    pub(super) fn prove(&self, rights: Rights, side: Side, said: &[&[u8]]) -> Option<Proof> {
        let key = self.key_for(rights)?;
        Some(Proof(
            mac_of(&key, side, said).finalize().into_bytes().into(),
        ))
    }

    /// Whether the other side has proven it. Takes as long whatever is wrong with the proof.
    pub(super) fn is_proven(
        &self,
        rights: Rights,
        side: Side,
        said: &[&[u8]],
        proof: &Proof,
    ) -> bool {
        let key = self.key_for(rights);
        key.is_some_and(|key| mac_of(&key, side, said).verify_slice(&proof.0).is_ok())
    }
}

/// Whose proof it is: one must not serve as the other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Client,
    Node,
}

/// That somebody knows a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proof(pub(super) [u8; 32]);

fn mac_of(key: &[u8], side: Side, said: &[&[u8]]) -> Hmac<Sha256> {
    let side: &[u8] = match side {
        Side::Client => b"farleaf 1 client",
        Side::Node => b"farleaf 1 node",
    };
    started(key, &[&[side], said].concat())
}

fn mac(key: &[u8], said: &[&[u8]]) -> [u8; KEY_SIZE_BYTES] {
    started(key, said).finalize().into_bytes().into()
}

pub(super) fn started(key: &[u8], said: &[&[u8]]) -> Hmac<Sha256> {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of any size")
    };
    for part in said {
        mac.update(part);
    }
    mac
}

/// Fills with numbers that nobody can guess; no more than 256 bytes at a time.
///
/// # Errors
/// The system has no randomness.
pub fn fill_randomly(bytes: &mut [u8]) -> io::Result<()> {
    let flags = rustix::rand::GetRandomFlags::empty();
    // Up to 256 bytes the system gives all or nothing.
    let count = rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut *bytes, flags))?;
    if count == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::other("the system has not enough randomness"))
    }
}

const fn prefix_of(rights: Rights) -> &'static str {
    match rights {
        Rights::Read => "farleaf-read:",
        Rights::Write => "farleaf-write:",
        Rights::Admin => "farleaf-admin:",
    }
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or_default();
    let digits = bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    digits.collect()
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

    /// Promise: a derived key proves its rights and lesser ones to who knows the secret, and no
    /// greater ones.
    #[test]
    fn keys_go_downwards_only() {
        let said: &[&[u8]] = &[b"hello", b"challenge"];
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
                let proof = holder.prove(wanted, Side::Client, said);
                assert_eq!(proof.is_some(), wanted <= given, "{given} {wanted}");
                let Some(proof) = proof else { continue };
                assert!(secret().is_proven(wanted, Side::Client, said, &proof));
                for other in Rights::ALL.into_iter().filter(|other| *other != wanted) {
                    assert!(!secret().is_proven(other, Side::Client, said, &proof));
                }
            }
            for wanted in Rights::ALL {
                let may = wanted <= given && wanted < Rights::Admin;
                assert_eq!(holder.derived_text(wanted).is_ok(), may, "{given} {wanted}");
            }
        }
    }

    /// Promise: a proof is good for what was said, for its side, and under its secret only.
    #[test]
    fn a_proof_is_good_for_one_thing() {
        let said: &[&[u8]] = &[b"hello", b"challenge"];
        let proof = secret()
            .prove(Rights::Write, Side::Client, said)
            .expect("admin");
        let other = Secret::from_text("another secret altogether").expect("long enough");
        let right = Rights::Write;
        assert!(secret().is_proven(right, Side::Client, said, &proof));
        assert!(!secret().is_proven(right, Side::Node, said, &proof));
        assert!(!secret().is_proven(right, Side::Client, &[b"hello", b"another"], &proof));
        assert!(!other.is_proven(right, Side::Client, said, &proof));
        let mut bent = proof;
        bent.0[31] ^= 1;
        assert!(!secret().is_proven(right, Side::Client, said, &bent));
    }

    /// Promise: texts that are no secrets are refused, with a reason; white space is none of it.
    #[test]
    fn texts_are_checked() {
        let spaced = Secret::from_text(&format!("  {TEXT}\n")).expect("the same");
        assert_eq!(spaced.key, secret().key);
        let bad = [
            ("", "this has 0"),
            ("   fifteen bytes    ", "this has 13"),
            ("farleaf-read:12", "64 hexadecimal digits"),
            (
                &format!("farleaf-write:{}", "é".repeat(32)),
                "64 hexadecimal digits",
            ),
            (&"x".repeat(5000), "this has 5000"),
        ];
        for (text, said) in bad {
            let error = Secret::from_text(text).expect_err("must be refused");
            assert!(error.to_string().contains(said), "{error}");
        }
        let error = Secret::from_file(Path::new("/nowhere/secret")).expect_err("not there");
        assert!(error.to_string().contains("/nowhere/secret"), "{error}");
        assert_eq!(format!("{:?}", secret()), "Secret(admin)");
    }

    /// Promise: keys are these, so that a derived key is good for every later version.
    #[test]
    fn keys_are_golden() {
        let text = secret().derived_text(Rights::Read).expect("derived");
        assert_eq!(text, GOLDEN);
    }

    /// Computed by another program's HMAC.
    const GOLDEN: &str =
        "farleaf-read:a12dc2003111c7015fd1cba9c92020645fe95564ad331648591062234e0e9380";
}
