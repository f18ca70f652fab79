//! Counters of tables of byte strings remain correct when models are retrained.

use std::rc::Rc;

use farleaf_base::{OwnerWord, RemoteAddr, TableId};
use farleaf_executor::block_on;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_index::strings::operation::Change;
use farleaf_index::strings::retrain::{
    ByteTableView, CountedModel, DueWork, RetrainResult, count_late,
};
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};

use crate::emptied::{Client, access, entry};
use crate::pages::make_table;
use crate::pool::Pool;

const RECORD_COUNT: u32 = 2000;

/// Returns a key. No line fits the second half well.
fn key(number: u32) -> Vec<u8> {
    if number < RECORD_COUNT / 2 {
        return format!("a/{number:06}").into_bytes();
    }
    let scattered = u64::from(number / 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    format!("b/{scattered:016x}/{number:03}").into_bytes()
}

fn look<'a>(
    pool: &'a Pool,
    owner: OwnerWord,
    entry: &'a CatalogEntry,
) -> ByteTableView<'a, MappedEndpoint> {
    let access = access(&pool.plain, pool, owner);
    let view = block_on(ByteTableView::look(access, entry, &Rc::default()), || 0);
    view.expect("it is sound").expect("it is there")
}

/// Retrains these models; no pages are merged.
fn train(
    table: &ByteTableView<'_, MappedEndpoint>,
    is_due: impl Fn(usize) -> bool,
) -> RetrainResult {
    train_over(table, is_due, 1)
}

/// Retrains these models over one page in so many.
fn train_over(
    table: &ByteTableView<'_, MappedEndpoint>,
    is_due: impl Fn(usize) -> bool,
    share: u64,
) -> RetrainResult {
    let due_of = |model| {
        if is_due(model) {
            DueWork::Training
        } else {
            DueWork::No
        }
    };
    let due: Vec<DueWork> = (0..table.counted.len()).map(due_of).collect();
    let stretches = table.stretches(&due, &Rc::default());
    let stretches = stretches.expect("it is sound").expect("some are due");
    if share > 1 {
        block_on(table.list_one_in(&stretches, share), || 0).expect("nothing fails");
    }
    let retrained = block_on(table.retrain(&stretches, || true), || 0);
    let (retrained, _) = retrained
        .expect("nothing fails")
        .expect("nobody loads it meanwhile");
    retrained
}

/// Creates a table with several models.
fn trained(pool: &mut Pool) {
    let maker = pool.register();
    make_table(pool, maker);
    let mut client = Client::open(pool, maker);
    for number in 0..RECORD_COUNT {
        client.change(&key(number), &Change::put(&[7; 20]));
    }
    pool.fence(maker);
    pool.sweep();
    let trainer = pool.register();
    let entry = entry(pool);
    train(&look(pool, trainer, &entry), |_| true);
    pool.fence(trainer);
}

/// Promise: pages that become underfull by a session that has not followed yet are counted in the
/// models that replaced its own, in each model for all of its pages. (They were not: a table that a
/// session emptied during a retraining kept its size. Then models got equal shares, so a large
/// model next to small ones was never due, and its empty pages kept a pool full.)
#[test]
fn pages_are_counted_that_become_underfull_late() {
    let mut pool = Pool::new();
    let (maker, trainer) = (pool.register(), pool.register());
    make_table(&pool, maker);
    // This session knows one model.
    let mut client = Client::open(&pool, maker);
    for number in 0..RECORD_COUNT {
        client.change(&key(number), &Change::put(&[7; 20]));
    }
    let entry = entry(&pool);
    let retrained = train(&look(&pool, trainer, &entry), |_| true);
    assert_eq!(retrained.late.len(), 1);
    for number in 0..RECORD_COUNT {
        client.change(&key(number), &Change::delete());
    }
    let before = look(&pool, trainer, &entry);
    assert!(before.counted.iter().all(|model| model.underfull == 0));
    let sizes = before.counted.iter().map(|model| model.page_count);
    let (smallest, largest) = (sizes.clone().min(), sizes.max());
    assert!(largest > smallest.map(|size| 4 * size), "{before:?}");
    let access = access(&pool.plain, &pool, trainer);
    let broken = Rc::default();
    let counted = count_late(&access, &entry, &broken, &retrained.late);
    let count = block_on(counted, || 0).expect("nothing fails");
    let after = look(&pool, trainer, &entry);
    // Each page becomes underfull once, except those that already were.
    let page_count: u32 = after.counted.iter().map(|model| model.page_count).sum();
    let range = u64::from(page_count) * 9 / 10..=page_count.into();
    assert!(range.contains(&count), "{count} of {page_count}");
    for model in &after.counted {
        assert_eq!(model.underfull, model.page_count.into(), "{model:?}");
        assert_eq!(model.splits, 0);
    }
}

