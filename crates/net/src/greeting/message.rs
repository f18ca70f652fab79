//! Messages of a greeting. Each has 256 bytes, so that an unauthenticated peer cannot control how
//! much is read or stored.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..8 | magic and version of the protocol |
//! | 8..12 | number of the message |
//! | 12..16 | hello: rights (1 read, 2 write, 3 admin); refusal: size of its text in bytes |
//! | 16..48 | random number (1, 2) or proof (3, 4) |
//! | 48..128 | details of the protocol (1, 2, 4) |
//! | 128, 129..256 | hello: size of the key's scope in bytes, and the scope |
//! | 48..256 | text of a refusal |
//!
//! | number | sender | message |
//! |---|---|---|
//! | 1 | client | hello: the rights that it will prove, and a random number |
//! | 2 | server | challenge: a random number |
//! | 3 | client | its proof |
//! | 4 | server | welcome: its proof |
//! | 5 | server | refusal, because the proof is wrong: reason |
//! | 0 | server | refusal for any other reason |
//!
//! Integers are little-endian, and unused bytes are 0. The magic and the version of a protocol have
//! the same position in all versions.

use farleaf_base::foreign_protocol::{CLUSTER_MAGIC, MEMORY_NODE_MAGIC, PortKind};

use crate::greeting::arrival::GreetingError;
use crate::secret::{Proof, Rights, SCOPE_SIZE_BYTES_MAX, Scope};

/// Size of every message in bytes.
pub const MESSAGE_SIZE_BYTES: usize = 256;
/// Size of a protocol's own part of a message in bytes.
pub const DETAILS_SIZE_BYTES: usize = SCOPE_START_BYTES - DETAILS_START_BYTES;
const HEADER_SIZE_BYTES: usize = 8;
const TOKEN_START_BYTES: usize = 16;
const DETAILS_START_BYTES: usize = 48;
const SCOPE_START_BYTES: usize = 128;
const TEXT_SIZE_BYTES_MAX: usize = MESSAGE_SIZE_BYTES - DETAILS_START_BYTES;

/// Encoded message.
pub type Message = [u8; MESSAGE_SIZE_BYTES];
/// A protocol's own part of a message.
pub type Details = [u8; DETAILS_SIZE_BYTES];
/// Random number of one greeting.
pub(crate) type Nonce = [u8; 32];

const _: () = assert!(TOKEN_START_BYTES + size_of::<Nonce>() == DETAILS_START_BYTES);
const _: () = assert!(size_of::<Nonce>() == size_of::<Proof>());
const _: () = assert!(SCOPE_START_BYTES + 1 + SCOPE_SIZE_BYTES_MAX == MESSAGE_SIZE_BYTES);

/// Protocol of a port, in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Kind of the port.
    pub port: PortKind,
    /// Version; both sides must have the same.
    pub version: u16,
}

impl Protocol {
    /// Returns the first bytes of every message.
    pub(crate) fn header(self) -> [u8; HEADER_SIZE_BYTES] {
        let mut header = [0; HEADER_SIZE_BYTES];
        let (magic, version) = match self.port {
            PortKind::Cluster => (0..6, 6..8),
            PortKind::MemoryNode => (2..8, 0..2),
        };
        header[magic].copy_from_slice(match self.port {
            PortKind::Cluster => &CLUSTER_MAGIC,
            PortKind::MemoryNode => &MEMORY_NODE_MAGIC,
        });
        header[version].copy_from_slice(&self.version.to_le_bytes());
        header
    }

    fn version_of(self, message: &Message) -> u16 {
        match self.port {
            PortKind::Cluster => u16::from_le_bytes([message[6], message[7]]),
            PortKind::MemoryNode => u16::from_le_bytes([message[0], message[1]]),
        }
    }

    /// Checks the first bytes of a message.
    ///
    /// # Errors
    /// The message is one of another port, another protocol or another version.
    pub(crate) fn check(self, message: &Message) -> Result<(), GreetingError> {
        match PortKind::detect(message) {
            Some(port) if port == self.port => {}
            Some(other) => return Err(GreetingError::OtherPort(other)),
            None => {
                let begin = message[..8].escape_ascii().to_string();
                return Err(GreetingError::Foreign(begin));
            }
        }
        let theirs = self.version_of(message);
        if theirs == self.version {
            return Ok(());
        }
        Err(GreetingError::Version { theirs })
    }
}

