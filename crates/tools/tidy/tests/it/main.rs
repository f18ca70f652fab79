//! Every rule, on the real source tree: one test a rule, so that a failure names the rule.

use std::path::Path;

use farleaf_tidy::layers::LAYERS;
use farleaf_tidy::{
    SourceTree, Violation, layering, leftovers, links, manifests, search_layers, size, unsafe_code,
};

fn tree() -> SourceTree {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    SourceTree::read(&root).expect("the source tree can be read")
}

#[track_caller]
fn assert_none(violations: &[Violation]) {
    let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(
        violations.is_empty(),
        "{} violation(s):\n{}",
        list.len(),
        list.join("\n")
    );
}

/// The rules below see the real tree: a walk that missed it would let them all pass.
#[test]
fn the_tree_is_really_read() {
    let tree = tree();
    assert!(
        tree.text("Cargo.toml")
            .is_some_and(|text| text.contains("[workspace]"))
    );
    assert!(tree.crates().any(|(folder, _)| folder == "tidy"));
    assert!(
        tree.text("crates/tidy/tests/it/main.rs")
            .is_some_and(|it| it.contains("really_read"))
    );
    assert_eq!(
        tree.paths_below("target").count() + tree.paths_below(".git").count(),
        0
    );
}

/// Crates depend only downwards, by the table of layers.
#[test]
fn crates_depend_by_the_table_of_layers() {
    assert_none(&layering::check(&tree(), LAYERS));
}

/// ARCHITECTURE.md names every crate.
#[test]
fn the_architecture_names_every_crate() {
    assert_none(&layering::check_architecture_names_crates(&tree(), LAYERS));
}

/// Search layers do not import each other.
#[test]
fn search_layers_do_not_import_each_other() {
    assert_none(&search_layers::check(&tree()));
}

/// No file is too long. The long ones are printed (`--nocapture` shows them).
#[test]
fn files_are_short() {
    let tree = tree();
    for note in size::note_files(&tree) {
        println!("note: {note}");
    }
    assert_none(&size::check_files(&tree));
}

/// No line is too wide.
#[test]
fn lines_are_narrow() {
    assert_none(&size::check_lines(&tree()));
}

/// Unsafe code is where it may be, each piece with its proof.
#[test]
fn unsafe_code_is_confined_and_proven() {
    assert_none(&unsafe_code::check(&tree()));
}

/// No unfinished work and no module named for nothing.
#[test]
fn nothing_is_left_over() {
    assert_none(&leftovers::check(&tree()));
}

/// Links between documents lead somewhere.
#[test]
fn links_lead_somewhere() {
    assert_none(&links::check_targets(&tree()));
}

/// docs/README.md leads to everything in docs/.
#[test]
fn every_document_is_reachable() {
    assert_none(&links::check_docs_are_reachable(&tree()));
}

/// Every crate has a description, the workspace's lints and a documented root.
#[test]
fn every_crate_says_what_it_is() {
    assert_none(&manifests::check(&tree()));
}
