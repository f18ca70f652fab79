//! crossbeam-skiplist: a lock-free skip list, as used in memtables.

use crossbeam_epoch::Guard;
use crossbeam_skiplist::SkipMap;

use crate::peer::{Client, Peer, PeerError, Work};
use crate::records::{Sink, WordRecords};

/// Map, loaded in ascending order, so that neighbors are close in memory.
#[derive(Debug)]
pub struct SkipListPeer(SkipMap<u64, u64>);

impl SkipListPeer {
    /// Loads the keys with their first values.
    pub fn load(records: &WordRecords) -> Self {
        Self(records.first().collect())
    }
}

/// Client with a guard: the map pins the epoch in every operation, which is only a counter while
/// the guard is held.
#[derive(Debug)]
pub struct SkipListClient<'a> {
    map: &'a SkipMap<u64, u64>,
    guard: Guard,
}

impl Peer<WordRecords> for SkipListPeer {
    type Client<'a> = SkipListClient<'a>;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        Ok(SkipListClient {
            map: &self.0,
            guard: crossbeam_epoch::pin(),
        })
    }
}

impl Client<WordRecords> for SkipListClient<'_> {
    #[inline]
    fn get(&mut self, key: u64, sink: &mut impl Sink<WordRecords>) -> Result<(), PeerError> {
        sink.value(self.map.get(&key).map(|entry| *entry.value()));
        Ok(())
    }

    #[inline]
    fn put(&mut self, key: u64, value: u64) -> Result<(), PeerError> {
        self.map.insert(key, value);
        Ok(())
    }

    #[inline]
    fn scan(
        &mut self,
        from: u64,
        limit: usize,
        sink: &mut impl Sink<WordRecords>,
    ) -> Result<(), PeerError> {
        let found = self.map.range(from..).take(limit);
        found.for_each(|entry| sink.record(*entry.key(), *entry.value()));
        Ok(())
    }

    #[inline]
    fn pause(&mut self) -> Result<(), PeerError> {
        self.guard.repin();
        Ok(())
    }
}