/// Message of a greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// The server does not admit the client, for this reason.
    Refusal(String),
    /// The server does not admit the client, whose proof is wrong; text for its user.
    WrongSecret(String),
    /// The client begins.
    Hello {
        /// Rights for which it will prove its key.
        rights: Rights,
        /// Part of the data to which its key is limited.
        scope: Scope,
        /// Its random number.
        nonce: [u8; 32],
        /// What the protocol adds.
        details: Details,
    },
    /// The server answers the hello.
    Challenge {
        /// Its random number.
        nonce: [u8; 32],
        /// What the protocol adds.
        details: Details,
    },
    /// The client's proof.
    Proof(Proof),
    /// The server admits the client.
    Welcome {
        /// Its proof, which covers the details.
        proof: Proof,
        /// What the protocol adds.
        details: Details,
    },
}

impl Greeting {
    /// Returns the message's bytes.
    pub fn encode(&self, protocol: Protocol) -> Message {
        let none: &[u8] = &[];
        let (number, value, token, rest): (u32, u32, &[u8], &[u8]) = match self {
            Self::Refusal(text) | Self::WrongSecret(text) => {
                let text = &text[..text.floor_char_boundary(TEXT_SIZE_BYTES_MAX)];
                let is_wrong_secret = matches!(self, Self::WrongSecret(_));
                let number = if is_wrong_secret { 5 } else { 0 };
                (number, text.len() as u32, none, text.as_bytes())
            }
            Self::Hello {
                rights,
                nonce,
                details,
                ..
            } => (1, *rights as u32 + 1, nonce, details),
            Self::Challenge { nonce, details } => (2, 0, nonce, details),
            Self::Proof(proof) => (3, 0, &proof.0, none),
            Self::Welcome { proof, details } => (4, 0, &proof.0, details),
        };
        let mut message = [0; MESSAGE_SIZE_BYTES];
        message[..HEADER_SIZE_BYTES].copy_from_slice(&protocol.header());
        message[8..12].copy_from_slice(&number.to_le_bytes());
        message[12..16].copy_from_slice(&value.to_le_bytes());
        message[TOKEN_START_BYTES..][..token.len()].copy_from_slice(token);
        message[DETAILS_START_BYTES..][..rest.len()].copy_from_slice(rest);
        if let Self::Hello { scope, .. } = self {
            let [size_bytes, to @ ..] = &mut message[SCOPE_START_BYTES..] else {
                unreachable!("a message has space for a scope")
            };
            *size_bytes = scope.bytes().len() as u8;
            to[..scope.bytes().len()].copy_from_slice(scope.bytes());
        }
        message
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The bytes are no valid message of this protocol and version.
    pub fn decode(protocol: Protocol, message: &Message) -> Result<Self, GreetingError> {
        protocol.check(message)?;
        let value = u32_at(message, 12);
        let mut nonce = [0; 32];
        nonce.copy_from_slice(&message[TOKEN_START_BYTES..DETAILS_START_BYTES]);
        let mut details = [0; DETAILS_SIZE_BYTES];
        details.copy_from_slice(&message[DETAILS_START_BYTES..SCOPE_START_BYTES]);
        let text = || {
            let text = text_of(message, value);
            text.ok_or(GreetingError::Malformed("a refusal without a valid text"))
        };
        Ok(match u32_at(message, 8) {
            0 => Self::Refusal(text()?),
            5 => Self::WrongSecret(text()?),
            1 => {
                let rights = Rights::ALL.get((value as usize).wrapping_sub(1));
                let rights = *rights.ok_or(GreetingError::Malformed("unknown rights"))?;
                Self::Hello {
                    rights,
                    scope: scope_of(message).ok_or(GreetingError::Malformed("an invalid scope"))?,
                    nonce,
                    details,
                }
            }
            2 => Self::Challenge { nonce, details },
            3 => Self::Proof(Proof(nonce)),
            4 => Self::Welcome {
                proof: Proof(nonce),
                details,
            },
            _ => return Err(GreetingError::Malformed("a message of an unknown type")),
        })
    }
}

/// Returns the message with which a server refuses a client.
pub fn refusal(protocol: Protocol, reason: &str) -> Message {
    Greeting::Refusal(reason.to_owned()).encode(protocol)
}

fn u32_at(message: &Message, at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&message[at..at + 4]);
    u32::from_le_bytes(bytes)
}

