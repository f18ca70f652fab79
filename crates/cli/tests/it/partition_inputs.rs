//! Invalid input about tables over several pools; `bad_inputs` has the checks.

use crate::bad_inputs::{Case, case, check};
use crate::pool::{Place, Server};

/// Arguments that are invalid whatever the pools hold. `shm:a`, `shm:b` and `shm:c` are served;
/// `two.txt` has two keys.
#[rustfmt::skip]
const ARGUMENTS: &[Case] = &[
    case(&["--pool", "shm:a,shm:a", "table", "list"], 2, &["'shm:a', given twice", "different pool"]),
    case(&["--pool", "shm:a,", "table", "list"], 2, &["cannot use pool address ''"]),
    case(&["--pool", "shm:a,mem:", "get", "1"], 2, &["a 'mem:' pool exists only in the process"]),
    case(&["--pool", "shm:a,shm:b", "--rights", "read", "get", "1"], 2, &["--rights read cannot be used with shm:a"]),
    case(&["--pool", "shm:a,shm:none", "get", "1"], 1, &["shm:none cannot be reached"]),
    case(&["--pool", "shm:a,shm:b", "nodes", "list"], 2, &["--pool 'shm:a,shm:b' has several addresses"]),
    case(&["--pool", "shm:a,shm:b", "table", "drop", "t", "--part"], 2, &["has several addresses"]),
    case(&["--pool", "shm:a", "table", "create", "v", "--bounds", "5"], 2, &["--bounds cannot be used with one pool, shm:a"]),
    case(&["--pool", "shm:a,shm:b", "table", "create", "v", "--bounds", "0"], 2, &["bound is 0", "1 or more"]),
    case(&["--pool", "shm:a,shm:b", "table", "create", "v", "--bounds", "one"], 2, &["'one'", "--bounds", "whole number"]),
    case(&["--pool", "shm:a,shm:b", "table", "create", "v", "--bounds", "8,9"], 2, &["number of bounds is 2", "expected 1, one fewer than pools"]),
    case(&["--pool", "shm:a,shm:b,shm:c", "table", "create", "v", "--bounds", "9,8"], 2, &["bound is 8 after 9", "ascend"]),
    case(&["load", "two.txt", "--bounds", "5"], 2, &["--bounds cannot be used without --create"]),
    case(
        &["--pool", "shm:a,shm:b,shm:c", "load", "two.txt", "--create", "-t", "v"],
        2,
        &["nothing was loaded", "number of sample keys is 2", "at least 3, one per part"],
    ),
    case(&["bench", "ycsb", "--partitions", "0"], 2, &["'0'", "--partitions"]),
    case(&["bench", "ycsb", "--partitions", "257"], 2, &["--partitions is 257", "from 1 to 256"]),
    case(&["bench", "ycsb", "--partitions", "4", "--records", "3"], 2, &["--partitions is 4", "not above --records"]),
];

