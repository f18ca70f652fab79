//! Messages of a control connection, and of the connection beside a queue pair, after the greeting.
//!
//! All messages are frames of 32 words.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | magic and version |
//! | 1 | number of the message |
//! | 2..8 | numbers of the message, see below |
//! | 14..16 | pass of a session |
//! | 7, 8..32 | of messages with a text: its size in bytes, the text |
//!
//! | message of the client | words | reply of the node | words |
//! |---|---|---|---|
//! | 3 register | | 3 session | 2 owner word, 14..16 pass |
//! | 4 close | 2 owner word | 4 closed, 11 in progress | |
//! | 5 life | 2 owner word | 5 life | 2 is alive, 3 process |
//! | 6 fence | 2 owner word | 6 fenced, 11 in progress | |
//! | 7 queue pair | 2 its number, 3 first packet, 4 MTU in bytes | 7 queue pair | the node's, and |
//! | | 5 READs and atomics at a time, 6 LID, 8..10 GID | | 12 address of the memory, 13 key |
//! | 8 main node | | 8 main node | 7, 8..32 address of the pool's main node; |
//! | | | | empty: this is the main node |
//! | 9 join | 2 number of the memory, 3 its size in bytes, | 9 joined | 2 number in the pool, |
//! | | 4 wanted number in the pool, | | or 0: in progress; |
//! | | 5 is served by verbs, 7, 8..32 address | | 3 number of the main node's memory |
//! | 10 set member | 2 number, 3 state | 10 member | 2 state, 3 number of the main node's memory, |
//! | | | | 4 number of the main node's queries that the node has answered |
//! | 11 member | 2 number | 10 member | the same; state 0: no such node |
//! | any | | 0 refused | reason |
//!
//! *In progress*: the session will be fenced, and `life` reports when it is. So no reply waits for
//! another node.

use farleaf_base::foreign_protocol::MEMORY_NODE_MAGIC;
use farleaf_base::{NodeId, OwnerWord};

use crate::tcp::hello::TCP_VERSION;
use crate::verbs::{NodeQueue, QueueParameters};
use farleaf_net::secret::Pass;

/// Magic: "FLTCP" and a zero in the upper six bytes, the version in the lower two.
const MAGIC: u64 = {
    let [a, b, c, d, e, f] = MEMORY_NODE_MAGIC;
    u64::from_le_bytes([0, 0, a, b, c, d, e, f]) | TCP_VERSION as u64
};
const FRAME_SIZE_WORDS: usize = 32;
/// Size of every message, in bytes.
pub(super) const FRAME_SIZE_BYTES: usize = FRAME_SIZE_WORDS * 8;
const TEXT_START_BYTES: usize = 8 * 8;
const TEXT_SIZE_BYTES_MAX: usize = FRAME_SIZE_BYTES - TEXT_START_BYTES;

/// A message as sent over the connection.
pub(super) type Frame = [u8; FRAME_SIZE_BYTES];
/// Message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlRequest {
    Register,
    Close(OwnerWord),
    Life(OwnerWord),
    Fence(OwnerWord),
    /// The client's end of a queue pair.
    Queue(QueueParameters),
    MainNode,
    Join(JoinRequest),
    SetMember {
        node: NodeId,
        state: u64,
    },
    Member(NodeId),
}

/// A node's request to join a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// Number of the node's memory.
    pub memory_id: u64,
    /// Size of the memory in bytes.
    pub size_bytes: u64,
    /// Requested node number in the pool.
    pub wanted: NodeId,
    /// Address of the node: `HOST:PORT`.
    pub address: String,
    /// True if an RDMA device serves the memory, so that only the device changes it.
    pub serves_verbs: bool,
}

/// The reply of a pool's main node to a node that joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Node number in the pool; `None` while admission is in progress: the node asks again.
    pub node: Option<NodeId>,
    /// Identity of the pool: the number of the main node's memory.
    pub pool_id: u64,
}

/// The reply of a pool's main node about one of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberReply {
    /// Target state of the node; 0: there is no such node.
    pub state: u64,
    /// Identity of the pool: the number of the main node's memory.
    pub pool_id: u64,
    /// Number of the main node's queries that the node has answered. If it has grown by two since a
    /// client's connection to the node broke, the node itself is not lost.
    pub answered_count: u64,
}

