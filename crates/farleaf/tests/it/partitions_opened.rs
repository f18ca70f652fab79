//! Creating, opening and dropping tables over several pools: clients get a complete table, or an
//! error that says what is wrong.

use std::sync::atomic::{AtomicU32, Ordering};

use farleaf::{
    Bounds, EmbeddedFabric, Error, ErrorKind, LayerKind, PartitionError, PartitionedPool,
    PartitionedSession, Pool, TableOptions,
};

use crate::partitions::{bounds, of_layer, parts_over};

const MEM: EmbeddedFabric = EmbeddedFabric::Mem;

fn three() -> [Pool; 3] {
    let pools = super::pools_over([MEM, MEM, MEM], 8, 0);
    pools.try_into().expect("three")
}

fn session(pools: &[&Pool]) -> PartitionedSession {
    let pools = pools.iter().copied().cloned().collect();
    let pools = PartitionedPool::new(pools).expect("several pools");
    pools.session().expect("a session")
}

fn create(session: &PartitionedSession, first_keys: &[u64]) -> Result<(), Error> {
    let options = TableOptions::default();
    let made = session.create_table("t", &options, &bounds(first_keys));
    made.map(drop)
}

/// Returns the error of opening a table, which cannot be dropped either unless it is incomplete.
fn refused(session: &PartitionedSession) -> Error {
    let error = session.open_table("t").expect_err("it is refused");
    if !matches!(of(&error), PartitionError::HalfThere { .. }) {
        let dropped = session.drop_table("t").expect_err("refused as well");
        assert_eq!(dropped.to_string(), error.to_string());
    }
    error
}

fn of(error: &Error) -> &PartitionError {
    match error.kind() {
        ErrorKind::Partition(error) => error,
        _ => panic!("{error}"),
    }
}

/// Promise: pools in the wrong order, one too few or too many, a wrong pool, and parts of two
/// tables are each distinguished, while the right pools always open the table.
#[test]
fn wrong_pools_are_told_what_is_wrong() {
    let [a, b, c] = three();
    create(&session(&[&a, &b]), &[100]).unwrap();
    let swapped = refused(&session(&[&b, &a]));
    assert!(
        matches!(
            of(&swapped),
            PartitionError::OtherPlace {
                number: 1,
                place: 0,
                ..
            }
        ),
        "{swapped}"
    );
    let many = refused(&session(&[&a, &b, &c]));
    assert!(
        matches!(
            of(&many),
            PartitionError::OtherCount {
                count: 2,
                given: 3,
                ..
            }
        ),
        "{many}"
    );
    for other in [session(&[&a, &c]), session(&[&c, &b])] {
        let half = refused(&other);
        assert!(
            matches!(of(&half), PartitionError::HalfThere { .. }),
            "{half}"
        );
    }
    session(&[&a, &b]).open_table("t").unwrap();
    session(&[&a, &b]).drop_table("t").unwrap();

    create(&session(&[&a, &b, &c]), &[100, 200]).unwrap();
    let few = refused(&session(&[&a, &b]));
    assert!(
        matches!(
            of(&few),
            PartitionError::OtherCount {
                count: 3,
                given: 2,
                ..
            }
        ),
        "{few}"
    );
    session(&[&a, &b, &c]).drop_table("t").unwrap();

    let [fourth, fifth, _] = three();
    create(&session(&[&a, &b]), &[100]).unwrap();
    create(&session(&[&fourth, &fifth]), &[100]).unwrap();
    let mixed = refused(&session(&[&a, &fifth]));
    assert!(
        matches!(of(&mixed), PartitionError::OtherTable { .. }),
        "{mixed}"
    );
    session(&[&a, &b]).open_table("t").unwrap();
    session(&[&fourth, &fifth]).open_table("t").unwrap();
}

