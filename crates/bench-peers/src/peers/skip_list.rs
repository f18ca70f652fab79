//! crossbeam-skiplist: lock-free, the usual memtable.

use crossbeam_epoch::Guard;
use crossbeam_skiplist::SkipMap;

use super::first_records;
use crate::peer::{Client, Peer, PeerError, Work};

/// The map. Loaded in ascending order, so that neighbours lie near each other.
#[derive(Debug)]
pub struct SkipListPeer(SkipMap<u64, u64>);

impl SkipListPeer {
    /// Loads the keys with their first values.
    pub fn load(keys: &[u64]) -> Self {
        Self(first_records(keys).collect())
    }
}

/// The map pins the epoch in every operation; while this guard is held, that is a counter.
#[derive(Debug)]
pub struct SkipListClient<'a> {
    map: &'a SkipMap<u64, u64>,
    guard: Guard,
}

impl Peer for SkipListPeer {
    type Client<'a> = SkipListClient<'a>;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        Ok(SkipListClient {
            map: &self.0,
            guard: crossbeam_epoch::pin(),
        })
    }
}

impl Client for SkipListClient<'_> {
    #[inline]
    fn get(&mut self, key: u64) -> Result<Option<u64>, PeerError> {
        Ok(self.map.get(&key).map(|entry| *entry.value()))
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
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), PeerError> {
        records.clear();
        let found = self.map.range(from..).take(limit);
        records.extend(found.map(|entry| (*entry.key(), *entry.value())));
        Ok(())
    }

    #[inline]
    fn pause(&mut self) {
        self.guard.repin();
    }
}
