//! Who holds something, and which table it belongs to.

use core::fmt;

/// A session's number in the pool: 1 to 32767, reused by later incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u16);

impl SessionId {
    const MAX: u16 = 0x7FFF;

    /// The session with this number; `None` for 0, which stands for "free" in an owner word, and
    /// beyond what that has room for.
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number > Self::MAX {
            None
        } else {
            Some(Self(number))
        }
    }

    /// The number, never 0.
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// Which life of a [`SessionId`] is meant: 48 bits, never reused in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u64);

impl Incarnation {
    const BITS: u32 = 48;
    /// Largest incarnation.
    pub const MAX: u64 = (1 << Self::BITS) - 1;

    /// Panics when the number needs more than 48 bits.
    pub const fn new(number: u64) -> Self {
        assert!(number <= Self::MAX, "incarnation beyond 48 bits");
        Self(number)
    }

    /// The number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A lock word or the owner of a leased chunk, as stored in far memory.
///
/// ```text
/// bit  63   62      48 47                                          0
///     [ H ] [ session ] [               incarnation                ]      0 = free
/// ```
///
/// H: the lock was handed over to this session by another one of its process (data layer, H2).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct OwnerWord(u64);

impl OwnerWord {
    /// Nobody holds it.
    pub const FREE: Self = Self(0);

    const HANDED: u64 = 1 << 63;

    /// Held by this life of this session.
    pub const fn new(session: SessionId, incarnation: Incarnation) -> Self {
        Self(((session.0 as u64) << Incarnation::BITS) | incarnation.0)
    }

    /// The word as stored.
    #[inline]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Reads a stored word.
    #[inline]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Reads a session's name as it was given to it: `None` when the word is no valid owner, or
    /// carries the flag, which belongs to a lock.
    pub const fn from_name(word: u64) -> Option<Self> {
        let owner = Self(word);
        match owner.holder() {
            Some(_) if word & Self::HANDED == 0 => Some(owner),
            _ => None,
        }
    }

    /// True when nobody holds it.
    #[inline]
    pub const fn is_free(self) -> bool {
        self.0 == 0
    }

    /// The same owner, to whom another one hands a lock over.
    #[must_use]
    pub const fn handed(self) -> Self {
        Self(self.0 | Self::HANDED)
    }

    /// The holder, whatever way it came to the lock; `None` when free or when the word is no valid
    /// owner (session 0).
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

/// A table of a pool: never 0, never reused in the life of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u32);

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.0)
    }
}

/// A point in the history of what has been taken away from readers (DESIGN D7): it grows when a
/// table is dropped, and a session publishes how far it has followed.
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

    /// Promise: a name that a session was given is never the flagged word of a lock.
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
