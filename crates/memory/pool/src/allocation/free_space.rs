//! Free chunks, and the choice among them.
//!
//! The first chunks of a node's memory are the *reserve*. Only retraining takes them, mainly for
//! snapshots, which need many adjacent chunks and are the first thing that it writes in a full
//! pool. Of the others, chunks that were handed out before come first, and among sufficient pieces
//! the smallest. So large pieces and untouched memory are preserved.

use crate::chunk::{ChunkEntry, ChunkPurpose};
use crate::layout::ChunkIndex;
use farleaf_base::NodeId;

/// The reserve has one of this many chunks: enough for two snapshots, because the old one
/// waits for its grace period while the next is written, and a piece of a run.
const RESERVE_SHARE: u64 = 32;
/// Divisor of the chunks in small pools: their reserve is as large as in a pool of 32 MiB, up to
/// this share. In the smallest it is four chunks, up to a quarter.
const SMALL_RESERVE_SHARE: u64 = 8;
const SMALL_RESERVE_COUNT_MAX: u64 = 16;
const LEAST_RESERVE_SHARE: u64 = 4;
const LEAST_RESERVE_COUNT_MAX: u64 = 4;

/// Range of adjacent chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRange {
    /// First chunk.
    pub first: ChunkIndex,
    /// Number of chunks.
    pub count: u64,
}

impl ChunkRange {
    /// Returns the range of one chunk.
    pub const fn one(first: ChunkIndex) -> Self {
        Self { first, count: 1 }
    }

    /// Returns the chunks with these numbers on a node.
    pub(super) fn of(self, node: NodeId) -> Self {
        Self {
            first: ChunkIndex::new(node, self.first.number()),
            ..self
        }
    }

    /// Iterates over the chunks in ascending order.
    pub fn iter(self) -> impl Iterator<Item = ChunkIndex> {
        (self.first.0..self.first.0 + self.count).map(ChunkIndex)
    }

    /// Returns the chunk after the last.
    pub fn end(self) -> ChunkIndex {
        ChunkIndex(self.first.0 + self.count)
    }
}

/// Returns the number of chunks reserved for retraining, of this total.
pub(crate) fn reserve_count(chunk_count: u64) -> u64 {
    let small = (chunk_count / SMALL_RESERVE_SHARE).min(SMALL_RESERVE_COUNT_MAX);
    let least = (chunk_count / LEAST_RESERVE_SHARE).min(LEAST_RESERVE_COUNT_MAX);
    (chunk_count / RESERVE_SHARE).max(small).max(least)
}

/// Chunks that may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkSource {
    /// Chunks outside the reserve.
    Open,
    /// All chunks, those of the reserve only if there are no others.
    ReserveToo,
}

/// Space that must stay free for later claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaterClaims {
    /// Number of adjacent chunks.
    pub piece_count: u64,
    /// Number of further chunks.
    pub single_count: u64,
}

/// Free chunks of a node's memory when its chunk table was read, by their numbers in it.
#[derive(Debug)]
pub(super) struct FreeSpace {
    /// Pieces in order of their places. No two are adjacent, except at the end of the reserve.
    pieces: Vec<ChunkRange>,
    reserve_count: u64,
    /// Number of chunks that were ever handed out or belong to the reserve.
    touched_count: u64,
}

impl FreeSpace {
    /// Computes the free space. `entries` has the chunks of the reserve and all chunks that were
    /// ever handed out; `chunk_count` is the total.
    pub(super) fn new(entries: &[ChunkEntry], chunk_count: u64) -> Self {
        let reserve_count = reserve_count(chunk_count);
        let touched_count = entries.len() as u64;
        let mut pieces: Vec<ChunkRange> = Vec::new();
        let mut add = |first, count| match pieces.last_mut() {
            Some(last) if last.end().0 == first && first != reserve_count => last.count += count,
            _ => pieces.push(ChunkRange {
                first: ChunkIndex(first),
                count,
            }),
        };
        for (index, entry) in (0..).zip(entries) {
            if is_claimable(entry) {
                add(index, 1);
            }
        }
        if touched_count < chunk_count {
            add(touched_count, chunk_count - touched_count);
        }
        Self {
            pieces,
            reserve_count,
            touched_count,
        }
    }

    /// Returns the number of free chunks.
    pub(super) fn count(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.count).sum()
    }

    /// Returns the number of free chunks of the reserve.
    pub(super) fn free_reserve_count(&self) -> u64 {
        let reserve = self.pieces.iter();
        let reserve = reserve.filter(|piece| piece.first.0 < self.reserve_count);
        reserve.map(|piece| piece.count).sum()
    }

    /// Returns the number of untouched chunks in a range.
    pub(super) fn untouched_count(&self, range: ChunkRange) -> u64 {
        let end = range.end().0;
        end.saturating_sub(self.touched_count.max(range.first.0))
    }

    /// Returns a range of exactly `count` chunks, if there is one that leaves space for `others`.
    pub(super) fn whole(
        &self,
        count: u64,
        others: LaterClaims,
        source: ChunkSource,
    ) -> Option<ChunkRange> {
        let candidates = self.candidates(count, others, source);
        let whole = candidates.filter(|(range, _)| range.count == count);
        best(whole)
    }

    /// Returns a range of as many of the wanted chunks as possible that leaves space for `others`,
    /// which may use the reserve.
    pub(super) fn most(
        &self,
        wanted: u64,
        others: LaterClaims,
        source: ChunkSource,
    ) -> Option<ChunkRange> {
        best(self.candidates(wanted, others, source))
    }

    /// Returns the beginning of each piece, and its rank. Pieces outside the reserve come first,
    /// then the longest, then touched chunks, then those of the shortest piece.
    fn candidates(
        &self,
        wanted: u64,
        others: LaterClaims,
        source: ChunkSource,
    ) -> impl Iterator<Item = (ChunkRange, impl Ord + use<>)> {
        let left = others.piece_count + others.single_count;
        let wanted = wanted.min(self.count().saturating_sub(left));
        let [longest, second] = self.two_longest();
        self.pieces.iter().filter_map(move |piece| {
            let is_reserve = piece.first.0 < self.reserve_count;
            let elsewhere = if piece.count == longest {
                second
            } else {
                longest
            };
            let count_max = if elsewhere >= others.piece_count {
                piece.count
            } else {
                piece.count.saturating_sub(others.piece_count)
            };
            let range = ChunkRange {
                first: piece.first,
                count: wanted.min(count_max),
            };
            let is_touched = self.untouched_count(range) == 0;
            let rank = (!is_reserve, range.count, is_touched, u64::MAX - piece.count);
            let is_open = !is_reserve || source == ChunkSource::ReserveToo;
            (is_open && range.count > 0).then_some((range, rank))
        })
    }

    fn two_longest(&self) -> [u64; 2] {
        self.pieces.iter().fold([0, 0], |[longest, second], piece| {
            [
                longest.max(piece.count),
                second.max(piece.count.min(longest)),
            ]
        })
    }
}

