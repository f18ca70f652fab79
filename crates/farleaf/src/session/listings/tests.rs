use super::*;

use std::time::{Duration, Instant};

use farleaf_executor::{Completions, TaskSet};
use farleaf_fabric::OperationKind;
use farleaf_pool::catalog::TABLE_COUNT_MAX;

use crate::{EmbeddedFabric, LayerKind, Pool, PoolOptions, Session};

fn pool(fabric: EmbeddedFabric, size_bytes: u64) -> Pool {
    let pool = Pool::embedded(&PoolOptions {
        fabric,
        size_bytes,
        retrain_thread_count: 0,
        ..PoolOptions::default()
    });
    pool.expect("an embedded pool")
}

fn session(pool: &Pool) -> Session {
    pool.session().expect("a session")
}

fn listed() -> TableOptions {
    TableOptions {
        layer: LayerKind::RfTree,
        ..TableOptions::bytes()
    }
}

fn create(session: &Session, name: &str, options: &TableOptions) -> Result<(), Error> {
    if options.kind == TableOptions::default().kind {
        session.create_table(name, options).map(drop)
    } else {
        session.create_byte_table(name, options).map(drop)
    }
}

/// Returns how many listings have a table, and how many do not.
fn listing_counts(session: &Session) -> (usize, usize) {
    let core = session.asynchronous().core();
    let mut entries = session.block_on(core.entries()).expect("a catalog");
    entries.retain(|entry| entry.state == EntryState::Live);
    let listings = entries.iter().filter(|entry| is_listing(entry));
    let has_table = |listing: &&CatalogEntry| {
        let mut tables = entries.iter().map(|entry| entry.record.id);
        tables.any(|id| lists(listing, id))
    };
    let (of_tables, orphans): (Vec<_>, Vec<_>) = listings.partition(has_table);
    (of_tables.len(), orphans.len())
}

/// Promise: a creator that dies between its two entries leaves an orphaned listing. If such
/// listings have the last entries of a full catalog, the next creator of a table of any kind drops
/// them and uses their entries.
#[test]
fn orphans_in_a_full_catalog_make_space() {
    for options in [TableOptions::default(), TableOptions::bytes(), listed()] {
        let pool = pool(EmbeddedFabric::Mem, 64 << 20);
        let (dead, next) = (session(&pool), session(&pool));
        let orphan_count = 1 + u64::from(options.has_listing());
        let first_orphan = TABLE_COUNT_MAX - orphan_count;
        for index in 0..first_orphan {
            create(&dead, &format!("t{index}"), &TableOptions::default()).expect("a place");
        }
        let core = dead.asynchronous().core();
        for index in first_orphan..TABLE_COUNT_MAX {
            let made = dead.block_on(async {
                let mut batch = Batch::new();
                let drawn = batch.fetch_add(core.layout().table_num(), 2);
                core.control(&mut batch).await?;
                let table = TableId(batch.previous(drawn) as u32 + 1);
                core.write_listing(index, table).await
            });
            made.expect("a listing");
        }
        assert_eq!(listing_counts(&next), (0, orphan_count as usize));
        create(&next, "next", &options).expect("their places");
        let listing_count = usize::from(options.has_listing());
        assert_eq!(listing_counts(&next), (listing_count, 0));
        let table_count = next.list_tables().expect("a list").len() as u64;
        assert_eq!(table_count, first_orphan + 1, "nothing else was dropped");
    }
}

/// Cancels the creation of a table after this many batches, and returns whether it had completed.
fn make_in_part(session: &Session, name: &str, batch_count: u64) -> bool {
    let answered = || session.counters(OperationKind::Control).cost.round_trips;
    let before = answered();
    let options = listed();
    let mut tasks = TaskSet::with_capacity(1);
    let made = tasks.spawn(async {
        let made = session.asynchronous().create_byte_table(name, &options);
        made.await.map(drop)
    });
    let mut is_made = matches!(made, Ok(Some(Ok(()))));
    let mut completions = session.completions();
    let started_at = Instant::now();
    while !is_made && answered() - before < batch_count {
        assert!(started_at.elapsed() < Duration::from_secs(20), "it stands");
        completions.poll();
        tasks.run_ready(|made| {
            made.expect("made");
            is_made = true;
        });
    }
    is_made
}

/// Promise: wherever a creator of a table dies, no orphaned listing is left once another table has
/// been created, and no table ever lacks its listing.
#[test]
fn makers_that_die_leave_no_listing() {
    let pool = pool(EmbeddedFabric::Tcp, 32 << 20);
    let next = session(&pool);
    let (mut orphan_count, mut is_made) = (0, false);
    for batch_count in 0.. {
        let maker = session(&pool);
        is_made = make_in_part(&maker, "made", batch_count);
        drop(maker);
        let (_, orphans) = listing_counts(&next);
        orphan_count += orphans;
        create(&next, "next", &listed()).expect("a table");
        let tables = next.list_tables().expect("a list");
        assert_eq!(listing_counts(&next), (tables.len(), 0), "{batch_count}");
        for table in tables {
            let opened = next.open_byte_table(&table.name).expect("it is whole");
            opened.put(b"key", b"value").expect("put");
            next.drop_table(&table.name).expect("dropped");
        }
        assert_eq!(listing_counts(&next), (0, 0));
        if is_made {
            break;
        }
    }
    assert!(is_made && orphan_count > 0, "{orphan_count}");
}

/// Returns a pool that has space for this many 60 KB values, and the number that it really holds.
fn filled(value_count: u64) -> (Pool, u64) {
    let pool = pool(EmbeddedFabric::Mem, 4 << 20);
    let filling = session(&pool);
    let table = filling.create_byte_table("full", &TableOptions::bytes());
    let table = table.expect("a table");
    let value = vec![7; 60_000];
    let is_put = |number: &u64| table.put(&number.to_be_bytes(), &value).is_ok();
    let count = (0..value_count).take_while(is_put).count() as u64;
    (pool, count)
}

/// Promise: a table that is not created because the pool is full leaves neither a listing nor used
/// memory, whether creation failed before or after its listing was created.
#[test]
fn a_table_that_is_not_made_leaves_nothing() {
    let (_, most) = filled(u64::MAX);
    let mut not_made_count = 0;
    for left in 0.. {
        let (pool, _) = filled(most - left);
        let session = session(&pool);
        let before = pool.usage().expect("usage").used_bytes;
        let Err(error) = create(&session, "listed", &listed()) else {
            break;
        };
        assert!(matches!(error.kind(), ErrorKind::Full(_)), "{error}");
        assert_eq!(listing_counts(&session), (0, 0), "{left}");
        let started_at = Instant::now();
        while pool.usage().expect("usage").used_bytes > before {
            assert!(started_at.elapsed() < Duration::from_secs(20), "{left}");
            std::thread::sleep(Duration::from_millis(2));
        }
        // A listing takes as much memory as any table of byte strings.
        if create(&session, "other", &TableOptions::bytes()).is_ok() {
            not_made_count += 1;
        }
        let names = session.list_tables().expect("a list").into_iter();
        assert!(names.map(|table| table.name).all(|name| name != "listed"));
    }
    assert!(not_made_count > 0, "never between the two");
}