/// A node's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlReply {
    Refused(String),
    Session {
        owner: OwnerWord,
        pass: Pass,
    },
    Closed,
    Life(Option<u32>),
    /// The reply to a fence request; on a connection beside a queue pair the node's last message.
    Fenced,
    /// The node's end of a queue pair.
    Queue(NodeQueue),
    /// Address of the pool's main node; empty if this node is the main node.
    MainNode(String),
    Joined(Joined),
    Member(MemberReply),
    /// The session will be fenced: query its life.
    UnderWay,
}

/// Error: the frame is not a valid message. The text completes "the peer sent ...".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

impl ControlRequest {
    pub(super) fn encode(&self) -> Frame {
        let mut writer = Writer::new();
        match self {
            Self::Register => writer.numbers(3, &[]),
            Self::Close(owner) => writer.numbers(4, &[owner.word()]),
            Self::Life(owner) => writer.numbers(5, &[owner.word()]),
            Self::Fence(owner) => writer.numbers(6, &[owner.word()]),
            Self::Queue(parameters) => writer.queue(parameters),
            Self::MainNode => writer.numbers(8, &[]),
            Self::Join(join) => {
                let numbers = [join.memory_id, join.size_bytes, join.wanted.0.into()];
                writer.numbers(9, &numbers);
                writer.bytes(5, &u64::from(join.serves_verbs).to_le_bytes());
                writer.text(&join.address);
            }
            Self::SetMember { node, state } => writer.numbers(10, &[node.0.into(), *state]),
            Self::Member(node) => writer.numbers(11, &[node.0.into()]),
        }
        writer.0
    }

    pub(super) fn decode(frame: &Frame) -> Result<Self, Malformed> {
        check_version(frame)?;
        let owner = OwnerWord::from_word(word(frame, 2));
        Ok(match word(frame, 1) {
            3 => Self::Register,
            4 => Self::Close(owner),
            5 => Self::Life(owner),
            6 => Self::Fence(owner),
            7 => Self::Queue(queue(frame)?),
            8 => Self::MainNode,
            9 => Self::Join(JoinRequest {
                memory_id: word(frame, 2),
                size_bytes: word(frame, 3),
                wanted: NodeId(word(frame, 4) as u8),
                address: address(frame)?,
                serves_verbs: word(frame, 5) != 0,
            }),
            10 => Self::SetMember {
                node: node_number(frame)?,
                state: word(frame, 3),
            },
            11 => Self::Member(node_number(frame)?),
            number => return Err(Malformed(format!("an unknown request number {number}"))),
        })
    }
}

impl ControlReply {
    pub(super) fn encode(&self) -> Frame {
        let mut writer = Writer::new();
        match self {
            Self::Refused(reason) => writer.text(reason),
            Self::MainNode(address) => {
                writer.numbers(8, &[]);
                writer.text(address);
            }
            Self::Joined(Joined { node, pool_id }) => {
                writer.numbers(9, &[node.map_or(0, |node| node.0.into()), *pool_id]);
            }
            Self::Member(MemberReply {
                state,
                pool_id,
                answered_count,
            }) => writer.numbers(10, &[*state, *pool_id, *answered_count]),
            Self::UnderWay => writer.numbers(11, &[]),
            Self::Session { owner, pass } => {
                writer.numbers(3, &[owner.word()]);
                writer.bytes(14, &pass.0);
            }
            Self::Closed => writer.numbers(4, &[]),
            Self::Life(pid) => {
                let pid = pid.map(u64::from);
                writer.numbers(5, &[u64::from(pid.is_some()), pid.unwrap_or(0)]);
            }
            Self::Fenced => writer.numbers(6, &[]),
            Self::Queue(node) => {
                writer.queue(&node.parameters);
                writer.bytes(12, &node.memory_addr.to_le_bytes());
                writer.bytes(13, &u64::from(node.memory_key).to_le_bytes());
            }
        }
        writer.0
    }

