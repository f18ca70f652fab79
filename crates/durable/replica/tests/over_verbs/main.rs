//! Replication over `verbs`, on the RDMA device of this host. Without a device every test is
//! skipped with a message. The `guest` folder of the project starts a virtual machine that has two.
//!
//! | variable | meaning |
//! |---|---|
//! | `FARLEAF_RDMA_DEVICE` | the primary's device; the first one with an active port if not set |
//! | `FARLEAF_TEST_NODE_RDMA_DEVICE` | the backup's; the same as the primary's if not set |
//!
//! Arguments are parts of names of tests to run; without one, all run.
//!
//! | module | contents |
//! |---|---|
//! | `memory` | a backup's memory, which a device serves, and endpoints to it |
//! | `promotions` | all of replication, until the backup is promoted |
//! | `epochs` | the word on which both sides use atomics |
//! | `over` | the tests for `promotions`, over any fabric (in `tests/over`) |

mod epochs;
mod memory;
#[path = "../over/mod.rs"]
mod over;
mod promotions;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

/// Name and function of a test.
type Test = (&'static str, fn());

const TESTS: &[Test] = &[
    (
        "promotions::it_works_over_verbs",
        promotions::it_works_over_verbs,
    ),
    (
        "promotions::an_old_primary_is_told_by_the_epoch",
        promotions::an_old_primary_is_told_by_the_epoch,
    ),
    (
        "epochs::an_epoch_that_was_raised_does_not_fall",
        epochs::an_epoch_that_was_raised_does_not_fall,
    ),
];

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let wanted: Vec<_> = wanted.iter().filter(|it| !it.starts_with("--")).collect();
    let is_wanted =
        |name: &str| wanted.is_empty() || wanted.iter().any(|it| name.contains(it.as_str()));
    let tests: Vec<&Test> = TESTS.iter().filter(|(name, _)| is_wanted(name)).collect();
    println!("\nrunning {} tests", tests.len());
    let missing = memory::missing_device();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, test) in tests {
        if let Some(why) = &missing {
            println!("test {name} ... ignored, skipped: {why}");
            skipped += 1;
            continue;
        }
        let started_at = Instant::now();
        let outcome = if catch_unwind(*test).is_ok() {
            passed += 1;
            "ok"
        } else {
            failed += 1;
            "FAILED"
        };
        println!(
            "test {name} ... {outcome} ({:.1} s)",
            started_at.elapsed().as_secs_f64()
        );
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured; \
         0 filtered out\n"
    );
    ExitCode::from(u8::from(failed > 0))
}
