//! Contents of a file: durable data, and each sector's versions since.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::{in_eighths, one_of};
use farleaf_base::random::Random;

/// Size in bytes of the unit that a disk writes atomically.
pub(super) const SECTOR_SIZE_BYTES: u64 = 512;

/// Maximum number of remembered versions per sector. If there are more, some in between are
/// forgotten. That reduces the possible outcomes of a power failure, but adds no wrong ones.
const VERSION_COUNT_MAX: usize = 64;

/// Contents of a sector. Shared, since simulating a power failure copies files that mostly stay
/// equal.
type Sector = Arc<[u8; SECTOR_SIZE_BYTES as usize]>;

#[derive(Clone, Copy, Debug)]
struct SizeChange {
    from_bytes: u64,
    to_bytes: u64,
    /// Whether a write made the change. A file system does that page by page, so sizes in between
    /// are possible.
    is_in_steps: bool,
}

/// File without its name. All bytes behind its size are zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    /// Durable sectors; missing ones are zeros.
    durable: BTreeMap<u64, Sector>,
    durable_size_bytes: u64,
    /// Versions of sectors written since, oldest first, at least one each; `None` stands for zeros.
    since: BTreeMap<u64, Vec<Option<Sector>>>,
    /// Changes of the size since, oldest first.
    sizes: Vec<SizeChange>,
}

/// Part of a range in one sector.
struct Piece {
    sector: u64,
    within_sector: Range<usize>,
    within_range: Range<usize>,
}

impl Piece {
    fn is_whole(&self) -> bool {
        self.within_sector.len() as u64 == SECTOR_SIZE_BYTES
    }
}

/// Splits a range at sector boundaries.
fn pieces(range: Range<u64>) -> impl Iterator<Item = Piece> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        if start >= range.end {
            return None;
        }
        let sector = start / SECTOR_SIZE_BYTES;
        let sector_start = sector * SECTOR_SIZE_BYTES;
        let end = range.end.min(sector_start + SECTOR_SIZE_BYTES);
        let piece = Piece {
            sector,
            within_sector: (start - sector_start) as usize..(end - sector_start) as usize,
            within_range: (start - range.start) as usize..(end - range.start) as usize,
        };
        start = end;
        Some(piece)
    })
}

/// Returns the range of this many bytes at an offset, if an operating system supports such offsets.
fn range_of(offset: u64, size_bytes: usize) -> io::Result<Range<u64>> {
    let end = offset.checked_add(size_bytes as u64);
    match end.filter(|end| i64::try_from(*end).is_ok()) {
        Some(end) => Ok(offset..end),
        None => Err(io::ErrorKind::InvalidInput.into()),
    }
}