fn best<R: Ord>(candidates: impl Iterator<Item = (ChunkRange, R)>) -> Option<ChunkRange> {
    let best = candidates.reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map(|(range, _)| range)
}

/// Returns whether a chunk is free and has no owner.
fn is_claimable(entry: &ChunkEntry) -> bool {
    entry.owner.is_free() && entry.purpose == Some(ChunkPurpose::Free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::FreeLeaves;
    use farleaf_base::{OwnerWord, TableId};

    /// Builds free space: `.` is a free chunk, `x` a used one; `untouched` more follow.
    fn space(touched: &str, untouched: u64) -> FreeSpace {
        let entry = |purpose| ChunkEntry {
            owner: OwnerWord::FREE,
            purpose: Some(purpose),
            table: TableId(0),
            free: FreeLeaves::default(),
        };
        let entries: Vec<ChunkEntry> = touched
            .chars()
            .map(|chunk| match chunk {
                '.' => entry(ChunkPurpose::Free),
                _ => entry(ChunkPurpose::Leaves { slots: 8 }),
            })
            .collect();
        FreeSpace::new(&entries, touched.len() as u64 + untouched)
    }

    fn found(range: Option<ChunkRange>) -> Option<(u64, u64)> {
        range.map(|range| (range.first.0, range.count))
    }

    fn beside(
        space: &FreeSpace,
        wanted: u64,
        piece_count: u64,
        source: ChunkSource,
    ) -> Option<(u64, u64)> {
        let others = LaterClaims {
            piece_count,
            single_count: 0,
        };
        found(space.most(wanted, others, source))
    }

    /// Chunks that were handed out before come first, from the smallest sufficient piece; free
    /// chunks before the untouched ones form one piece with them.
    #[test]
    fn the_smallest_piece_that_fits_is_taken() {
        let space = space("xxx...x.x..x.", 3);
        assert_eq!(
            (space.count(), space.free_reserve_count()),
            (1 + 2 + 1 + 2 + 4, 1)
        );
        let fitting = |count| found(space.whole(count, LaterClaims::default(), ChunkSource::Open));
        assert_eq!(fitting(1), Some((7, 1)));
        assert_eq!(fitting(2), Some((4, 2)));
        assert_eq!(fitting(4), Some((12, 4)));
        assert_eq!(fitting(5), None);
        let four = space
            .whole(4, LaterClaims::default(), ChunkSource::Open)
            .unwrap();
        assert_eq!(space.untouched_count(four), 3);
    }

    /// The reserve is used only on request, and only if there are no other chunks.
    #[test]
    fn the_reserve_stays() {
        let space = space("....xxxxxxxxxxx.", 0);
        let whole = |count, source| found(space.whole(count, LaterClaims::default(), source));
        assert_eq!(whole(2, ChunkSource::Open), None);
        assert_eq!(whole(1, ChunkSource::Open), Some((15, 1)));
        assert_eq!(whole(1, ChunkSource::ReserveToo), Some((15, 1)));
        assert_eq!(whole(2, ChunkSource::ReserveToo), Some((0, 2)));
        assert_eq!(whole(5, ChunkSource::ReserveToo), None);
        let reserves = [4, 16, 64, 128, 512, 1024].map(reserve_count);
        assert_eq!(reserves, [1, 4, 8, 16, 16, 32]);
    }

    /// Space for others stays in one piece: elsewhere, or the returned range is shorter.
    #[test]
    fn others_find_space_in_one_piece() {
        let open = |space: FreeSpace, wanted, piece_count| {
            beside(&space, wanted, piece_count, ChunkSource::Open)
        };
        assert_eq!(open(space("xxxx...x....", 0), 8, 3), Some((8, 4)));
        assert_eq!(open(space("xxxx...x....", 0), 2, 4), Some((4, 2)));
        assert_eq!(open(space("xxxx........", 4), 8, 3), Some((4, 8)));
        assert_eq!(open(space("xxxx........", 0), 8, 3), Some((4, 5)));
        assert_eq!(
            open(space("....xxxx..xx.xxx", 0), 8, 4),
            Some((8, 2)),
            "in the reserve"
        );
        assert_eq!(open(space("x...xxxx.xx.xx", 0), 8, 4), None);
        let either = |space: FreeSpace| beside(&space, 8, 2, ChunkSource::ReserveToo);
        assert_eq!(either(space("....xxxx.xxxxxxx", 0)), Some((8, 1)));
        assert_eq!(either(space("....xxxxxxxxxxxx", 0)), Some((0, 2)));
    }
}
