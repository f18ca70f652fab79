//! Tables of byte strings whose pages are merged by retrainers that are interrupted at every
//! possible place.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use farleaf_base::OwnerWord;
use farleaf_executor::block_on;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::strings::load::page_shape;
use farleaf_index::strings::operation::{Change, PageReport, PageSurvey};
use farleaf_index::strings::retrain::ByteTableView;
use farleaf_index::strings::snapshot::Contents;
use farleaf_index::strings::{ByteIndex, ByteIndexState};
use farleaf_leaf::strings::format::PageAccess;
use farleaf_node::retrain::{RetrainPolicy, Retrainer};
use farleaf_node::sweep::MemoryMaintainer;
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::ChunkPurpose;

use crate::audit::chunks;
use crate::cutting::{Cut, CuttingEndpoint};
use crate::pages::{TABLE, geometry, make_table};
use crate::pool::Pool;

/// Maximum number of ticks: more than there is anything to do.
const TICK_COUNT_MAX: u32 = 60;
/// Approximate number of places at which a retrainer is interrupted: nearly all.
const CUT_COUNT_MAX: usize = 300;
const RECORD_COUNT: u32 = 48;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns a key. Every other key is stored partly outside its page, and so are some fences.
fn key(number: u32) -> Vec<u8> {
    let end = if number % 8 == 3 { 200 } else { 4 };
    [format!("k/{number:04}").as_bytes(), &vec![b'x'; end]].concat()
}

/// Session that uses the table.
pub(crate) struct Client<'a> {
    access: PageAccess<'a, MappedEndpoint>,
    state: ByteIndexState,
    batch: Batch,
}

impl<'a> Client<'a> {
    pub(crate) fn open(pool: &'a Pool, owner: OwnerWord) -> Self {
        Self::open_by(pool, owner, |_| {})
    }

    /// Opens the table with hints that are a page too far right, except for the first and the last
    /// page.
    fn open_misled(pool: &'a Pool, owner: OwnerWord) -> Self {
        let mislead = |contents: &mut Contents| {
            for run in &mut contents.runs {
                run.listed[1..].rotate_left(1);
            }
        };
        Self::open_by(pool, owner, mislead)
    }

    fn open_by(pool: &'a Pool, owner: OwnerWord, change: impl Fn(&mut Contents)) -> Self {
        let access = access(&pool.plain, pool, owner);
        let broken = Rc::default();
        let entry = entry(pool);
        let view = block_on(ByteTableView::look(access, &entry, &broken), || 0);
        let table = view.expect("it is sound").expect("it is there");
        let mut contents = table.contents;
        change(&mut contents);
        let directory = contents.into_directory(geometry());
        let directory = directory.expect("it is sound").into();
        let state = ByteIndexState::new(directory, 32, broken);
        state.follow_retired();
        Self {
            access,
            state,
            batch: Batch::new(),
        }
    }

    pub(crate) fn change(&mut self, key: &[u8], change: &Change<'_>) {
        let index = ByteIndex::new(self.access, &self.state);
        let changed = index.modify(&mut self.batch, key, change);
        assert!(block_on(changed, || 0).expect("nothing fails").is_done);
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let index = ByteIndex::new(self.access, &self.state);
        let read = |value: Option<&[u8]>| value.map(<[u8]>::to_vec);
        let got = block_on(index.get(&mut self.batch, key, read), || 0);
        got.expect("nothing fails")
    }

    pub(crate) fn survey(&mut self) -> Vec<PageReport> {
        let index = ByteIndex::new(self.access, &self.state);
        let (mut survey, mut pages) = (PageSurvey::default(), Vec::new());
        while let Some(page) =
            block_on(index.survey_next(&mut self.batch, &mut survey), || 0).expect("nothing fails")
        {
            pages.push(page);
        }
        pages
    }
}

pub(crate) fn access<'a, E>(
    endpoint: &'a E,
    pool: &'a Pool,
    owner: OwnerWord,
) -> PageAccess<'a, E> {
    PageAccess {
        endpoint,
        layout: &pool.layout,
        geometry: geometry(),
        table: TABLE,
        owner,
    }
}

pub(crate) fn entry(pool: &Pool) -> CatalogEntry {
    pool.catalog().pop().expect("there is a table")
}

