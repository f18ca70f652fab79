//! Tests of the fabric contract, and of the `verbs` backend's own promises, on the RDMA device of
//! this host. Without a device every test is skipped with a message. The `guest` folder of the
//! project starts a virtual machine that has two devices.
//!
//! | variable | meaning |
//! |---|---|
//! | `FARLEAF_RDMA_DEVICE` | the clients' device; the first one with an active port if not set |
//! | `FARLEAF_TEST_NODE_RDMA_DEVICE` | the node's; the same as the clients' if not set |
//!
//! Arguments are parts of names of tests to run. Without arguments, all tests run except those of
//! `network`, which need an impaired network: they run with `--on-a-bad-network`.
//!
//! | module | content |
//! |---|---|
//! | `node` | a memory node that has only sessions and a device |
//! | `contract` | the conformance suite |
//! | `devices` | valid and invalid selections of devices, ports, addresses and packet sizes |
//! | `encrypted` | TLS on the connections beside queue pairs |
//! | `endings` | FABRIC-6: the end of sessions and nodes, and its notification |
//! | `hostile` | clients that know the secret and send the card verbs beyond their rights |
//! | `network` | a network that is slow, loses packets, or is cut |
//! | `queues` | more verbs than a queue pair has space for |

mod contract;
mod devices;
mod encrypted;
mod endings;
mod hostile;
mod network;
mod node;
mod queues;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

/// Name and function of a test.
type Test = (&'static str, fn());

/// Makes a list of tests, named by their paths in this program.
macro_rules! tests {
    ($($module:ident::$name:ident,)*) => {
        const TESTS: &[Test] = &[
            $((concat!(stringify!($module), "::", stringify!($name)), $module::$name),)*
        ];
    };
}

tests! {
    contract::verbs_keep_the_contract,
    contract::a_loopback_keeps_the_contract,
    devices::wrong_choices_are_told_what_there_is,
    devices::good_choices_are_taken,
    devices::packet_sizes_may_differ,
    queues::long_batches_are_posted_in_parts,
    queues::many_batches_share_a_queue_pair,
    queues::dropped_futures_are_detached,
    hostile::the_card_refuses_what_is_outside,
    hostile::the_card_refuses_changes_by_readers,
    hostile::a_full_key_is_of_no_use_to_a_reader,
    hostile::words_are_changed_by_the_card_alone,
    encrypted::queue_pairs_are_exchanged_and_ended_over_tls,
    endings::a_fenced_session_does_nothing_more,
    endings::a_closed_session_is_fenced,
    endings::a_node_that_stops_is_noticed,
    endings::a_client_that_goes_takes_its_queue_pairs_along,
    network::delayed_batches_are_one_round_trip,
    network::lossy_networks_lose_no_verb,
    network::cut_cables_are_noticed,
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let wanted: Vec<_> = wanted.iter().filter(|it| !it.starts_with("--")).collect();
    let is_bad_network = std::env::args().any(|it| it == "--on-a-bad-network");
    let is_wanted = |name: &str| {
        let is_named = wanted.is_empty() || wanted.iter().any(|it| name.contains(it.as_str()));
        is_named && name.starts_with("network::") == is_bad_network
    };
    let tests: Vec<&Test> = TESTS.iter().filter(|(name, _)| is_wanted(name)).collect();
    println!("\nrunning {} tests", tests.len());
    let missing = node::missing_device();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, test) in tests {
        if let Some(why) = &missing {
            println!("test {name} ... ignored, skipped: {why}");
            skipped += 1;
            continue;
        }
        let started = Instant::now();
        let outcome = if catch_unwind(*test).is_ok() {
            passed += 1;
            "ok"
        } else {
            failed += 1;
            "FAILED"
        };
        println!(
            "test {name} ... {outcome} ({:.1} s)",
            started.elapsed().as_secs_f64()
        );
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured; \
         0 filtered out\n"
    );
    ExitCode::from(u8::from(failed > 0))
}
