//! Messages of a greeting. Each has 256 bytes, so that an unauthenticated peer cannot control how
//! much is read or stored.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..6 | `FLWIRE` |
//! | 6..8 | version |
//! | 8..12 | number of the message |
//! | 12..16 | challenge: largest request in bytes; refusal: size of its text |
//! | 16..48 | random number (1, 2) or proof (3, 4, 5) |
//! | 48..64 | cluster id (1, 2), 16 bytes; 0: none |
//! | 48..256 | refusal: text |
//!
//! | number | sender | message |
//! |---|---|---|
//! | 1 | client | hello: a random number, and the cluster that it expects, if it knows one |
//! | 2 | server | challenge: a random number, its own cluster, and the largest size of a request |
//! | 3 | client | its proof |
//! | 4 | server | welcome: its proof |
//! | 5 | server | its proof that it belongs to another cluster than the client expects |
//! | 0 | server | refusal: reason |
//!
//! Integers are little-endian, and unused bytes are 0. The magic, the version and the text of a
//! refusal have the same position in all future versions.

use farleaf_base::foreign_protocol::{CLUSTER_MAGIC as MAGIC, ForeignProtocol, PortKind};

use crate::request::cluster::ClusterTag;

/// Version of the protocol; both sides must have the same.
pub const WIRE_VERSION: u16 = 2;

/// Size of every message in bytes.
pub(crate) const MESSAGE_SIZE_BYTES: usize = 256;
const TEXT_START_BYTES: usize = 48;
const CLUSTER_SIZE_BYTES: usize = 16;
const TEXT_SIZE_BYTES_MAX: usize = MESSAGE_SIZE_BYTES - TEXT_START_BYTES;
/// Size of a random number and of a proof in bytes.
pub(crate) const TOKEN_SIZE_BYTES: usize = 32;

const _: () = assert!(16 + TOKEN_SIZE_BYTES == TEXT_START_BYTES);

/// Encoded message.
pub(crate) type Message = [u8; MESSAGE_SIZE_BYTES];
/// Random number or proof.
pub(crate) type Token = [u8; TOKEN_SIZE_BYTES];

/// Message before the first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Hello {
        nonce: Token,
        expected: Option<ClusterTag>,
    },
    Challenge {
        nonce: Token,
        request_size_bytes_max: u32,
        cluster: Option<ClusterTag>,
    },
    Proof(Token),
    Welcome(Token),
    OtherCluster(Token),
    Refusal(String),
}

/// Reason why bytes are not a greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GreetingError {
    /// The peer speaks another protocol; its first bytes.
    Foreign(String),
    /// The peer uses TLS, and this side does not.
    Encrypted,
    /// The peer is a memory node of a pool, or a client of one.
    MemoryNode,
    /// The peer sent a request of a protocol that has a readable answer.
    OtherProtocol(ForeignProtocol),
    /// The message has another version; with its text, if it is a refusal.
    Version { theirs: u16, reason: Option<String> },
    /// Text that completes "the peer sent ...".
    Malformed(&'static str),
}

impl Greeting {
    pub(crate) fn encode(&self) -> Message {
        let mut message = [0; MESSAGE_SIZE_BYTES];
        message[..6].copy_from_slice(&MAGIC);
        message[6..8].copy_from_slice(&WIRE_VERSION.to_le_bytes());
        let (number, value, token): (u32, u32, &[u8]) = match self {
            Self::Refusal(text) => {
                let text = fitting(text);
                message[TEXT_START_BYTES..][..text.len()].copy_from_slice(text.as_bytes());
                (0, text.len() as u32, &[])
            }
            Self::Hello { nonce, expected } => {
                put_cluster(&mut message, *expected);
                (1, 0, nonce)
            }
            Self::Challenge {
                nonce,
                request_size_bytes_max,
                cluster,
            } => {
                put_cluster(&mut message, *cluster);
                (2, *request_size_bytes_max, nonce)
            }
            Self::Proof(proof) => (3, 0, proof),
            Self::Welcome(proof) => (4, 0, proof),
            Self::OtherCluster(proof) => (5, 0, proof),
        };
        message[8..12].copy_from_slice(&number.to_le_bytes());
        message[12..16].copy_from_slice(&value.to_le_bytes());
        message[16..16 + token.len()].copy_from_slice(token);
        message
    }

    pub(crate) fn decode(message: &Message) -> Result<Self, GreetingError> {
        if message[..6] != MAGIC {
            if PortKind::detect(message) == Some(PortKind::MemoryNode) {
                return Err(GreetingError::MemoryNode);
            }
            let begin = message[..8].escape_ascii().to_string();
            return Err(GreetingError::Foreign(begin));
        }
        let number = u32_at(message, 8);
        let value = u32_at(message, 12);
        let mut token = [0; TOKEN_SIZE_BYTES];
        token.copy_from_slice(&message[16..TEXT_START_BYTES]);
        let theirs = u16::from_le_bytes([message[6], message[7]]);
        if theirs != WIRE_VERSION {
            let reason = (number == 0).then(|| text_of(message, value)).flatten();
            return Err(GreetingError::Version { theirs, reason });
        }
        Ok(match number {
            0 => Self::Refusal(
                text_of(message, value)
                    .ok_or(GreetingError::Malformed("a refusal without a valid text"))?,
            ),
            1 => Self::Hello {
                nonce: token,
                expected: cluster_of(message),
            },
            2 => Self::Challenge {
                nonce: token,
                request_size_bytes_max: value,
                cluster: cluster_of(message),
            },
            3 => Self::Proof(token),
            4 => Self::Welcome(token),
            5 => Self::OtherCluster(token),
            _ => return Err(GreetingError::Malformed("a message of an unknown type")),
        })
    }
}