/// Promise: a part is not an ordinary table, nor the other way round. But it can be opened for
/// inspection, and dropped when the table's other pools are gone.
#[test]
fn parts_and_tables_by_themselves_are_told_apart() {
    let [a, b, c] = three();
    create(&session(&[&a, &b]), &[100]).unwrap();
    let alone = b.session().unwrap();
    let is_part = |error: &Error| {
        matches!(
            error.kind(),
            ErrorKind::Partition(PartitionError::IsPart {
                number: 1,
                count: 2,
                ..
            })
        )
    };
    let opened = alone.open_table("t").unwrap_err();
    assert!(is_part(&opened), "{opened}");
    let dropped = alone.drop_table("t").unwrap_err();
    assert!(is_part(&dropped), "{dropped}");
    let listed = alone.list_tables().unwrap();
    let part = listed[0].part.expect("it is a part");
    assert_eq!(
        (part.number, part.count, part.low, part.high),
        (1, 2, 100, u64::MAX)
    );
    session(&[&a, &b])
        .open_table("t")
        .unwrap()
        .put(100, 7)
        .unwrap();
    let part = alone.open_part("t").unwrap();
    assert_eq!(part.get(100).unwrap(), Some(7));
    // A record written beyond a part's range does not belong to the table.
    let first = a.session().unwrap();
    first.open_part("t").unwrap().put(100, 8).unwrap();
    let whole = session(&[&a, &b]).open_table("t").unwrap();
    assert_eq!(super::records_of(&whole), [(100, 7)]);
    let mut records = Vec::new();
    whole.scan_into(0, 10, &mut records).unwrap();
    assert_eq!(records, [(100, 7)]);

    for pool in [&a, &c] {
        pool.session()
            .unwrap()
            .create_table("u", &TableOptions::default())
            .unwrap();
    }
    let by_itself = session(&[&a, &c]).open_table("u").unwrap_err();
    let kind = by_itself.kind();
    assert!(
        matches!(kind, ErrorKind::Partition(PartitionError::NotPart { .. })),
        "{by_itself}"
    );
    let dropped = first.drop_part("u").unwrap_err();
    assert_eq!(dropped.to_string(), by_itself.to_string());
    first.drop_part("t").unwrap();
    alone.drop_part("t").unwrap();
    let names: Vec<String> = alone
        .list_tables()
        .unwrap()
        .into_iter()
        .map(|it| it.name)
        .collect();
    assert_eq!(names, Vec::<String>::new());
}

/// Promise: an incomplete table, left by a creator or dropper that did not finish, is reported and
/// listed as such, and can be dropped and created again.
#[test]
fn what_is_half_there_can_be_dropped_and_made_again() {
    for missing in [[0].as_slice(), &[1], &[2], &[1, 2], &[0, 1]] {
        let pools = three();
        let [a, b, c] = &pools;
        let all = session(&[a, b, c]);
        create(&all, &[100, 200]).unwrap();
        for number in missing {
            pools[*number].session().unwrap().drop_part("t").unwrap();
        }
        let half = refused(&all);
        assert!(
            matches!(of(&half), PartitionError::HalfThere { .. }),
            "{half}"
        );
        let listed = all.list_tables().unwrap();
        assert_eq!(listed[0].name, "t");
        let found = listed[0].found.as_ref().unwrap_err();
        assert_eq!(found.to_string(), half.to_string());
        // Creation finds the leftovers, and leaves nothing that was not there before.
        let taken = create(&all, &[100, 200]).unwrap_err();
        assert!(
            matches!(taken.kind_in_pool(), ErrorKind::TableExists { .. }),
            "{taken}"
        );
        let still = refused(&all);
        assert_eq!(still.to_string(), half.to_string());
        all.drop_table("t").unwrap();
        assert!(all.list_tables().unwrap().is_empty());
        create(&all, &[5, 6]).unwrap();
        let table = all.open_table("t").unwrap();
        assert_eq!(table.info().bounds.first_keys(), [5, 6]);
    }
}

/// Promise: a table whose parts cannot all be created does not exist at all, and the error names
/// the part.
#[test]
fn a_table_that_cannot_be_made_whole_is_not_made() {
    let [a, b, c] = three();
    let by_itself = b.session().unwrap();
    by_itself
        .create_table("t", &TableOptions::default())
        .unwrap();
    let all = session(&[&a, &b, &c]);
    let error = create(&all, &[100, 200]).unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Partition(PartitionError::Part { number: 1, .. })
        ),
        "{error}"
    );
    assert!(
        matches!(error.kind_in_pool(), ErrorKind::TableExists { .. }),
        "{error}"
    );
    assert!(a.session().unwrap().list_tables().unwrap().is_empty());
    assert!(c.session().unwrap().list_tables().unwrap().is_empty());
    by_itself.open_table("t").unwrap();

    // The same holds for invalid options or bounds.
    let bad = TableOptions {
        slots: 9,
        ..TableOptions::default()
    };
    let error = all.create_table("u", &bad, &bounds(&[1, 2])).unwrap_err();
    assert!(
        matches!(error.kind_in_pool(), ErrorKind::BadOption { .. }),
        "{error}"
    );
    let error = create(&all, &[1]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("number of bounds is 1; expected 2"),
        "{error}"
    );
    assert!(a.session().unwrap().list_tables().unwrap().is_empty());
}

