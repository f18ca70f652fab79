//! Checks that links between documents have a target, and that every document in docs/ can be
//! reached.
//!
//! The check reads Markdown's inline links and images, its reference definitions, and `href` and
//! `src` of inline HTML, except in code blocks and code spans. Anchors are cut off, not checked.

use std::collections::BTreeSet;

use crate::markdown::{self, without_code_spans};
use crate::tree::extension;
use crate::{SourceTree, Violation};

const DOCS_FOLDER: &str = "docs";
const DOCS_START: &str = "docs/README.md";
const DOCS_SUMMARY: &str = "docs/SUMMARY.md";

/// Finds relative links in Markdown files without a file or folder as target.
pub fn check_targets(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files_with_extension("md") {
        for (line_index, link) in local_links(text) {
            let exists = resolve(path, &link).is_some_and(|target| {
                tree.text(&target).is_some() || tree.paths_below(&target).next().is_some()
            });
            if !exists {
                let message = format!(
                    "link target '{link}' does not exist; correct the link or add the target"
                );
                violations.push(Violation::in_line(path, line_index, message));
            }
        }
    }
    violations
}

/// Finds pages in docs/ that docs/SUMMARY.md does not list: the book would lack them.
pub fn check_summary(tree: &SourceTree) -> Vec<Violation> {
    let listed = local_links(tree.text(DOCS_SUMMARY).unwrap_or_default());
    let listed: BTreeSet<_> = listed
        .iter()
        .filter_map(|(_, link)| resolve(DOCS_SUMMARY, link))
        .collect();
    tree.paths_below(DOCS_FOLDER)
        .filter(|path| extension(path) == Some("md") && *path != DOCS_SUMMARY)
        .filter(|path| !listed.contains(*path))
        .map(|path| {
            let message = format!("page is missing from {DOCS_SUMMARY}; add a link to it there");
            Violation::in_file(path, message)
        })
        .collect()
}

/// Finds files in docs/ that no chain of links reaches from docs/README.md. A link to a folder
/// leads to every file in it.
pub fn check_docs_are_reachable(tree: &SourceTree) -> Vec<Violation> {
    let mut reached = BTreeSet::new();
    let mut open = vec![DOCS_START.to_owned()];
    while let Some(path) = open.pop() {
        let Some(text) = tree.text(&path) else {
            // A link to the root would lead to every file.
            if !path.is_empty() && path != DOCS_FOLDER {
                let files = tree.paths_below(&path).map(str::to_owned);
                open.extend(files.filter(|it| !reached.contains(it)));
            }
            continue;
        };
        let is_new = reached.insert(path.clone());
        // The summary of the book lists everything, and so links no reader to a page.
        let is_followed = extension(&path) == Some("md") && path != DOCS_SUMMARY;
        if is_new && is_followed {
            open.extend(
                local_links(text)
                    .into_iter()
                    .filter_map(|(_, it)| resolve(&path, &it)),
            );
        }
    }
    tree.paths_below(DOCS_FOLDER)
        // The configuration of the book is not a document.
        .filter(|path| !reached.contains(*path) && extension(path) != Some("toml"))
        .map(|path| {
            let message =
                format!("no chain of links from {DOCS_START} leads to this file; link to it");
            Violation::in_file(path, message)
        })
        .collect()
}

/// Returns the links of a Markdown text, except those to the web or the same page: line, counted
/// from 0, and target without its anchor.
fn local_links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (line_index, line) in markdown::lines_outside_code(text) {
        for target in line_targets(&without_code_spans(line)) {
            let target = target.split('#').next().unwrap_or_default();
            let leads_out = target.contains("://") || target.starts_with("mailto:");
            if !target.is_empty() && !leads_out {
                links.push((line_index, target.replace("%20", " ")));
            }
        }
    }
    links
}