fn put_cluster(message: &mut Message, cluster: Option<ClusterTag>) {
    let bits = cluster.map_or(0, ClusterTag::bits);
    message[TEXT_START_BYTES..][..CLUSTER_SIZE_BYTES].copy_from_slice(&bits.to_le_bytes());
}

fn cluster_of(message: &Message) -> Option<ClusterTag> {
    let mut bytes = [0; CLUSTER_SIZE_BYTES];
    bytes.copy_from_slice(&message[TEXT_START_BYTES..][..CLUSTER_SIZE_BYTES]);
    ClusterTag::new(u128::from_le_bytes(bytes))
}

fn u32_at(message: &Message, at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&message[at..at + 4]);
    u32::from_le_bytes(bytes)
}

/// Returns the text of a refusal without control characters, because an unauthenticated peer may
/// have written it to affect a terminal.
fn text_of(message: &Message, size_bytes: u32) -> Option<String> {
    let bytes = message[TEXT_START_BYTES..].get(..size_bytes as usize)?;
    let text = core::str::from_utf8(bytes).ok()?;
    Some(text.chars().filter(|it| !it.is_control()).collect())
}

/// Returns as much of a text as fits a message.
fn fitting(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_SIZE_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(number: u8, value: [u8; 4], token: u8, text: &[u8]) -> Message {
        let mut message = [0; MESSAGE_SIZE_BYTES];
        message[..9].copy_from_slice(&[b'F', b'L', b'W', b'I', b'R', b'E', 2, 0, number]);
        message[12..16].copy_from_slice(&value);
        message[16..48].fill(token);
        message[48..48 + text.len()].copy_from_slice(text);
        message
    }

    /// Promise: messages have these bytes, so that programs of one version understand each other.
    #[test]
    fn messages_are_golden() {
        let challenge = Greeting::Challenge {
            nonce: [2; 32],
            request_size_bytes_max: 0x0403_0201,
            cluster: ClusterTag::new(0x0201),
        };
        let hello = |expected| Greeting::Hello {
            nonce: [1; 32],
            expected,
        };
        let cases = [
            (
                Greeting::Refusal("no".to_owned()),
                golden(0, [2, 0, 0, 0], 0, b"no"),
            ),
            (hello(None), golden(1, [0; 4], 1, b"")),
            (
                hello(ClusterTag::new(0x0403 << 112)),
                golden(1, [0; 4], 1, &[[0; 14].as_slice(), &[3, 4]].concat()),
            ),
            (challenge, golden(2, [1, 2, 3, 4], 2, &[1, 2])),
            (Greeting::Proof([3; 32]), golden(3, [0; 4], 3, b"")),
            (Greeting::Welcome([4; 32]), golden(4, [0; 4], 4, b"")),
            (Greeting::OtherCluster([5; 32]), golden(5, [0; 4], 5, b"")),
        ];
        for (greeting, message) in cases {
            assert_eq!(greeting.encode(), message);
            assert_eq!(Greeting::decode(&message), Ok(greeting));
        }
    }

    /// Promise: other programs, versions and kinds are distinguished; a refusal of another version
    /// can be read; a text that is too long is cut between characters.
    #[test]
    fn what_is_no_greeting_is_refused() {
        let mut foreign = [b' '; MESSAGE_SIZE_BYTES];
        foreign[..8].copy_from_slice(b"GET / HT");
        let error = Greeting::decode(&foreign).expect_err("foreign");
        assert_eq!(error, GreetingError::Foreign("GET / HT".to_owned()));
        foreign[..8].copy_from_slice(b"\x04\0\0PCTLF");
        let error = Greeting::decode(&foreign).expect_err("a memory node's");
        assert_eq!(error, GreetingError::MemoryNode);
        let mut other = Greeting::Refusal("too\x1b old".to_owned()).encode();
        other[6] = 9;
        let reason = Some("too old".to_owned());
        let error = Greeting::decode(&other).expect_err("another version");
        assert_eq!(error, GreetingError::Version { theirs: 9, reason });
        let mut unknown = Greeting::Proof([0; 32]).encode();
        unknown[8] = 77;
        assert!(matches!(
            Greeting::decode(&unknown),
            Err(GreetingError::Malformed(_))
        ));
        let mut long = Greeting::Refusal(String::new()).encode();
        long[12] = 209;
        assert!(matches!(
            Greeting::decode(&long),
            Err(GreetingError::Malformed(_))
        ));
        let cut = Greeting::Refusal("é".repeat(105)).encode();
        let read = Greeting::decode(&cut).expect("a refusal");
        assert_eq!(read, Greeting::Refusal("é".repeat(104)));
    }
}
