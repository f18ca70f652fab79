//! congee: an adaptive radix tree with optimistic lock coupling, for keys of exactly 8 bytes.

use congee::U64Congee;
use crossbeam_epoch::Guard;

use crate::peer::{Client, Peer, PeerError, Work};
use crate::records::{Sink, WordRecords};

/// A `congee` tree into which the keys were inserted in ascending order.
pub struct CongeePeer(U64Congee<usize>);

impl CongeePeer {
    /// Loads the keys with their first values.
    ///
    /// # Errors
    /// Out of memory.
    pub fn load(records: &WordRecords) -> Result<Self, PeerError> {
        let tree = U64Congee::new();
        let mut guard = crossbeam_epoch::pin();
        for (key, value) in records.first() {
            let inserted = tree.insert(key, value as usize, &guard);
            inserted.map_err(|_| PeerError::Congee)?;
            guard.repin();
        }
        Ok(Self(tree))
    }
}

/// Client that stays pinned between pauses.
pub struct CongeeClient<'a> {
    tree: &'a U64Congee<usize>,
    guard: Guard,
    found: Vec<([u8; 8], usize)>,
}

impl Peer<WordRecords> for CongeePeer {
    type Client<'a> = CongeeClient<'a>;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        Ok(CongeeClient {
            tree: &self.0,
            guard: crossbeam_epoch::pin(),
            found: Vec::new(),
        })
    }
}

impl CongeeClient<'_> {
    /// Adds the largest key of all by a get, since congee's scans exclude their upper bound.
    fn add_largest(&self, sink: &mut impl Sink<WordRecords>) {
        if let Some(value) = self.tree.get(u64::MAX, &self.guard) {
            sink.record(u64::MAX, value as u64);
        }
    }
}

impl Client<WordRecords> for CongeeClient<'_> {
    #[inline]
    fn get(&mut self, key: u64, sink: &mut impl Sink<WordRecords>) -> Result<(), PeerError> {
        sink.value(self.tree.get(key, &self.guard).map(|value| value as u64));
        Ok(())
    }

    #[inline]
    fn put(&mut self, key: u64, value: u64) -> Result<(), PeerError> {
        let put = self.tree.insert(key, value as usize, &self.guard);
        put.map(drop).map_err(|_| PeerError::Congee)
    }

    #[inline]
    fn scan(
        &mut self,
        from: u64,
        limit: usize,
        sink: &mut impl Sink<WordRecords>,
    ) -> Result<(), PeerError> {
        self.found.resize(limit, ([0; 8], 0));
        let count = self
            .tree
            .range(from, u64::MAX, &mut self.found, &self.guard);
        let found = &self.found[..count];
        for (key, value) in found {
            sink.record(u64::from_be_bytes(*key), *value as u64);
        }
        let has_largest = found.last().is_some_and(|(key, _)| *key == [0xFF; 8]);
        if count < limit && !has_largest {
            self.add_largest(sink);
        }
        Ok(())
    }

    #[inline]
    fn pause(&mut self) -> Result<(), PeerError> {
        self.guard.repin();
        Ok(())
    }
}