/// Retrains until nothing is due and only idle sessions are awaited; returns false if it was
/// interrupted.
fn retrain<E: Endpoint>(maintainer: &MemoryMaintainer<E>) -> bool {
    let policy = RetrainPolicy {
        leaves_per_split: 1000,
        split_count_min: 1,
        look_tick_count: 0,
        ..RetrainPolicy::DEFAULT
    };
    let now = Cell::new(0);
    let retrainer = Retrainer::new(policy, move || {
        now.set(now.get() + policy.tick_ns);
        now.get()
    });
    let (stop, mut quiet_count) = (AtomicBool::new(false), 0);
    for _ in 0..TICK_COUNT_MAX {
        let Ok(is_more_due) = block_on(retrainer.tick(maintainer, &stop), || 0) else {
            return false;
        };
        let is_sweep_due = retrainer.take_wanted_sweep() || retrainer.take_left_blocks();
        if is_sweep_due && block_on(maintainer.sweep(), || 0).is_err() {
            return false;
        }
        let is_busy = is_more_due || retrainer.has_garbage();
        quiet_count = if is_busy { 0 } else { quiet_count + 1 };
        if quiet_count == 8 {
            return true;
        }
    }
    true
}

/// Returns a trained table of which most records were deleted, and the remaining records.
fn emptied() -> (Pool, Records) {
    let mut pool = Pool::new();
    let maker = pool.register();
    make_table(&pool, maker);
    let mut records = Records::new();
    {
        let mut client = Client::open(&pool, maker);
        for number in 0..RECORD_COUNT {
            let value = vec![number as u8; 25];
            client.change(&key(number), &Change::put(&value));
            records.insert(key(number), value);
        }
    }
    pool.fence(maker);
    pool.sweep();
    let trainer = pool.register();
    assert!(retrain(&pool.maintainer(pool.endpoint(), trainer)));
    pool.fence(trainer);
    let deleter = pool.register();
    {
        let mut client = Client::open(&pool, deleter);
        assert!(client.survey().len() > 5);
        for number in (0..RECORD_COUNT).filter(|number| number % 10 != 3) {
            client.change(&key(number), &Change::delete());
            records.remove(&key(number));
        }
    }
    pool.fence(deleter);
    pool.sweep();
    (pool, records)
}

/// Returns the number of pages in use in chunks that splits take from, and of chunks of runs and
/// snapshots.
fn used(pool: &Pool) -> (u64, usize) {
    let own = chunks(pool).into_iter().filter(|it| it.table == TABLE);
    let (mut page_count, mut chunk_count) = (0, 0);
    for chunk in own {
        match chunk.purpose {
            Some(ChunkPurpose::Leaves { .. }) => {
                page_count += page_shape(geometry()).piece_count - chunk.free.count();
            }
            Some(ChunkPurpose::Run { .. } | ChunkPurpose::Snapshot { .. }) => chunk_count += 1,
            _ => {}
        }
    }
    (page_count, chunk_count)
}

/// Checks the records, that pages are sound, and that none is locked unless a session has died and
/// no sweep has run.
fn assert_holds(pool: &mut Pool, records: &Records, is_swept: bool) {
    let owner = pool.register();
    let mut client = Client::open(pool, owner);
    for (key, value) in records {
        assert_eq!(client.get(key).as_ref(), Some(value), "{key:?}");
    }
    for number in 0..RECORD_COUNT {
        assert_eq!(client.get(&key(number)), records.get(&key(number)).cloned());
    }
    let pages = client.survey();
    assert!(pages.iter().all(|page| page.is_sound));
    assert!(!is_swept || pages.iter().all(|page| page.lock == 0));
    let ends = pages.windows(2).all(|two| two[0].high == two[1].low);
    assert!(ends, "{pages:?}");
    let count: usize = pages.iter().map(|page| page.record_count).sum();
    assert_eq!(count, records.len());
    pool.fence(owner);
}

