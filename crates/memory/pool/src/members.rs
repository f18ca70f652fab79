//! The nodes of a pool: their table in the home node's region, and what a process knows of it.
//!
//! A node's entry is two blocks of the home node's region, by the node's number:
//!
//! | word | meaning |
//! |---|---|
//! | 0 | state: 0 = no such node, 1 = active, 2 = draining, 3 = left, 4 = lost |
//! | 1 | number of its region |
//! | 2 | size of its region in bytes |
//! | 3 | size of its address in bytes |
//! | 4..15 | its address: `HOST:PORT` |
//! | 15 | CRC-32C over words 1 to 14 |
//!
//! - **U1.** Node 0 is the pool's *home*. In its region are the catalog, the sessions, the sequence
//!   number, the retraining queue, all snapshots and synonym leaf tables, and the first leaf of
//!   every table. The others have leaves, and a chunk table of their own.
//! - **U2.** A number is given to a region, once: a node that comes back empty gets another one, so
//!   no address of the lost one ever leads into it.
//! - **U3.** The home node alone writes the table: words 1 to 15 of an entry, then its state, in
//!   one batch, then it advances the version. States go from active to draining and back, from
//!   draining to left, and from any of these to lost.
//! - **U4.** A lost node stays lost: whoever has seen that posts nothing to it any more, and what
//!   was on it is gone. Whoever has not may still work on it for a moment, which is as if the node
//!   had been lost a moment later.
//! - **U5.** Chunks are claimed on active nodes only; one claimed on a node that is draining was
//!   chosen before its claimant saw that, and is moved away like the others.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use farleaf_fabric::{Batch, BatchError, Endpoint, OperationKind};
use farleaf_types::{BLOCK_SIZE_WORDS, NodeId, crc32c};

use crate::layout::{RegionLayout, Superblock};

/// Node numbers of a pool: what fits into an address.
pub const MEMBER_COUNT_MAX: u64 = 256;
/// Blocks of an entry.
pub(crate) const MEMBER_SIZE_BLOCKS: u64 = 2;
/// Words of an entry.
pub const MEMBER_SIZE_WORDS: usize = 16;
const ADDRESS_WORD: usize = 4;
const CHECKSUM_WORD: usize = 15;
/// The longest address, in bytes.
pub const MEMBER_ADDRESS_SIZE_BYTES_MAX: usize = (CHECKSUM_WORD - ADDRESS_WORD) * 8;

const _: () = assert!(MEMBER_SIZE_WORDS as u64 == MEMBER_SIZE_BLOCKS * BLOCK_SIZE_WORDS);
const _: () = assert!(MEMBER_COUNT_MAX == NodeId(u8::MAX).0 as u64 + 1);

/// What is to become of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MemberState {
    /// It takes new chunks.
    Active = 1,
    /// It takes none, and its leaves are moved to other nodes.
    Draining = 2,
    /// It has been drained: nothing of the pool is on it.
    Left = 3,
    /// It is gone, and what was on it (U4).
    Lost = 4,
}

impl MemberState {
    const ALL: [Self; 4] = [Self::Active, Self::Draining, Self::Left, Self::Lost];

    /// The state of a number; `None`: there is no such node, or this version knows no such state.
    pub fn from_word(word: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u64 == word)
    }

    /// Whether anything can be on it, and be reached.
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

/// How a node stands: its state, and how often that has changed as far as this process knows. Two
/// that are equal have nothing between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing(u64);

impl Standing {
    const STATE_BITS: u32 = 8;

    /// What is to become of it; `None`: it is not known.
    #[inline]
    pub fn state(self) -> Option<MemberState> {
        MemberState::from_word(self.0 & ((1 << Self::STATE_BITS) - 1))
    }

    fn changed_to(self, state: Option<MemberState>) -> Self {
        let count = (self.0 >> Self::STATE_BITS) + 1;
        Self(count << Self::STATE_BITS | state.map_or(0, |state| state as u64))
    }
}

