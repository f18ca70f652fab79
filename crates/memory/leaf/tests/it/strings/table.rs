//! Table of pages in [`Memory`]: found by following links, changed by batches that may be
//! interrupted anywhere, recovered, and compared with a model after each step.

use std::collections::{BTreeMap, BTreeSet};

use farleaf_base::{Incarnation, NodeId, OwnerWord, RemoteAddr, SessionId, TableId};
use farleaf_fabric::Batch;
use farleaf_leaf::strings::{
    Fence, FitOutcome, Found, InPlace, KeyPlacement, MoveSource, NewFence, NewKey, NewPage,
    NewPrefix, NewRecord, NotInPlace, Outside, PageBuffer, PageChange, PageDraft, PageGeometry,
    Reference, SplitRequest, Value, plan_merge, plan_rewrite,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::strings::memory::{Memory, Write, image, writes_of};

pub(crate) const TABLE: TableId = TableId(7);

/// Value in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelValue {
    Inline(Vec<u8>),
    Outside(Reference),
}

impl ModelValue {
    pub(crate) fn of(value: Value<'_>) -> Self {
        match value {
            Value::Inline(bytes) => Self::Inline(bytes.to_vec()),
            Value::Outside(reference) => Self::Outside(reference),
        }
    }

    fn value(&self) -> Value<'_> {
        match self {
            Self::Inline(bytes) => Value::Inline(bytes),
            Self::Outside(reference) => Value::Outside(*reference),
        }
    }
}

pub(crate) type Model = BTreeMap<Vec<u8>, ModelValue>;

/// Counts of events.
#[derive(Debug, Default)]
pub(crate) struct EventCounts {
    pub(crate) moves: usize,
    pub(crate) splits: usize,
    pub(crate) left_puts: usize,
    pub(crate) rewrites: usize,
    pub(crate) repacks: usize,
    pub(crate) unput: usize,
    pub(crate) merges: usize,
    pub(crate) crashes: usize,
    pub(crate) not_in_place: BTreeMap<String, usize>,
    pub(crate) outside_keys: usize,
    pub(crate) outside_prefixes: usize,
}

pub(crate) struct Table {
    pub(crate) geometry: PageGeometry,
    pub(crate) memory: Memory,
    pub(crate) outside: Outside,
    pub(crate) model: Model,
    pub(crate) rng: Xoshiro256PlusPlus,
    pub(crate) tally: EventCounts,
    /// Period of changes that are interrupted at every place.
    pub(crate) crash_period: u64,
    /// References that pages should have.
    named: BTreeSet<Reference>,
    pub(crate) first: RemoteAddr,
    next_block: u64,
}

fn owner() -> OwnerWord {
    OwnerWord::new(SessionId::new(9).expect("a number"), Incarnation::new(5))
}