fn scope_of(message: &Message) -> Option<Scope> {
    let [size_bytes, from @ ..] = &message[SCOPE_START_BYTES..] else {
        return None;
    };
    Scope::new(from.get(..usize::from(*size_bytes))?)
}

/// Returns the text of a refusal without control characters, because an unauthenticated peer may
/// have written it to affect a terminal.
fn text_of(message: &Message, size_bytes: u32) -> Option<String> {
    let bytes = message[DETAILS_START_BYTES..].get(..size_bytes as usize)?;
    let text = core::str::from_utf8(bytes).ok()?;
    Some(text.chars().filter(|it| !it.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: Protocol = Protocol {
        port: PortKind::Cluster,
        version: 3,
    };
    const POOL: Protocol = Protocol {
        port: PortKind::MemoryNode,
        version: 5,
    };

    fn golden(header: [u8; 8], number: u8, value: u8, token: u8, rest: &[u8]) -> Message {
        let mut message = [0; MESSAGE_SIZE_BYTES];
        message[..8].copy_from_slice(&header);
        message[8] = number;
        message[12] = value;
        message[16..48].fill(token);
        message[48..48 + rest.len()].copy_from_slice(rest);
        message
    }

    /// Promise: messages have these bytes, so that programs of one version understand each other.
    #[test]
    fn messages_are_golden() {
        let mut details = [0; DETAILS_SIZE_BYTES];
        (details[0], details[DETAILS_SIZE_BYTES - 1]) = (8, 9);
        let hello = Greeting::Hello {
            rights: Rights::Write,
            scope: Scope::new(b"part").expect("short"),
            nonce: [1; 32],
            details,
        };
        let nonce = [2; 32];
        let challenge = Greeting::Challenge { nonce, details };
        let proof = Proof([4; 32]);
        let cases = [
            (Greeting::Refusal("no".to_owned()), 0, 2, 0, &b"no"[..]),
            (Greeting::WrongSecret("no".to_owned()), 5, 2, 0, b"no"),
            (hello, 1, 2, 1, b""),
            (challenge, 2, 0, 2, &details),
            (Greeting::Proof(Proof([3; 32])), 3, 0, 3, b""),
            (Greeting::Welcome { proof, details }, 4, 0, 4, &details),
        ];
        let mut hello_rest = details.to_vec();
        hello_rest.extend_from_slice(b"\x04part");
        let headers = [(CLUSTER, *b"FLWIRE\x03\0"), (POOL, *b"\x05\0\0PCTLF")];
        for (greeting, number, value, token, rest) in cases {
            for (protocol, header) in headers {
                let rest = if number == 1 { &hello_rest } else { rest };
                let message = golden(header, number, value, token, rest);
                assert_eq!(greeting.encode(protocol), message);
                assert_eq!(Greeting::decode(protocol, &message), Ok(greeting.clone()));
            }
        }
    }

    /// Promise: another port, version, type or right is an error that names it; a long reason is
    /// cut off, and control characters in it are dropped.
    #[test]
    fn invalid_messages_are_errors() {
        let valid = Greeting::Proof(Proof([3; 32])).encode(CLUSTER);
        let changed = |at: usize, to: u8| {
            let mut message = valid;
            message[at] = to;
            Greeting::decode(CLUSTER, &message)
        };
        assert_eq!(changed(6, 9), Err(GreetingError::Version { theirs: 9 }));
        let malformed = |what| Err(GreetingError::Malformed(what));
        assert_eq!(changed(8, 6), malformed("a message of an unknown type"));
        assert_eq!(changed(8, 1), malformed("unknown rights"));
        let hello = Greeting::Hello {
            rights: Rights::Read,
            scope: Scope::default(),
            nonce: [1; 32],
            details: [0; DETAILS_SIZE_BYTES],
        };
        let mut hello = hello.encode(CLUSTER);
        hello[128] = 128;
        assert_eq!(
            Greeting::decode(CLUSTER, &hello),
            malformed("an invalid scope")
        );
        let foreign = GreetingError::Foreign("xLWIRE\\x03\\x00".to_owned());
        assert_eq!(changed(0, b'x'), Err(foreign));
        let other = GreetingError::OtherPort(PortKind::Cluster);
        assert_eq!(Greeting::decode(POOL, &valid), Err(other));
        let long = "ä\n".repeat(200);
        match Greeting::decode(POOL, &refusal(POOL, &long)) {
            Ok(Greeting::Refusal(text)) => assert_eq!(text, "ä".repeat(69)),
            other => panic!("{other:?}"),
        }
    }
}