/// A node of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where things are in its region.
    pub layout: RegionLayout,
    /// Where it is reached: `HOST:PORT`.
    pub address: String,
}

impl Member {
    /// Its entry, with a state.
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
        words[1] = self.layout.superblock.region_id;
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

    /// Reads an entry; `None`: there is no such node, or the entry is torn or damaged.
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
            layout: RegionLayout { node, superblock },
            address: address.to_owned(),
        };
        Some((member, state))
    }
}

/// What a process knows of the nodes of its pool. It only ever learns: entries do not change but
/// for their states.
#[derive(Debug)]
pub struct Members {
    known: Box<[OnceLock<Member>]>,
    /// The state in the lowest byte, above it how often it has changed.
    states: Box<[AtomicU64]>,
    /// Where the home is reached, if the pool has, or may have, several nodes.
    home_address: OnceLock<String>,
    /// The version of the table that was read last.
    version: AtomicU64,
    /// Held by who takes over what was read.
    learning: Mutex<()>,
}

impl Members {
    /// The home node alone.
    pub(crate) fn home_alone(home: RegionLayout) -> Self {
        let count = MEMBER_COUNT_MAX as usize;
        let members = Self {
            known: (0..count).map(|_| OnceLock::new()).collect(),
            states: (0..count).map(|_| AtomicU64::new(0)).collect(),
            home_address: OnceLock::new(),
            version: AtomicU64::new(0),
            learning: Mutex::default(),
        };
        let member = Member {
            layout: home,
            address: String::new(),
        };
        // A fresh place takes what is put into it.
        let _ = members.known[usize::from(home.node.0)].set(member);
        members.set_state(home.node, MemberState::Active);
        members
    }

    /// A node, if it is known, be it lost.
    #[inline]
    pub fn get(&self, node: NodeId) -> Option<&Member> {
        self.known[usize::from(node.0)].get()
    }

    /// What is to become of it, as far as is known.
    #[inline]
    pub fn state(&self, node: NodeId) -> Option<MemberState> {
        self.standing(node).state()
    }

    /// The same, and how often it has changed.
    #[inline]
    pub fn standing(&self, node: NodeId) -> Standing {
        Standing(self.states[usize::from(node.0)].load(Ordering::Acquire))
    }

