//! Checks that search layers never import each other: each is a hint over the same leaves,
//! replaceable alone.

use crate::rust_text::{self, Token};
use crate::{SourceTree, Violation};

/// Search layers: modules of the index crate, as a file or as a folder.
pub const SEARCH_LAYERS: &[&str] = &[
    "fg",
    "inner_cache",
    "learned",
    "partial",
    "rf_tree",
    "rolex",
    "xstore",
];

pub(crate) const INDEX_SOURCES: &str = "crates/memory/index/src";

/// Finds paths from one search layer's module into another's: `crate::`, `super::` or the crate's
/// own name followed by the other layer, also within braces.
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files_with_extension("rs") {
        let Some(own) = SEARCH_LAYERS.iter().find(|layer| belongs_to(path, layer)) else {
            continue;
        };
        let lines = rust_text::lines(text);
        for (other, line_index) in imported_layers(&rust_text::tokens(&lines)) {
            if other != *own {
                let message = format!(
                    "search layer '{own}' must not import search layer '{other}'; move the \
                     shared code out of both"
                );
                violations.push(Violation::in_line(path, line_index, message));
            }
        }
    }
    violations
}

fn belongs_to(path: &str, layer: &str) -> bool {
    let own = path
        .strip_prefix(INDEX_SOURCES)
        .and_then(|path| path.strip_prefix('/'));
    let Some(own) = own.map(|own| own.strip_prefix("strings/").unwrap_or(own)) else {
        return false;
    };
    own == format!("{layer}.rs") || own.starts_with(&format!("{layer}/"))
}

/// Returns the search layers that these tokens name by a path, with their lines.
fn imported_layers<'a>(tokens: &[Token<'a>]) -> Vec<(&'a str, usize)> {
    // For every open brace, whether a path to the layers' parent precedes it.
    let mut braces: Vec<bool> = Vec::new();
    let mut found = Vec::new();
    for (position, token) in tokens.iter().enumerate() {
        let before = &tokens[..position];
        match token.text {
            "{" => braces.push(ends_with_parent(before)),
            "}" => {
                braces.pop();
            }
            name if SEARCH_LAYERS.contains(&name) => {
                let opens_item = before.last().is_some_and(|it| matches!(it.text, "{" | ","));
                let in_group = opens_item && braces.last() == Some(&true);
                if in_group || ends_with_parent(before) {
                    found.push((name, token.line_index));
                }
            }
            _ => {}
        }
    }
    found
}

fn ends_with_parent(tokens: &[Token<'_>]) -> bool {
    let mut backwards = tokens.iter().rev().map(|token| token.text);
    backwards.next() == Some(":")
        && backwards.next() == Some(":")
        && matches!(backwards.next(), Some("crate" | "super" | "farleaf_index"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&SourceTree::planted([(path, text)])).len()
    }

    /// Promise: every spelling of a path to the other layer is found, in files and in folders.
    #[test]
    fn every_spelling_of_an_import_is_found() {
        for text in [
            "use crate::rolex::Table;",
            "use crate::rolex;",
            "use super::super::rolex::Table;",
            "use crate::{chain, rolex::Table};",
            "use crate::{\n    rolex,\n};",
            "fn f() { crate::rolex::train() }",
            "use farleaf_index::rolex::Table;",
        ] {
            assert_eq!(
                count("crates/memory/index/src/learned.rs", text),
                1,
                "{text}"
            );
            assert_eq!(
                count("crates/memory/index/src/learned/run.rs", text),
                1,
                "{text}"
            );
        }
        assert_eq!(
            count(
                "crates/memory/index/src/rolex/table.rs",
                "use crate::learned::Run;"
            ),
            1
        );
    }

    /// Promise: the own layer, the shared modules, comments, and files outside the layers pass.
    #[test]
    fn what_is_no_import_of_another_layer_passes() {
        assert_eq!(
            count(
                "crates/memory/index/src/rolex.rs",
                "use crate::rolex::Table;"
            ),
            0
        );
        assert_eq!(
            count(
                "crates/memory/index/src/rolex.rs",
                "use crate::chain::Hint; // crate::learned"
            ),
            0
        );
        assert_eq!(
            count(
                "crates/memory/index/src/lib.rs",
                "pub use crate::{learned, rolex};"
            ),
            0
        );
        assert_eq!(
            count(
                "crates/memory/index/src/rolex.rs",
                "let learned = f(learned, 1);"
            ),
            0
        );
    }
}
