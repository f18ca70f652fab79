//! Directory under a metadata budget: a session holds parts of a snapshot and reads them on demand.
//!
//! - **Floor.** The part table of the root's snapshot is always held and takes at most a quarter of
//!   the budget. If it is larger, one head stands for 2, 4, 8... parts, which are then read as one.
//!   So any budget of 1 KiB or more works for any table.
//! - **Accounting.** Everything that the session holds between operations counts toward the budget:
//!   parts with their entries, synonyms, and allocation overhead. Parts that running operations
//!   have pinned do not count.
//! - **Eviction.** A part that was read is kept if it fits at all. It evicts other parts by CLOCK,
//!   then synonyms. Synonyms take at most a quarter of what the budget leaves above the floor;
//!   beyond that, every second synonym of a page is evicted to admit others.
//! - **Root.** Parts belong to the root that the session searches by. A part is kept only if the
//!   root is still the same when the part arrives; a change of the root drops all parts. Reading
//!   parts is safe by LEAF-7: a running operation keeps the number at which it began, so the
//!   snapshot that it knew, or a newer one, is not reused before the operation ends.
//! - **Verification.** Each part has its own checksum, which also covers the identity of its
//!   snapshot, and must match what its head promises.
//! - **Misses.** A missing part costs one round trip, for the part that a key belongs to. An
//!   operation pins the part that it requested last until it requests another one or ends,
//!   regardless of evictions. So it always knows where to announce a split of a page of that part,
//!   and which page is to the left. A part names the pages on both sides of it. For other pages of
//!   parts that are not held, an operation follows links to the right; to the left, the head of an
//!   earlier part gives a page to start from.
//!
//! Such a session does not read announcements of splits. It finds synonyms by links and keeps those
//! that fit the budget.

use core::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::IndexError;
use crate::clock::{CachedValue, Clock};
use crate::hint::{Announcement, Hint};
use crate::partial::{ALLOCATION_BYTES, Budget};
use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::strings::PageGeometry;
use farleaf_pool::PoolLayout;

use crate::strings::directory::{ByteDirectory, KeyLocation};
use crate::strings::snapshot::{Header, Part, SnapshotParts};
use crate::strings::synonyms::Synonyms;

/// Divisor of the budget above the floor: synonyms take at most one fourth of it.
const SYNONYM_SHARE: u64 = 4;

/// Counts of fetches and evictions by a session with a metadata budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounts {
    /// Number of parts read.
    pub parts_fetched: u64,
    /// Number of parts evicted.
    pub parts_evicted: u64,
    /// Number of synonyms evicted.
    pub synonyms_evicted: u64,
}

/// Adjacent models in this session's memory.
#[derive(Debug)]
pub(crate) struct LoadedPart {
    directory: ByteDirectory,
    first_page: u32,
    before: RemoteAddr,
    after: RemoteAddr,
    /// Generation of the snapshot that the part belongs to.
    generation: u16,
}

impl CachedValue for CachedPart {
    fn content_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
}

/// Cached part. Operations may hold on to it after its eviction.
#[derive(Debug)]
struct CachedPart(Rc<LoadedPart>);

impl LoadedPart {
    fn new(part: Part, geometry: PageGeometry, generation: u16) -> Result<Self, String> {
        let directory =
            ByteDirectory::build(geometry, 0, 0, &part.segments, part.residuals, part.runs);
        Ok(Self {
            directory: directory.map_err(|error| error.to_string())?,
            first_page: part.first_page,
            before: part.before,
            after: part.after,
            generation,
        })
    }

    fn size_bytes(&self) -> u64 {
        let counts = 2 * size_of::<usize>();
        let own = (counts + size_of::<Self>()) as u64;
        let directory = &self.directory;
        own + directory.size_bytes() + directory.allocation_count() * ALLOCATION_BYTES
    }

    fn of_table(&self, hint: Hint) -> Hint {
        let parent = hint.parent + self.first_page;
        Hint { parent, ..hint }
    }

    pub(crate) fn locate(&self, key: &[u8]) -> KeyLocation {
        let place = self.directory.locate(key);
        KeyLocation {
            page: self.of_table(place.page),
            also: place.also.map(|also| self.of_table(also)),
        }
    }

    /// Returns whether the part belongs to this snapshot.
    pub(crate) fn is_of(&self, snapshot: &SnapshotParts) -> bool {
        self.generation == snapshot.heads().header().shape.generation
    }

    fn end(&self) -> u32 {
        self.first_page + self.directory.page_count()
    }

    /// Returns the page with this number, if the part contains it or a neighbor of it.
    fn page(&self, number: u32) -> Option<Hint> {
        if let Some(own) = number.checked_sub(self.first_page)
            && let Some(hint) = self.directory.page(own)
        {
            return Some(self.of_table(hint));
        }
        let addr = if number == self.end() {
            self.after
        } else if number.checked_add(1) == Some(self.first_page) {
            self.before
        } else {
            RemoteAddr::NULL
        };
        let parent = number;
        (!addr.is_null()).then_some(Hint { addr, parent })
    }
}