/// Promise: a kept model leaves the reserve with the snapshot that its synonym leaf table was in.
/// The node copies the model's counts; later ones are late counts.
#[test]
fn kept_models_leave_the_reserve() {
    let mut pool = Pool::new();
    trained(&mut pool);
    let (trainer, splitter) = (pool.register(), pool.register());
    let allocator = ChunkAllocator::new(&pool.plain, &pool.layout, trainer);
    let purpose = ChunkPurpose::Snapshot { generation: 0 };
    let mut claimed = Vec::new();
    while let Ok(range) = block_on(allocator.claim(1, purpose, TableId(9)), || 0) {
        claimed.push(range);
    }
    let entry = entry(&pool);
    train(&look(&pool, trainer, &entry), |_| true);
    let mut client = Client::open(&pool, splitter);
    let mut delete_some = |numbers: core::ops::Range<u32>| {
        for number in numbers {
            client.change(&key(number), &Change::delete());
        }
    };
    delete_some(0..RECORD_COUNT / 4);
    // There is free space for splits, and for the next step.
    for range in claimed.drain(..4) {
        let none = FreeLeaves::default();
        let given_back = allocator.give_back(range, ChunkPurpose::Free, TableId(0), none);
        block_on(given_back, || 0).expect("nothing fails");
    }
    let mut splitting = Client::open(&pool, splitter);
    for number in RECORD_COUNT / 4..RECORD_COUNT / 2 {
        let key = [&key(number)[..], b"/more"].concat();
        splitting.change(&key, &Change::put(&[8; 25]));
    }
    let before = look(&pool, trainer, &entry);
    let is_reserve = |addr: RemoteAddr| {
        let chunk = pool.layout.chunk_of(addr).expect("in the pool");
        pool.layout.is_reserve(chunk)
    };
    assert!(is_reserve(before.root.place()));
    assert!(before.counted.len() > 1 && before.counted[0].underfull > 0);
    assert!(before.counted[0].splits > 8);
    let announced = |model: &CountedModel, count: u64| -> Vec<u64> {
        let header = farleaf_index::hint::SYNONYM_TABLE_HEADER_SIZE_WORDS;
        let words = header..header + count;
        words
            .map(|word| pool.word(model.synonym_table.word_at(word)))
            .collect()
    };
    let before_entries = announced(&before.counted[0], 8);
    assert!(before_entries.iter().all(|entry| *entry != 0));
    let last = before.counted.len() - 1;
    let retrained = train(&before, |model| model == last);
    let after = look(&pool, trainer, &entry);
    for (was, is) in before.counted[..last].iter().zip(&after.counted) {
        assert_ne!(was.synonym_table, is.synonym_table);
        assert_eq!((was.splits, was.underfull), (is.splits, is.underfull));
    }
    assert_eq!(announced(&after.counted[0], 8), before_entries);
    let chunk = |addr: RemoteAddr| pool.layout.chunk_of(addr).expect("in the pool");
    let geometry = crate::pages::geometry();
    let named = after
        .contents
        .named_chunks(&pool.layout, geometry, after.root);
    assert!(!named.contains(&chunk(before.root.place())));
    delete_some(RECORD_COUNT / 4..RECORD_COUNT / 2);
    let access = access(&pool.plain, &pool, trainer);
    let broken = Rc::default();
    let counted = count_late(&access, &entry, &broken, &retrained.late);
    assert!(block_on(counted, || 0).expect("nothing fails") > 0);
    let late = look(&pool, trainer, &entry);
    assert!(late.counted[0].underfull > after.counted[0].underfull);
}

/// Promise: if models list one page in 16, all records can be read, changed, and scanned past.
/// Unlisted pages count as splits, and the next retraining lists all.
#[test]
fn pages_that_are_not_listed_are_found() {
    let mut pool = Pool::new();
    trained(&mut pool);
    let (trainer, client) = (pool.register(), pool.register());
    let entry = entry(&pool);
    let pages_of = |table: &ByteTableView<'_, MappedEndpoint>| -> u64 {
        let counts = table.counted.iter();
        counts.map(|model| u64::from(model.page_count)).sum()
    };
    let all = look(&pool, trainer, &entry);
    train_over(&all, |_| true, 16);
    let few = look(&pool, trainer, &entry);
    assert!(pages_of(&few) <= pages_of(&all) / 10, "{few:?}");
    let unlisted: u64 = few.counted.iter().map(|model| model.splits).sum();
    assert_eq!(unlisted + pages_of(&few), pages_of(&all));
    let mut client = Client::open(&pool, client);
    for number in 0..RECORD_COUNT {
        assert_eq!(client.get(&key(number)), Some(vec![7; 20]));
        client.change(&key(number), &Change::put(&[9; 20]));
    }
    let pages = client.survey();
    let count: usize = pages.iter().map(|page| page.record_count).sum();
    assert_eq!(count, RECORD_COUNT as usize);
    train(&look(&pool, trainer, &entry), |_| true);
    let listed = pages_of(&look(&pool, trainer, &entry));
    assert_eq!(listed, pages.len() as u64);
    let reader = pool.register();
    let mut reader = Client::open(&pool, reader);
    for number in 0..RECORD_COUNT {
        assert_eq!(reader.get(&key(number)), Some(vec![9; 20]));
    }
}
