//! Nodes of a pool: their table in the main node's memory, and what a process knows of it.
//!
//! A node's entry is two blocks of the main node's memory, by the node's number:
//!
//! | word | meaning |
//! |---|---|
//! | 0 | state: 0 = no such node, 1 = active, 2 = draining, 3 = left, 4 = lost |
//! | 1 | random number of its memory |
//! | 2 | size of its memory in bytes |
//! | 3 | size of its address in bytes |
//! | 4..15 | its address: `HOST:PORT` |
//! | 15 | CRC-32C over words 1 to 14 |
//!
//! - **Main node.** Node 0 is the pool's *main node*. Its memory has the catalog, the sessions, the
//!   sequence number, the retraining queue, all snapshots and synonym leaf tables, and the first
//!   leaf of every table. The other nodes have leaves, and a chunk table of their own.
//! - **Numbers.** A node number is given to one node memory, once. A node that comes back empty
//!   gets another number, so no address of the lost memory ever leads into the new one.
//! - **Writes.** Only the main node writes the table: words 1 to 15 of an entry, then its state, in
//!   one batch; then it increments the version. States go from active to draining and back, from
//!   draining to left, and from any of these to lost.
//! - **Losses.** A lost node stays lost, and its data are gone. A process that has seen the state
//!   posts nothing to the node any more. Another process may still use the node for a moment, as if
//!   it had been lost a moment later.
//! - **Claims.** Chunks are claimed on active nodes only. A chunk that a client claims on a
//!   draining node before it has seen the state is moved away like the others.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use farleaf_base::locks::lock;
use farleaf_base::{BLOCK_SIZE_WORDS, NodeId, crc32c};
use farleaf_fabric::{BatchError, CountedBatch, Endpoint, OperationKind};

use crate::layout::{NodeLayout, Superblock};

/// Number of nodes that addresses can distinguish.
pub const MEMBER_COUNT_MAX: u64 = 256;
/// Number of blocks of an entry.
pub(crate) const MEMBER_SIZE_BLOCKS: u64 = 2;
/// Number of words of an entry.
pub const MEMBER_SIZE_WORDS: usize = 16;
const ADDRESS_WORD: usize = 4;
const CHECKSUM_WORD: usize = 15;
/// Size of the longest address in bytes.
pub const MEMBER_ADDRESS_SIZE_BYTES_MAX: usize = (CHECKSUM_WORD - ADDRESS_WORD) * 8;

const _: () = assert!(MEMBER_SIZE_WORDS as u64 == MEMBER_SIZE_BLOCKS * BLOCK_SIZE_WORDS);
const _: () = assert!(MEMBER_COUNT_MAX == NodeId(u8::MAX).0 as u64 + 1);

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MemberState {
    /// The node accepts new chunks.
    Active = 1,
    /// The node accepts no new chunks, and its leaves are moved to other nodes.
    Draining = 2,
    /// The node was drained and has no data of the pool.
    Left = 3,
    /// The node and its data are lost.
    Lost = 4,
}

impl MemberState {
    const ALL: [Self; 4] = [Self::Active, Self::Draining, Self::Left, Self::Lost];

    /// Decodes a state; `None` if there is no such node, or the state is unknown to this version.
    pub fn from_word(word: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u64 == word)
    }

    /// Returns whether the node may have data that are reachable.
    pub fn is_reachable(self) -> bool {
        matches!(self, Self::Active | Self::Draining)
    }
}

impl core::fmt::Display for MemberState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Left => "left",
            Self::Lost => "lost",
        })
    }
}

/// State of a node, and the number of its changes as far as this process knows. Between two equal
/// values there was no change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus(u64);

impl MemberStatus {
    const STATE_BITS: u32 = 8;

    /// Returns the state; `None` if the node is unknown.
    #[inline]
    pub fn state(self) -> Option<MemberState> {
        MemberState::from_word(self.0 & ((1 << Self::STATE_BITS) - 1))
    }