    fn set_state(&self, node: NodeId, state: MemberState) {
        let cell = &self.states[usize::from(node.0)];
        // U4. An error is that it is lost already, or what it should be.
        let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            let (now, state) = (Standing(now), Some(state));
            let changes = now.state() != Some(MemberState::Lost) && now.state() != state;
            changes.then(|| now.changed_to(state).0)
        });
    }

    /// Changes what is to become of a node, if that has not changed since it stood so: of two who
    /// change it, one.
    pub fn change_state(&self, node: NodeId, from: Standing, to: MemberState) -> bool {
        let cell = &self.states[usize::from(node.0)];
        let to = from.changed_to(Some(to));
        cell.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Learns of a node, or of its new state.
    pub fn learn(&self, member: Member, state: MemberState) {
        let node = member.layout.node;
        if node == NodeId(0) {
            // Its region is known from the beginning.
            let _ = self.home_address.set(member.address);
            return;
        }
        let _ = self.known[usize::from(node.0)].get_or_init(|| member);
        self.set_state(node, state);
    }

    /// Where the home is reached; empty in a pool of one node.
    pub fn home_address(&self) -> &str {
        self.home_address.get().map_or("", String::as_str)
    }

    /// The nodes that can be reached, home first.
    pub fn reachable(&self) -> impl Iterator<Item = NodeId> + '_ {
        let nodes = (0..=u8::MAX).map(NodeId);
        nodes.filter(|node| self.state(*node).is_some_and(MemberState::is_reachable))
    }

    /// All nodes that are known, with their states.
    pub fn all(&self) -> impl Iterator<Item = (&Member, MemberState)> {
        let nodes = (0..=u8::MAX).map(NodeId);
        nodes.filter_map(|node| Some((self.get(node)?, self.state(node)?)))
    }

    /// Whether the version that was read last is this one.
    pub fn is_version(&self, version: u64) -> bool {
        self.version.load(Ordering::Acquire) == version
    }

    /// Reads the table if it has changed since it was read last; returns whether it had. One round
    /// trip and 8 bytes if not, else two and 32 KiB.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn refresh<E: Endpoint>(
        &self,
        endpoint: &E,
        home: &RegionLayout,
    ) -> Result<bool, BatchError> {
        let mut batch = Batch::new();
        let version = batch.read(home.members_version(), 1);
        let read = endpoint.execute(&mut batch).await;
        let version = read.map(|()| batch.words(version)[0]);
        let count = |batch: &mut Batch| {
            let counters = endpoint.counters();
            counters.record(OperationKind::Control, &batch.take_cost());
        };
        if version
            .as_ref()
            .is_ok_and(|version| self.is_version(*version))
        {
            count(&mut batch);
            return Ok(false);
        }
        let version = version?;
        batch.clear();
        // U3: what this version is about is there by now.
        let size_words = MEMBER_COUNT_MAX as usize * MEMBER_SIZE_WORDS;
        let table = batch.read(home.member_entry(NodeId(0)), size_words);
        let read = endpoint.execute(&mut batch).await;
        // What was read by somebody slow may be older than what is known.
        let learning = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
        let is_newer = self.version.load(Ordering::Acquire) < version;
        if read.is_ok() && is_newer {
            let entries = batch.words(table).chunks_exact(MEMBER_SIZE_WORDS);
            for (node, words) in (0..=u8::MAX).map(NodeId).zip(entries) {
                if let Some((member, state)) = Member::decode(node, words) {
                    self.learn(member, state);
                }
            }
            self.version.store(version, Ordering::Release);
        }
        drop(learning);
        count(&mut batch);
        read.map(|()| true)
    }
}

/// U3, for the home node: writes a node's entry, and lets everybody see it.
///
/// # Errors
/// The fabric failed.
pub async fn write_member<E: Endpoint>(
    endpoint: &E,
    home: &RegionLayout,
    member: &Member,
    state: MemberState,
) -> Result<(), BatchError> {
    let place = home.member_entry(member.layout.node);
    let words = member.encode(state);
    let mut batch = Batch::new();
    batch.write(place.offset(1), &words[1..]);
    batch.write_word(place, words[0]);
    batch.fetch_add(home.members_version(), 1);
    let written = endpoint.execute(&mut batch).await;
    let counters = endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: u8) -> Member {
        Member {
            layout: RegionLayout {
                node: NodeId(node),
                superblock: Superblock::new(64 << 20, 0x1122).expect("large enough"),
            },
            address: "10.0.0.7:7470".to_owned(),
        }
    }

    /// Promise: entries are these words; a change of them is a change of the format version.
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

    /// Promise: what is no entry is not taken for one.
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

    /// Promise (U4): whatever is said later, a lost node stays lost.
    #[test]
    fn lost_is_for_ever() {
        let members = Members::home_alone(member(0).layout);
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

    /// Promise (V5): who has seen a node drain does not take it for the same draining when it was
    /// kept in between, and learning what is known changes nothing.
    #[test]
    fn draining_twice_is_not_draining_on() {
        let members = Members::home_alone(member(0).layout);
        members.learn(member(1), MemberState::Draining);
        let node = NodeId(1);
        let first = members.standing(node);
        members.learn(member(1), MemberState::Draining);
        assert_eq!(members.standing(node), first, "nothing has changed");
        assert!(members.change_state(node, first, MemberState::Active));
        let kept = members.standing(node);
        assert!(members.change_state(node, kept, MemberState::Draining));
        assert_eq!(members.state(node), Some(MemberState::Draining));
        assert_ne!(members.standing(node), first);
        assert!(!members.change_state(node, first, MemberState::Left));
        assert_eq!(members.state(node), Some(MemberState::Draining));
    }
}
