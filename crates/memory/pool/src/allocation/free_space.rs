//! Which chunks are free, and which of them to take.
//!
//! The first chunks of a region are the *reserve*: only retraining takes them, for snapshots above
//! all, which need many side by side and are the first thing that it writes in a full pool. Of the
//! others, those that were handed out before come first, and of the pieces that are large enough
//! the smallest: large pieces stay whole that way, and memory that nobody has touched stays so.

use crate::chunk::{ChunkEntry, ChunkPurpose};
use crate::layout::ChunkIndex;
use farleaf_types::NodeId;

/// One in so many chunks is kept for retraining: for two snapshots, as the old one waits for its
/// grace period while the next is written, and a piece of a run.
const RESERVE_SHARE: u64 = 32;
/// As large as in a pool of 32 MiB it is in smaller ones, too, if that is not more than one in so
/// many; and in the smallest, four chunks, if that is not more than a quarter.
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
    /// The chunks that have these numbers on a node.
    pub(super) fn of(self, node: NodeId) -> Self {
        Self {
            first: ChunkIndex::new(node, self.first.number()),
            ..self
        }
    }

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
pub(crate) fn reserve_count(chunk_count: u64) -> u64 {
    let small = (chunk_count / SMALL_RESERVE_SHARE).min(SMALL_RESERVE_COUNT_MAX);
    let least = (chunk_count / LEAST_RESERVE_SHARE).min(LEAST_RESERVE_COUNT_MAX);
    (chunk_count / RESERVE_SHARE).max(small).max(least)
}

/// Where chunks are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The reserve stays.
    Open,
    /// The reserve is taken where nothing else will do.
    ReserveToo,
}

/// Chunks that have to be claimed afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Side by side.
    pub piece_count: u64,
    /// Besides.
    pub single_count: u64,
}

/// The free chunks of a region, as they were when its chunk table was read, by their numbers in
/// it.
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

    /// How many chunks are free.
    pub(super) fn count(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.count).sum()
    }

    /// How many of the reserve are.
    pub(super) fn free_reserve_count(&self) -> u64 {
        let reserve = self.pieces.iter();
        let reserve = reserve.filter(|piece| piece.first.0 < self.reserve_count);
        reserve.map(|piece| piece.count).sum()
    }

    /// How many of a range nobody has been handed yet.
    pub(super) fn untouched_count(&self, range: ChunkRange) -> u64 {
        let end = range.end().0;
        end.saturating_sub(self.touched_count.max(range.first.0))
    }

    /// So many chunks side by side, if there are, and if others find room afterwards.
    pub(super) fn whole(&self, count: u64, others: Others, source: Source) -> Option<ChunkRange> {
        let candidates = self.candidates(count, others, source);
        let whole = candidates.filter(|(range, _)| range.count == count);
        best(whole)
    }

    /// As many of the wanted chunks side by side as there are, if others are to find room
    /// afterwards, which may take of the reserve.
    pub(super) fn most(&self, wanted: u64, others: Others, source: Source) -> Option<ChunkRange> {
        best(self.candidates(wanted, others, source))
    }

    /// The beginning of each piece, and its rank: what is not the reserve's before what is, the
    /// longest first, then what is touched, then those of the shortest piece.
    fn candidates(
        &self,
        wanted: u64,
        others: Others,
        source: Source,
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
            let room = if elsewhere >= others.piece_count {
                piece.count
            } else {
                piece.count.saturating_sub(others.piece_count)
            };
            let range = ChunkRange {
                first: piece.first,
                count: wanted.min(room),
            };
            let is_touched = self.untouched_count(range) == 0;
            let rank = (!is_reserve, range.count, is_touched, u64::MAX - piece.count);
            let is_open = !is_reserve || source == Source::ReserveToo;
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
        found(space.most(wanted, others, source))
    }

    /// Chunks that were handed out before come first, of the smallest piece that is large enough;
    /// the free chunks before the untouched ones are one piece with them.
    #[test]
    fn the_smallest_piece_that_fits_is_taken() {
        let space = space("xxx...x.x..x.", 3);
        assert_eq!(
            (space.count(), space.free_reserve_count()),
            (1 + 2 + 1 + 2 + 4, 1)
        );
        let fitting = |count| found(space.whole(count, Others::default(), Source::Open));
        assert_eq!(fitting(1), Some((7, 1)));
        assert_eq!(fitting(2), Some((4, 2)));
        assert_eq!(fitting(4), Some((12, 4)));
        assert_eq!(fitting(5), None);
        let four = space.whole(4, Others::default(), Source::Open).unwrap();
        assert_eq!(space.untouched_count(four), 3);
    }

    /// Nobody takes of the reserve but who says so, and then only where nothing else will do.
    #[test]
    fn the_reserve_stays() {
        let space = space("....xxxxxxxxxxx.", 0);
        let whole = |count, source| found(space.whole(count, Others::default(), source));
        assert_eq!(whole(2, Source::Open), None);
        assert_eq!(whole(1, Source::Open), Some((15, 1)));
        assert_eq!(whole(1, Source::ReserveToo), Some((15, 1)));
        assert_eq!(whole(2, Source::ReserveToo), Some((0, 2)));
        assert_eq!(whole(5, Source::ReserveToo), None);
        let reserves = [4, 16, 64, 128, 512, 1024].map(reserve_count);
        assert_eq!(reserves, [1, 4, 8, 16, 16, 32]);
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
        let either = |space: FreeSpace| beside(&space, 8, 2, Source::ReserveToo);
        assert_eq!(either(space("....xxxx.xxxxxxx", 0)), Some((8, 1)));
        assert_eq!(either(space("....xxxxxxxxxxxx", 0)), Some((0, 2)));
    }
}
