//! What pools add to the messages of a [greeting](farleaf_net::greeting).
//!
//! | message | bytes of the details | meaning |
//! |---|---|---|
//! | hello | 0 | purpose: 1 control, 2 data, 3 queue pair |
//! | | 4..8 | process |
//! | | 8..16 | owner word of the session (2, 3); 0: none |
//! | | 16..32 | ticket (2, 3) |
//! | | 32..48 | pass of the session, if the pool's main node is another node |
//! | challenge | | nothing |
//! | welcome | 0..8 | size of the memory in bytes |
//! | | 8..24 | ticket |
//!
//! Integers are little-endian, and unused bytes are 0.

use farleaf_base::OwnerWord;
use farleaf_base::foreign_protocol::PortKind;
use farleaf_net::greeting::{DETAILS_SIZE_BYTES, Details, GreetingError, Protocol};
use farleaf_net::secret::Pass;

/// Version of all messages and frames of a connection; a client and a node must have the same.
pub const TCP_VERSION: u16 = 5;

/// The protocol of memory nodes.
pub(super) const POOL: Protocol = Protocol {
    port: PortKind::MemoryNode,
    version: TCP_VERSION,
};

/// Identifies a client on all its connections; drawn by the node, and known only to the two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(pub(super) [u8; 16]);

impl core::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Ticket")
    }
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A new client, and its sessions.
    Control,
    /// Batches of a client: of one of its sessions, or of the process itself.
    Data {
        ticket: Ticket,
        owner: Option<OwnerWord>,
    },
    /// Exchange of the two ends of a session's queue pair, and later the notification of its end.
    Queue { ticket: Ticket, owner: OwnerWord },
}

/// Details of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HelloDetails {
    pub(super) purpose: Purpose,
    pub(super) pid: u32,
    /// Pass of the purpose's session, if its main node is another node.
    pub(super) pass: Pass,
}

impl HelloDetails {
    pub(super) fn encode(&self) -> Details {
        let none = Ticket([0; 16]);
        let (number, owner, ticket) = match self.purpose {
            Purpose::Control => (1, 0, none),
            Purpose::Data { ticket, owner } => (2, owner.map_or(0, OwnerWord::word), ticket),
            Purpose::Queue { ticket, owner } => (3, owner.word(), ticket),
        };
        let mut details = [0; DETAILS_SIZE_BYTES];
        details[0] = number;
        details[4..8].copy_from_slice(&self.pid.to_le_bytes());
        details[8..16].copy_from_slice(&owner.to_le_bytes());
        details[16..32].copy_from_slice(&ticket.0);
        details[32..48].copy_from_slice(&self.pass.0);
        details
    }

    pub(super) fn decode(details: &Details) -> Result<Self, GreetingError> {
        let owner = OwnerWord::from_word(u64::from_le_bytes(bytes(details, 8)));
        let ticket = Ticket(bytes(details, 16));
        let purpose = match details[0] {
            1 => Purpose::Control,
            2 => Purpose::Data {
                ticket,
                owner: (!owner.is_free()).then_some(owner),
            },
            3 => Purpose::Queue { ticket, owner },
            _ => return Err(GreetingError::Malformed("an unknown purpose")),
        };
        Ok(Self {
            purpose,
            pid: u32::from_le_bytes(bytes(details, 4)),
            pass: Pass(bytes(details, 32)),
        })
    }
}

/// Details of a welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WelcomeDetails {
    pub(super) memory_size_bytes: u64,
    pub(super) ticket: Ticket,
}

impl WelcomeDetails {
    pub(super) fn encode(&self) -> Details {
        let mut details = [0; DETAILS_SIZE_BYTES];
        details[..8].copy_from_slice(&self.memory_size_bytes.to_le_bytes());
        details[8..24].copy_from_slice(&self.ticket.0);
        details
    }

    pub(super) fn decode(details: &Details) -> Self {
        Self {
            memory_size_bytes: u64::from_le_bytes(bytes(details, 0)),
            ticket: Ticket(bytes(details, 8)),
        }
    }
}

fn bytes<const SIZE: usize>(details: &Details, at: usize) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes.copy_from_slice(&details[at..at + SIZE]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::{Incarnation, SessionId};

    /// Promise: details have these bytes; a change needs a new version.
    #[test]
    fn details_are_golden() {
        let owner = OwnerWord::new(SessionId::new(7).expect("not 0"), Incarnation::new(99));
        let ticket = Ticket([9; 16]);
        let hello = |purpose| HelloDetails {
            purpose,
            pid: 0x0403_0201,
            pass: Pass([6; 16]),
        };
        let some = Some(owner);
        for (purpose, number, word, token) in [
            (Purpose::Control, 1, 0, 0),
            (
                Purpose::Data {
                    ticket,
                    owner: None,
                },
                2,
                0,
                9,
            ),
            (
                Purpose::Data {
                    ticket,
                    owner: some,
                },
                2,
                owner.word(),
                9,
            ),
            (Purpose::Queue { ticket, owner }, 3, owner.word(), 9),
        ] {
            let mut golden = [0; DETAILS_SIZE_BYTES];
            golden[0] = number;
            golden[4..8].copy_from_slice(&[1, 2, 3, 4]);
            golden[8..16].copy_from_slice(&word.to_le_bytes());
            golden[16..32].fill(token);
            golden[32..48].fill(6);
            assert_eq!(hello(purpose).encode(), golden);
            assert_eq!(HelloDetails::decode(&golden), Ok(hello(purpose)));
        }
        let mut unknown = [0; DETAILS_SIZE_BYTES];
        for number in [0, 4, 255] {
            unknown[0] = number;
            assert!(HelloDetails::decode(&unknown).is_err());
        }
        let welcome = WelcomeDetails {
            memory_size_bytes: 0x0807_0605_0403_0201,
            ticket,
        };
        let mut golden = [0; DETAILS_SIZE_BYTES];
        golden[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        golden[8..24].fill(9);
        assert_eq!(welcome.encode(), golden);
        assert_eq!(WelcomeDetails::decode(&golden), welcome);
    }
}
