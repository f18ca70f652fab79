//! Runs every rule on the real source tree: one test per rule, so that a failure names the rule.

use std::path::Path;

use farleaf_tidy::layers::LAYERS;
use farleaf_tidy::{
    SourceTree, Violation, layering, leftovers, links, manifests, names, prose, rules,
    search_layers, size, unsafe_code,
};

fn tree() -> SourceTree {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
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

/// Promise: the rules below see the real tree; if the walk missed it, all would pass.
#[test]
fn the_tree_is_really_read() {
    let tree = tree();
    assert!(
        tree.text("Cargo.toml")
            .is_some_and(|text| text.contains("[workspace]"))
    );
    assert!(tree.crates().any(|(folder, _)| folder == "tools/tidy"));
    assert!(
        tree.text("crates/tools/tidy/tests/it/main.rs")
            .is_some_and(|it| it.contains("really_read"))
    );
    assert_eq!(
        tree.paths_below("target").count() + tree.paths_below(".git").count(),
        0
    );
}

/// Promise: crates depend only downwards, by the table of layers.
#[test]
fn crates_depend_by_the_table_of_layers() {
    assert_none(&layering::check(&tree(), LAYERS));
}

/// Promise: ARCHITECTURE.md names every crate.
#[test]
fn the_architecture_names_every_crate() {
    assert_none(&layering::check_architecture_names_crates(&tree(), LAYERS));
}

/// Promise: ARCHITECTURE.md shows the crates as in the table of layers.
#[test]
fn the_architecture_shows_the_table_of_layers() {
    assert_none(&layering::check_architecture_diagram(&tree(), LAYERS));
}

/// Promise: search layers do not import each other.
#[test]
fn search_layers_do_not_import_each_other() {
    assert_none(&search_layers::check(&tree()));
}

/// Promise: no file is too long. Files near the limit are printed (`--nocapture` shows them).
#[test]
fn files_are_short() {
    let tree = tree();
    for note in size::note_files(&tree) {
        println!("note: {note}");
    }
    assert_none(&size::check_files(&tree));
}

/// Promise: no line is too wide.
#[test]
fn lines_are_narrow() {
    assert_none(&size::check_lines(&tree()));
}

/// Promise: unsafe code is only in the permitted files, each piece with its proof.
#[test]
fn unsafe_code_is_confined_and_proven() {
    assert_none(&unsafe_code::check(&tree()));
}

/// Promise: there is no unfinished work and no module with a meaningless name.
#[test]
fn nothing_is_left_over() {
    assert_none(&leftovers::check(&tree()));
}

/// Promise: links between documents have a target.
#[test]
fn links_lead_somewhere() {
    assert_none(&links::check_targets(&tree()));
}

/// Promise: docs/README.md leads to everything in docs/.
#[test]
fn every_document_is_reachable() {
    assert_none(&links::check_docs_are_reachable(&tree()));
}

/// Promise: every crate has a description, the workspace's lints and a documented root.
#[test]
fn every_crate_says_what_it_is() {
    assert_none(&manifests::check(&tree()));
}

/// No doc comment begins with a word that refers to something before it.
#[test]
fn doc_comments_stand_alone() {
    assert_none(&prose::check_doc_comments(&tree()));
}

/// Comments and documents use the terms of the field.
#[test]
fn banned_phrases_are_not_used() {
    assert_none(&prose::check_phrases(&tree()));
}

/// Paragraphs of documents are short, and their lines narrow.
#[test]
fn paragraphs_are_short() {
    assert_none(&prose::check_paragraphs(&tree()));
}

/// Every rule that is cited is defined in its document.
#[test]
fn cited_rules_exist() {
    assert_none(&rules::check(&tree()));
}

/// docs/SUMMARY.md lists every page.
#[test]
fn the_book_has_every_page() {
    assert_none(&links::check_summary(&tree()));
}

/// Promise: no name is a metaphor or a participle.
#[test]
fn names_are_terms_of_the_field() {
    assert_none(&names::check(&tree()));
}

/// Promise: each term of the glossary has one meaning and occurs in names of the sources.
#[test]
fn glossary_terms_are_used_once() {
    assert_none(&names::check_glossary(&tree()));
}

/// Promise: code, tidy and README have the same search layers.
#[test]
fn search_layers_have_one_list() {
    assert_none(&names::check_search_layers(&tree()));
}
