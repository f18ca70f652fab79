//! Memory and messages with arbitrary content.

use farleaf_base::fuzzing::{EDGES, run};
use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::message::{CallError, Caller, CallerRings, Ring};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_lsm::Durability;
use farleaf_lsm::follow::IndexKind;
use farleaf_replica::{Epoch, ReplicaError};

use crate::world::{Node, all, engine_options, opened, primary};

/// First word of these tests' backups and their rings.
const START: u64 = 128;

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), START + index)
}

/// With arbitrary content of a backup's words, buffers and rings, it returns an error or continues.
/// If it can be promoted, the result is valid and has everything that its disk had before
/// (REPLICATION-2).
#[test]
fn any_words_are_survived() {
    for (index, name) in [
        (IndexKind::Sent, "words of a backup, trees sent"),
        (IndexKind::Built, "words of a backup, trees built"),
    ] {
        let [mut failed_count, mut promoted_count] = [0, 0];
        run(name, |random| {
            let seed = random.bits();
            let nodes: Vec<Node> = (0..2).map(|it| Node::new(seed ^ it)).collect();
            let primary = primary(opened(&nodes[0]), 1, index, &[&nodes[1]]);
            for number in 0..30_u64 {
                let key = number.to_le_bytes();
                primary.put(&key, &[3; 90], Durability::Sync).expect("put");
            }
            for number in 30..33_u64 {
                let key = number.to_le_bytes();
                primary
                    .put(&key, &[3; 90], Durability::Memory)
                    .expect("put");
            }
            let near = MappedEndpoint::new(nodes[1].memory.clone());
            let mut batch = Batch::new();
            for _ in 0..=random.below(6) {
                // The primary's words, both rings, the buffer for trees, the log buffers, and their
                // notes.
                let index = match random.below(5) {
                    0 => 8 + random.below(2),
                    1 => 64 + random.below(9_300),
                    2 => 16_384 + random.below(300),
                    3 => 16_384 + 262_144 * 3 + random.below(16),
                    _ => 16_384 + 262_144 * (1 + random.below(2)) + random.below(800),
                };
                let word = match random.below(3) {
                    0 => EDGES[random.index(EDGES.len())],
                    1 => random.bits(),
                    _ => random.below(8) << 21 | random.below(5_000),
                };
                batch.write_word(at(index), word);
            }
            near.execute_now(&mut batch).expect("inside");
            for _ in 0..8 {
                failed_count +=
                    u64::from(nodes[1].backup().as_mut().expect("one").serve().is_err());
            }
            drop(primary);
            if let Ok(engine) = nodes[1].promote(2) {
                promoted_count += 1;
                let found = all(&engine);
                assert!(found.len() >= 30, "{} of what was synced", found.len());
                assert!(found.values().all(|value| *value == [3; 90]));
            }
        });
        assert!(
            failed_count > 0 && promoted_count > 0,
            "{failed_count}, {promoted_count}"
        );
    }
}

/// Invalid requests, and requests at the wrong time, are refused with a reason, and the backup
/// waits for others (REPLICATION-3).
#[test]
fn requests_are_refused() {
    let node = Node::new(1);
    node.become_backup(3);
    let lines = CallerRings::new(Ring::new(at(64), 512), Ring::new(at(64 + 8192), 64));
    let endpoint = node.endpoint();
    let ask = |request: &str| {
        let caller = Caller::new(&endpoint, &endpoint, &lines);
        let (mut batch, mut reply) = (Batch::new(), Vec::new());
        let request = request.as_bytes();
        let called = caller.call(&mut batch, request, 600, &mut reply, || false);
        match block_on(called, endpoint.completions()) {
            Ok(()) => String::new(),
            Err(CallError::Refused { reason }) => reason,
            Err(error) => panic!("{error}"),
        }
    };
    let finish = r#"{"finish":{"next_log":0,"read_from":0,"next_tree":1,"edit_count":0}}"#;
    let edit = r#"{"edit":{"log_end":0,"read_from":null,"removed":[],"added":null,"freed":[]}}"#;
    let begin = r#"{"begin":{"version":3,"epoch":3,"engine":77,"index":"sent"}}"#;
    let piece = r#"{"piece":{"name":{"log":{"number":0}},"size_bytes":2097152}}"#;
    let sum = "0".repeat(64);
    let log_offer = |number: u64, size_bytes: u64| {
        format!(
            r#"{{"log_offer":{{"number":{number},"end":null,"size_bytes":{size_bytes},"sum":"{sum}"}}}}"#
        )
    };
    let tree_offer =
        format!(r#"{{"tree_offer":{{"id":1,"index":1,"size_bytes":4096,"sum":"{sum}"}}}}"#);
    for (request, expected) in [
        ("", "not a valid request"),
        (&log_offer(1, 64), "a base that is not started"),
        (&log_offer(1, 64).replace("00", "0g"), "hexadecimal"),
        ("{\"begin\":{}}", "missing field"),
        (finish, "a base that is not started"),
        (edit, "an edit before the base"),
        (&begin.replace("h\":3", "h\":4"), "a primary of epoch 4"),
        (&begin.replace("n\":3,", "n\":2,"), "version 2"),
        (piece, "before the base was complete"),
        (&piece.replace("log", "words"), "unknown variant"),
        (begin, ""),
        (&log_offer(1, 64), ""),
        (&log_offer(1, 31), "its size is invalid"),
        (&log_offer(1, 1 << 32), "invalid value"),
        (&log_offer(1, (2 << 20) + 1), "its size is invalid"),
        (&tree_offer, "after 0 segments"),
        (
            r#"{"log_segment":{"number":0,"end":null,"size_bytes":2097153}}"#,
            "exceed the size of a segment",
        ),
        (
            r#"{"tree_segment":{"id":1,"index":0,"size_bytes":4096}}"#,
            "checksum",
        ),
        (
            r#"{"finish":{"next_log":0,"read_from":99,"next_tree":1,"edit_count":0}}"#,
            "past its end",
        ),
    ] {
        let reason = ask(request);
        let is_right = reason.contains(expected) && reason.is_empty() == expected.is_empty();
        assert!(is_right, "{request}: {reason}, and not: {expected}");
    }
    let backup = node.backup().take().expect("it is one");
    let promoted = backup.promote(Epoch(4), engine_options());
    let is_refused = matches!(promoted, Err(ReplicaError::NotPromotable { .. }));
    assert!(is_refused, "{promoted:?}");
}