impl Table {
    pub(crate) fn new(geometry: PageGeometry, seed: u64, crash_period: u64) -> Self {
        let mut table = Self {
            geometry,
            memory: Memory::default(),
            outside: Outside::new(),
            model: Model::new(),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            tally: EventCounts::default(),
            crash_period,
            named: BTreeSet::new(),
            first: RemoteAddr::new(NodeId(0), 64),
            next_block: 128,
        };
        let (start, end) = (Fence::START, Fence::End);
        let page = NewPage {
            low: NewFence::inline(&start),
            high: NewFence::inline(&end),
            prefix: NewPrefix::inline(&[]),
            link: RemoteAddr::NULL,
        };
        let mut page = PageBuffer::build(geometry, &page, &[]).expect("an empty page has room");
        let mut batch = Batch::new();
        table.change(table.first).write_new(&mut batch, &mut page);
        table.memory.apply(&writes_of(&mut batch));
        table
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.rng.next_u64() % bound as u64) as usize
    }

    pub(crate) fn change(&self, addr: RemoteAddr) -> PageChange {
        PageChange {
            geometry: self.geometry,
            addr,
            table: TABLE,
            next: OwnerWord::FREE,
        }
    }

    fn new_page(&mut self) -> RemoteAddr {
        let node = NodeId(u8::from(self.below(8) == 0));
        self.next_block += self.geometry.stride_blocks();
        RemoteAddr::new(node, self.next_block)
    }

    /// Writes a string to a value block of its own.
    pub(crate) fn block(&mut self, string: &[u8]) -> Reference {
        self.next_block += 1;
        let pointer = RemoteAddr::new(NodeId(3), self.next_block).with_spare(0xA5A5);
        let reference = Reference::of(pointer, string);
        assert!(self.outside.insert(reference, string));
        self.named.insert(reference);
        reference
    }

    /// Locks a page that was read, because its change may be interrupted.
    fn lock(&mut self, addr: RemoteAddr) -> PageBuffer {
        let lock = self.geometry.lock(addr);
        assert_eq!(self.memory.word(lock), 0, "nobody holds it");
        self.memory.set(lock, owner().word());
        self.page(addr)
    }

    fn page(&self, addr: RemoteAddr) -> PageBuffer {
        let words = self.memory.image_words(self.geometry, addr);
        PageBuffer::copy_of(image(self.geometry, &words))
    }

    /// Returns the page that covers a key, found by links to the right alone.
    fn find(&self, key: &[u8]) -> RemoteAddr {
        let mut addr = self.first;
        loop {
            let page = self.page(addr);
            let image = page.image();
            assert!(image.is_intact(addr, TABLE), "{addr} is torn");
            addr = match image.placement(key, &self.outside) {
                _ if image.is_retired() => image.link().place(),
                KeyPlacement::Here => return addr,
                KeyPlacement::Right => image.link(),
                other => panic!("{other:?} from {addr}, though all strings were read"),
            };
        }
    }

    /// Posts a batch that leads the table from one model to the next, after simulating
    /// interruptions at every place from time to time.
    fn post(&mut self, batch: &mut Batch, next: Model) {
        let writes = writes_of(batch);
        batch.clear();
        if self.rng.next_u64().is_multiple_of(self.crash_period) {
            self.cut_off(&writes, &next);
        }
        self.memory.apply(&writes);
        self.model = next;
    }

    /// Posts a batch that changes nothing reachable.
    fn post_unseen(&mut self, batch: &mut Batch) {
        let model = self.model.clone();
        self.post(batch, model);
    }

    fn cut_off(&mut self, writes: &[Write], next: &Model) {
        // The pages of a walk that treats locks as if no session had died.
        let (_, pages) = self.walk_pages(&mut self.memory.clone());
        for crashed in self.memory.crashed(writes, &mut self.rng) {
            self.tally.crashes += 1;
            let mut recovered = crashed.clone();
            let (listed, left) = self.walk_pages(&mut recovered);
            for page in pages.iter().filter(|page| !left.contains(page)) {
                assert!(
                    self.is_retired(&mut recovered, *page),
                    "two pages cover a key"
                );
            }
            assert!(
                listed == self.model || listed == *next,
                "a crash left neither what was, nor what was to be"
            );
            // Recovery may be interrupted as well, within its own WRITEs.
            for again in self.recoveries(&crashed) {
                let mut again = again;
                assert_eq!(self.walk(&mut again), listed);
            }
        }
    }

    /// Compares the table with the model, and its pages' references with the expected ones.
    pub(crate) fn check(&mut self) {
        let mut memory = self.memory.clone();
        assert_eq!(self.walk(&mut memory), self.model);
        let mut named = Vec::new();
        let mut addr = self.first;
        while !addr.is_null() {
            let page = self.page(addr);
            if !page.image().is_retired() {
                named.extend(page.image().references());
                self.tally.outside_prefixes += usize::from(page.image().prefix_size_bytes() > 32);
            }
            addr = page.image().link().place();
        }
        let name_count = named.len();
        let named: BTreeSet<_> = named.into_iter().collect();
        assert_eq!(named.len(), name_count, "a block has one name");
        assert_eq!(
            named, self.named,
            "nothing is leaked, nothing freed too early"
        );
        for key in self.model.keys() {
            let page = self.page(self.find(key));
            let image = page.image();
            let Found::Record(slot) = image.find(key, &self.outside) else {
                panic!("a listed key was not found");
            };
            assert_eq!(ModelValue::of(image.value(slot)), self.model[key]);
            // Without reading outside strings, the page has at least candidates.
            match image.find(key, &Outside::new()) {
                Found::Record(found) => assert_eq!(found, slot),
                Found::Unsure(slots) => {
                    assert!(slots.contains(slot) && slots.slot_count() == 1);
                    self.tally.outside_keys += 1;
                }
                Found::Absent => panic!("a listed key is called absent"),
            }
        }
    }

    pub(crate) fn delete(&mut self, key: &[u8]) {
        let addr = self.find(key);
        let mut page = self.lock(addr);
        let mut next = self.model.clone();
        let removed = next.remove(key).is_some();
        let mut batch = Batch::new();
        match page.image().find(key, &self.outside) {
            Found::Record(slot) => {
                assert!(removed);
                let image = page.image();
                let freed = [image.key(slot).reference(), image.value(slot).reference()];
                for reference in freed.into_iter().flatten() {
                    assert!(self.named.remove(&reference));
                }
                self.change(addr).delete(&mut batch, &mut page, slot);
            }
            Found::Absent => {
                assert!(!removed);
                self.change(addr).unlock(&mut batch);
            }
            Found::Unsure(_) => panic!("all was read"),
        }
        self.post(&mut batch, next);
        assert_eq!(self.page(addr), page, "the buffer is what far memory holds");
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &ModelValue) {
        // Repeat as often as a rewrite leaves the record out.
        for _ in 0..3 {
            if self.put_once(key, value) {
                return;
            }
            self.tally.unput += 1;
        }
        panic!("the record finds no room, however often pages are split");
    }

    fn put_once(&mut self, key: &[u8], value: &ModelValue) -> bool {
        let addr = self.find(key);
        let mut page = self.lock(addr);
        let mut next = self.model.clone();
        next.insert(key.to_vec(), value.clone());
        let found = page.image().find(key, &self.outside);
        let prefix_size_bytes = page.image().prefix_size_bytes();
        let mut new_block = None;
        let (space, key_block, freed, mut batch) = match found {
            Found::Record(slot) => {
                let freed = page.image().value(slot).reference();
                let block = page.image().key(slot).reference();
                let mut batch = Batch::new();
                let change = self.change(addr);
                let space = change.update(&mut batch, &mut page, slot, value.value());
                (space, block, freed, batch)
            }
            Found::Absent => {
                if !self
                    .geometry
                    .is_suffix_inline(key.len() - prefix_size_bytes)
                {
                    new_block = Some(self.block(key));
                }
                let record = record(key, new_block, value);
                let mut batch = Batch::new();
                let space = self.change(addr).insert(&mut batch, &mut page, &record);
                (space, new_block, None, batch)
            }
            Found::Unsure(_) => panic!("all was read"),
        };
        if space == FitOutcome::Enough {
            if let Some(reference) = freed {
                assert!(self.named.remove(&reference));
            }
            self.tally.moves += usize::from(batch.verb_count() > 5);
            self.post(&mut batch, next);
            assert_eq!(self.page(addr), page, "the buffer is what far memory holds");
            return true;
        }
        assert!(batch.is_empty(), "no room, no change");
        let record = record(key, key_block, value);
        let is_put = self.make_space(addr, page, &record, next);
        if let (false, Some(block)) = (is_put, new_block) {
            self.named.remove(&block);
        }
        is_put
    }

    /// Splits or rewrites a locked page; returns whether the record is in it then.
    fn make_space(
        &mut self,
        addr: RemoteAddr,
        mut page: PageBuffer,
        record: &NewRecord<'_>,
        next: Model,
    ) -> bool {
        let change = self.change(addr);
        let before = page.clone();
        let request = SplitRequest {
            record: *record,
            sibling: self.new_page(),
            counter: None,
        };
        let planned = change.plan_split(&before, &request, &self.outside);
        let reason = match planned.expect("no damage") {
            InPlace::Split(plan) => {
                self.tally.splits += 1;
                let mut batch = Batch::new();
                if request.sibling.node() != addr.node() {
                    change.write_sibling_of(&mut batch, &plan);
                    self.post_unseen(&mut batch);
                }
                let split = change.split(&mut batch, &mut page, &plan);
                let state_count = batch.verbs().iter();
                let state_count = state_count.filter(|verb| verb.addr == self.geometry.state(addr));
                self.tally.left_puts += usize::from(state_count.count() == 2);
                for reference in &split.released {
                    assert!(self.named.remove(reference));
                }
                self.post(&mut batch, next);
                assert_eq!(self.page(addr), page, "the buffer is what far memory holds");
                return true;
            }
            InPlace::No(reason) => reason,
        };
        *self
            .tally
            .not_in_place
            .entry(format!("{reason:?}"))
            .or_default() += 1;
        if reason == NotInPlace::FencesOutside {
            assert!(!page.image().is_self_contained());
        }
        self.rewrite(addr, &before, record, next)
    }

    fn rewrite(
        &mut self,
        addr: RemoteAddr,
        page: &PageBuffer,
        record: &NewRecord<'_>,
        next: Model,
    ) -> bool {
        let plan = plan_rewrite(page.image(), Some(record), &self.outside);
        let mut plan = plan.expect("there is always a cut");
        self.give(&mut plan.left);
        let mut batch = Batch::new();
        let mut source = MoveSource {
            addr,
            page: page.clone(),
        };
        let place = self.new_page_beside(addr);
        let change = self.change(place);
        let mut link = page.image().link();
        match &mut plan.right {
            None => {
                self.tally.repacks += 1;
                let mut left = plan.left.build(link);
                let sources = core::slice::from_mut(&mut source);
                change.take_over(&mut batch, owner(), &mut left, sources);
            }
            Some(right) => {
                self.tally.rewrites += 1;
                self.give(right);
                let mut right_page = right.build(link);
                link = self.new_page_beside(addr);
                let mut left = plan.left.build(link);
                let right = &mut right_page;
                change.split_out(&mut batch, owner(), &mut left, link, right, &mut source);
            }
        }
        for reference in &plan.released {
            assert!(self.named.remove(reference));
        }
        let next = if plan.is_put {
            next
        } else {
            self.model.clone()
        };
        self.post(&mut batch, next);
        plan.is_put
    }

    /// Allocates a page on the same node, so that a move is one batch.
    fn new_page_beside(&mut self, addr: RemoteAddr) -> RemoteAddr {
        self.next_block += self.geometry.stride_blocks();
        RemoteAddr::new(addr.node(), self.next_block)
    }

    fn give(&mut self, draft: &mut PageDraft<'_>) {
        let wanted = draft.wanted().into_iter();
        let wanted: Vec<_> = wanted
            .map(|(place, string)| (place, string.to_vec()))
            .collect();
        for (place, string) in wanted {
            let reference = self.block(&string);
            draft.give(place, reference);
        }
        assert!(draft.wanted().is_empty() && draft.fits());
    }

    /// Merges the page of a key with its right neighbor, if they fit into one.
    pub(crate) fn merge(&mut self, key: &[u8]) {
        let left = self.find(key);
        let right = self.page(left).image().link();
        if right.is_null() {
            return;
        }
        let right = self.successor(&self.memory, right.place());
        // The left page must link to the right one before they are moved.
        let mut left_page = self.lock(left);
        let mut batch = Batch::new();
        self.change(left).relink(&mut batch, &mut left_page, right);
        self.post_unseen(&mut batch);
        if left.node() != right.node() {
            return;
        }
        let pages = [self.lock(left), self.lock(right)];
        let images = [pages[0].image(), pages[1].image()];
        let plan = plan_merge(&images, &self.outside).expect("no damage");
        let Some(mut plan) = plan else {
            self.memory.set(self.geometry.lock(left), 0);
            self.memory.set(self.geometry.lock(right), 0);
            return;
        };
        self.tally.merges += 1;
        self.give(&mut plan.page);
        let mut merged = plan.page.build(images[1].link());
        let mut sources = [(left, &pages[0]), (right, &pages[1])].map(|(addr, page)| MoveSource {
            addr,
            page: page.clone(),
        });
        let place = self.new_page_beside(left);
        let change = self.change(place);
        change.take_over(&mut batch, owner(), &mut merged, &mut sources);
        for reference in &plan.released {
            assert!(self.named.remove(reference));
        }
        self.post_unseen(&mut batch);
    }
}

fn record<'a>(key: &'a [u8], block: Option<Reference>, value: &'a ModelValue) -> NewRecord<'a> {
    NewRecord {
        key: match block {
            None => NewKey::Inline(key),
            Some(block) => NewKey::Outside(key, block),
        },
        value: value.value(),
    }
}