/// Directory of one session, limited by a metadata budget.
#[derive(Debug)]
pub(crate) struct PartialDirectory {
    snapshot: Rc<SnapshotParts>,
    budget_bytes: u64,
    parts: Clock<u32, CachedPart>,
    /// Parts that running operations have pinned, and by how many operations.
    pinned_part: BTreeMap<u32, (Rc<LoadedPart>, u32)>,
    counts: Cell<PartCounts>,
}

impl PartialDirectory {
    /// Creates a directory that holds only the floor.
    pub(crate) fn new(snapshot: SnapshotParts, budget: Budget) -> Self {
        let directory = Self {
            snapshot: Rc::new(snapshot),
            budget_bytes: budget.bytes(),
            parts: Clock::default(),
            pinned_part: BTreeMap::new(),
            counts: Cell::default(),
        };
        assert!(directory.floor_bytes() <= directory.budget_bytes, "BL1");
        directory
    }

    /// Continues the counters of another directory.
    pub(crate) fn counting_on(self, other: &Self) -> Self {
        self.counts.set(other.counts.get());
        self
    }

    /// Takes over the parts of another root. This is wrong: a bug that the simulator plants.
    pub(crate) fn take_parts(&mut self, other: &mut Self) {
        self.parts = core::mem::take(&mut other.parts);
    }

    /// Returns the snapshot that the session searches by.
    pub(crate) fn snapshot(&self) -> &Rc<SnapshotParts> {
        &self.snapshot
    }

    /// Returns the header of the snapshot.
    pub(crate) fn header(&self) -> &Header {
        self.snapshot.heads().header()
    }

    /// Returns the number of front-coded models among those held.
    pub(crate) fn front_coded_count(&self) -> usize {
        let parts = self.parts.range(..);
        parts
            .map(|entry| entry.0.directory.front_coded_count())
            .sum()
    }

    pub(crate) fn counts(&self) -> PartCounts {
        self.counts.get()
    }

    fn count(&self, change: impl FnOnce(&mut PartCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Returns the bytes of the part table, which are always held.
    fn floor_bytes(&self) -> u64 {
        let counts = 2 * size_of::<usize>();
        let own = size_of::<Self>() + counts + size_of::<SnapshotParts>();
        own as u64 + 2 * ALLOCATION_BYTES + self.snapshot.heads().size_bytes()
    }

    /// Returns the bytes held, without synonyms.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.floor_bytes() + self.parts.bytes()
    }

    /// Returns the bytes of pinned parts that are not cached: 0 between operations.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let parts = self.pinned_part.iter();
        let parts = parts.filter(|(number, _)| self.parts.get(**number).is_none());
        parts.map(|(_, (part, _))| part.size_bytes()).sum()
    }

    fn part(&self, number: usize) -> Option<&Rc<LoadedPart>> {
        let number = number as u32;
        let pinned_part = self.pinned_part.get(&number).map(|(part, _)| part);
        pinned_part.or_else(|| self.parts.get(number).map(|entry| &entry.0))
    }

    /// Returns the number of the part that covers a key, and the part if it is held.
    pub(crate) fn part_of_key(&self, key: &[u8]) -> (usize, Option<&Rc<LoadedPart>>) {
        let number = self.snapshot.heads().of_key(key);
        (number, self.part(number))
    }

    /// Returns the number of the part that covers the page with this number, and the part if it is
    /// held.
    pub(crate) fn part_of_page(&self, page: u32) -> (usize, Option<&Rc<LoadedPart>>) {
        let number = self.snapshot.heads().of_page(page);
        (number, self.part(number))
    }

    /// Pins a part of this snapshot for an operation.
    pub(crate) fn pin(
        &mut self,
        snapshot: &Rc<SnapshotParts>,
        number: usize,
        part: &Rc<LoadedPart>,
    ) {
        if Rc::ptr_eq(snapshot, &self.snapshot) {
            let pinned = self.pinned_part.entry(number as u32);
            pinned.or_insert_with(|| (Rc::clone(part), 0)).1 += 1;
        }
    }

    /// Unpins a part at the end of an operation.
    pub(crate) fn unpin(&mut self, snapshot: &Rc<SnapshotParts>, number: usize) {
        let number = number as u32;
        if Rc::ptr_eq(snapshot, &self.snapshot)
            && let Some((_, count)) = self.pinned_part.get_mut(&number)
        {
            *count -= 1;
            if *count == 0 {
                self.pinned_part.remove(&number);
            }
        }
    }

    fn begin(&self, number: usize) -> Hint {
        let (parent, addr) = self.snapshot.heads().first_page(number);
        Hint { addr, parent }
    }

    /// Returns the trained page with this number, if a held part contains or names it.
    pub(crate) fn page(&self, number: u32) -> Option<Hint> {
        if number >= self.header().page_count {
            return None;
        }
        let heads = self.snapshot.heads();
        let of = heads.of_page(number);
        if let Some(part) = self.part(of) {
            return part.page(number);
        }
        let begin = self.begin(of);
        if begin.parent == number {
            return Some(begin);
        }
        // The last page of a part, which the next part names.
        let behind = (of + 1 < heads.count()).then(|| self.part(of + 1));
        behind.flatten().and_then(|part| part.page(number))
    }