fn line_targets(line: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for (opening, closing) in [("](", ')'), ("href=\"", '"'), ("src=\"", '"')] {
        for (position, _) in line.match_indices(opening) {
            let rest = &line[position + opening.len()..];
            targets.extend(
                rest.split_once(closing)
                    .map(|(target, _)| first_part(target)),
            );
        }
    }
    let definition = line
        .trim_start()
        .strip_prefix('[')
        .and_then(|it| it.split_once("]:"));
    if let Some((_, target)) = definition.filter(|(label, _)| !label.contains(']')) {
        targets.push(first_part(target));
    }
    targets
}

/// Returns the target without a title after it, and without angle brackets.
fn first_part(target: &str) -> String {
    let target = target.trim();
    if let Some((inner, _)) = target.strip_prefix('<').and_then(|it| it.split_once('>')) {
        return inner.to_owned();
    }
    target
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Returns the path from the root to which a link in a file leads; `None` if it leads out of the
/// tree.
fn resolve(from: &str, link: &str) -> Option<String> {
    if link.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead_lines(text: &str) -> Vec<usize> {
        let files = [
            ("docs/a.md", text),
            ("docs/b.md", ""),
            ("docs/fig/c.svg", ""),
            ("README.md", ""),
        ];
        check_targets(&SourceTree::planted(files))
            .into_iter()
            .map(|it| it.line_number)
            .collect()
    }

    /// Promise: a dead link is found in each notation.
    #[test]
    fn a_dead_link_is_found() {
        for text in [
            "[x](gone.md)",
            "![x](fig/gone.svg \"title\")",
            "[x]: gone.md",
            "see [b](b.md), [x](gone.md#part)",
            "<img src=\"gone.svg\">",
            "[x](/docs/b.md)",
            "[x](../../outside.md)",
            "a ` b [x](gone.md)",
        ] {
            assert_eq!(dead_lines(text), [1], "{text}");
        }
        assert_eq!(dead_lines("```\n[x](gone.md)\n```\n[x](gone.md)"), [4]);
    }

    /// Promise: live links, links to the web, and code pass.
    #[test]
    fn live_links_pass() {
        for text in [
            "[x](b.md) [x](./b.md#part) [x](../README.md) [x](fig) [x](<b.md>)",
            "[x](https://example.org/gone.md) [x](#part) [x](mailto:a@example.org)",
            "`[x](gone.md)` and `f` [x](b.md)",
            "[x]: fig/c.svg",
            "~~~\n```\n[x](gone.md)\n~~~",
        ] {
            assert_eq!(dead_lines(text), Vec::<usize>::new(), "{text}");
        }
    }

    fn unreached(files: &[(&str, &str)]) -> Vec<String> {
        let tree = SourceTree::planted(files.iter().copied());
        check_docs_are_reachable(&tree)
            .into_iter()
            .map(|it| it.path)
            .collect()
    }

    /// Promise: a file that no chain of links reaches is found; a chain or a link to its folder
    /// reaches it.
    #[test]
    fn an_unreachable_document_is_found() {
        let start = ("docs/README.md", "[a](a.md) [fig](fig/)");
        let chain = ("docs/a.md", "[b](b.md) [start](README.md) [all](../docs)");
        let rest = [
            ("docs/b.md", ""),
            ("docs/fig/c.svg", ""),
            ("docs/lost.md", "[a](a.md)"),
        ];
        assert_eq!(
            unreached(&[start, chain, rest[0], rest[1], rest[2]]),
            ["docs/lost.md"]
        );
        assert_eq!(unreached(&[chain]), ["docs/a.md"]);
    }

    /// Promise: an empty folder passes.
    #[test]
    fn an_empty_folder_passes() {
        assert_eq!(unreached(&[("README.md", "")]), Vec::<String>::new());
    }

    /// A page that the summary does not list is found.
    #[test]
    fn a_page_outside_the_summary_is_found() {
        let tree = SourceTree::planted([
            ("docs/SUMMARY.md", "[a](README.md)\n- [b](how-to/b.md)\n"),
            ("docs/README.md", ""),
            ("docs/how-to/b.md", ""),
            ("docs/how-to/c.md", ""),
            ("docs/book.toml", ""),
        ]);
        let found = check_summary(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "docs/how-to/c.md");
    }
}
