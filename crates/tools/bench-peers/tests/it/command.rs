//! Tests of the command's errors for invalid options.

use std::process::Command;

/// Promise: options and maps of the other kind, and invalid sizes, are refused before anything is
/// loaded, with the permitted values.
#[test]
fn bad_options_are_refused() {
    let cases: [(&[&str], &[&str]); 9] = [
        (&["--kind", "strings"], &["'strings'", "words, bytes"]),
        (
            &["--key-size", "24"],
            &["--key-size applies only to --kind bytes", "omit it"],
        ),
        (
            &["--value-size", "100"],
            &["--value-size applies only to --kind bytes"],
        ),
        (&["--redis", "r"], &["--redis applies only to --kind bytes"]),
        (
            &["--kind", "bytes", "--slots", "8"],
            &["--slots applies only to --kind words"],
        ),
        (
            &["--kind", "bytes", "--peers", "lmdb,congee"],
            &[
                "--peers congee applies only to --kind words",
                "masstree, lmdb, redb, redis",
            ],
        ),
        (
            &["--peers", "redb"],
            &["--peers redb applies only to --kind bytes", "btree-map"],
        ),
        (
            &["--kind", "bytes", "--key-size", "23"],
            &["'23'", "24..=4096"],
        ),
        (&["--kind", "bytes", "--value-size", "7"], &["'7'", "8..="]),
    ];
    for (arguments, expected) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farleaf-bench-peers"));
        let ran = command.args(arguments).output().expect("the program");
        let text = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {text}");
        for part in expected {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    // Only the table can check this.
    let pages = ["--kind", "bytes", "--records", "9", "--page-size", "1000"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_farleaf-bench-peers"));
    let ran = command.args(pages).output().expect("the program");
    let text = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && text.contains("1000"), "{text}");
}
