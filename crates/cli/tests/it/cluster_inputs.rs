//! Invalid input about clusters that is rejected without a cluster; `bad_inputs` has the checks.

use crate::bad_inputs::{Case, case, check};
use crate::pool::Place;

/// Invalid addresses, options for pools alone or for clusters alone, and invalid numbers.
#[rustfmt::skip]
pub(crate) const CLUSTERS: &[Case] = &[
    case(&["table", "create", "t", "--engine", "lsm"], 2, &["--engine lsm needs --cluster", "region serve"]),
    case(&["table", "create", "t", "--replicas", "2"], 2, &["--replicas cannot be used without --cluster"]),
    case(&["put", "k", "v", "--durability", "sync"], 2, &["--durability cannot be used without --cluster"]),
    case(&["cluster", "status"], 2, &["missing address of the cluster", "--cluster ADDRESS"]),
    case(&["--cluster", "tcp:h:1", "bench", "costs"], 2, &["--cluster cannot be used here"]),
    case(
        &["--cluster", "tcp:h:1", "region", "serve", "--data", "d"],
        2,
        &["--cluster cannot be used here", "--coordinator"],
    ),
    case(&["--pool", "shm:x", "region", "serve", "--data", "d"], 2, &["--pool cannot be used here"]),
    case(&["--cluster", "h:1", "get", "k"], 2, &["--cluster: 'h:1' is not a valid coordinator address", "tcp:HOST:PORT"]),
    case(&["--cluster", "dir:d", "get", "k"], 2, &["'dir:d' can be used only by the process that serves it"]),
    case(&["--cluster", "tcp:h:1", "put", "k", "v", "--rights", "write"], 2, &["--rights cannot be used with a cluster"]),
    case(&["--cluster", "tcp:h:1", "table", "create", "t", "--kind", "words"], 2, &["--kind words cannot be used"]),
    case(&["--cluster", "tcp:h:1", "table", "create", "t", "--index", "rpc"], 2, &["--index cannot be used with a cluster"]),
    case(&["--cluster", "tcp:h:1", "table", "create", "t", "--engine", "memory"], 2, &["--engine memory cannot be used"]),
    case(&["--cluster", "tcp:h:1", "table", "create", "t", "--replicas", "16"], 2, &["'16'", "--replicas", "1..=15"]),
    case(&["--cluster", "tcp:h:1", "load", "f", "--replicas", "2"], 2, &["--replicas cannot be used without --create"]),
    case(&["--cluster", "tcp:h:1", "table", "drop", "t", "--part"], 2, &["--part cannot be used with a cluster"]),
    case(&["region", "serve", "--data", "d", "--lease", "0"], 2, &["'0'", "--lease", "whole seconds from 1 to 600"]),
    case(&["region", "serve", "--data", "d", "--lease", "1m"], 2, &["'1m'", "--lease", "such as 10 or 10s"]),
    case(&["region", "serve", "--data", "d", "--listen", "nowhere"], 2, &["'nowhere'", "--listen"]),
    case(&["region", "serve", "--data", "d", "--listen", "0.0.0.0:0"], 2, &["0.0.0.0:0", "--advertise HOST:PORT"]),
    case(&["region", "serve", "--data", "d", "--advertise", "h"], 2, &["'h'", "--advertise", "HOST:PORT"]),
    case(&["region", "serve", "--data", "d", "--buffers", "1"], 2, &["'1'", "--buffers", "2..=1024"]),
    case(&["region", "serve", "--data", "d", "--cache", "1KiB"], 2, &["'1KiB'", "--cache", "1MiB or more"]),
    case(&["region", "serve", "--data", "d", "--request-memory-max", "129MiB"], 2, &["'129MiB'", "--request-memory-max", "at least 130 MiB"]),
    case(&["region", "serve", "--data", "d", "--cache", "100TiB"], 2, &["'100TiB'", "--cache", "the memory of this host"]),
    case(
        &["region", "serve", "--data", "d", "--coordinator-patience", "-1"],
        2,
        &["'-1'", "--coordinator-patience", "whole seconds from 0 to 86400"],
    ),
    case(
        &["--cluster", "tcp:h:1", "cluster", "status", "--coordinator-patience", "-1"],
        2,
        &["'-1'", "--coordinator-patience", "whole seconds from 0 to 86400"],
    ),
    case(&["region", "serve", "--data", "d", "--number", "0"], 2, &["'0'", "--number"]),
    case(&["region", "serve", "--data", "d", "--coordinator", "h"], 2, &["--coordinator: 'h' is not a valid coordinator address"]),
    case(
        &["region", "serve", "--data", "d", "--coordinator", "tcp:127.0.0.1:1", "--coordinator-patience", "0"],
        1,
        &["tcp:127.0.0.1:1 cannot be reached"],
    ),
];

/// Promise: each is rejected with what is wrong and what to do, before any server is contacted or
/// anything is created.
#[test]
fn bad_arguments_about_clusters_are_refused() {
    let place = Place::new();
    for case in CLUSTERS {
        check(&place, case);
    }
    assert!(!place.path().join("d").exists(), "no directory was made");
}

/// Promise: without the feature, the error for an etcd address says how to build a program with it.
#[cfg(not(feature = "etcd"))]
#[test]
fn etcd_needs_its_feature() {
    let place = Place::new();
    let address = "etcd:127.0.0.1:2379";
    for arguments in [
        &["region", "serve", "--data", "d", "--coordinator", address][..],
        &["--cluster", address, "get", "k"],
    ] {
        let ran = place.farleaf(arguments);
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.contains("built without etcd"), "{ran:?}");
        assert!(ran.stderr.contains("--features etcd"), "{ran:?}");
    }
}
