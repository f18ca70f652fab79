//! Checks the lengths of files and lines.

use crate::rust_text;
use crate::{SourceTree, Violation};

/// Maximal number of lines of a file, including tests.
pub const FILE_LINE_COUNT_MAX: usize = 600;

/// Number of lines from which on a file is noted.
pub const FILE_LINE_COUNT_NOTED: usize = 450;

/// Maximal number of characters of a line.
pub const LINE_WIDTH_MAX: usize = 100;

/// Finds Rust files that are too long.
pub fn check_files(tree: &SourceTree) -> Vec<Violation> {
    files_longer_than(tree, FILE_LINE_COUNT_MAX)
}

/// Lists the Rust files that are near the limit: not violations, but worth knowing.
pub fn note_files(tree: &SourceTree) -> Vec<Violation> {
    let mut notes = files_longer_than(tree, FILE_LINE_COUNT_NOTED);
    let too_long = check_files(tree);
    notes.retain(|note| too_long.iter().all(|violation| violation.path != note.path));
    notes
}

fn files_longer_than(tree: &SourceTree, line_count_max: usize) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.files_with_extension("rs") {
        let line_count = text.lines().count();
        if line_count > line_count_max {
            let message =
                format!("file has {line_count} lines, more than {line_count_max}; split it");
            found.push(Violation::in_file(path, message));
        }
    }
    found
}

/// Length of a string literal that excuses a wide line: the formatter does not change such lines.
const LONG_LITERAL_SIZE: usize = 50;

/// Finds lines of Rust that are too wide, except rows of a table in a comment, and lines with a
/// long string literal.
pub fn check_lines(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files_with_extension("rs") {
        let parts = rust_text::lines(text);
        for (line_index, line) in text.lines().enumerate() {
            let width = line.chars().count();
            let is_literal = parts
                .get(line_index)
                .is_some_and(|it| it.literal.trim().chars().count() >= LONG_LITERAL_SIZE);
            let comment = line.trim_start().trim_start_matches(['/', '!']);
            let is_excused = is_literal || comment.trim_start().starts_with('|');
            if width > LINE_WIDTH_MAX && !is_excused {
                let message =
                    format!("line has {width} characters, more than {LINE_WIDTH_MAX}; wrap it");
                violations.push(Violation::in_line(path, line_index, message));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: one line more than permitted is found, the permitted number is not; other files are
    /// not checked.
    #[test]
    fn a_file_that_is_too_long_is_found() {
        let (full, over) = (
            "//\n".repeat(FILE_LINE_COUNT_MAX),
            "//\n".repeat(FILE_LINE_COUNT_MAX + 1),
        );
        let found = check_files(&SourceTree::planted([
            ("a.rs", full.as_str()),
            ("b.rs", over.as_str()),
            ("c.md", over.as_str()),
        ]));
        assert_eq!(
            found.iter().map(|it| it.path.as_str()).collect::<Vec<_>>(),
            ["b.rs"]
        );
    }

    /// Promise: only long but permitted files are noted.
    #[test]
    fn a_note_is_for_long_files_only() {
        let text = |line_count| "//\n".repeat(line_count);
        let (short, long, over) = (
            text(FILE_LINE_COUNT_NOTED),
            text(FILE_LINE_COUNT_NOTED + 1),
            text(FILE_LINE_COUNT_MAX + 1),
        );
        let notes = note_files(&SourceTree::planted([
            ("a.rs", short.as_str()),
            ("b.rs", long.as_str()),
            ("c.rs", over.as_str()),
        ]));
        assert_eq!(
            notes.iter().map(|it| it.path.as_str()).collect::<Vec<_>>(),
            ["b.rs"]
        );
    }

    /// Promise: a wide line is found with its number; only a long string or a row of a table
    /// excuses it; characters count, not bytes.
    #[test]
    fn a_wide_line_is_found() {
        let wide = "x".repeat(LINE_WIDTH_MAX + 1);
        let code = "x + ".repeat(LINE_WIDTH_MAX / 4 + 1);
        let text = format!(
            "fn f() {{}}\n// {wide}\nlet a = \"{wide}\";\n{code}1;\n//! | {wide} |\n{}\n",
            "é".repeat(LINE_WIDTH_MAX)
        );
        let found = check_lines(&SourceTree::planted([("a.rs", text.as_str())]));
        assert_eq!(
            found.iter().map(|it| it.line_number).collect::<Vec<_>>(),
            [2, 4]
        );
    }
}
