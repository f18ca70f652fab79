//! Loss of a server of a table over several pools.

use farleaf::{
    ErrorKind, LayerKind, PartitionError, PartitionedPool, PartitionedSession, TableOptions,
};
use farleaf_node::{ShmNode, TcpListenOptions};

use crate::partitions::{bounds, of_layer};

/// Starts a node that listens on loopback, and returns the address of its pool.
fn node(name: &str) -> (ShmNode, String) {
    let name = format!("part-{name}-{}", std::process::id());
    let mut node = ShmNode::start(&name, 16 << 20, None).expect("a node");
    let options = TcpListenOptions::at("127.0.0.1:0".parse().expect("an address"));
    let address = node.listen(&options).expect("a free port");
    (node, format!("tcp:{address}"))
}

fn open(addresses: [&str; 2]) -> PartitionedSession {
    let pools = PartitionedPool::open(&addresses).expect("they listen");
    pools.session().expect("sessions")
}

/// Promise: operations on keys of a lost part fail, and the error names the part. Those on other
/// keys continue, and a scan up to the bound, too. The table cannot be opened, created or dropped
/// meanwhile.
#[test]
fn keys_of_other_parts_go_on() {
    for layer in [LayerKind::Learned, LayerKind::Xstore, LayerKind::Rpc] {
        let (_first, first_address) = node(&format!("kept-{layer}"));
        let (second, second_address) = node(&format!("lost-{layer}"));
        let session = open([&first_address, &second_address]);
        let table = session
            .create_table("t", &of_layer(layer), &bounds(&[100]))
            .unwrap();
        let records = (0..200).map(|key| (key, key + 1));
        table.bulk_load(records, |_| {}).unwrap();
        drop(second);
        let lost = |error: farleaf::Error| match error.kind() {
            ErrorKind::Partition(PartitionError::Part { number, pool, .. }) => {
                assert_eq!((*number, pool), (1, &second_address), "{error}");
            }
            _ => panic!("{layer}: {error}"),
        };
        lost(table.get(100).unwrap_err());
        lost(table.put(150, 1).unwrap_err());
        lost(table.multi_get(&[5, 150, 6]).unwrap_err());
        lost(table.scan_into(90, 20, &mut Vec::new()).unwrap_err());
        lost(table.len_estimate().unwrap_err());
        for key in 0..100 {
            assert_eq!(table.get(key).unwrap(), Some(key + 1), "{layer}");
        }
        assert_eq!(table.put(99, 7).unwrap(), Some(100));
        assert_eq!(table.multi_get(&[98, 99]).unwrap(), [Some(99), Some(7)]);
        let mut records = Vec::new();
        table.scan_into(90, 10, &mut records).unwrap();
        assert_eq!(records.len(), 10);
        let mut scan = table.range(98..102);
        assert_eq!(scan.next().unwrap().unwrap(), (98, 99));
        assert_eq!(scan.next().unwrap().unwrap(), (99, 7));
        lost(scan.next().unwrap().unwrap_err());
        assert!(scan.next().is_none());
        lost(session.open_table("t").unwrap_err());
        lost(session.drop_table("t").unwrap_err());
        let made = session.create_table("u", &TableOptions::default(), &bounds(&[1]));
        let error = made.unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Partition(PartitionError::CreationNotUndone { .. })
            ),
            "{error}"
        );
        // The part that the first pool had created was dropped again.
        let names: Vec<String> = session.sessions()[0]
            .list_tables()
            .unwrap()
            .into_iter()
            .map(|table| table.name)
            .collect();
        assert_eq!(names, ["t"]);
        assert!(session.close().is_ok(), "tables keep it open");
    }
}

/// Promise: if a server comes back empty, its part is missing, not empty.
#[test]
fn a_server_that_comes_again_is_no_empty_part() {
    let (_first, first_address) = node("stays");
    let (second, second_address) = node("restarts");
    let session = open([&first_address, &second_address]);
    let table = session
        .create_table("t", &TableOptions::default(), &bounds(&[100]))
        .unwrap();
    table.put(1, 1).unwrap();
    drop(second);
    let (_second, second_address) = node("again");
    let session = open([&first_address, &second_address]);
    let half = session.open_table("t").unwrap_err();
    let kind = half.kind();
    assert!(
        matches!(kind, ErrorKind::Partition(PartitionError::HalfThere { .. })),
        "{half}"
    );
    session.drop_table("t").unwrap();
    session
        .create_table("t", &TableOptions::default(), &bounds(&[100]))
        .unwrap();
}
