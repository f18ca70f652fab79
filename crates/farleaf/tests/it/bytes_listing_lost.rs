//! Loss of a node that has the listing of a table of byte strings.

use farleaf::{ByteTable, Error, ErrorKind, LayerKind, NodeState, Pool, TableOptions};
use farleaf_node::DataNode;

use crate::bytes::options;
use crate::several_nodes::{Nodes, active_count, wait_for};

const RECORD_COUNT: u32 = 20_000;
/// The test reads one in this many records.
const READ_STEP: usize = 4;

fn key(number: u32) -> Vec<u8> {
    format!("user:{number:08}").into_bytes()
}

/// Too long for two in a page.
const VALUE: [u8; 220] = [7; 220];

/// Returns how many of the records that are read are found, and how many are lost with their pages.
fn read(table: &ByteTable) -> (u32, u32) {
    let (mut found_count, mut lost_count) = (0, 0);
    for number in (0..RECORD_COUNT).step_by(READ_STEP) {
        match table.get(&key(number)) {
            Ok(found) => {
                assert!(found.as_deref() == Some(&VALUE), "{number}: {found:?}");
                found_count += 1;
            }
            Err(error) => {
                assert!(is_lost(&error), "{number}: {error}");
                lost_count += 1;
            }
        }
    }
    (found_count, lost_count)
}

fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NodeLost { .. })
}

/// Adds a data node as the last one, because the order of the data nodes determines where data
/// goes.
fn data_node(nodes: &Nodes, pool: &Pool) -> DataNode {
    let before = active_count(&pool.nodes().expect("the main node is there"));
    let data_node = nodes.data_node();
    wait_for(pool, "it joins", |nodes| active_count(nodes) > before);
    data_node
}

/// Creates a table in a pool whose main node is fuller than its data nodes will be, so that loads
/// go to the data nodes.
fn loaded(pool: &Pool) -> ByteTable {
    let session = pool.session().expect("a session");
    let filling = session.create_byte_table("main node", &TableOptions::bytes());
    let filling = filling.expect("a table");
    let value = vec![7; 60_000];
    for number in 0..300_u32 {
        filling.put(&key(number), &value).expect("room");
    }
    let options = TableOptions {
        layer: LayerKind::RfTree,
        ..options(512, 224)
    };
    let table = session.create_byte_table("t", &options).expect("a table");
    let records = (0..RECORD_COUNT).map(|number| (key(number), VALUE));
    table.bulk_load(records, |_| {}).expect("it fits");
    table
}

/// Promise: a part of a table's listing is lost with its node. A process that opens the table then
/// finds all remaining records by the models of the root, and can write and split pages. For other
/// keys the error names the lost node. A process that has the cache continues to use it.
#[test]
fn a_table_is_found_though_its_listing_is_lost() {
    let mut by_models_count = 0;
    // The listing is on one of the two data nodes, or partly on each.
    for lost in 0..2 {
        let nodes = Nodes::main_node_alone();
        let pool = nodes.open();
        let mut data_nodes = vec![data_node(&nodes, &pool), data_node(&nodes, &pool)];
        let table = loaded(&pool);
        assert_eq!(read(&table), (RECORD_COUNT / READ_STEP as u32, 0));
        let cache_bytes = table.metadata_bytes();
        drop(data_nodes.swap_remove(lost));
        wait_for(&pool, "one is lost", |nodes| {
            nodes.iter().any(|node| node.state == NodeState::Lost)
        });
        let known = read(&table);
        assert!(known.0 > 0 && known.1 > 0, "{known:?}");
        let other = nodes.open();
        let session = other.session().expect("a session");
        let table = session.open_byte_table("t").expect("it is found");
        assert_eq!(read(&table), known);
        if table.metadata_bytes() < cache_bytes / 4 {
            by_models_count += 1;
        }
        let (mut written_count, mut lost_count) = (0, 0);
        for number in (0..RECORD_COUNT).step_by(7) {
            let between = [&key(number)[..], b"x"].concat();
            match table.put(&between, &VALUE) {
                Ok(_) => {
                    let found = table.get(&between).expect("just written");
                    assert!(found.as_deref() == Some(&VALUE), "{number}");
                    written_count += 1;
                }
                Err(error) => {
                    assert!(is_lost(&error), "{number}: {error}");
                    lost_count += 1;
                }
            }
        }
        assert!(written_count > 500 && lost_count > 500, "{written_count}");
        // Existing pages are still found.
        assert_eq!(read(&table), known);
    }
    assert!(by_models_count > 0, "the listing was on neither");
}
