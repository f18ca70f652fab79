//! Runs the examples, each of which asserts its own results.

use std::path::PathBuf;
use std::process::Command;

/// Returns the path of an example. Cargo builds the examples of a package before it runs the
/// package's tests, beside them.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let path = profile.join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not built; `cargo test -p farleaf`, without `--test`, builds it",
        path.display()
    );
    path
}

/// Runs an example to completion and returns its output.
fn run(name: &str) -> String {
    let output = Command::new(example(name)).output();
    let output = output.expect("the example starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Promise: the counter loses no increment.
#[test]
fn counter_counts_every_increment() {
    assert!(run("counter").contains("counter: 4000\n"));
}

/// Promise: ranges and lookups of absent keys are right, and a get is one read of one leaf.
#[test]
fn ordered_index_finds_what_is_there_and_nothing_else() {
    let said = run("ordered_index");
    assert!(
        said.contains("burst 200 has events 10000 to 10049\n"),
        "{said}"
    );
    assert!(
        said.contains("a get: 1 round trip(s), 160 bytes read\n"),
        "{said}"
    );
}

/// Promise: records that a killed process had reported are there, and its locks block no other
/// process.
#[test]
fn shared_table_survives_the_death_of_a_process() {
    let said = run("shared_table");
    assert!(said.contains("parent: found all 1000 of them\n"), "{said}");
    assert!(
        said.ends_with("parent: every record can be written\n"),
        "{said}"
    );
}

/// Promise: the program in the README is this example, verbatim, and runs.
#[test]
fn first_table_is_the_program_of_the_readme() {
    let source = include_str!("../../examples/first_table.rs");
    let (_, program) = source
        .split_once("\n\n")
        .expect("a header, then the program");
    let readme = include_str!("../../../../README.md");
    assert!(readme.contains(&format!("```rust\n{program}```\n")));
    assert_eq!(
        run("first_table"),
        "5: 139820 km\na get: 1 round trip, 160 bytes\n"
    );
}
