//! Names: terms of the field instead of metaphors, nouns instead of participles, one meaning per
//! term of the glossary, and one list of search layers.

use std::collections::BTreeSet;

use crate::rust_text;
use crate::search_layers::{INDEX_SOURCES, SEARCH_LAYERS};
use crate::{SourceTree, Violation};

/// Words that no name may contain, because they are metaphors.
const METAPHORS: [&str; 10] = [
    "desk",
    "doorkeeper",
    "employer",
    "guest",
    "hiring",
    "home",
    "receptionist",
    "standing",
    "tenure",
    "wish",
];

/// Names that say when or how instead of what.
const MEANINGLESS_NAMES: [&str; 6] = ["begun", "kept", "looked", "looks", "told", "way"];

const GLOSSARY: &str = "docs/reference/glossary.md";

/// Words of a term that need not occur in a name.
const SMALL_WORDS: [&str; 5] = ["a", "in", "of", "over", "the"];

/// Finds names that are metaphors, and names of values that are not nouns.
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in sources(tree) {
        for token in rust_text::tokens(&rust_text::lines(text)) {
            let name = token.text;
            let metaphor = words(name)
                .into_iter()
                .find(|it| METAPHORS.contains(&&**it));
            let message = if let Some(word) = metaphor {
                format!("name '{name}' contains the metaphor '{word}'; use the term of the field")
            } else if MEANINGLESS_NAMES.contains(&name) {
                format!("name '{name}' does not name a thing; use a noun")
            } else {
                continue;
            };
            violations.push(Violation::in_line(path, token.line_index, message));
        }
    }
    violations
}

/// Finds terms that the glossary defines twice, that are not in alphabetical order, or whose words
/// occur in no name of the sources.
pub fn check_glossary(tree: &SourceTree) -> Vec<Violation> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for (_, text) in sources(tree) {
        for token in rust_text::tokens(&rust_text::lines(text)) {
            names.extend(words(token.text));
        }
    }
    let (mut violations, mut defined) = (Vec::new(), BTreeSet::new());
    let mut previous = String::new();
    for (line_index, line) in tree.text(GLOSSARY).unwrap_or_default().lines().enumerate() {
        let Some(term) = term_of(line) else {
            previous.clear();
            continue;
        };
        let mut complain = |message| {
            violations.push(Violation::in_line(GLOSSARY, line_index, message));
        };
        if !defined.insert(term.to_lowercase()) {
            complain(format!(
                "term '{term}' is defined twice; a term has one meaning"
            ));
        }
        if term.to_lowercase() < previous {
            complain(format!("term '{term}' is not in alphabetical order"));
        }
        previous = term.to_lowercase();
        let unused = term_words(term).into_iter().find(|it| !names.contains(it));
        if let Some(word) = unused {
            complain(format!(
                "no name in the sources contains the word '{word}' of the term '{term}'; rename \
                 the type or the term"
            ));
        }
    }
    violations
}

/// Finds search layers that have no module, and layers of tables that README does not name.
pub fn check_search_layers(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for layer in SEARCH_LAYERS {
        let places = [
            format!("{INDEX_SOURCES}/{layer}.rs"),
            format!("{INDEX_SOURCES}/{layer}/mod.rs"),
        ];
        if places.iter().all(|place| tree.text(place).is_none()) {
            let message = format!("search layer '{layer}' has no module in {INDEX_SOURCES}");
            violations.push(Violation::in_file(
                "crates/tools/tidy/src/search_layers.rs",
                message,
            ));
        }
    }
    let kinds = format!("{INDEX_SOURCES}/layer.rs");
    let source = tree.text(&kinds).unwrap_or_default();
    let readme = tree.text("README.md").unwrap_or_default();
    for (line_index, line) in source.lines().enumerate() {
        let name = line
            .split_once("=> \"")
            .and_then(|(_, rest)| rest.split_once('"'));
        let Some((name, _)) = name else { continue };
        if !readme.contains(&format!("`{name}`")) {
            let message = format!("README.md does not name the search layer `{name}`");
            violations.push(Violation::in_line(&kinds, line_index, message));
        }
    }
    violations
}

