//! What a training told, under a metadata budget (DESIGN L3): parts of it, as they are needed.
//!
//! - **BL1.** *The floor.* The part table of the root's snapshot is always held. It takes a quarter
//!   of the budget at the most: where it is larger, one head stands for 2, 4, 8... parts, which are
//!   then read as one. So any budget from 1 KiB on does for any table.
//! - **BL2.** *Everything counts.* What the session holds between operations is never more than the
//!   budget: parts with their entries, synonyms, and what memory allocation adds. What operations
//!   under way have in hand is not counted.
//! - **BL3.** *What goes first.* A part that was read is kept, if it fits at all, and pushes out
//!   others by CLOCK, then synonyms. Synonyms take a quarter of what the budget leaves above the
//!   floor at the most; there every second one of a page makes room for others.
//! - **BL4.** *Parts belong to a root.* They are read by the root that the session searches by, and
//!   kept only if that is still the same when they arrive; with another root all of them are
//!   dropped. Reading them is safe by D7: an operation under way keeps the number at which it
//!   began, so the snapshot that it knew, or a newer one, is not reused before it ends.
//! - **BL5.** *Checked before use.* Each part has a checksum of its own, over whose it is, too, and
//!   is what its head promises.
//! - **BL6.** *What is missing* costs one round trip, for the part that a key belongs to. An
//!   operation has the part that it has last asked for in hand until it asks for another one, or
//!   ends, whatever others push out: so it always knows where to announce a split of a page of it,
//!   and which page is to the left. A part names the pages on both sides of it. Whoever wants
//!   another page by its number, of a part that is not held, does without: to the right there is a
//!   link; to the left the head of an earlier part tells where that begins.
//!
//! Splits are not caught up with by announcements: they are met by links, and known as far as the
//! budget goes.

use core::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::IndexError;
use farleaf_index::clock::{Clock, Held};
use farleaf_index::hint::{Announcement, Hint};
use farleaf_index::partial::{ALLOCATION_BYTES, Budget};
use farleaf_page::PageGeometry;
use farleaf_region::PoolLayout;
use farleaf_types::RemoteAddr;

use crate::directory::{ByteDirectory, Place};
use crate::snapshot::{Header, Part, SnapshotParts};
use crate::synonyms::Synonyms;

/// Synonyms take at most this part of what the budget leaves above the floor.
const SYNONYM_SHARE: u64 = 4;

/// How often a session with a budget fetched and forgot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounts {
    /// Parts that were read.
    pub parts_fetched: u64,
    /// Parts that were evicted.
    pub parts_evicted: u64,
    /// Synonyms that were evicted.
    pub synonyms_evicted: u64,
}

/// Models side by side in this session's memory.
#[derive(Debug)]
pub(crate) struct HeldPart {
    directory: ByteDirectory,
    first_page: u32,
    before: RemoteAddr,
    after: RemoteAddr,
    /// Of the snapshot that it is a part of.
    generation: u16,
}

impl Held for Kept {
    fn content_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
}

/// A part that is kept: operations may hold on to it while it is evicted.
#[derive(Debug)]
struct Kept(Rc<HeldPart>);