/// Promise: a pool cannot have two parts of a table, by whatever addresses, and a table has at
/// least two parts.
#[test]
fn a_pool_is_one_part() {
    let [a, b, _] = three();
    let twice = PartitionedPool::new(vec![a.clone(), b, a.clone()]).unwrap_err();
    assert!(
        matches!(
            twice.kind(),
            ErrorKind::Partition(PartitionError::SamePool { .. })
        ),
        "{twice}"
    );
    let one = PartitionedPool::new(vec![a]).unwrap_err();
    assert!(one.to_string().contains("number of pools is 1"), "{one}");
    let twice = PartitionedPool::open(&["shm:none", "shm:none"]).unwrap_err();
    assert!(
        twice.to_string().contains("'shm:none', given twice"),
        "{twice}"
    );

    let shm = EmbeddedFabric::Shm { name: None };
    let served = super::pools_over([shm], 8, 0).remove(0);
    let address = served.info().address;
    let again = Pool::open(&address).unwrap();
    let pools = PartitionedPool::new(vec![served, again]).unwrap();
    let session = pools.session().unwrap();
    let error = create(&session, &[9]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{address} and {address} are the same pool; each part of a table must be in a \
             different pool"
        )
    );
    assert!(session.list_tables().unwrap().is_empty());
}

/// Promise: of many concurrent creators of the same name, with the pools in any order, at most one
/// succeeds, and the result is complete, also if others drop it concurrently.
#[test]
fn makers_and_droppers_leave_a_whole_table_or_none() {
    let [a, b, c] = three();
    let made_count = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (a, b, c, made_count) = (&a, &b, &c, &made_count);
            scope.spawn(move || {
                let in_order = session(&[a, b, c]);
                let reversed = session(&[c, b, a]);
                for round in 0..25 {
                    match thread {
                        0 | 1 => {
                            let made = create(&in_order, &[100, 200]);
                            made_count.fetch_add(u32::from(made.is_ok()), Ordering::Relaxed);
                        }
                        2 if round % 5 == 0 => {
                            let made = create(&reversed, &[100, 200]);
                            made_count.fetch_add(u32::from(made.is_ok()), Ordering::Relaxed);
                        }
                        _ => {
                            let _ = in_order.drop_table("t");
                            let _ = reversed.drop_table("t");
                        }
                    }
                }
            });
        }
    });
    assert!(made_count.into_inner() > 0);
    let (in_order, reversed) = (session(&[&a, &b, &c]), session(&[&c, &b, &a]));
    let tables = |pool: &Pool| pool.session().unwrap().list_tables().unwrap();
    if tables(&a).is_empty() {
        assert!(tables(&b).is_empty() && tables(&c).is_empty());
    } else {
        let opened = [in_order.open_table("t"), reversed.open_table("t")];
        assert_eq!(
            opened.iter().filter(|it| it.is_ok()).count(),
            1,
            "{opened:?}"
        );
    }
}

/// Promise: tables are listed with their bounds and options, ordinary tables are not listed, and a
/// client that has a dropped table open gets an error from the part.
#[test]
fn tables_are_listed_and_dropped() {
    let pools = parts_over([MEM, EmbeddedFabric::Tcp]);
    let session = pools.session().unwrap();
    let halves = Bounds::even(2).unwrap();
    let rpc = of_layer(LayerKind::Rpc);
    let open = session.create_table("b", &rpc, &halves).unwrap();
    session
        .create_table("a", &TableOptions::default(), &bounds(&[7]))
        .unwrap();
    let first = pools.pools()[0].session().unwrap();
    first
        .create_table("alone", &TableOptions::default())
        .unwrap();
    let listed = session.list_tables().unwrap();
    let listed: Vec<_> = listed
        .into_iter()
        .map(|table| {
            let info = table.found.expect("whole");
            (table.name, info.options.layer, info.bounds)
        })
        .collect();
    let expected = [
        ("a".to_owned(), LayerKind::Learned, bounds(&[7])),
        ("b".to_owned(), LayerKind::Rpc, halves),
    ];
    assert_eq!(listed, expected);
    pools.session().unwrap().drop_table("b").unwrap();
    let gone = open.put(u64::MAX, 1).unwrap_err();
    assert!(
        matches!(gone.kind_in_pool(), ErrorKind::TableDropped { .. }),
        "{gone}"
    );
    assert!(
        gone.to_string().starts_with("part 1 of table 'b', in tcp:"),
        "{gone}"
    );
}
