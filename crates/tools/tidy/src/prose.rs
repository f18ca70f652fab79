//! Plain English: what a program can check of the style of comments and documents.
//!
//! Code, quoted output, tables and link targets are not prose, and are not checked.

use crate::markdown::{self, without_code_spans};
use crate::rust_text;
use crate::{SourceTree, Violation};

/// A paragraph of a document with more words than this is a violation.
pub const PARAGRAPH_WORD_COUNT_MAX: usize = 80;

/// Largest number of characters in a line of prose.
pub const LINE_WIDTH_MAX: usize = 100;

/// Words with which no doc comment begins: it would need a sentence before it.
const DANGLING_STARTS: [&str; 6] = ["Of", "And", "They", "It", "Those", "Also"];

/// Phrases that paraphrase a term of the field, or that hide the actor.
const BANNED_PHRASES: [&str; 9] = [
    "is told",
    "are told",
    "of before",
    "who has",
    "who asks",
    "whoever",
    "mended",
    "all is whole",
    "as it was",
];

/// Generated pages, and pages that quote what the command prints.
const UNCHECKED_DOCUMENTS: [&str; 2] =
    ["docs/reference/command-line.md", "docs/reference/errors.md"];

/// Finds doc comments that begin with a word that refers to something before them.
pub fn check_doc_comments(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files_with_extension("rs") {
        let mut was_doc = false;
        for (line_index, line) in text.lines().enumerate() {
            let doc = doc_text(line);
            if let Some(doc) = doc.filter(|_| !was_doc) {
                let first = doc.split_whitespace().next().unwrap_or_default();
                if DANGLING_STARTS.contains(&first) {
                    let message =
                        format!("a doc comment must not begin with '{first}'; name its subject");
                    violations.push(Violation::in_line(path, line_index, message));
                }
            }
            was_doc = doc.is_some();
        }
    }
    violations
}

fn doc_text(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("/// ").or(line.strip_prefix("//! "))
}

/// Finds banned phrases in comments of Rust files, and in the prose of documents.
pub fn check_phrases(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files_with_extension("rs") {
        for (line_index, line) in rust_text::lines(text).iter().enumerate() {
            violations.extend(phrases_in(path, line_index, &line.comment));
        }
    }
    for (path, text) in documents(tree) {
        for (line_index, line) in prose_lines(text) {
            violations.extend(phrases_in(path, line_index, line));
        }
    }
    violations
}

fn phrases_in(path: &str, line_index: usize, line: &str) -> Vec<Violation> {
    let plain = without_quotes(line).to_lowercase();
    let is_whole = |phrase: &str| {
        plain.match_indices(phrase).any(|(start, _)| {
            let before = plain[..start].chars().next_back();
            let behind = plain[start + phrase.len()..].chars().next();
            ![before, behind]
                .into_iter()
                .flatten()
                .any(char::is_alphanumeric)
        })
    };
    let found = BANNED_PHRASES.into_iter().filter(|it| is_whole(it));
    let violation = |it| {
        let message = format!("'{it}' is not plain English; use the term of the field");
        Violation::in_line(path, line_index, message)
    };
    found.map(violation).collect()
}

/// The line without code spans, and without what stands between quotation marks.
fn without_quotes(line: &str) -> String {
    let plain = without_code_spans(line);
    plain.split('"').step_by(2).collect::<Vec<_>>().join(" ")
}

