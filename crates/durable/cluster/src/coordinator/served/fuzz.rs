//! Valid requests and replies, mutated at random.

use std::time::Duration;

use farleaf_base::fuzzing::run;
use farleaf_base::random::Random;
use farleaf_net::request::Caller;
use farleaf_net::secret::{Rights, Scope, Secret};

use super::message::{
    CoordinatorReply, CoordinatorRequest, check_events, check_snapshot, decode, encode,
};
use super::{COORDINATOR_TAG, CoordinatorService};
use crate::coordinator::{
    Compare, Coordinator, Embedded, IDENTITY_KEYS, LeaseId, Revision, Transaction,
    TransactionOutcome,
};
use crate::record::CLUSTER_KEY;

fn key(random: &mut Random) -> String {
    format!("k/{}", random.below(5))
}

fn request(random: &mut Random) -> CoordinatorRequest {
    let lease = LeaseId(random.below(4));
    match random.below(6) {
        0 => CoordinatorRequest::Range("k/".to_owned()),
        1 | 2 => {
            let value = random.bytes::<12>().to_vec();
            let compare = Compare::Modified(key(random), Revision(random.below(20)));
            let mut transaction = Transaction::new().put(key(random), value);
            if random.one_in(2) {
                transaction = transaction.when(compare);
            }
            if random.one_in(4) {
                let value = random.bytes::<2>().to_vec();
                transaction = transaction.when(Compare::Holds(key(random), value));
            }
            if random.one_in(2) {
                transaction = transaction.put_leased("held", Vec::new(), lease);
            }
            CoordinatorRequest::Transact(transaction.delete("gone"))
        }
        3 => CoordinatorRequest::Grant(Duration::from_millis(random.below(1000))),
        4 if random.one_in(2) => CoordinatorRequest::Revoke(lease),
        4 => CoordinatorRequest::KeepAlive(lease),
        _ => CoordinatorRequest::Changes {
            prefix: "k/".to_owned(),
            after: Revision(random.below(30)),
            wait: Duration::ZERO,
        },
    }
}

/// A service answers any bytes with a readable reply, and its coordinator continues to work.
#[test]
fn any_request_has_a_reply() {
    let (secret, _) = Secret::random().expect("randomness");
    let caller = Caller {
        peer: ([127, 0, 0, 1], 1).into(),
        rights: Rights::Admin,
        scope: Scope::default(),
        key: secret.key_id(),
    };
    run("coordinator requests", |random| {
        let embedded = Embedded::default();
        let service = CoordinatorService::new(embedded.clone());
        for _ in 0..8 {
            let mut bytes = Vec::new();
            encode(&request(random), &mut bytes);
            if random.one_in(2) {
                random.mutate(&mut bytes);
                // The service would wait for a mutated time; timeouts have their own test.
                if String::from_utf8_lossy(&bytes).contains("wait") {
                    continue;
                }
            }
            let mut reply = Vec::new();
            service.answer_coordinator(&caller, &bytes, &mut reply);
            let reply: Result<CoordinatorReply, String> = decode(&reply);
            reply.expect("a reply");
        }
        let put = Transaction::new().put("after", Vec::new());
        let outcome = embedded.transact(&put).expect("it goes on");
        assert!(matches!(outcome, TransactionOutcome::Committed(_)));
    });
}

/// Any bytes from a service are refused or decoded. Decoded snapshots and changes are in order,
/// have the prefix, and come after the known revision.
#[test]
fn any_reply_is_understood_or_refused() {
    let embedded = Embedded::default();
    let put = Transaction::new().put(CLUSTER_KEY, b"one".to_vec());
    embedded.transact(&put).expect("it works");
    for number in 0..20_u8 {
        let key = format!("k/{}", number % 7 + 3);
        let put = Transaction::new().put(key, vec![number; 9]).delete("k/2");
        embedded.transact(&put).expect("it works");
    }
    let after = Revision(5);
    let mut watch = embedded.watch("k/", after).expect("it works");
    let changes = watch.next(Duration::ZERO).expect("it works");
    let honest: [CoordinatorReply; 2] = [
        CoordinatorReply::Range(embedded.range("k/").expect("it works")),
        CoordinatorReply::Changes(changes),
    ];
    run("coordinator replies", |random| {
        let mut bytes = Vec::new();
        encode(&honest[random.index(2)], &mut bytes);
        random.mutate(&mut bytes);
        match decode(&bytes) {
            Ok(CoordinatorReply::Range(read)) => {
                if check_snapshot("k/", &read).is_err() {
                    return;
                }
                let revision = read.revision;
                assert_eq!(bytes[0], COORDINATOR_TAG);
                for entry in &read.entries {
                    assert!(entry.key.starts_with("k/") && entry.mod_revision <= revision);
                }
                for entry in &read.identity {
                    let is_known = IDENTITY_KEYS.contains(&entry.key.as_str());
                    assert!(is_known && entry.mod_revision <= revision);
                }
            }
            Ok(CoordinatorReply::Changes(read)) => {
                if check_events("k/", after, &read).is_err() {
                    return;
                }
                assert!(read.is_sorted_by_key(crate::coordinator::Event::revision));
                assert!(read.iter().all(|it| it.revision() > after));
            }
            Ok(_) | Err(_) => {}
        }
    });
}
