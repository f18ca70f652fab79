//! Tests of a pool with another format version.

use std::process::Command;
use std::sync::atomic::Ordering;

use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::shm::{PoolName, ShmClient};

use crate::pool::Place;

const PART: &str = "FARLEAF_TEST_PART";
const VANDAL: &str = "vandal";

/// Promise: a pool of another format version is rejected, and the message has both versions and
/// what to do.
#[test]
fn a_pool_of_another_format_version_is_refused() {
    let place = Place::new();
    let _server = place.serve(&["--size", "8MiB"]);
    // The directory of the sockets comes from the environment, which can be set safely only for a
    // new process.
    let vandal = Command::new(std::env::current_exe().expect("this test has a file"))
        .args(["--exact", "version::part_of_the_vandal", "--nocapture"])
        .env(PART, VANDAL)
        .env("FARLEAF_RUNTIME_DIR", place.runtime_directory())
        .output()
        .expect("this test can be started again");
    assert!(vandal.status.success(), "{vandal:?}");
    let refused = place.farleaf(&["table", "list"]);
    assert_eq!((refused.status, refused.stdout.as_str()), (Some(1), ""));
    for fragment in [
        "shm:default",
        "format version 999",
        "requires version",
        "serve a new pool",
    ] {
        assert!(
            refused.stderr.contains(fragment),
            "{fragment} is missing: {}",
            refused.stderr
        );
    }
}

/// Not a promise: the test above runs this function in a process of its own. It writes version 999
/// where the pool's memory has its version, the second word.
#[test]
fn part_of_the_vandal() {
    if std::env::var_os(PART).is_none_or(|part| part != VANDAL) {
        return;
    }
    let name = PoolName::new("default").expect("a name");
    let (_client, memory, size_bytes) = ShmClient::connect(&name).expect("it is served");
    let region = MappedMemory::map_shared(memory, size_bytes).expect("it can be mapped");
    region.words()[1].store(999, Ordering::Relaxed);
}