/// Finds paragraphs of documents that are too long, and lines that are too wide.
pub fn check_paragraphs(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in documents(tree) {
        let mut word_count = 0;
        let mut last_index = None;
        for (line_index, line) in prose_lines(text) {
            // A link or a command may be long, and cannot be broken.
            let width = without_quotes(line).chars().count();
            if width > LINE_WIDTH_MAX && !line.contains("](") {
                let message =
                    format!("line has {width} characters, more than {LINE_WIDTH_MAX}; wrap it");
                violations.push(Violation::in_line(path, line_index, message));
            }
            let goes_on = last_index.is_some_and(|last| last + 1 == line_index) && !is_item(line);
            word_count = if goes_on { word_count } else { 0 };
            let before = word_count;
            let words = line.split_whitespace();
            word_count += words
                .filter(|it| it.contains(char::is_alphanumeric))
                .count();
            last_index = Some(line_index);
            if word_count > PARAGRAPH_WORD_COUNT_MAX && before <= PARAGRAPH_WORD_COUNT_MAX {
                let message =
                    format!("paragraph has more than {PARAGRAPH_WORD_COUNT_MAX} words; split it");
                violations.push(Violation::in_line(path, line_index, message));
            }
        }
    }
    violations
}

fn documents(tree: &SourceTree) -> impl Iterator<Item = (&str, &str)> {
    let files = tree.files_with_extension("md");
    files.filter(|(path, _)| !UNCHECKED_DOCUMENTS.contains(path))
}

/// Lines of paragraphs and list items with their indexes: no blank lines, headings, tables, code
/// blocks, quotations and comments.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = markdown::lines_outside_code(text).into_iter();
    lines.filter(|(_, line)| {
        let start = line.trim_start();
        !start.is_empty() && !start.starts_with(['#', '|', '>', '<'])
    })
}

fn is_item(line: &str) -> bool {
    let start = line.trim_start();
    let numbered = start.trim_start_matches(|it: char| it.is_ascii_digit());
    start.starts_with("- ") || start.starts_with("* ") || numbered.starts_with(". ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(found: Vec<Violation>) -> Vec<(usize, String)> {
        found
            .into_iter()
            .map(|it| (it.line_number, it.message))
            .collect()
    }

    /// A doc comment that begins with a pronoun is found at its first line only.
    #[test]
    fn a_dangling_doc_comment_is_found() {
        let text =
            "/// Of the two, the first.\nfn a() {}\n/// Reads it.\n/// It may fail.\nfn b() {}\n";
        let found = check_doc_comments(&SourceTree::planted([("a.rs", text)]));
        assert_eq!(
            messages(found),
            [(
                1,
                "a doc comment must not begin with 'Of'; name its subject".to_owned()
            )]
        );
    }

    /// A banned phrase is found in comments and documents, not in code, quotations and words.
    #[test]
    fn a_banned_phrase_is_found() {
        let tree = SourceTree::planted([
            (
                "a.rs",
                "// The server is told.\nlet a = \"is told\"; // of beforehand\n",
            ),
            (
                "b.md",
                "Prints `all is whole`.\n\n```text\nall is whole\n```\nIt is mended.\n",
            ),
        ]);
        let wanted = [
            (
                1,
                "'is told' is not plain English; use the term of the field".to_owned(),
            ),
            (
                6,
                "'mended' is not plain English; use the term of the field".to_owned(),
            ),
        ];
        assert_eq!(messages(check_phrases(&tree)), wanted);
    }

    /// A long paragraph and a wide line are found; a list item begins a paragraph of its own.
    #[test]
    fn a_long_paragraph_is_found() {
        let words = "word "
            .repeat(PARAGRAPH_WORD_COUNT_MAX / 10)
            .trim_end()
            .to_owned()
            + "\n";
        let full = words.repeat(10);
        let over = format!("{full}one\n");
        let items = format!("{full}- {full}");
        let wide = "w".repeat(LINE_WIDTH_MAX + 1);
        let tree = SourceTree::planted([
            ("a.md", full.as_str()),
            ("b.md", over.as_str()),
            ("c.md", items.as_str()),
            ("d.md", wide.as_str()),
        ]);
        let found: Vec<_> = check_paragraphs(&tree)
            .into_iter()
            .map(|it| it.path)
            .collect();
        assert_eq!(found, ["b.md", "d.md"]);
    }
}
