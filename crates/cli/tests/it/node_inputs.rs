//! Invalid input to `serve --pool FILE --node N` and to `nodes`; `bad_inputs` has the checks.

use crate::bad_inputs::{Case, case, check};
use crate::pool::Place;

/// Invalid pools of several nodes, and invalid commands about nodes.
#[rustfmt::skip]
pub(crate) const NODES: &[Case] = &[
    case(&["serve", "--node", "0"], 2, &["--node needs --pool FILE"]),
    case(&["serve", "--node", "-1", "--pool", "two.toml"], 2, &["'-1'", "--node"]),
    case(&["serve", "--node", "300", "--pool", "two.toml"], 2, &["'300'", "--node", "0..=255"]),
    case(&["serve", "--node", "2", "--pool", "two.toml"], 2, &["--node 2", "the nodes 0 to 1"]),
    case(&["serve", "--node", "0", "--pool", "none.toml"], 2, &["none.toml", "No such file"]),
    case(&["serve", "--node", "0", "--pool", "two.toml", "--size", "1GiB"], 2, &["--node", "--size"]),
    case(&["serve", "--node", "0", "--pool", "two.toml", "--listen", "1"], 2, &["--node", "--listen"]),
    case(&["serve", "--node", "0", "--pool", "empty.toml"], 2, &["empty.toml", "missing [[node]]"]),
    case(&["serve", "--node", "0", "--pool", "field.toml"], 2, &["field.toml: line 1", "`nme`"]),
    case(&["serve", "--node", "0", "--pool", "toml.toml"], 2, &["toml.toml: line 2"]),
    case(&["serve", "--node", "0", "--pool", "twice.toml"], 2, &["nodes 0 and 1 have the same address"]),
    case(&["serve", "--node", "0", "--pool", "name.toml"], 2, &["node 0: 'far:7470' is not a valid IP:PORT"]),
    case(&["serve", "--node", "0", "--pool", "small.toml"], 2, &["size of node 0", "too small"]),
    case(
        &["serve", "--node", "0", "--pool", "open.toml"],
        2,
        &["node 0: 10.0.0.5:7470", "other hosts", "secret new"],
    ),
    case(
        &["serve", "--node", "0", "--pool", "any.toml"],
        2,
        &["node 0: '0.0.0.0:7470'", "not one that other hosts can connect to", "listen"],
    ),
    case(
        &["serve", "--node", "0", "--pool", "two.toml", "--secret-file", "none.secret"],
        1,
        &["cannot read the secret in 'none.secret'"],
    ),
    case(&["--pool", "mem:", "nodes", "list"], 2, &["a 'mem:' pool exists only in the process"]),
    case(&["--pool", "tcp:127.0.0.1:1", "nodes", "list"], 1, &["cannot be reached"]),
    case(&["nodes", "drain", "many"], 2, &["'many'", "<NUMBER>"]),
    case(&["nodes", "drain", "256"], 2, &["'256'", "<NUMBER>", "0..=255"]),
    case(&["nodes", "forget", "1"], 2, &["'forget'"]),
];

/// Promise: a node with invalid settings is not served at all, and the error names the file and the
/// place.
#[test]
fn bad_pools_of_several_nodes_are_refused() {
    let place = Place::new();
    let node =
        |address: &str, size: &str| format!("[[node]]\naddress = '{address}'\nsize = '{size}'\n");
    let (first, second) = (
        node("127.0.0.1:7471", "8MiB"),
        node("127.0.0.1:7472", "8MiB"),
    );
    place.file("two.toml", format!("{first}{second}"));
    place.file("empty.toml", "name = 'x'\n");
    place.file("field.toml", format!("nme = 'x'\n{first}"));
    place.file("toml.toml", "name = 'x'\n[[node]\n");
    place.file("twice.toml", format!("{first}{first}"));
    place.file("name.toml", node("far:7470", "8MiB"));
    place.file("small.toml", node("127.0.0.1:7471", "1KiB"));
    place.file("open.toml", node("10.0.0.5:7470", "8MiB"));
    place.file("any.toml", node("0.0.0.0:7470", "8MiB"));
    for case in NODES {
        check(&place, case);
    }
}
