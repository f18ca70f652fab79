//! Identifiers of owners (session and incarnation) and of tables.

use core::fmt;

/// Number of a session in its pool: 1 to 32767, reused by later incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u16);

impl SessionId {
    const MAX: u16 = 0x7FFF;

    /// Returns the session with this number; `None` for 0, which means "free" in an owner word, and
    /// for numbers that do not fit into an owner word.
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number > Self::MAX {
            None
        } else {
            Some(Self(number))
        }
    }

    /// Returns the number, never 0.
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// Number that tells successive users of a [`SessionId`] apart: 48 bits, never reused in a node's
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u64);

impl Incarnation {
    const BITS: u32 = 48;
    /// Largest incarnation.
    pub const MAX: u64 = (1 << Self::BITS) - 1;

    /// Returns the incarnation with this number.
    ///
    /// # Panics
    /// The number needs more than 48 bits.
    pub const fn new(number: u64) -> Self {
        assert!(number <= Self::MAX, "incarnation beyond 48 bits");
        Self(number)
    }

    /// Returns the number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Stored form of a lock word, or of the owner of a leased chunk.
///
/// ```text
/// bit  63   62      48 47                                          0
///     [ H ] [ session ] [               incarnation                ]      0 = free
/// ```
///
/// H: another session of the same process handed the lock over to this session (see
/// docs/explanation/trees.md, *Local locks*).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct OwnerWord(u64);

impl OwnerWord {
    /// Word without an owner.
    pub const FREE: Self = Self(0);

    const HANDED: u64 = 1 << 63;

    /// Returns the word that names this incarnation of the session as owner.
    pub const fn new(session: SessionId, incarnation: Incarnation) -> Self {
        Self(((session.0 as u64) << Incarnation::BITS) | incarnation.0)
    }

    /// Returns the word in its stored form.
    #[inline]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Reads a stored word.
    #[inline]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Reads the owner word that names a session; `None` if the word is not a valid owner or has
    /// the handover flag, which occurs only in locks.
    pub const fn from_name(word: u64) -> Option<Self> {
        let owner = Self(word);
        match owner.holder() {
            Some(_) if word & Self::HANDED == 0 => Some(owner),
            _ => None,
        }
    }

    /// Returns true if the word names no owner.
    #[inline]
    pub const fn is_free(self) -> bool {
        self.0 == 0
    }

    /// Returns the same owner with the handover flag: another session handed the lock over to it.
    #[must_use]
    pub const fn handed(self) -> Self {
        Self(self.0 | Self::HANDED)
    }

    /// Returns the owner, with or without the handover flag; `None` if the word is free or not a
    /// valid owner (session 0).
    pub const fn holder(self) -> Option<(SessionId, Incarnation)> {
        match SessionId::new((self.0 >> Incarnation::BITS) as u16 & SessionId::MAX) {
            Some(session) => Some((session, Incarnation(self.0 & Incarnation::MAX))),
            None => None,
        }
    }
}

impl fmt::Debug for OwnerWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holder() {
            Some((session, incarnation)) => {
                write!(f, "session {}.{}", session.number(), incarnation.number())
            }
            None if self.is_free() => f.write_str("free"),
            None => write!(f, "invalid owner {:#x}", self.0),
        }
    }
}

impl fmt::Display for OwnerWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Number of a table in its pool: never 0, never reused in a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u32);

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.0)
    }
}

/// Point in the sequence of removals of memory that readers may still use (LEAF-7). The number
/// grows when a table is dropped; a session publishes how far it has followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceNumber(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_bits_are_golden() {
        let session = SessionId::new(0x1234).expect("not zero");
        let owner = OwnerWord::new(session, Incarnation::new(0x5678_9ABC_DEF0));
        assert_eq!(owner.word(), 0x1234_5678_9ABC_DEF0);
        assert_eq!(
            owner.holder(),
            Some((session, Incarnation::new(0x5678_9ABC_DEF0)))
        );
        assert_eq!(owner.handed().word(), 0x9234_5678_9ABC_DEF0);
        assert_eq!(owner.handed().holder(), owner.holder());
    }

    /// Promise: a word with the handover flag is never accepted as the name of a session.
    #[test]
    fn a_flagged_word_is_nobodys_name() {
        let session = SessionId::new(0x1234).expect("not zero");
        let owner = OwnerWord::new(session, Incarnation::new(7));
        assert_eq!(OwnerWord::from_name(owner.word()), Some(owner));
        assert_eq!(OwnerWord::from_name(owner.handed().word()), None);
        assert_eq!(OwnerWord::from_name(0), None);
        assert_eq!(OwnerWord::from_name(42), None);
    }

    #[test]
    fn free_and_invalid_owners_have_no_holder() {
        assert!(OwnerWord::FREE.is_free());
        assert_eq!(OwnerWord::FREE.holder(), None);
        let invalid = OwnerWord::from_word(42);
        assert!(!invalid.is_free());
        assert_eq!(invalid.holder(), None);
        assert_eq!(SessionId::new(0), None);
        assert_eq!(SessionId::new(0x8000), None);
    }
}