impl Inode {
    pub(super) fn size_bytes(&self) -> u64 {
        self.sizes
            .last()
            .map_or(self.durable_size_bytes, |change| change.to_bytes)
    }

    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let range = range_of(offset, buffer.len())?;
        if !buffer.is_empty() && range.end > self.size_bytes() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for piece in pieces(range) {
            let target = &mut buffer[piece.within_range];
            match self.newest(piece.sector) {
                Some(sector) => target.copy_from_slice(&sector[piece.within_sector]),
                None => target.fill(0),
            }
        }
        Ok(())
    }

    /// Writes all sectors of a range; if `is_torn`, a random subset.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        offset: u64,
        is_torn: bool,
        random: &mut Random,
    ) -> io::Result<()> {
        let range = range_of(offset, bytes.len())?;
        let mut end = 0;
        for piece in pieces(range) {
            if is_torn && in_eighths(random, 4) {
                continue;
            }
            end = offset + piece.within_range.end as u64;
            let mut sector = self.newest(piece.sector).map_or([0; _], |old| **old);
            sector[piece.within_sector].copy_from_slice(&bytes[piece.within_range]);
            self.push(piece.sector, Some(Arc::new(sector)), random);
        }
        let from_bytes = self.size_bytes();
        if end > from_bytes {
            self.sizes.push(SizeChange {
                from_bytes,
                to_bytes: end,
                is_in_steps: true,
            });
        }
        Ok(())
    }

    pub(super) fn set_size(&mut self, size_bytes: u64, random: &mut Random) -> io::Result<()> {
        range_of(size_bytes, 0)?;
        let from_bytes = self.size_bytes();
        if size_bytes < from_bytes {
            self.zero(size_bytes..from_bytes, 8, random);
        }
        if size_bytes != from_bytes {
            self.sizes.push(SizeChange {
                from_bytes,
                to_bytes: size_bytes,
                is_in_steps: false,
            });
        }
        Ok(())
    }

    /// Zeros or leaves each sector of a range at random: callers may rely on neither.
    pub(super) fn discard(&mut self, offset: u64, size_bytes: u64, random: &mut Random) {
        let end = offset.saturating_add(size_bytes).min(self.size_bytes());
        if offset < end {
            self.zero(offset..end, 4, random);
        }
    }

    /// Makes everything durable.
    pub(super) fn make_durable(&mut self) {
        self.durable_size_bytes = self.size_bytes();
        self.sizes.clear();
        for (sector, mut versions) in std::mem::take(&mut self.since) {
            match versions.pop().flatten() {
                Some(newest) => self.durable.insert(sector, newest),
                None => self.durable.remove(&sector),
            };
        }
    }

    /// Returns a possible state after a power failure; each change survives with this probability,
    /// in eighths.
    pub(super) fn after_loss(&self, eighths: u64, random: &mut Random) -> Self {
        let mut left = Self {
            durable: self.durable.clone(),
            durable_size_bytes: self.durable_size_bytes,
            ..Self::default()
        };
        for (sector, versions) in &self.since {
            let survivor = if eighths == 8 {
                versions.last().cloned()
            } else if in_eighths(random, eighths) {
                one_of(random, versions).cloned()
            } else {
                self.not_written(*sector, eighths, random).map(Some)
            };
            match survivor {
                Some(Some(bytes)) => left.durable.insert(*sector, bytes),
                Some(None) => left.durable.remove(sector),
                None => None,
            };
        }
        left.durable_size_bytes = self.size_after_loss(eighths, random);
        left.clear_behind_end();
        left
    }

    /// Returns the contents of a sector whose write did not survive; `None` if they are the old
    /// ones.
    fn not_written(&self, sector: u64, eighths: u64, random: &mut Random) -> Option<Sector> {
        let was_there = sector * SECTOR_SIZE_BYTES < self.durable_size_bytes;
        if was_there || eighths == 0 || in_eighths(random, 4) {
            return None;
        }
        // Space that was allocated but not written has arbitrary old contents.
        Some(Arc::new(std::array::from_fn(|_| random.bits() as u8)))
    }

    fn size_after_loss(&self, eighths: u64, random: &mut Random) -> u64 {
        if eighths == 8 {
            return self.size_bytes();
        }
        if !in_eighths(random, eighths) {
            return self.durable_size_bytes;
        }
        let Some(change) = one_of(random, &self.sizes) else {
            return self.durable_size_bytes;
        };
        // Sector boundaries in between.
        let first = change.from_bytes / SECTOR_SIZE_BYTES + 1;
        let end = change.to_bytes.div_ceil(SECTOR_SIZE_BYTES);
        if change.is_in_steps && first < end && in_eighths(random, 2) {
            return (first + random.below(end - first)) * SECTOR_SIZE_BYTES;
        }
        change.to_bytes
    }

    /// Zeros the bytes behind the size.
    fn clear_behind_end(&mut self) {
        let size_bytes = self.durable_size_bytes;
        let mut behind = self.durable.split_off(&(size_bytes / SECTOR_SIZE_BYTES));
        let kept_size_bytes = (size_bytes % SECTOR_SIZE_BYTES) as usize;
        if kept_size_bytes > 0
            && let Some(mut last) = behind.remove(&(size_bytes / SECTOR_SIZE_BYTES))
        {
            Arc::make_mut(&mut last)[kept_size_bytes..].fill(0);
            self.durable.insert(size_bytes / SECTOR_SIZE_BYTES, last);
        }
    }

    fn newest(&self, sector: u64) -> Option<&Sector> {
        match self.since.get(&sector) {
            Some(versions) => versions.last().and_then(Option::as_ref),
            None => self.durable.get(&sector),
        }
    }

    fn push(&mut self, sector: u64, version: Option<Sector>, random: &mut Random) {
        let versions = self.since.entry(sector).or_default();
        if versions.len() == VERSION_COUNT_MAX {
            versions.remove(random.below(VERSION_COUNT_MAX as u64) as usize);
        }
        versions.push(version);
    }

    /// Overwrites the existing contents of a range with zeros; each sector with this probability,
    /// in eighths.
    fn zero(&mut self, range: Range<u64>, eighths: u64, random: &mut Random) {
        // Only sectors with contents: a file can be long and empty.
        let sectors = range.start / SECTOR_SIZE_BYTES..range.end.div_ceil(SECTOR_SIZE_BYTES);
        let durable = self
            .durable
            .range(sectors.clone())
            .map(|(sector, _)| sector);
        let since = self.since.range(sectors).map(|(sector, _)| sector);
        let present: BTreeSet<u64> = durable.chain(since).copied().collect();
        for sector in present {
            let start = (sector * SECTOR_SIZE_BYTES).max(range.start);
            let end = ((sector + 1) * SECTOR_SIZE_BYTES).min(range.end);
            for piece in pieces(start..end) {
                if !in_eighths(random, eighths) {
                    continue;
                }
                let version = match self.newest(sector) {
                    Some(old) if !piece.is_whole() => {
                        let mut bytes = **old;
                        bytes[piece.within_sector].fill(0);
                        Some(Arc::new(bytes))
                    }
                    _ => None,
                };
                self.push(sector, version, random);
            }
        }
    }
}
