//! Leaves that contradict each other: every operation ends with an error that names the leaf,
//! instead of following links forever, and holds no lock afterwards.

use farleaf_base::RemoteAddr;
use farleaf_executor::block_on;
use farleaf_index::IndexError;
use farleaf_leaf::words::{Contradiction, LeafError};
use farleaf_pool::catalog::CatalogEntry;

use crate::catalog::find;
use crate::crash::loaded;
use crate::leaves::{ends, leaves, lock, overwrite, set_lock, tear};
use crate::pool::Pool;
use crate::tables::LEARNED;

/// Three neighbors in the middle of a table.
struct Neighbours {
    pool: Pool,
    entry: CatalogEntry,
    addrs: [RemoteAddr; 3],
    lows: [u64; 3],
}

impl Neighbours {
    /// Returns the table's leaves from `first` on.
    fn from(first: usize) -> Self {
        let mut pool = loaded(LEARNED, 60);
        let entry = find(&pool, "records").expect("it is there");
        let all = leaves(&mut pool, &entry);
        let [a, b, c] = [0, 1, 2].map(|number| all[first + number]);
        Self {
            pool,
            entry,
            addrs: [a.addr, b.addr, c.addr],
            lows: [a.low, b.low, c.low],
        }
    }

    fn overwrite(&self, number: usize, low: u64, high: u64, link: RemoteAddr) {
        overwrite(&self.pool, &self.entry, self.addrs[number], low, high, link);
    }

    /// Checks that a get, a put and a search for a key end with this error.
    fn assert_all_end_with(mut self, key: u64, expected: Contradiction) {
        let owner = self.pool.register();
        let name = |error: IndexError| match error {
            IndexError::Leaf(LeafError::Contradiction { addr, table, what }) => {
                assert_eq!(table, self.entry.record.id);
                assert!(self.addrs.contains(&addr), "{addr} is not one of them");
                what
            }
            other => panic!("{other:?}"),
        };
        let mut client = self.pool.client(owner, &self.entry);
        assert_eq!(client.get(key).map_err(name), Err(expected), "get");
        let scanned = client.scan_from(key);
        assert_eq!(scanned.map(|_| ()).map_err(name), Err(expected), "scan");
        let put = client.put(key, 1).expect_err("it cannot arrive");
        let put = *put.downcast::<IndexError>().expect("the index says so");
        assert_eq!(name(put), expected, "put");
        assert!(!client.broken.get(), "nothing is held");
        for addr in self.addrs {
            assert!(lock(&self.pool, &self.entry, addr).is_free(), "{addr}");
        }
    }
}

#[test]
fn links_to_the_right_in_a_circle_are_an_error() {
    ends(|| {
        let of = Neighbours::from(2);
        let [low, ..] = of.lows;
        of.overwrite(0, low, low, of.addrs[1]);
        of.overwrite(1, low + 1, low + 1, of.addrs[0]);
        of.assert_all_end_with(low + 5, Contradiction::LinkToTheLeft);
    });
}

#[test]
fn a_link_to_the_right_that_passes_the_key_is_an_error() {
    ends(|| {
        let of = Neighbours::from(2);
        let [low, ..] = of.lows;
        // No leaf covers the keys between this leaf and the next.
        of.overwrite(0, low, low, of.addrs[1]);
        of.assert_all_end_with(low + 5, Contradiction::KeyPassed);
    });
}

#[test]
fn a_first_leaf_that_does_not_begin_with_the_first_key_is_an_error() {
    ends(|| {
        let of = Neighbours::from(0);
        of.overwrite(0, 10, of.lows[1] - 1, of.addrs[1]);
        of.assert_all_end_with(5, Contradiction::NothingFurtherLeft);
    });
}

#[test]
fn leaves_that_were_retired_for_each_other_are_an_error() {
    ends(|| {
        let of = Neighbours::from(2);
        let [low, next, _] = of.lows;
        of.overwrite(0, low, next - 1, of.addrs[1].retired());
        of.overwrite(1, next, next, of.addrs[0].retired());
        of.assert_all_end_with(low + 5, Contradiction::RetiredInCycle);
    });
}

/// Promise (LEAF-8): a torn leaf of a dead owner whose link leads back is not "repaired" to a range
/// that it never had, and its lock stays the dead owner's.
#[test]
fn a_recovery_that_meets_a_contradiction_changes_nothing() {
    ends(|| {
        let mut of = Neighbours::from(2);
        let dead = of.pool.register();
        let [low, next, _] = of.lows;
        of.overwrite(1, low, next, of.addrs[2]);
        tear(&of.pool, &of.entry, of.addrs[0]);
        set_lock(&of.pool, &of.entry, of.addrs[0], dead);
        of.pool.fence(dead);
        let owner = of.pool.register();
        let mut client = of.pool.client(owner, &of.entry);
        let got = client.get(low + 5);
        let what = Contradiction::LinkToTheLeft;
        assert!(
            matches!(
                got,
                Err(IndexError::Leaf(LeafError::Contradiction { addr, what: is, .. }))
                    if addr == of.addrs[0] && is == what
            ),
            "{got:?}"
        );
        assert_eq!(lock(&of.pool, &of.entry, of.addrs[0]), dead);
        assert!(!client.broken.get(), "nothing is held");
    });
}

/// Promise: a leaf that cannot be recovered does not keep the sweep from what comes after it.
#[test]
fn a_sweep_goes_on_past_damage() {
    ends(|| {
        let mut of = Neighbours::from(2);
        let dead = of.pool.register();
        let [low, next, _] = of.lows;
        of.overwrite(1, low, next, of.addrs[2]);
        tear(&of.pool, &of.entry, of.addrs[0]);
        set_lock(&of.pool, &of.entry, of.addrs[0], dead);
        set_lock(&of.pool, &of.entry, of.addrs[2], dead);
        of.pool.fence(dead);
        let owner = of.pool.register();
        let maintainer = of.pool.maintainer(of.pool.endpoint(), owner);
        let report = block_on(maintainer.sweep(), || 0).expect("damage does not end it");
        let counts = (
            report.damaged_count,
            report.lock_count,
            report.given_up_count,
        );
        assert_eq!(counts, (1, 1, 0), "no other sweep is due");
        assert_eq!(
            lock(&of.pool, &of.entry, of.addrs[0]),
            dead,
            "still to be told"
        );
        assert!(lock(&of.pool, &of.entry, of.addrs[2]).is_free());
    });
}

/// Promise (LEAF-8): a corrupted sibling does not leave the lock with the session that tried to
/// recover.
#[test]
fn a_recovery_that_meets_damage_leaves_the_lock_with_the_dead() {
    ends(|| {
        let mut of = Neighbours::from(2);
        let dead = of.pool.register();
        tear(&of.pool, &of.entry, of.addrs[0]);
        tear(&of.pool, &of.entry, of.addrs[1]);
        set_lock(&of.pool, &of.entry, of.addrs[0], dead);
        of.pool.fence(dead);
        let owner = of.pool.register();
        let mut client = of.pool.client(owner, &of.entry);
        for _ in 0..2 {
            let got = client.get(of.lows[0] + 5);
            assert!(
                matches!(got, Err(IndexError::Leaf(LeafError::Damaged { addr, .. }))
                    if addr == of.addrs[1]),
                "{got:?}"
            );
            assert_eq!(lock(&of.pool, &of.entry, of.addrs[0]), dead);
        }
        assert!(!client.broken.get(), "nothing is held");
    });
}
