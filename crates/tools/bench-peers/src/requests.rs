//! Requests: drawn before the clock starts, the same for all maps.

use farleaf_bench::distribution::{below, numbered_stream};

use crate::records::Records;

/// Requests of one thread in one round: existing keys, each equally likely.
#[derive(Clone, Debug)]
pub struct Requests<R> {
    /// Requested records, adjacent in their order, so that no map waits for the keys themselves.
    requested: R,
    ranks: Vec<u32>,
    warm_up_count: usize,
}

impl<R: Records> Requests<R> {
    /// Draws `count` requests for timing, and a tenth as many for warming up.
    ///
    /// `stream_index` selects one of the seed's random streams. Every round and thread uses another
    /// one, so that no round finds the requests of the previous one in the caches.
    ///
    /// # Panics
    /// There are no keys, or 2^32 or more.
    pub fn draw(records: &R, count: usize, seed: u64, stream_index: usize) -> Self {
        assert!(
            records.count() > 0 && u32::try_from(records.count()).is_ok(),
            "requests are for 1 to 2^32 - 1 records"
        );
        let warm_up_count = count.div_ceil(10);
        let mut random = numbered_stream(seed, stream_index);
        let draw_rank = |_| below(&mut random, records.count() as u64) as u32;
        let ranks: Vec<u32> = (0..warm_up_count + count).map(draw_rank).collect();
        Self {
            requested: records.pick(&ranks),
            ranks,
            warm_up_count,
        }
    }

    /// Returns the requested records.
    pub fn records(&self) -> &R {
        &self.requested
    }

    /// Returns the number of timed requests.
    pub fn timed_count(&self) -> usize {
        self.ranks.len() - self.warm_up_count
    }

    /// Returns the keys requested before the clock starts, and while it runs.
    pub fn keys(&self) -> (Vec<R::Item<'_>>, Vec<R::Item<'_>>) {
        let mut warm_up: Vec<_> = (0..self.requested.count())
            .map(|place| self.requested.key(place))
            .collect();
        let timed = warm_up.split_off(self.warm_up_count);
        (warm_up, timed)
    }

    /// Returns the ranks of the timed requests.
    pub fn timed_ranks(&self) -> &[u32] {
        &self.ranks[self.warm_up_count..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::WordRecords;

    /// Promise: requests are for existing keys, ranks name the same keys, and the stream determines
    /// them, not the call.
    #[test]
    fn requests_name_keys_that_are_there() {
        let records = WordRecords::new((0..1000).map(|rank| rank * 7).collect());
        let requests = Requests::draw(&records, 500, 3, 2);
        let (warm_up, timed) = requests.keys();
        assert_eq!((warm_up.len(), timed.len()), (50, 500));
        assert_eq!(requests.timed_count(), 500);
        let ranks = requests.timed_ranks().iter();
        assert!(ranks.map(|rank| records.key(*rank as usize)).eq(timed));
        let again = Requests::draw(&records, 500, 3, 2);
        let other = Requests::draw(&records, 500, 3, 4);
        assert_eq!(again.keys(), requests.keys());
        assert_ne!(other.keys(), requests.keys());
    }
}
