//! Which chunks are free, and which of them to take.
//!
//! The first chunks of a region are the *reserve*: only retraining takes them, for snapshots above
//! all, which need many side by side and are the first thing that it writes in a full pool. Of the
//! others, those that were handed out before come first, and of the pieces that are large enough
//! the smallest: large pieces stay whole that way, and memory that nobody has touched stays so.

use crate::chunk::{ChunkEntry, ChunkPurpose};
use crate::layout::ChunkIndex;

/// One in so many chunks is kept for retraining: for two snapshots, as the old one waits for its
/// grace period while the next is written, and a piece of a run.
const RESERVE_SHARE: u64 = 32;
/// As large as in a pool of 32 MiB it is in smaller ones, too, if that is not more than one in so
/// many; and in the smallest, four chunks, if that is not a quarter.
const SMALL_RESERVE_SHARE: u64 = 8;
const SMALL_RESERVE_COUNT_MAX: u64 = 16;
const LEAST_RESERVE_SHARE: u64 = 4;
const LEAST_RESERVE_COUNT_MAX: u64 = 4;

/// Chunks side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRange {
    /// The first.
    pub first: ChunkIndex,
    /// How many.
    pub count: u64,
}

impl ChunkRange {
    /// Each of them, ascending.
    pub fn iter(self) -> impl Iterator<Item = ChunkIndex> {
        (self.first.0..self.first.0 + self.count).map(ChunkIndex)
    }

    /// The chunk after the last.
    pub fn end(self) -> ChunkIndex {
        ChunkIndex(self.first.0 + self.count)
    }
}

/// How many chunks are kept for retraining, if there are so many in all.
pub(super) fn reserve_count(chunk_count: u64) -> u64 {
    let small = (chunk_count / SMALL_RESERVE_SHARE).min(SMALL_RESERVE_COUNT_MAX);
    let least = (chunk_count / LEAST_RESERVE_SHARE).min(LEAST_RESERVE_COUNT_MAX);
    (chunk_count / RESERVE_SHARE).max(small).max(least)
}

/// Where chunks are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The reserve stays.
    Open,
    /// The reserve is taken where nothing else is.
    OpenFirst,
    /// The other way round.
    ReserveFirst,
}

/// Chunks that have to be claimed afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Others {
    /// Side by side.
    pub piece_count: u64,
    /// Besides.
    pub single_count: u64,
}

/// The free chunks of a region, as they were when its chunk table was read.
#[derive(Debug)]
pub(super) struct FreeSpace {
    /// Pieces, by their places. No two touch, but for the reserve's last and the next.
    pieces: Vec<ChunkRange>,
    reserve_count: u64,
    /// How many chunks were ever handed out, or are the reserve's.
    touched_count: u64,
}

impl FreeSpace {
    /// `entries`: those of the reserve, and of the chunks that were ever handed out, of
    /// `chunk_count` in all.
    pub(super) fn new(entries: &[ChunkEntry], chunk_count: u64) -> Self {
        let reserve_count = reserve_count(chunk_count);
        let touched_count = entries.len() as u64;
        let mut pieces: Vec<ChunkRange> = Vec::new();
        let touched = entries.iter().map(is_claimable);
        let untouched = (touched_count..chunk_count).map(|_| true);
        for (index, is_free) in (0..).zip(touched.chain(untouched)) {
            match pieces.last_mut() {
                _ if !is_free => {}
                Some(last) if last.end().0 == index && index != reserve_count => last.count += 1,
                _ => pieces.push(ChunkRange {
                    first: ChunkIndex(index),
                    count: 1,
                }),
            }
        }
        Self {
            pieces,
            reserve_count,
            touched_count,
        }
    }

