//! Keys of clusters with fewer rights, and with a part of the data.

use crate::cluster::{Crew, refused};
use crate::pool::Ran;

/// Runs a command with a key instead of the secret.
fn with_key(crew: &Crew, key: &str, arguments: &[&str]) -> Ran {
    crew.place.file("key", key);
    let common = ["--cluster", &crew.cluster, "--secret-file", "key"];
    crew.place.farleaf(&[&common, arguments].concat())
}

fn denied(crew: &Crew, key: &str, arguments: &[&str], what: &str) {
    let ran = with_key(crew, key, arguments);
    refused(&ran, 1, &["permission denied", what]);
}

/// Promise: a derived key opens a cluster with its rights: a key to read reads everything and
/// changes nothing, a key to write also writes, and neither changes tables or servers.
#[test]
fn derived_keys_have_fewer_rights() {
    let crew = Crew::new(1);
    crew.run(&["table", "create", "t", "--replicas", "1"]);
    crew.run(&["put", "a", "1", "-t", "t"]);
    let derived = |rights| {
        let derive = ["--secret-file", "secret", "secret", "derive", rights];
        crew.place.farleaf(&derive).quietly()
    };
    let (read, write) = (derived("read"), derived("write"));
    for key in [&read, &write] {
        let ran = with_key(&crew, key, &["get", "a", "-t", "t"]);
        assert_eq!(ran.quietly(), "a\t1\n");
        let ran = with_key(&crew, key, &["scan", "-t", "t"]);
        assert_eq!(ran.quietly(), "a\t1\n");
        let status = with_key(&crew, key, &["cluster", "status"]).stdout;
        assert!(status.starts_with("cluster "), "{status}");
        denied(&crew, key, &["table", "create", "u"], "'admin'");
        denied(&crew, key, &["table", "drop", "t"], "'admin'");
        denied(&crew, key, &["cluster", "drain", "1"], "'admin'");
    }
    denied(&crew, &read, &["put", "b", "2", "-t", "t"], "'write'");
    denied(&crew, &read, &["del", "a", "-t", "t"], "'write'");
    with_key(&crew, &write, &["put", "b", "2", "-t", "t"]).quietly();
    with_key(&crew, &write, &["del", "a", "-t", "t"]).quietly();
    assert_eq!(crew.run(&["scan", "-t", "t"]), "b\t2\n");
}

/// Promise: a key that is limited to a table, or to a prefix of its keys, permits that and nothing
/// else, and ends with its table.
#[test]
fn a_key_can_be_limited_to_a_part_of_a_table() {
    let crew = Crew::new(1);
    for table in ["t", "u"] {
        crew.run(&["table", "create", table, "--replicas", "1"]);
        crew.run(&["put", "user:1", "1", "-t", table]);
        crew.run(&["put", "item:1", "2", "-t", table]);
    }
    let of_table = crew.run(&["cluster", "key", "read", "t"]);
    let ran = with_key(&crew, &of_table, &["scan", "-t", "t"]);
    assert_eq!(ran.quietly(), "item:1\t2\nuser:1\t1\n");
    denied(
        &crew,
        &of_table,
        &["get", "item:1", "-t", "u"],
        "another table",
    );
    denied(&crew, &of_table, &["put", "x", "1", "-t", "t"], "'write'");
    let prefix = ["--key-prefix", "user:"];
    let of_users = [&["cluster", "key", "write", "t"][..], &prefix].concat();
    let of_users = crew.run(&of_users);
    with_key(&crew, &of_users, &["put", "user:2", "3", "-t", "t"]).quietly();
    let ran = with_key(&crew, &of_users, &["scan", "--prefix", "user:", "-t", "t"]);
    assert_eq!(ran.quietly(), "user:1\t1\nuser:2\t3\n");
    let own = "begin with 'user:'";
    denied(&crew, &of_users, &["get", "item:1", "-t", "t"], own);
    denied(&crew, &of_users, &["put", "users", "1", "-t", "t"], own);
    denied(&crew, &of_users, &["scan", "-t", "t"], own);
    denied(&crew, &of_users, &["table", "drop", "t"], "'admin'");
    // A key cannot be derived from a limited one.
    let ran = with_key(&crew, &of_users, &["cluster", "key", "read", "t"]);
    refused(&ran, 1, &["cannot be derived"]);
    let long = "x".repeat(200);
    let too_long = ["cluster", "key", "read", "t", "--key-prefix", &long];
    refused(&crew.farleaf(&too_long), 2, &["200 bytes", "at most 103"]);
    crew.run(&["table", "drop", "t"]);
    crew.run(&["table", "create", "t", "--replicas", "1"]);
    denied(
        &crew,
        &of_table,
        &["get", "user:1", "-t", "t"],
        "another table",
    );
}