impl HeldPart {
    fn new(part: Part, geometry: PageGeometry, generation: u16) -> Result<Self, String> {
        let directory =
            ByteDirectory::build(geometry, (0, 0), &part.segments, part.residuals, part.runs);
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

    pub(crate) fn locate(&self, key: &[u8]) -> Place {
        let place = self.directory.locate(key);
        Place {
            page: self.of_table(place.page),
            also: place.also.map(|also| self.of_table(also)),
        }
    }

    /// BL4: whether it is a part of this snapshot.
    pub(crate) fn is_of(&self, snapshot: &SnapshotParts) -> bool {
        self.generation == snapshot.heads().header().shape.generation
    }

    fn end(&self) -> u32 {
        self.first_page + self.directory.page_count()
    }

    /// The page with this number, if it is one of its own, or beside these.
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

/// What a training told, as far as a budget goes; one session's.
#[derive(Debug)]
pub(crate) struct PartialDirectory {
    snapshot: Rc<SnapshotParts>,
    budget_bytes: u64,
    parts: Clock<u32, Kept>,
    /// Parts that operations under way have in hand, and how many these are (BL6).
    in_hand: BTreeMap<u32, (Rc<HeldPart>, u32)>,
    counts: Cell<PartCounts>,
}

impl PartialDirectory {
    /// A directory that holds nothing yet but what it must.
    pub(crate) fn new(snapshot: SnapshotParts, budget: Budget) -> Self {
        let directory = Self {
            snapshot: Rc::new(snapshot),
            budget_bytes: budget.bytes(),
            parts: Clock::default(),
            in_hand: BTreeMap::new(),
            counts: Cell::default(),
        };
        assert!(directory.floor_bytes() <= directory.budget_bytes, "BL1");
        directory
    }

    /// Goes on counting what another one has counted.
    pub(crate) fn counting_on(self, other: &Self) -> Self {
        self.counts.set(other.counts.get());
        self
    }

    /// Takes over the parts of another root, as nobody must: the bug that the simulator plants.
    pub(crate) fn take_parts(&mut self, other: &mut Self) {
        self.parts = core::mem::take(&mut other.parts);
    }

    /// The snapshot that it searches by.
    pub(crate) fn snapshot(&self) -> &Rc<SnapshotParts> {
        &self.snapshot
    }

    /// What is known of the training as a whole.
    pub(crate) fn header(&self) -> &Header {
        self.snapshot.heads().header()
    }

    /// How many of the models at hand are front-coded.
    pub(crate) fn front_coded_count(&self) -> usize {
        let parts = self.parts.range(..);
        parts.map(|kept| kept.0.directory.front_coded_count()).sum()
    }

    pub(crate) fn counts(&self) -> PartCounts {
        self.counts.get()
    }

    fn count(&self, change: impl FnOnce(&mut PartCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// BL1.
    fn floor_bytes(&self) -> u64 {
        let counts = 2 * size_of::<usize>();
        let own = size_of::<Self>() + counts + size_of::<SnapshotParts>();
        own as u64 + 2 * ALLOCATION_BYTES + self.snapshot.heads().size_bytes()
    }

    /// Bytes held, without synonyms.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.floor_bytes() + self.parts.bytes()
    }

    /// Bytes that operations under way have in hand and that are not kept: none between operations.
    pub(crate) fn in_hand_bytes(&self) -> u64 {
        let parts = self.in_hand.iter();
        let parts = parts.filter(|(number, _)| self.parts.get(**number).is_none());
        parts.map(|(_, (part, _))| part.size_bytes()).sum()
    }

    fn part(&self, number: usize) -> Option<&Rc<HeldPart>> {
        let number = number as u32;
        let in_hand = self.in_hand.get(&number).map(|(part, _)| part);
        in_hand.or_else(|| self.parts.get(number).map(|kept| &kept.0))
    }

    /// Which part tells of a key, and that, if it is held.
    pub(crate) fn part_of_key(&self, key: &[u8]) -> (usize, Option<&Rc<HeldPart>>) {
        let number = self.snapshot.heads().of_key(key);
        (number, self.part(number))
    }

    /// Which part tells of the page with this number, and that, if it is held.
    pub(crate) fn part_of_page(&self, page: u32) -> (usize, Option<&Rc<HeldPart>>) {
        let number = self.snapshot.heads().of_page(page);
        (number, self.part(number))
    }

    /// An operation has a part in hand, of this snapshot.
    pub(crate) fn pin(
        &mut self,
        snapshot: &Rc<SnapshotParts>,
        (number, part): (usize, &Rc<HeldPart>),
    ) {
        if Rc::ptr_eq(snapshot, &self.snapshot) {
            let pinned = self.in_hand.entry(number as u32);
            pinned.or_insert_with(|| (Rc::clone(part), 0)).1 += 1;
        }
    }

    /// And lets it go.
    pub(crate) fn unpin(&mut self, snapshot: &Rc<SnapshotParts>, number: usize) {
        let number = number as u32;
        if Rc::ptr_eq(snapshot, &self.snapshot)
            && let Some((_, count)) = self.in_hand.get_mut(&number)
        {
            *count -= 1;
            if *count == 0 {
                self.in_hand.remove(&number);
            }
        }
    }

    fn begin(&self, number: usize) -> Hint {
        let (parent, addr) = self.snapshot.heads().first_page(number);
        Hint { addr, parent }
    }

    /// The trained page with this number, if a part that is held has it or names it.
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
        // The last one of a part, which the part behind names.
        let behind = (of + 1 < heads.count()).then(|| self.part(of + 1));
        behind.flatten().and_then(|part| part.page(number))
    }

    /// A page to the left of the one with this number, which must not be the first: that before it,
    /// or the nearest that a head names (BL6).
    pub(crate) fn left_of(&self, key: &[u8], number: u32) -> Hint {
        let left = number - 1;
        self.page(left).unwrap_or_else(|| {
            let heads = self.snapshot.heads();
            self.begin(heads.of_page(left).min(heads.of_key(key)))
        })
    }

    /// See [`ByteDirectory::run_from`]: of a part that is not held, one page.
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

    /// See [`ByteDirectory::run_up_to`].
    pub(crate) fn run_up_to(&self, number: u32, count_max: u32) -> u32 {
        self.part_of_page(number).1.map_or(1, |part| {
            let own = number - part.first_page;
            part.directory.run_up_to(own, count_max)
        })
    }

    /// Where a split of a page of this parent is announced; `None`: its part is not held.
    pub(crate) fn announcement(&self, parent: u32) -> Option<Announcement> {
        let part = self.part_of_page(parent).1?;
        let own = part
            .directory
            .announcement(parent.checked_sub(part.first_page)?)?;
        // Nobody asks which: announcements are not read.
        let model = u32::MAX;
        Some(Announcement { model, ..own })
    }

    /// A part of this snapshot has been read: keeps it, if that is still the directory's (BL4) and
    /// it fits.
    pub(crate) fn keep(
        &mut self,
        snapshot: &Rc<SnapshotParts>,
        (number, part): (usize, &Rc<HeldPart>),
        synonyms: &mut Synonyms,
    ) {
        self.count(|counts| counts.parts_fetched += 1);
        if !Rc::ptr_eq(snapshot, &self.snapshot) {
            return;
        }
        let part = Kept(Rc::clone(part));
        let own_bytes = Clock::<u32, _>::bytes_of(&part);
        if self.floor_bytes() + own_bytes <= self.budget_bytes {
            self.make_room(own_bytes, synonyms);
            self.parts.insert(number as u32, part);
        }
        debug_assert!(
            self.size_bytes() + synonyms.size_bytes() <= self.budget_bytes,
            "BL2"
        );
    }

    /// BL3: lets parts go, and then synonyms, until so many bytes fit beside what is left, or
    /// nothing is.
    fn make_room(&mut self, size_bytes: u64, synonyms: &mut Synonyms) {
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

    /// Makes room for a synonym of a parent with this lower fence; false: it would take more than
    /// the share of all of them (BL3).
    pub(crate) fn fit(&mut self, (low, parent): (&[u8], u32), synonyms: &mut Synonyms) -> bool {
        let room_bytes = self.budget_bytes - self.floor_bytes();
        while synonyms.size_bytes() + synonyms.size_bytes_of(low, parent)
            > room_bytes / SYNONYM_SHARE
        {
            if !self.forget_synonyms(synonyms) {
                return false;
            }
        }
        let own_bytes = synonyms.size_bytes_of(low, parent);
        self.make_room(own_bytes, synonyms);
        true
    }

    /// Reads parts. One round trip, and one more for each 512 KiB.
    ///
    /// # Errors
    /// The fabric failed, or the snapshot is damaged.
    pub(crate) async fn read<E: Endpoint>(
        snapshot: &SnapshotParts,
        endpoint: &E,
        batch: &mut Batch,
        (layout, geometry): (&PoolLayout, PageGeometry),
        numbers: &[usize],
    ) -> Result<Vec<Rc<HeldPart>>, IndexError> {
        let read = snapshot.read(endpoint, batch, (layout, geometry), numbers);
        let parts = read.await?.into_iter();
        let generation = snapshot.heads().header().shape.generation;
        let parts = parts.map(|part| HeldPart::new(part, geometry, generation).map(Rc::new));
        let parts: Result<Vec<_>, String> = parts.collect();
        parts.map_err(|what| snapshot.damage(what))
    }
}