fn sources(tree: &SourceTree) -> impl Iterator<Item = (&str, &str)> {
    let all = tree.files_with_extension("rs");
    all.filter(|(path, _)| path.starts_with("crates/") && !path.starts_with("crates/tools/tidy/"))
}

/// Returns the words of a name in lower case: those of `SnakeCase` and `snake_case`.
fn words(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    for part in name.split('_') {
        let mut word = String::new();
        let mut was_lower = false;
        for character in part.chars() {
            if character.is_uppercase() && was_lower {
                words.push(core::mem::take(&mut word));
            }
            was_lower = !character.is_uppercase();
            word.extend(character.to_lowercase());
        }
        if !word.is_empty() {
            words.push(word);
        }
    }
    words
}

/// Returns the term that a row of the glossary defines.
fn term_of(line: &str) -> Option<&str> {
    let cell = line.strip_prefix("| ")?.split(" |").next()?.trim();
    let is_head = cell == "term" || cell.starts_with("--");
    (!is_head && !cell.is_empty()).then_some(cell)
}

/// Returns the words that must occur in names: without those in brackets, and without plurals.
fn term_words(term: &str) -> Vec<String> {
    let term = term.split(" (").next().unwrap_or(term).to_lowercase();
    let words = term.split([' ', '-', ',']).filter(|word| !word.is_empty());
    let words = words.filter(|word| !SMALL_WORDS.contains(word));
    words.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(violations: &[Violation]) -> Vec<String> {
        violations.iter().map(ToString::to_string).collect()
    }

    /// Promise: metaphors are found as parts of names, participles as whole names; neither in
    /// comments and strings.
    #[test]
    fn metaphors_and_participles_are_found() {
        let text = "struct GuestNode; // a guest\nfn f() { let told = \"home\"; untold(told_at) }";
        let tree = SourceTree::planted([("crates/base/src/lib.rs", text)]);
        let found = messages(&check(&tree));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("'GuestNode' contains the metaphor 'guest'"));
        assert!(found[1].contains("'told' does not name a thing"));
    }

    /// Promise: terms that are defined twice, out of order or used by no name are found.
    #[test]
    fn glossary_terms_have_one_meaning_and_are_used() {
        let glossary = "| term | meaning |\n|---|---|\n| leaf (of a tree) | a |\n| batch | b |\n\n\
                        | term | meaning |\n|---|---|\n| inner node | c |\n| leaf (of a tree) | d |";
        let code = "struct LeafBatch { inner: u8 }";
        let tree = SourceTree::planted([(GLOSSARY, glossary), ("crates/base/src/lib.rs", code)]);
        let found = messages(&check_glossary(&tree));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("'batch' is not in alphabetical order"));
        assert!(found[1].contains("the word 'node' of the term 'inner node'"));
        assert!(found[2].contains("'leaf (of a tree)' is defined twice"));
    }

    /// Promise: a layer without a module, and a kind that README does not name, are found.
    #[test]
    fn search_layers_have_one_list() {
        let mut files = vec![("README.md", "`fg`")];
        let places: Vec<String> = SEARCH_LAYERS[1..]
            .iter()
            .map(|layer| format!("{INDEX_SOURCES}/{layer}.rs"))
            .collect();
        files.extend(places.iter().map(|place| (place.as_str(), "")));
        let kinds = format!("{INDEX_SOURCES}/layer.rs");
        files.push((&kinds, "Self::Fg => \"fg\",\nSelf::Rpc => \"rpc\","));
        let found = messages(&check_search_layers(&SourceTree::planted(files)));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("'fg' has no module"));
        assert!(found[1].contains("does not name the search layer `rpc`"));
    }
}
