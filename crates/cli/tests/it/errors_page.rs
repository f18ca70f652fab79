//! Checks the page of errors (`docs/reference/errors.md`): every command of the tests of invalid
//! input has a row in it. `FARLEAF_WRITE_DOCS=1 cargo test -p farleaf-cli` writes the messages into
//! the rows.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::bad_inputs::{ARGUMENTS, BENCH, BUDGETS, Case, FIGURES, FILES, TABLES, TIMELINE};
use crate::cluster_inputs::CLUSTERS;
use crate::network_inputs::NETWORK;
use crate::node_inputs::NODES;
use crate::partition_inputs::PARTITIONS;
use crate::persistent_bench::PERSISTENT_BENCH;
use crate::string_inputs::STRINGS;
use crate::tls_inputs::TLS;

/// Page of errors, whose rows are written by these tests.
const DOCUMENT: &str = include_str!("../../../../docs/reference/errors.md");

/// Promise: every command of these tests is in the document.
#[test]
fn the_document_has_every_command() {
    let cases = [
        ARGUMENTS, BENCH, BUDGETS, TIMELINE, NETWORK, CLUSTERS, NODES, FIGURES, FILES, TABLES,
    ];
    let cases = cases.into_iter().chain(PARTITIONS).chain(STRINGS);
    let cases = cases.chain([PERSISTENT_BENCH, TLS]);
    for case in cases.flatten() {
        let row = start_of_row(case);
        assert!(
            DOCUMENT.contains(&row),
            "{row} is missing in docs/reference/errors.md"
        );
    }
}

/// Returns the first two columns of a command's row in the document.
fn start_of_row(case: &Case) -> String {
    let quoted = case.arguments.iter().map(|argument| match *argument {
        "" => "''".to_owned(),
        other => other.replace('\n', "\\n"),
    });
    let command = quoted.collect::<Vec<_>>().join(" ");
    format!("| `farleaf {command}` | {} |", case.status)
}

/// Writes the message of a command into its row of the document, which must exist.
pub(crate) fn write_row(case: &Case, stderr: &str) {
    static WRITING: Mutex<()> = Mutex::new(());
    let _guard = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/errors.md");
    let text = std::fs::read_to_string(&path).expect("the document");
    let said = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = said
        .split(" For more information, try")
        .next()
        .unwrap_or_default();
    let said = said
        .split(" Usage: ")
        .next()
        .unwrap_or_default()
        .replace('|', "\\|");
    let start = start_of_row(case);
    let rows = text.lines().map(|line| {
        if line.starts_with(&start) {
            format!("{start} {said} |\n")
        } else {
            format!("{line}\n")
        }
    });
    std::fs::write(&path, rows.collect::<String>()).expect("the document can be written");
}