    fn changed_to(self, state: Option<MemberState>) -> Self {
        let count = (self.0 >> Self::STATE_BITS) + 1;
        Self(count << Self::STATE_BITS | state.map_or(0, |state| state as u64))
    }
}

/// Node of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Layout of the node's memory.
    pub layout: NodeLayout,
    /// Address of the node: `HOST:PORT`.
    pub address: String,
}

impl Member {
    /// Encodes its entry, with a state.
    ///
    /// # Panics
    /// The address is longer than [`MEMBER_ADDRESS_SIZE_BYTES_MAX`].
    pub fn encode(&self, state: MemberState) -> [u64; MEMBER_SIZE_WORDS] {
        let text = self.address.as_bytes();
        assert!(
            text.len() <= MEMBER_ADDRESS_SIZE_BYTES_MAX,
            "whoever takes addresses from users has looked at their length"
        );
        let mut words = [0; MEMBER_SIZE_WORDS];
        words[0] = state as u64;
        words[1] = self.layout.superblock.memory_id;
        words[2] = self.layout.superblock.size_bytes;
        words[3] = text.len() as u64;
        for (word, part) in words[ADDRESS_WORD..].iter_mut().zip(text.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            *word = u64::from_le_bytes(bytes);
        }
        words[CHECKSUM_WORD] = u64::from(crc32c(&words[1..CHECKSUM_WORD]));
        words
    }

    /// Decodes an entry; `None` if there is no such node, or the entry is torn or corrupted.
    pub fn decode(node: NodeId, words: &[u64]) -> Option<(Self, MemberState)> {
        let state = MemberState::from_word(words[0])?;
        if words[CHECKSUM_WORD] != u64::from(crc32c(&words[1..CHECKSUM_WORD])) {
            return None;
        }
        let superblock = Superblock::new(words[2], words[1]).ok()?;
        let size_bytes = usize::try_from(words[3]).ok()?;
        let text: Vec<u8> = words[ADDRESS_WORD..CHECKSUM_WORD]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let address = core::str::from_utf8(text.get(..size_bytes)?).ok()?;
        let member = Self {
            layout: NodeLayout { node, superblock },
            address: address.to_owned(),
        };
        Some((member, state))
    }
}

/// Knowledge of a process about the nodes of its pool. Nodes are only added, because entries do not
/// change except for their states.
#[derive(Debug)]
pub struct Members {
    known: Box<[OnceLock<Member>]>,
    /// State in the lowest byte of each word, and above it the number of its changes.
    states: Box<[AtomicU64]>,
    /// Address of the main node, if the pool has, or may have, several nodes.
    main_node_address: OnceLock<String>,
    /// Version of the table that was read last.
    version: AtomicU64,
    /// Lock held while the contents of a read table are applied.
    update_lock: Mutex<()>,
}

impl Members {
    /// Creates the members of a pool with the main node alone.
    pub(crate) fn main_node_alone(main_node: NodeLayout) -> Self {
        let count = MEMBER_COUNT_MAX as usize;
        let members = Self {
            known: (0..count).map(|_| OnceLock::new()).collect(),
            states: (0..count).map(|_| AtomicU64::new(0)).collect(),
            main_node_address: OnceLock::new(),
            version: AtomicU64::new(0),
            update_lock: Mutex::default(),
        };
        let member = Member {
            layout: main_node,
            address: String::new(),
        };
        // Setting an empty cell succeeds.
        let _ = members.known[usize::from(main_node.node.0)].set(member);
        members.set_state(main_node.node, MemberState::Active);
        members
    }

    /// Returns a node, if it is known, even if it is lost.
    #[inline]
    pub fn get(&self, node: NodeId) -> Option<&Member> {
        self.known[usize::from(node.0)].get()
    }

    /// Returns the known state of a node.
    #[inline]
    pub fn state(&self, node: NodeId) -> Option<MemberState> {
        self.member_status(node).state()
    }

