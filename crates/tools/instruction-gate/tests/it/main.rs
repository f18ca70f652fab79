//! Tests of the gate's program: its behavior without valgrind, and the correctness of its counts.

use std::path::Path;
use std::process::Command;

use farleaf_instruction_gate::{CASES, callgrind};

const GATE: &str = env!("CARGO_BIN_EXE_farleaf-instruction-gate");

/// Promise: without valgrind on the path the gate reports that and succeeds.
#[test]
fn a_missing_valgrind_is_reported_as_skipped() {
    let output = Command::new(GATE)
        .env("PATH", "")
        .output()
        .expect("the gate starts");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "skipped: valgrind not found\n"
    );
}

/// Promise: the count of a case is that of its operations alone. Doubling the operations doubles
/// it, to within the few instructions of the call itself. If preparation were counted, this would
/// fail; so would a function that switches the collection off in the middle.
#[test]
fn counts_grow_with_the_operations_and_nothing_else() {
    if !callgrind::is_installed() {
        println!("skipped: valgrind not found");
        return;
    }
    for case in CASES {
        let count = |operation_count| {
            callgrind::count_instructions(Path::new(GATE), case, operation_count)
                .expect("callgrind counts")
        };
        let (one, two) = (count(1_000) as f64, count(2_000) as f64);
        let growth = two / one;
        assert!(
            (1.95..2.05).contains(&growth),
            "{}: {one} then {two}",
            case.name
        );
        assert!(
            one >= 1_000.0,
            "{}: less than one instruction an operation",
            case.name
        );
    }
}

/// Promise: a case whose function does not exist is an error, never a count of 0.
#[test]
fn a_function_that_is_never_entered_is_an_error() {
    if !callgrind::is_installed() {
        println!("skipped: valgrind not found");
        return;
    }
    let misnamed = farleaf_instruction_gate::Case {
        function: "gate_no_such_thing",
        ..CASES[0]
    };
    let error = callgrind::count_instructions(Path::new(GATE), &misnamed, 10)
        .expect_err("nothing was entered");
    assert!(
        matches!(error, callgrind::CountError::NeverEntered { .. }),
        "{error}"
    );
}
