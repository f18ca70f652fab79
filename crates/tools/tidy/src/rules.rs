//! Numbered rules: every rule that is cited is defined, once, in the document of its family.

use std::collections::BTreeMap;

use crate::{SourceTree, Violation};

/// The families of numbered rules, and the document that defines each of them.
pub const FAMILIES: [(&str, &str); 4] = [
    ("FABRIC", "docs/reference/fabric-contract.md"),
    ("LEAF", "docs/reference/leaf-protocol.md"),
    ("REPLICATION", "docs/reference/replication.md"),
    ("CONTROL", "docs/reference/control-plane.md"),
];

/// Finds citations of rules that no document defines, and rules that are defined twice.
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut defined: BTreeMap<(&str, u32), usize> = BTreeMap::new();
    for (family, document) in FAMILIES {
        let text = tree.text(document).unwrap_or_default();
        for (line_index, line) in text.lines().enumerate() {
            for (start, number) in citations(line, family) {
                let before = line[..start].trim_start().trim_start_matches("- ");
                let is_definition = before == "**";
                if is_definition && defined.insert((family, number), line_index).is_some() {
                    let message = format!(
                        "rule {family}-{number} is defined twice; renumber or remove one of them"
                    );
                    violations.push(Violation::in_line(document, line_index, message));
                }
            }
        }
    }
    for (path, text) in tree.files() {
        if path.starts_with("crates/tools/tidy/") {
            continue;
        }
        for (line_index, line) in text.lines().enumerate() {
            for (family, document) in FAMILIES {
                for (_, number) in citations(line, family) {
                    if !defined.contains_key(&(family, number)) {
                        let message = format!(
                            "rule {family}-{number} is not defined in {document}; correct the \
                             number or define the rule"
                        );
                        violations.push(Violation::in_line(path, line_index, message));
                    }
                }
            }
        }
    }
    violations
}

/// Rules of a family that a line names: where each begins, and its number.
fn citations(line: &str, family: &str) -> Vec<(usize, u32)> {
    let mut found = Vec::new();
    for (start, _) in line.match_indices(&format!("{family}-")) {
        let is_whole = !line[..start].ends_with(|it: char| it.is_alphanumeric() || it == '-');
        let digits = &line[start + family.len() + 1..];
        let end = digits
            .find(|it: char| !it.is_ascii_digit())
            .unwrap_or(digits.len());
        if let Some(number) = digits[..end].parse().ok().filter(|_| is_whole) {
            found.push((start, number));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule that is cited and not defined is found, and one that is defined twice.
    #[test]
    fn an_undefined_rule_is_found() {
        let rules = "**LEAF-1.** A.\n- **LEAF-2.** As **LEAF-1**.\n";
        let code = "// LEAF-1, LEAF-3 and A-LEAF-9; LEAF-x.\n";
        let found = |rules| {
            let tree = SourceTree::planted([
                ("docs/reference/leaf-protocol.md", rules),
                ("crates/a/src/lib.rs", code),
            ]);
            check(&tree)
                .into_iter()
                .map(|it| it.message)
                .collect::<Vec<_>>()
        };
        let undefined = "rule LEAF-3 is not defined in docs/reference/leaf-protocol.md; correct \
                         the number or define the rule";
        assert_eq!(found(rules), [undefined]);
        let twice = format!("{rules}**LEAF-2.** B.\n");
        let again = "rule LEAF-2 is defined twice; renumber or remove one of them";
        assert_eq!(found(&twice), [again, undefined]);
    }
}