    /// Returns a page to the left of the one with this number, which must not be the first: the
    /// previous page, or the nearest one that a head names.
    pub(crate) fn left_of(&self, key: &[u8], number: u32) -> Hint {
        let left = number - 1;
        self.page(left).unwrap_or_else(|| {
            let heads = self.snapshot.heads();
            self.begin(heads.of_page(left).min(heads.of_key(key)))
        })
    }

    /// Does the same as [`ByteDirectory::run_from`]; returns one page if its part is not held.
    pub(crate) fn run_from(&self, number: u32, count_max: u32) -> Option<(Hint, u32)> {
        let page = self.page(number)?;
        let (_, Some(part)) = self.part_of_page(number) else {
            return Some((page, 1));
        };
        let (hint, count) = part
            .directory
            .run_from(number - part.first_page, count_max)?;
        Some((part.of_table(hint), count))
    }

    /// Does the same as [`ByteDirectory::run_up_to`].
    pub(crate) fn run_up_to(&self, number: u32, count_max: u32) -> u32 {
        self.part_of_page(number).1.map_or(1, |part| {
            let own = number - part.first_page;
            part.directory.run_up_to(own, count_max)
        })
    }

    /// Returns where a split of a page of this parent is announced; `None` if its part is not held.
    pub(crate) fn announcement(&self, parent: u32) -> Option<Announcement> {
        let part = self.part_of_page(parent).1?;
        let own = part
            .directory
            .announcement(parent.checked_sub(part.first_page)?)?;
        // The number is not used: sessions with a budget do not read announcements.
        let model = u32::MAX;
        Some(Announcement { model, ..own })
    }

    /// Keeps a part of this snapshot that was read, if the directory still searches by the snapshot
    /// and the part fits the budget.
    pub(crate) fn keep(
        &mut self,
        snapshot: &Rc<SnapshotParts>,
        number: usize,
        part: &Rc<LoadedPart>,
        synonyms: &mut Synonyms,
    ) {
        self.count(|counts| counts.parts_fetched += 1);
        if !Rc::ptr_eq(snapshot, &self.snapshot) {
            return;
        }
        let part = CachedPart(Rc::clone(part));
        let own_bytes = Clock::<u32, _>::bytes_of(&part);
        if self.floor_bytes() + own_bytes <= self.budget_bytes {
            self.evict_until_fits(own_bytes, synonyms);
            self.parts.insert(number as u32, part);
        }
        debug_assert!(
            self.size_bytes() + synonyms.size_bytes() <= self.budget_bytes,
            "BL2"
        );
    }

    /// Evicts parts, then synonyms, until `size_bytes` fit beside the rest, or until nothing is
    /// left.
    fn evict_until_fits(&mut self, size_bytes: u64, synonyms: &mut Synonyms) {
        while self.size_bytes() + synonyms.size_bytes() + size_bytes > self.budget_bytes {
            if self.parts.evict() {
                self.count(|counts| counts.parts_evicted += 1);
            } else if !self.forget_synonyms(synonyms) {
                break;
            }
        }
    }

    fn forget_synonyms(&self, synonyms: &mut Synonyms) -> bool {
        let forgotten = synonyms.forget_some();
        self.count(|counts| counts.synonyms_evicted += forgotten as u64);
        forgotten > 0
    }

    /// Evicts until a synonym of a parent with this lower fence fits. Returns false if it would
    /// take more than the share of all synonyms.
    pub(crate) fn fit(&mut self, low: &[u8], parent: u32, synonyms: &mut Synonyms) -> bool {
        let space_bytes = self.budget_bytes - self.floor_bytes();
        while synonyms.size_bytes() + synonyms.size_bytes_of(low, parent)
            > space_bytes / SYNONYM_SHARE
        {
            if !self.forget_synonyms(synonyms) {
                return false;
            }
        }
        let own_bytes = synonyms.size_bytes_of(low, parent);
        self.evict_until_fits(own_bytes, synonyms);
        true
    }

    /// Reads parts. Costs one round trip, and one more for each 512 KiB.
    ///
    /// # Errors
    /// The fabric failed, or the snapshot is corrupted.
    pub(crate) async fn read<E: Endpoint>(
        snapshot: &SnapshotParts,
        endpoint: &E,
        batch: &mut Batch,
        layout: &PoolLayout,
        geometry: PageGeometry,
        numbers: &[usize],
    ) -> Result<Vec<Rc<LoadedPart>>, IndexError> {
        let read = snapshot.read(endpoint, batch, layout, geometry, numbers);
        let parts = read.await?.into_iter();
        let generation = snapshot.heads().header().shape.generation;
        let parts = parts.map(|part| LoadedPart::new(part, geometry, generation).map(Rc::new));
        let parts: Result<Vec<_>, String> = parts.collect();
        parts.map_err(|what| snapshot.damage(what))
    }
}