    pub(super) fn decode(frame: &Frame) -> Result<Self, Malformed> {
        check_version(frame)?;
        Ok(match word(frame, 1) {
            0 => Self::Refused(text(frame)),
            3 => {
                let name = word(frame, 2);
                let impossible = || Malformed(format!("an invalid session {name:#x}"));
                Self::Session {
                    owner: OwnerWord::from_name(name).ok_or_else(impossible)?,
                    pass: Pass(bytes(frame, 14)),
                }
            }
            4 => Self::Closed,
            5 => match (word(frame, 2), u32::try_from(word(frame, 3))) {
                (0, _) => Self::Life(None),
                (1, Ok(pid)) => Self::Life(Some(pid)),
                _ => return Err(Malformed("an invalid session state".to_owned())),
            },
            6 => Self::Fenced,
            7 => Self::Queue(NodeQueue {
                parameters: queue(frame)?,
                memory_addr: word(frame, 12),
                memory_key: u32::try_from(word(frame, 13))
                    .map_err(|_| Malformed("an invalid memory key".to_owned()))?,
            }),
            8 => Self::MainNode(address(frame)?),
            9 => {
                let node = node_number(frame)?;
                Self::Joined(Joined {
                    node: (node != NodeId(0)).then_some(node),
                    pool_id: word(frame, 3),
                })
            }
            10 => Self::Member(MemberReply {
                state: word(frame, 2),
                pool_id: word(frame, 3),
                answered_count: word(frame, 4),
            }),
            11 => Self::UnderWay,
            number => return Err(Malformed(format!("an unknown reply number {number}"))),
        })
    }
}

struct Writer(Frame);

impl Writer {
    fn new() -> Self {
        let mut frame = [0; FRAME_SIZE_BYTES];
        frame[..8].copy_from_slice(&MAGIC.to_le_bytes());
        Self(frame)
    }

    fn numbers(&mut self, number: u64, rest: &[u64]) {
        self.bytes(1, &number.to_le_bytes());
        for (index, word) in rest.iter().enumerate() {
            self.bytes(2 + index, &word.to_le_bytes());
        }
    }

    fn bytes(&mut self, index: usize, bytes: &[u8]) {
        self.0[index * 8..index * 8 + bytes.len()].copy_from_slice(bytes);
    }

    fn queue(&mut self, parameters: &QueueParameters) {
        self.numbers(7, &parameters.words());
        self.bytes(8, &parameters.gid);
    }

    fn text(&mut self, text: &str) {
        let end = text.floor_char_boundary(TEXT_SIZE_BYTES_MAX);
        self.bytes(7, &(end as u64).to_le_bytes());
        self.bytes(8, &text.as_bytes()[..end]);
    }
}

fn check_version(frame: &Frame) -> Result<(), Malformed> {
    match word(frame, 0) {
        MAGIC => Ok(()),
        other if other >> 16 == MAGIC >> 16 => Err(Malformed(format!(
            "a message of protocol version {}, expected version {TCP_VERSION}",
            other & 0xFFFF
        ))),
        _ => Err(Malformed(
            "a message that is not in Farleaf's protocol".to_owned(),
        )),
    }
}

fn queue(frame: &Frame) -> Result<QueueParameters, Malformed> {
    let words = [2, 3, 4, 5, 6].map(|index| word(frame, index));
    QueueParameters::from_words(words, bytes(frame, 8))
        .ok_or_else(|| Malformed("invalid queue pair parameters".to_owned()))
}

fn text(frame: &Frame) -> String {
    let size = usize::try_from(word(frame, 7)).unwrap_or(usize::MAX);
    let end = TEXT_START_BYTES + size.min(TEXT_SIZE_BYTES_MAX);
    String::from_utf8_lossy(&frame[TEXT_START_BYTES..end]).into_owned()
}

/// Decodes an address, a text that is not only for display, so it must be valid UTF-8.
fn address(frame: &Frame) -> Result<String, Malformed> {
    let size = usize::try_from(word(frame, 7)).ok();
    let size = size.filter(|size| *size <= TEXT_SIZE_BYTES_MAX);
    let bytes = size.map(|size| &frame[TEXT_START_BYTES..TEXT_START_BYTES + size]);
    let text = bytes.and_then(|bytes| core::str::from_utf8(bytes).ok());
    let text = text.ok_or_else(|| Malformed("an invalid address".to_owned()))?;
    Ok(text.to_owned())
}

fn node_number(frame: &Frame) -> Result<NodeId, Malformed> {
    let number = u8::try_from(word(frame, 2)).map(NodeId);
    number.map_err(|_| Malformed("an invalid node number".to_owned()))
}

fn word(frame: &Frame, index: usize) -> u64 {
    u64::from_le_bytes(bytes(frame, index))
}

fn bytes<const SIZE: usize>(frame: &Frame, index: usize) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes.copy_from_slice(&frame[index * 8..index * 8 + SIZE]);
    bytes
}

#[cfg(test)]
mod tests;
