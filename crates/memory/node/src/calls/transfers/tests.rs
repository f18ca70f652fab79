use super::*;
use farleaf_base::{Incarnation, SessionId};

fn owner(number: u16) -> OwnerWord {
    let session = SessionId::new(number).expect("a number");
    OwnerWord::new(session, Incarnation::new(1))
}

fn of(session: u16, table: u32, number: u64) -> TransferId {
    TransferId {
        session: owner(session),
        table: TableId(table),
        number,
    }
}

/// Promise: a value is complete when its parts have arrived in order, from one session and for one
/// table. Anything else is refused, and takes no memory once it is dropped.
#[test]
fn parts_make_a_value() {
    let limit = Arc::new(MemoryLimit::new(100));
    let transfers = Transfers::default();
    let stage =
        |of: TransferId, offset: u32, part: &[u8]| transfers.stage(of, offset, 6, part, &limit);
    let own = of(1, 1, 7);
    assert_eq!(stage(own, 0, b"abc"), Ok(3));
    assert_eq!(limit.size_bytes(), 6, "all of it, with the first part");
    for other in [of(2, 1, 7), of(1, 2, 7), of(1, 1, 8)] {
        assert_eq!(stage(other, 3, b"def"), Err(Failure::Unsound));
        assert!(transfers.staged(other).is_err());
    }
    assert_eq!(stage(own, 2, b"def"), Err(Failure::Unsound));
    let longer = transfers.stage(own, 3, 7, b"def", &limit);
    assert_eq!(longer, Err(Failure::Unsound));
    assert_eq!(stage(own, 3, b"def"), Ok(6));
    let offer = transfers.staged(own).expect("whole");
    assert_eq!(&*offer.bytes, b"abcdef");
    assert!(transfers.staged(own).is_err(), "it is staged no longer");
    drop(offer);
    assert_eq!(stage(own, 0, b"abc"), Ok(3));
    assert!(transfers.staged(own).is_err(), "half of it");
    assert_eq!((limit.size_bytes(), transfers.count()), (0, 0));
    let larger = transfers.stage(own, 0, 101, b"a", &limit);
    assert_eq!(larger, Err(Failure::Full));
    assert_eq!((limit.size_bytes(), transfers.count()), (0, 0));
}

/// Promise: records of a load ascend over all its parts, and it is complete only if their number
/// matches that of its session.
#[test]
fn parts_make_a_load() {
    let limit = Arc::new(MemoryLimit::new(10_000));
    let transfers = Transfers::default();
    let load = |of: TransferId, keys: &[&'static [u8]]| {
        let records = keys
            .iter()
            .map(|key| (*key, OfferedValue::new(b"value", &limit)));
        transfers.load(of, records.collect())
    };
    let own = of(1, 1, 7);
    assert_eq!(load(own, &[b"a", b"b"]), Ok(2));
    assert_eq!(load(own, &[b"b"]), Err(Failure::Unsound));
    assert_eq!(
        load(of(1, 2, 7), &[b"a"]),
        Ok(1),
        "another one's begins anew"
    );
    assert!(transfers.loaded(own, 2).is_err(), "it was pushed out");
    assert_eq!(load(own, &[b"a"]), Ok(1));
    assert_eq!(load(own, &[b"c"]), Ok(2));
    assert!(transfers.staged(of(1, 1, 9)).is_err());
    assert_eq!(transfers.loaded(own, 2).expect("whole").len(), 2);
    assert_eq!(load(own, &[b"a"]), Ok(1));
    assert!(transfers.loaded(own, 2).is_err());
    assert_eq!((limit.size_bytes(), transfers.count()), (0, 0));
}

/// Promise: a session has no more transfers than it can need, and the least recently used one is
/// dropped first. All transfers of a session end with it, and all of a table with the table, but no
/// others.
#[test]
fn what_is_given_up_goes() {
    let limit = Arc::new(MemoryLimit::new(1 << 20));
    let transfers = Transfers::default();
    let begin = |of: TransferId| transfers.stage(of, 0, 10, b"a", &limit).expect("room");
    begin(of(2, 1, 0));
    for number in 0..COUNT_MAX as u64 {
        begin(of(1, 1, number));
    }
    assert!(transfers.find(of(1, 1, 0)).is_some(), "it is used");
    begin(of(1, 2, 1_000));
    assert!(
        transfers.find(of(1, 1, 1)).is_none(),
        "the least lately used"
    );
    assert!(transfers.find(of(1, 1, 0)).is_some());
    assert_eq!(transfers.count(), COUNT_MAX + 1);
    assert_eq!(limit.size_bytes(), 10 * (COUNT_MAX as u64 + 1));
    transfers.forget_all(|_, table| table == TableId(1));
    assert_eq!(transfers.count(), 1);
    begin(of(2, 1, 0));
    transfers.drop_session(owner(1));
    assert!(transfers.find(of(1, 2, 1_000)).is_none());
    assert!(transfers.find(of(2, 1, 0)).is_some());
    transfers.forget(owner(2), 0);
    assert_eq!((limit.size_bytes(), transfers.count()), (0, 0));
}

/// Promise: transfers below the lowest number that a session uses are dropped, of that session
/// only, and do not begin again, however late their requests arrive. A session's statement does not
/// apply to others.
#[test]
fn what_is_below_goes_and_stays_away() {
    let limit = Arc::new(MemoryLimit::new(1 << 20));
    let transfers = Transfers::default();
    let begin = |of: TransferId| transfers.stage(of, 0, 10, b"a", &limit);
    for of in [of(1, 1, 5), of(1, 2, 6), of(1, 1, 7), of(2, 1, 5)] {
        assert_eq!(begin(of), Ok(1));
    }
    transfers.forget_below(owner(1), 7);
    assert_eq!((limit.size_bytes(), transfers.count()), (20, 2));
    // An earlier statement may be executed later.
    transfers.forget_below(owner(1), 3);
    assert_eq!(begin(of(1, 1, 6)), Err(Failure::Unsound));
    let records = vec![(&b"key"[..], OfferedValue::new(b"value", &limit))];
    assert_eq!(transfers.load(of(1, 1, 6), records), Err(Failure::Unsound));
    assert_eq!((limit.size_bytes(), transfers.count()), (20, 2));
    assert_eq!(begin(of(1, 1, 7)), Ok(1), "it is open");
    assert_eq!(begin(of(2, 1, 4)), Ok(1), "another session");
    transfers.drop_session(owner(1));
    transfers.drop_session(owner(2));
    assert_eq!((limit.size_bytes(), transfers.count()), (0, 0));
    assert!(lock(&transfers.0).lowest_open.is_empty());
}
