//! Tables of byte strings whose keys are text: paths, in clusters within clusters.

use std::collections::BTreeMap;
use std::time::Instant;

use farleaf::{ByteTable, OperationKind, Session, TableOptions};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::{mapped_pools, mapped_retraining_pools};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const SYLLABLES: [&str; 12] = [
    "ba", "berg", "de", "san", "ta", "ville", "ri", "o", "new", "ing", "ham", "st",
];

/// Returns this many names, each with its own value.
fn names(count: usize, seed: u64) -> Map {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    // The lesser of two draws makes some syllables frequent.
    let mut word = |syllable_count: usize| -> String {
        let mut draw = |end: usize| random.random_range(0..end).min(random.random_range(0..end));
        let count = 1 + draw(syllable_count);
        (0..count).map(|_| SYLLABLES[draw(12)]).collect()
    };
    let mut map = Map::new();
    while map.len() < count {
        let name = format!("{}/{}/{}", word(2), word(3), word(7)).into_bytes();
        map.insert(name.clone(), name);
    }
    map
}

fn session(pool: &farleaf::Pool) -> Session {
    pool.session().expect("a session")
}

/// Returns the round trips of a get of each key, all of which are present.
fn round_trips(session: &Session, table: &ByteTable, map: &Map) -> u64 {
    let count = || session.counters(OperationKind::Get).cost.round_trips;
    let before = count();
    for (key, value) in map {
        let found = table.get(key).expect("got");
        assert!(found.as_ref() == Some(value), "{}", key.escape_ascii());
    }
    count() - before
}

/// Promise: for loaded text, at most one get in 500 needs a second page. Absent keys are not found.
/// The table needs few models and few bytes.
#[test]
fn text_is_found_with_one_look() {
    for pool in mapped_pools(128) {
        let session = session(&pool);
        let table = session.create_byte_table("t", &TableOptions::bytes());
        let table = table.expect("a table");
        let map = names(20_000, 1);
        table.bulk_load(&map, |_| {}).expect("a load");
        let took = round_trips(&session, &table, &map);
        assert!((20_000..=20_040).contains(&took), "{took}");
        let stats = table.stats().expect("counted");
        assert!(stats.sound && stats.front_coded_models > 0, "{stats:?}");
        assert!(stats.models * 20 < stats.pages, "{stats:?}");
        assert!(stats.metadata_bytes < 20_000, "{stats:?}");
        for key in map.keys().step_by(50) {
            for absent in [[key, &b"!"[..]].concat(), [b"!", &key[..]].concat()] {
                assert_eq!(table.get(&absent).expect("got"), None);
            }
        }
        assert_eq!(table.get(b"").expect("got"), None);
    }
}

/// Promise: text that grows by puts is retrained, and so are front-coded models of a load. In the
/// end a new session finds nearly every name with one page.
#[test]
fn text_that_grows_is_retrained() {
    for pool in mapped_retraining_pools(64) {
        let writer = session(&pool);
        let table = writer.create_byte_table("t", &TableOptions::bytes());
        let table = table.expect("a table");
        let mut map = names(6_000, 2);
        table.bulk_load(&map, |_| {}).expect("a load");
        for (key, value) in names(12_000, 3) {
            table.put(&key, &value).expect("put");
            map.insert(key, value);
        }
        let started_at = Instant::now();
        loop {
            let reader = session(&pool);
            let fresh = reader.open_byte_table("t").expect("open");
            let took = round_trips(&reader, &fresh, &map);
            if took < map.len() as u64 * 12 / 10 {
                break;
            }
            assert!(
                started_at.elapsed().as_secs() < 60,
                "{took} of {}",
                map.len()
            );
        }
        let report = pool.retraining().expect("a tally");
        assert!(report.tally.model_count > 0, "{report:?}");
        let stats = session(&pool)
            .open_byte_table("t")
            .expect("open")
            .stats()
            .expect("counted");
        assert!(stats.front_coded_models > 0 && stats.sound, "{stats:?}");
        assert_eq!(stats.records, map.len() as u64);
    }
}