/// Promise (LEAF-8): a retrainer that dies anywhere during merges loses no record, whichever
/// process comes first. Later writes are visible by old and new hints, and the next retrainer frees
/// as much memory as without the crash.
#[test]
fn a_retrainer_may_die_anywhere() {
    let (mut pool, records) = emptied();
    let before = used(&pool);
    let owner = pool.register();
    let endpoint: &CuttingEndpoint = &pool.cutting(Cut::NEVER);
    assert!(retrain(&pool.maintainer(endpoint, owner)));
    pool.fence(owner);
    pool.sweep();
    let after = used(&pool);
    assert!(after.0 <= before.0 / 2, "{before:?} to {after:?}");
    assert_holds(&mut pool, &records, true);

    let cuts = endpoint.cuts(CUT_COUNT_MAX);
    assert!(cuts.len() > CUT_COUNT_MAX / 2);
    for cut in cuts {
        for (sweeps_first, is_misled) in [(false, false), (false, true), (true, true)] {
            let context = format!("{cut:?}, {sweeps_first}, {is_misled}");
            survive(cut, sweeps_first, is_misled, after, &context);
        }
    }
}

/// Interrupts a retrainer, lets a session that knew the table before work on it, and runs another
/// retrainer.
fn survive(cut: Cut, sweeps_first: bool, is_misled: bool, after: (u64, usize), context: &str) {
    let (mut pool, mut records) = emptied();
    let (owner, visitor) = (pool.register(), pool.register());
    let state = if is_misled {
        Client::open_misled(&pool, visitor).state
    } else {
        Client::open(&pool, visitor).state
    };
    {
        let endpoint: &CuttingEndpoint = &pool.cutting(cut);
        retrain(&pool.maintainer(endpoint, owner));
    }
    pool.fence(owner);
    if sweeps_first {
        pool.sweep();
    }
    {
        let mut client = Client {
            access: access(&pool.plain, &pool, visitor),
            state,
            batch: Batch::new(),
        };
        // A session with correct hints.
        let mut other = Client::open(&pool, visitor);
        for (key, value) in &mut records {
            assert_eq!(client.get(key).as_ref(), Some(&*value), "{context}");
            value[0] ^= 0xFF;
            client.change(key, &Change::put(value));
            assert_eq!(other.get(key).as_ref(), Some(&*value), "{context}");
        }
    }
    assert_holds(&mut pool, &records, sweeps_first);
    pool.fence(visitor);
    pool.sweep();
    let owner = pool.register();
    assert!(retrain(&pool.maintainer(pool.endpoint(), owner)));
    pool.fence(owner);
    pool.sweep();
    assert_holds(&mut pool, &records, true);
    let used = used(&pool);
    let is_as_small = used.0 <= after.0 && used.1 <= after.1;
    assert!(is_as_small, "{context}: {used:?}, {after:?}");
}

/// Promise: a client that is stopped while it holds a page's lock delays the merge of that page,
/// but no memory is lost. After its end, memory is freed as if the client had not been there.
#[test]
fn a_client_that_stops_loses_no_page() {
    let (mut pool, records) = emptied();
    let after = after_all(&mut pool);
    for number in [0, 1, 2, 4] {
        (pool, _) = emptied();
        let (stopped, owner) = (pool.register(), pool.register());
        {
            let pages = Client::open(&pool, stopped).survey();
            let page = pages[pages.len() - 1 - number].addr;
            let own = access(&pool.plain, &pool, stopped);
            let (mut batch, mut blank) = (Batch::new(), own.blank());
            let broken = Cell::new(false);
            let lock = own.lock(&mut batch, page, None, &mut blank, &broken);
            block_on(lock, || 0).expect("nobody has it");
            // It waits for the lock, and gives up, more than once.
            retrain(&pool.maintainer(pool.endpoint(), owner));
        }
        pool.fence(stopped);
        pool.fence(owner);
        pool.sweep();
        let used = after_all(&mut pool);
        assert!(
            used.0 <= after.0 && used.1 <= after.1,
            "{number}: {used:?}, {after:?}"
        );
        assert_holds(&mut pool, &records, true);
    }
}

/// Returns the usage after all work is done.
fn after_all(pool: &mut Pool) -> (u64, usize) {
    let owner = pool.register();
    assert!(retrain(&pool.maintainer(pool.endpoint(), owner)));
    pool.fence(owner);
    pool.sweep();
    used(pool)
}
