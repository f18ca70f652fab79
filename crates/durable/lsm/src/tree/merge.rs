//! Many ascending sources of entries as one (LC2).

use std::cmp::Ordering;
use std::fmt;

use crate::error::LsmError;
use crate::head::{KeySource, KnownKey};
use crate::tree::{Entry, whole_key};

/// Entries in ascending order of their keys, each key once.
pub trait EntrySource {
    /// The current one; `None` behind the last one.
    fn entry(&self) -> Option<Entry<'_>>;

    /// Size of its record, as far as that is known ([`References`](crate::tree::References)).
    fn record_size_bytes(&self) -> u64;

    /// Goes to the next one.
    ///
    /// # Errors
    /// It cannot be read.
    fn advance(&mut self) -> Result<(), LsmError>;
}

impl<S: EntrySource + ?Sized> EntrySource for Box<S> {
    fn entry(&self) -> Option<Entry<'_>> {
        (**self).entry()
    }

    fn record_size_bytes(&self) -> u64 {
        (**self).record_size_bytes()
    }

    fn advance(&mut self) -> Result<(), LsmError> {
        (**self).advance()
    }
}

/// What becomes of deletes in a merge (LC2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletes {
    /// They stay: a level below may have what they delete.
    Stay,
    /// They go, with what they delete.
    Go,
}

/// Merges sources, of which each is newer than all behind it: of equal keys the newest stays.
///
/// Keys are read from the log only where what is known of two of them does not tell which is less:
/// such a key is read once, and from then on, also for whoever takes the entry, known whole. It has
/// one entry of each source in memory.
pub struct Merge<S, K> {
    sources: Vec<Input<S>>,
    /// Those that have an entry, by its key; of equal ones the newer first.
    order: Vec<usize>,
    deletes: Deletes,
    /// The greatest key comes first.
    is_descending: bool,
    keys: K,
}

struct Input<S> {
    entries: S,
    /// The current key, if it was read from the log.
    whole: Option<Vec<u8>>,
    /// Of the current key: it tells most of them apart, and nobody has to be asked for it.
    number: Option<u128>,
}

impl<S: EntrySource> Input<S> {
    fn entry(&self) -> Option<Entry<'_>> {
        let mut entry = self.entries.entry()?;
        if let Some(whole) = &self.whole {
            entry.key = KnownKey::whole(whole);
        }
        Some(entry)
    }

    fn learn(&mut self, keys: &dyn KeySource) -> Result<(), LsmError> {
        if let Some(entry) = self.entry()
            && entry.key.goes_on
        {
            let whole = whole_key(entry.key, entry.position, keys)?;
            self.whole = Some(whole);
        }
        Ok(())
    }
}

impl<S: EntrySource, K: KeySource> fmt::Debug for Merge<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "merge of {} sources, at {:?}",
            self.sources.len(),
            self.entry()
        )
    }
}

impl<S: EntrySource, K: KeySource> Merge<S, K> {
    /// Of these sources, the newest first. The first entry is the current one then.
    ///
    /// # Errors
    /// Those of the sources and the log.
    pub fn new(sources: Vec<S>, deletes: Deletes, keys: K) -> Result<Self, LsmError> {
        Self::in_order(sources, deletes, (keys, false))
    }

    /// Of sources that descend: so does the merge.
    ///
    /// # Errors
    /// Those of the sources and the log.
    pub fn descending(sources: Vec<S>, deletes: Deletes, keys: K) -> Result<Self, LsmError> {
        Self::in_order(sources, deletes, (keys, true))
    }

    fn in_order(
        sources: Vec<S>,
        deletes: Deletes,
        (keys, is_descending): (K, bool),
    ) -> Result<Self, LsmError> {
        let inputs = sources.into_iter().map(|entries| Input {
            entries,
            whole: None,
            number: None,
        });
        let mut merge = Self {
            sources: inputs.collect(),
            order: Vec::new(),
            deletes,
            is_descending,
            keys,
        };
        for source in 0..merge.sources.len() {
            merge.insert(source)?;
        }
        merge.pass_deletes()?;
        Ok(merge)
    }

    /// Puts a source where it belongs by its current entry, if it has one.
    fn insert(&mut self, source: usize) -> Result<(), LsmError> {
        let input = &mut self.sources[source];
        let Some(entry) = input.entries.entry() else {
            return Ok(());
        };
        input.number = entry.key.number();
        // From the front: mostly it is the next one again, or the second.
        let mut place = 0;
        while let Some(other) = self.order.get(place).copied() {
            let mut by_key = self.compare(other, source)?;
            if self.is_descending {
                by_key = by_key.reverse();
            }
            if by_key.then(other.cmp(&source)).is_ge() {
                break;
            }
            place += 1;
        }
        self.order.insert(place, source);
        Ok(())
    }

    /// Compares the current keys of two sources that have one.
    fn compare(&mut self, one: usize, other: usize) -> Result<Ordering, LsmError> {
        let numbers = [one, other].map(|source| self.sources[source].number);
        if let [Some(number), Some(other_number)] = numbers
            && number != other_number
        {
            return Ok(number.cmp(&other_number));
        }
        loop {
            let known = |source: usize| self.sources[source].entry().map(|it| it.key);
            let (Some(key), Some(other_key)) = (known(one), known(other)) else {
                unreachable!("sources without an entry are not in the order");
            };
            if let Some(order) = key.compare(other_key) {
                return Ok(order);
            }
            // Only keys that go on leave it open, so this is done twice at the most.
            self.sources[one].learn(&self.keys)?;
            self.sources[other].learn(&self.keys)?;
        }
    }

    /// Goes on from the current entry, and past all of the same key.
    fn step(&mut self) -> Result<(), LsmError> {
        if self.order.is_empty() {
            return Ok(());
        }
        let newest = self.order[0];
        while let Some(older) = self.order.get(1).copied() {
            if self.compare(newest, older)? != Ordering::Equal {
                break;
            }
            self.order.remove(1);
            self.advance_source(older)?;
        }
        self.order.remove(0);
        self.advance_source(newest)
    }

    fn advance_source(&mut self, source: usize) -> Result<(), LsmError> {
        self.sources[source].whole = None;
        self.sources[source].entries.advance()?;
        self.insert(source)
    }

    fn pass_deletes(&mut self) -> Result<(), LsmError> {
        while self.deletes == Deletes::Go && self.entry().is_some_and(|it| it.is_delete) {
            self.step()?;
        }
        Ok(())
    }
}

impl<S: EntrySource, K: KeySource> EntrySource for Merge<S, K> {
    fn entry(&self) -> Option<Entry<'_>> {
        self.sources[*self.order.first()?].entry()
    }

    fn record_size_bytes(&self) -> u64 {
        let first = self.order.first();
        first.map_or(0, |it| self.sources[*it].entries.record_size_bytes())
    }

    /// Goes to the next key.
    ///
    /// # Errors
    /// Those of the sources and the log: the merge is of no use then.
    fn advance(&mut self) -> Result<(), LsmError> {
        self.step()?;
        self.pass_deletes()
    }
}