    /// Returns whether a node is known and can be reached.
    pub fn is_reachable(&self, node: NodeId) -> bool {
        self.state(node).is_some_and(MemberState::is_reachable)
    }

    /// Returns the known state of a node, with the number of its changes.
    #[inline]
    pub fn member_status(&self, node: NodeId) -> MemberStatus {
        MemberStatus(self.states[usize::from(node.0)].load(Ordering::Acquire))
    }

    fn set_state(&self, node: NodeId, state: MemberState) {
        let cell = &self.states[usize::from(node.0)];
        // A lost node stays lost. An error means that it is lost already, or already has this
        // state.
        let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            let (now, state) = (MemberStatus(now), Some(state));
            let changes = now.state() != Some(MemberState::Lost) && now.state() != state;
            changes.then(|| now.changed_to(state).0)
        });
    }

    /// Changes the state of a node unless it has changed since `from` was read: of two concurrent
    /// changes, one succeeds. Returns whether this one did.
    pub fn change_state(&self, node: NodeId, from: MemberStatus, to: MemberState) -> bool {
        let cell = &self.states[usize::from(node.0)];
        let to = from.changed_to(Some(to));
        cell.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Adds a node, or updates its state.
    pub fn learn(&self, member: Member, state: MemberState) {
        let node = member.layout.node;
        if node == NodeId(0) {
            // The main node's memory is known from the start.
            let _ = self.main_node_address.set(member.address);
            return;
        }
        let _ = self.known[usize::from(node.0)].get_or_init(|| member);
        self.set_state(node, state);
    }

    /// Returns the address of the main node; empty in a pool of one node.
    pub fn main_node_address(&self) -> &str {
        self.main_node_address.get().map_or("", String::as_str)
    }

    /// Iterates over the reachable nodes, main node first.
    pub fn reachable(&self) -> impl Iterator<Item = NodeId> + '_ {
        let nodes = (0..=u8::MAX).map(NodeId);
        nodes.filter(|node| self.is_reachable(*node))
    }

    /// Iterates over all known nodes and their states.
    pub fn all(&self) -> impl Iterator<Item = (&Member, MemberState)> {
        let nodes = (0..=u8::MAX).map(NodeId);
        nodes.filter_map(|node| Some((self.get(node)?, self.state(node)?)))
    }

    /// Returns whether this is the version that was read last.
    pub fn is_version(&self, version: u64) -> bool {
        self.version.load(Ordering::Acquire) == version
    }

    /// Reads the table if it has changed since the last read; returns whether it had. One round
    /// trip and 8 bytes if not, else two and 32 KiB.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn refresh<E: Endpoint>(
        &self,
        endpoint: &E,
        main_node: &NodeLayout,
    ) -> Result<bool, BatchError> {
        let mut batch = CountedBatch::new(endpoint, OperationKind::Control);
        let version = batch.read(main_node.members_version(), 1);
        endpoint.execute(&mut batch).await?;
        let version = batch.words(version)[0];
        if self.is_version(version) {
            return Ok(false);
        }
        batch.clear();
        // The main node writes entries before the version, so those of this version are there by
        // now.
        let size_words = MEMBER_COUNT_MAX as usize * MEMBER_SIZE_WORDS;
        let table = batch.read(main_node.member_entry(NodeId(0)), size_words);
        endpoint.execute(&mut batch).await?;
        // A slow reader's table may be older than what is known.
        let update_lock = lock(&self.update_lock);
        if self.version.load(Ordering::Acquire) < version {
            let entries = batch.words(table).chunks_exact(MEMBER_SIZE_WORDS);
            for (node, words) in (0..=u8::MAX).map(NodeId).zip(entries) {
                if let Some((member, state)) = Member::decode(node, words) {
                    self.learn(member, state);
                }
            }
            self.version.store(version, Ordering::Release);
        }
        drop(update_lock);
        Ok(true)
    }
}