    /// How many chunks are free.
    pub(super) fn count(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.count).sum()
    }

    /// How many of the reserve are.
    pub(super) fn reserve_count(&self) -> u64 {
        let reserve = self.pieces.iter().filter(|piece| self.is_reserve(**piece));
        reserve.map(|piece| piece.count).sum()
    }

    /// How many of a range nobody has been handed yet.
    pub(super) fn untouched_count(&self, range: ChunkRange) -> u64 {
        let end = range.end().0;
        end.saturating_sub(self.touched_count.max(range.first.0))
    }

    /// So many chunks side by side, if there are.
    pub(super) fn fitting(&self, count: u64, source: Source) -> Option<ChunkRange> {
        let none = Others {
            piece_count: 0,
            single_count: 0,
        };
        let found = self.beside(count, none, source)?;
        (found.count == count).then_some(found)
    }

    /// As many of the wanted chunks side by side as there are if others are to find room
    /// afterwards, of the reserve, too.
    pub(super) fn beside(&self, wanted: u64, others: Others, source: Source) -> Option<ChunkRange> {
        let left = others.piece_count + others.single_count;
        let wanted = wanted.min(self.count().saturating_sub(left));
        let mut best: Option<(ChunkRange, _)> = None;
        for (index, piece) in self.pieces.iter().enumerate() {
            let is_reserve = self.is_reserve(*piece);
            if is_reserve && source == Source::Open {
                continue;
            }
            let elsewhere = self.longest_count_without(index);
            let room = if elsewhere >= others.piece_count {
                piece.count
            } else {
                piece.count.saturating_sub(others.piece_count)
            };
            let count = wanted.min(room);
            let range = ChunkRange {
                first: piece.first,
                count,
            };
            let is_preferred = is_reserve == (source == Source::ReserveFirst);
            let is_touched = self.untouched_count(range) == 0;
            let is_whole = count == wanted;
            // All of it, if there is, and where it is wanted, if there is any; most chunks first
            // then, touched ones, and those of the smallest piece.
            let preference = match source {
                Source::ReserveFirst => (is_whole, is_preferred),
                _ => (is_preferred, is_whole),
            };
            let rank = (preference, count, is_touched, u64::MAX - piece.count);
            if count > 0 && best.is_none_or(|(_, best_rank)| rank > best_rank) {
                best = Some((range, rank));
            }
        }
        best.map(|(range, _)| range)
    }

    fn is_reserve(&self, piece: ChunkRange) -> bool {
        piece.first.0 < self.reserve_count
    }

    fn longest_count_without(&self, without: usize) -> u64 {
        let (before, after) = self.pieces.split_at(without);
        let others = before.iter().chain(&after[1..]).map(|piece| piece.count);
        others.max().unwrap_or(0)
    }
}

/// A2: free and without owner.
fn is_claimable(entry: &ChunkEntry) -> bool {
    entry.owner.is_free() && entry.purpose == Some(ChunkPurpose::Free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::FreeLeaves;
    use farleaf_types::{OwnerWord, TableId};

    /// `.` is a free chunk, `x` one in use; `untouched` more behind them.
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
        source: Source,
    ) -> Option<(u64, u64)> {
        let others = Others {
            piece_count,
            single_count: 0,
        };
        found(space.beside(wanted, others, source))
    }

    /// Chunks that were handed out before come first, of the smallest piece that is large enough;
    /// the free chunks before the untouched ones are one piece with them.
    #[test]
    fn the_smallest_piece_that_fits_is_taken() {
        let space = space("xxx...x.x..x.", 3);
        assert_eq!(
            (space.count(), space.reserve_count()),
            (1 + 2 + 1 + 2 + 4, 1)
        );
        let fitting = |count| found(space.fitting(count, Source::Open));
        assert_eq!(fitting(1), Some((7, 1)));
        assert_eq!(fitting(2), Some((4, 2)));
        assert_eq!(fitting(4), Some((12, 4)));
        assert_eq!(fitting(5), None);
        let four = space.fitting(4, Source::Open).unwrap();
        assert_eq!(space.untouched_count(four), 3);
    }

    /// Nobody takes of the reserve but who says so.
    #[test]
    fn the_reserve_stays() {
        let space = space("....xxxxxxxxxxx.", 0);
        assert_eq!(found(space.fitting(2, Source::Open)), None);
        assert_eq!(found(space.fitting(1, Source::Open)), Some((15, 1)));
        assert_eq!(found(space.fitting(1, Source::OpenFirst)), Some((15, 1)));
        assert_eq!(
            found(space.fitting(2, Source::OpenFirst)),
            None,
            "not behind the open one"
        );
        assert_eq!(found(space.fitting(1, Source::ReserveFirst)), Some((0, 1)));
        assert_eq!(found(space.fitting(5, Source::ReserveFirst)), None);
        let small = |chunk_count| reserve_count(chunk_count);
        assert_eq!(
            [4, 16, 64, 128, 512, 1024].map(small),
            [1, 4, 8, 16, 16, 32]
        );
    }

    /// What others need stays in one piece: elsewhere, or what is taken is shorter.
    #[test]
    fn others_find_room_in_one_piece() {
        let open = |space: FreeSpace, wanted, piece_count| {
            beside(&space, wanted, piece_count, Source::Open)
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
        let either = |space: FreeSpace| beside(&space, 8, 2, Source::OpenFirst);
        assert_eq!(either(space("....xxxx.xxxxxxx", 0)), Some((8, 1)));
        assert_eq!(either(space("....xxxxxxxxxxxx", 0)), Some((0, 2)));
    }
}
