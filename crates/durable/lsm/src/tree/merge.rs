//! Merging several sorted sources of entries into one.

use std::cmp::Ordering;
use std::fmt;

use crate::error::LsmError;
use crate::head::{KeySource, KnownKey};
use crate::tree::{Entry, whole_key};

/// Source of entries in ascending order of keys, each key once.
pub trait EntrySource {
    /// Returns the current entry; `None` behind the last one.
    fn entry(&self) -> Option<Entry<'_>>;

    /// Returns the size of its record in bytes, or an estimate
    /// ([`References`](crate::tree::References)).
    fn record_size_bytes(&self) -> u64;

    /// Advances to the next entry.
    ///
    /// # Errors
    /// The entry cannot be read.
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

/// Treatment of deletes in a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletes {
    /// Keep deletes: a lower level may have values that they delete.
    Keep,
    /// Drop deletes, together with the values that they delete.
    Omit,
}

/// Merge of several sources, each newer than those behind it. Of equal keys, it keeps the newest.
///
/// Keys are read from the log only if the known parts of two keys do not decide their order. Such a
/// key is read once and then known completely, also to the user of the entry. The merge has one
/// entry of each source in memory.
pub struct Merge<S, K> {
    sources: Vec<MergeInput<S>>,
    /// Sources that have an entry, in the order of their keys; of equal keys, the newer source
    /// first.
    order: Vec<usize>,
    deletes: Deletes,
    /// Whether the greatest key is first.
    is_descending: bool,
    keys: K,
}

struct MergeInput<S> {
    entries: S,
    /// Whole current key, if it was read from the log.
    whole: Option<Vec<u8>>,
    /// Number of the current key ([`KnownKey::number`]), cached: it decides most comparisons.
    number: Option<u128>,
}

impl<S: EntrySource> MergeInput<S> {
    fn entry(&self) -> Option<Entry<'_>> {
        let mut entry = self.entries.entry()?;
        if let Some(whole) = &self.whole {
            entry.key = KnownKey::whole(whole);
        }
        Some(entry)
    }

    fn read_whole_key(&mut self, keys: &dyn KeySource) -> Result<(), LsmError> {
        if let Some(entry) = self.entry()
            && entry.key.continues
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
    /// Creates a merge of these sources, newest first, positioned on the first entry.
    ///
    /// # Errors
    /// Errors of the sources and the log.
    pub fn new(sources: Vec<S>, deletes: Deletes, keys: K) -> Result<Self, LsmError> {
        Self::in_order(sources, deletes, keys, false)
    }

    /// Creates a descending merge of descending sources.
    ///
    /// # Errors
    /// Errors of the sources and the log.
    pub fn descending(sources: Vec<S>, deletes: Deletes, keys: K) -> Result<Self, LsmError> {
        Self::in_order(sources, deletes, keys, true)
    }

    fn in_order(
        sources: Vec<S>,
        deletes: Deletes,
        keys: K,
        is_descending: bool,
    ) -> Result<Self, LsmError> {
        let inputs = sources.into_iter().map(|entries| MergeInput {
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

    /// Inserts a source into the order by its current entry, if it has one.
    fn insert(&mut self, source: usize) -> Result<(), LsmError> {
        let input = &mut self.sources[source];
        let Some(entry) = input.entries.entry() else {
            return Ok(());
        };
        input.number = entry.key.number();
        // From the front: the source mostly stays first or becomes second.
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
            // Only keys that continue leave the order open, so this happens at most twice.
            self.sources[one].read_whole_key(&self.keys)?;
            self.sources[other].read_whole_key(&self.keys)?;
        }
    }

    /// Advances past the current entry and all others of the same key.
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
        while self.deletes == Deletes::Omit && self.entry().is_some_and(|it| it.is_delete) {
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

    /// Advances to the next key.
    ///
    /// # Errors
    /// Errors of the sources and the log; the merge is unusable afterwards.
    fn advance(&mut self) -> Result<(), LsmError> {
        self.step()?;
        self.pass_deletes()
    }
}