/// Arguments that are invalid for these tables: `t` is over `shm:a` and `shm:b`; `half` has lost
/// its part in `shm:b`. There are two tables `two`, over `shm:a` and `shm:b` and over `shm:c` and
/// `shm:d`. `alone` is in `shm:a` only.
#[rustfmt::skip]
const PARTS: &[Case] = &[
    case(&["--pool", "shm:a", "get", "1", "-t", "t"], 1, &["'t' in shm:a is part 0 of 2", "give all of them"]),
    case(&["--pool", "shm:b", "table", "drop", "t"], 1, &["'t' in shm:b is part 1 of 2"]),
    case(&["--pool", "shm:b,shm:a", "get", "1", "-t", "t"], 1, &["shm:b has part 1 of table 't'", "was given as part 0", "in the order"]),
    case(&["--pool", "shm:b,shm:a", "table", "drop", "t"], 1, &["shm:b has part 1 of table 't'"]),
    case(&["--pool", "shm:a,shm:b,shm:c", "get", "1", "-t", "t"], 1, &["'t' has 2 parts", "3 pools were given"]),
    case(&["--pool", "shm:a,shm:c", "get", "1", "-t", "t"], 1, &["'t' is incomplete", "found in shm:a, missing in shm:c"]),
    case(&["--pool", "shm:a,shm:b", "put", "1", "1", "-t", "half"], 1, &["'half' is incomplete", "farleaf table drop"]),
    case(&["--pool", "shm:a,shm:b", "stats", "-t", "half"], 1, &["'half' is incomplete"]),
    case(&["--pool", "shm:a,shm:b", "load", "two.txt", "-t", "half"], 1, &["nothing was loaded", "'half' is incomplete"]),
    case(&["--pool", "shm:a,shm:b", "load", "two.txt", "--create", "-t", "half"], 1, &["nothing was loaded", "'half' is incomplete"]),
    case(&["--pool", "shm:a,shm:d", "scan", "-t", "two"], 1, &["shm:a and shm:d have parts of two different tables", "'two'"]),
    case(&["--pool", "shm:a,shm:b", "get", "1", "-t", "alone"], 1, &["'alone' in shm:a is not part"]),
    case(&["--pool", "shm:a", "table", "drop", "alone", "--part"], 1, &["'alone' in shm:a is not part"]),
    case(&["--pool", "shm:a,shm:b", "del", "1", "-t", "other"], 1, &["table 'other' does not exist in shm:a, shm:b"]),
    case(&["--pool", "shm:a,shm:b", "load", "two.txt", "-t", "other"], 1, &["nothing was loaded (--create creates table 'other')"]),
    case(&["--pool", "shm:a,shm:b", "table", "create", "t"], 1, &["part 0 of table 't', in shm:a: table 't' already exists"]),
    case(&["--pool", "shm:a,shm:b", "load", "two.txt", "--create", "-t", "t", "--bounds", "9"], 1, &["leave out --create", "already", "its bounds are 1000"]),
    case(&["--pool", "shm:a,shm:b", "load", "two.txt", "--create", "-t", "t", "--slots", "16"], 1, &["leave out --create", "other options"]),
];

/// All cases of this file.
pub(crate) const PARTITIONS: [&[Case]; 2] = [ARGUMENTS, PARTS];

fn served() -> (Place, [Server; 4]) {
    let place = Place::new();
    place.file("two.txt", "1\n2\n");
    let servers = ["a", "b", "c", "d"].map(|name| place.serve(&["--size", "8MiB", "--name", name]));
    (place, servers)
}

/// Promise: invalid arguments about several pools are rejected, and nothing is created.
#[test]
fn bad_arguments_about_several_pools_are_refused() {
    let (place, _servers) = served();
    for case in ARGUMENTS {
        check(&place, case);
    }
    for pool in ["shm:a", "shm:b", "shm:c"] {
        let list = place.farleaf(&["--pool", pool, "table", "list"]).quietly();
        assert!(list.contains("has no tables"), "{list}");
    }
}

/// Promise: pools in the wrong order, missing pools, too many, or those of another table are
/// reported, and existing data stay unchanged.
#[test]
fn wrong_pools_are_told() {
    let (place, _servers) = served();
    let create = |pools: &str, name: &str| {
        let arguments = ["--pool", pools, "table", "create", name, "--kind", "words"];
        place.farleaf(&arguments).quietly();
    };
    place
        .farleaf(&[
            "--pool",
            "shm:a,shm:b",
            "table",
            "create",
            "t",
            "--bounds",
            "1000",
        ])
        .quietly();
    for name in ["half", "two"] {
        create("shm:a,shm:b", name);
    }
    create("shm:c,shm:d", "two");
    create("shm:a", "alone");
    place
        .farleaf(&["--pool", "shm:b", "table", "drop", "half", "--part"])
        .quietly();
    let list = ["--pool", "shm:a,shm:b", "table", "list"];
    let before = place.farleaf(&list).quietly();
    for case in PARTS {
        check(&place, case);
    }
    assert_eq!(place.farleaf(&list).quietly(), before);
    // A single part of a table can be dropped and created again.
    place
        .farleaf(&["--pool", "shm:a,shm:b", "table", "drop", "half"])
        .quietly();
    create("shm:a,shm:b", "half");
}