/// Writes a node's entry and increments the version. Only the main node may call this.
///
/// # Errors
/// The fabric failed.
pub async fn write_member<E: Endpoint>(
    endpoint: &E,
    main_node: &NodeLayout,
    member: &Member,
    state: MemberState,
) -> Result<(), BatchError> {
    let place = main_node.member_entry(member.layout.node);
    let words = member.encode(state);
    let mut batch = CountedBatch::new(endpoint, OperationKind::Control);
    batch.write(place.offset(1), &words[1..]);
    batch.write_word(place, words[0]);
    batch.fetch_add(main_node.members_version(), 1);
    endpoint.execute(&mut batch).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: u8) -> Member {
        Member {
            layout: NodeLayout {
                node: NodeId(node),
                superblock: Superblock::new(64 << 20, 0x1122).expect("large enough"),
            },
            address: "10.0.0.7:7470".to_owned(),
        }
    }

    /// Promise: entries have these words; changing them changes the format version.
    #[test]
    fn entries_are_golden() {
        let words = member(3).encode(MemberState::Draining);
        assert_eq!(words[..4], [2, 0x1122, 64 << 20, 13]);
        assert_eq!(words[4], u64::from_le_bytes(*b"10.0.0.7"));
        assert_eq!(words[5], u64::from_le_bytes(*b":7470\0\0\0"));
        assert_eq!(words[6..15], [0; 9]);
        assert_eq!(words[15], u64::from(crc32c(&words[1..15])));
        let read = Member::decode(NodeId(3), &words);
        assert_eq!(read, Some((member(3), MemberState::Draining)));
    }

    /// Promise: invalid entries are rejected.
    #[test]
    fn damaged_entries_are_no_nodes() {
        let good = member(1).encode(MemberState::Active);
        assert!(Member::decode(NodeId(1), &[0; 16]).is_none());
        for (word, bits) in [(0, 8), (1, 1), (2, 1), (3, 200), (7, 1), (15, 1)] {
            let mut words = good;
            words[word] ^= bits;
            assert!(Member::decode(NodeId(1), &words).is_none(), "word {word}");
        }
        let mut long = good;
        long[3] = 89;
        long[15] = u64::from(crc32c(&long[1..15]));
        assert!(Member::decode(NodeId(1), &long).is_none());
    }

    /// Promise: a lost node stays lost, whatever state is reported later.
    #[test]
    fn lost_is_for_ever() {
        let members = Members::main_node_alone(member(0).layout);
        members.learn(member(1), MemberState::Active);
        members.learn(member(2), MemberState::Draining);
        let reachable = |members: &Members| members.reachable().map(|node| node.0).collect();
        let before: Vec<u8> = reachable(&members);
        assert_eq!(before, [0, 1, 2]);
        members.learn(member(1), MemberState::Lost);
        members.learn(member(1), MemberState::Active);
        assert_eq!(members.state(NodeId(1)), Some(MemberState::Lost));
        let after: Vec<u8> = reachable(&members);
        assert_eq!(after, [0, 2]);
        assert!(members.get(NodeId(1)).is_some() && members.get(NodeId(9)).is_none());
    }

    /// Promise: a process that has seen a node drain detects that it was kept in between and
    /// drained again; updates with known states change nothing.
    #[test]
    fn draining_twice_is_not_draining_on() {
        let members = Members::main_node_alone(member(0).layout);
        members.learn(member(1), MemberState::Draining);
        let node = NodeId(1);
        let first = members.member_status(node);
        members.learn(member(1), MemberState::Draining);
        assert_eq!(members.member_status(node), first, "nothing has changed");
        assert!(members.change_state(node, first, MemberState::Active));
        let active_status = members.member_status(node);
        assert!(members.change_state(node, active_status, MemberState::Draining));
        assert_eq!(members.state(node), Some(MemberState::Draining));
        assert_ne!(members.member_status(node), first);
        assert!(!members.change_state(node, first, MemberState::Left));
        assert_eq!(members.state(node), Some(MemberState::Draining));
    }
}
