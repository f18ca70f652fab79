//! Tests of FABRIC-9: every cost is counted exactly.

use crate::conformance::steps::execute;
use crate::conformance::{Backend, Case, at, client};
use crate::{Batch, Cost, Endpoint, KindCounters, OperationKind};

/// Function that fills a batch.
type Post = fn(&mut Batch);

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    vec![
        Case::new("FABRIC-9", "a batch costs what is in it", exact),
        Case::new(
            "FABRIC-9",
            "costs of batches add up until they are taken",
            add_up,
        ),
        Case::new(
            "FABRIC-9",
            "an endpoint counts recorded operations by kind, and only its own",
            by_kind,
        ),
    ]
}

fn exact<B: Backend>(backend: &B) {
    let one = Cost {
        round_trips: 1,
        doorbells: 1,
        verbs: 1,
        ..Cost::default()
    };
    let table: [(Post, Cost); 5] = [
        (
            |batch| {
                batch.read(at(3), 20);
            },
            Cost {
                bytes_read: 160,
                ..one
            },
        ),
        (
            |batch| batch.write(at(3), &[1, 2, 3]),
            Cost {
                bytes_written: 24,
                ..one
            },
        ),
        (
            |batch| {
                batch.compare_swap(at(60), 1, 2);
            },
            Cost { atomics: 1, ..one },
        ),
        (
            |batch| {
                batch.fetch_add(at(60), 1);
            },
            Cost { atomics: 1, ..one },
        ),
        (
            // First batch of a leaf write: lock and read. The second would be slot, state and
            // unlock.
            |batch| {
                batch.compare_swap(at(64), 0, 1);
                batch.read(at(64), 21);
                batch.fence();
                batch.write_word(at(70), 1);
                batch.write_word(at(65), 2);
                batch.write_word(at(64), 0);
            },
            Cost {
                verbs: 5,
                atomics: 1,
                bytes_read: 168,
                bytes_written: 24,
                ..one
            },
        ),
    ];
    backend.run(vec![client(async |endpoint| {
        for (post, cost) in table {
            let mut batch = Batch::new();
            post(&mut batch);
            assert_eq!(
                *batch.cost(),
                Cost::default(),
                "nothing is counted before it is posted"
            );
            execute(&*endpoint, &mut batch).await;
            assert_eq!(batch.take_cost(), cost);
            assert_eq!(*batch.cost(), Cost::default());
        }
    })]);
}

fn add_up<B: Backend>(backend: &B) {
    backend.run(vec![client(async |endpoint| {
        let mut batch = Batch::new();
        for _ in 0..3 {
            batch.clear();
            batch.read(at(0), 2);
            batch.write_word(at(9), 1);
            execute(&*endpoint, &mut batch).await;
        }
        batch.cost_mut().retries += 2;
        let cost = batch.take_cost();
        let expected = Cost {
            round_trips: 3,
            doorbells: 3,
            verbs: 6,
            bytes_read: 48,
            bytes_written: 24,
            retries: 2,
            ..Cost::default()
        };
        assert_eq!(cost, expected);
    })]);
}

fn by_kind<B: Backend>(backend: &B) {
    let program = |operations: u64| {
        client(async move |endpoint| {
            let endpoint: &B::Endpoint = &endpoint;
            let mut batch = Batch::new();
            for _ in 0..operations {
                batch.clear();
                batch.read(at(0), 20);
                execute(endpoint, &mut batch).await;
                batch.cost_mut().leaves_read += 1;
                endpoint
                    .counters()
                    .record(OperationKind::Get, &batch.take_cost());
            }
            let get = endpoint.counters().kind(OperationKind::Get);
            let cost = Cost {
                round_trips: operations,
                doorbells: operations,
                verbs: operations,
                bytes_read: 160 * operations,
                leaves_read: operations,
                ..Cost::default()
            };
            let expected = KindCounters {
                operations,
                one_leaf_operations: operations,
                cost,
            };
            assert_eq!(get, expected);
            for kind in OperationKind::ALL
                .into_iter()
                .filter(|kind| *kind != OperationKind::Get)
            {
                assert_eq!(endpoint.counters().kind(kind), KindCounters::default());
            }
        })
    };
    backend.run(vec![program(5), program(11)]);
}
