//! Checks that unsafe code is in a few named files, and that each piece has its proof right above
//! it.

use crate::rust_text::{self, SourceLine};
use crate::{SourceTree, Violation};

/// Files that may contain unsafe code; a `*` at the end stands for any rest.
pub const UNSAFE_PATHS: &[&str] = &[
    "crates/tools/bench-peers/src/peers/lmdb.rs",
    "crates/executor/src/slab.rs",
    "crates/executor/src/waker.rs",
    "crates/memory/fabric/src/mapped/memory.rs",
    "crates/memory/fabric/src/verbs/sys/*",
    "crates/durable/lsm/src/prefetch.rs",
];

/// Finds the keyword outside the named files, and unsafe blocks and implementations without a
/// proof. A proof is a `SAFETY:` in the comment right above them or above the statement they are
/// part of.
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files_with_extension("rs") {
        let lines = rust_text::lines(text);
        let tokens = rust_text::tokens(&lines);
        for (position, token) in tokens.iter().enumerate() {
            if token.text != "unsafe" {
                continue;
            }
            if !UNSAFE_PATHS.iter().any(|pattern| matches(pattern, path)) {
                let message = "unsafe code is not permitted in this file; write safe code, or list \
                               the file in UNSAFE_PATHS in crates/tools/tidy/src/unsafe_code.rs";
                violations.push(Violation::in_line(path, token.line_index, message));
            }
            let needs_proof = tokens
                .get(position + 1)
                .is_some_and(|next| matches!(next.text, "{" | "impl"));
            if needs_proof && !has_proof(&lines, token.line_index) {
                let message = "unsafe code without a `SAFETY:` comment directly above; add a proof";
                violations.push(Violation::in_line(path, token.line_index, message));
            }
        }
    }
    violations
}

fn matches(pattern: &str, path: &str) -> bool {
    pattern
        .strip_suffix('*')
        .map_or(path == pattern, |start| path.starts_with(start))
}

/// Returns whether the comment above the statement that continues in this line has the word.
fn has_proof(lines: &[SourceLine], line_index: usize) -> bool {
    let mut above = lines[..line_index].iter().rev().peekable();
    // Attributes are between a comment and its item, and a statement may start earlier.
    while above
        .next_if(|line| is_attribute(line) || is_continued(line))
        .is_some()
    {}
    above
        .take_while(|line| is_comment(line))
        .any(|line| line.comment.contains("SAFETY:"))
}

fn is_comment(line: &SourceLine) -> bool {
    line.code.trim().is_empty() && !line.comment.trim().is_empty()
}

fn is_attribute(line: &SourceLine) -> bool {
    let code = line.code.trim();
    code.starts_with("#[") && code.ends_with(']')
}

/// Returns whether the statement or item of this line continues in the next.
fn is_continued(line: &SourceLine) -> bool {
    let code = line.code.trim();
    !code.is_empty() && !code.ends_with([';', '{', '}', ','])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: &str = "crates/memory/fabric/src/mapped/memory.rs";

    fn messages(path: &str, text: &str) -> Vec<String> {
        let found = check(&SourceTree::planted([(path, text)]));
        found.into_iter().map(|it| it.message).collect()
    }

    /// Promise: a block or implementation without a proof is found, whatever its layout.
    #[test]
    fn a_missing_proof_is_found() {
        for text in [
            "fn f() {\n    unsafe { g() }\n}",
            "// Fine, really.\nlet a = unsafe { g() };",
            "// SAFETY: of the line between.\nlet b = 1;\nlet a = unsafe { g() };",
            "// SAFETY: only the first.\nunsafe impl Send for A {}\nunsafe impl Sync for A {}",
            "let a = \"SAFETY:\";\nunsafe { g() }",
            "// SAFETY: torn off by a blank line.\n\nunsafe { g() }",
            "unsafe\n{ g() }",
        ] {
            assert_eq!(
                messages(ALLOWED, text),
                ["unsafe code without a `SAFETY:` comment directly above; add a proof"],
                "{text}"
            );
        }
    }

    /// Promise: a proof right above counts, also over several lines, attributes and a broken
    /// statement.
    #[test]
    fn a_proof_right_above_is_seen() {
        for text in [
            "// SAFETY: it is.\nunsafe { g() }",
            "// SAFETY: it is,\n// at length.\nlet a = unsafe { g() };",
            "// SAFETY: it is.\n#[expect(x, reason = \"y\")]\nunsafe impl Send for A {}",
            "// SAFETY: it is.\nlet a: Long =\n    unsafe { g() };",
            "/// # Safety\npub unsafe fn g() {}",
        ] {
            assert_eq!(messages(ALLOWED, text), Vec::<String>::new(), "{text}");
        }
    }

    /// Promise: the keyword in any form is found outside the named files, and only the keyword.
    #[test]
    fn unsafe_code_in_other_files_is_found() {
        for text in [
            "pub unsafe fn g() {}",
            "#[unsafe(no_mangle)]",
            "unsafe extern \"C\" {}",
        ] {
            let found = messages("crates/memory/leaf/src/lib.rs", text);
            assert_eq!(
                found,
                [
                    "unsafe code is not permitted in this file; write safe code, or list the \
                      file in UNSAFE_PATHS in crates/tools/tidy/src/unsafe_code.rs"
                ],
                "{text}"
            );
        }
        let free = "#![forbid(unsafe_code)] // unsafe\nlet a = \"unsafe {\";";
        assert_eq!(
            messages("crates/memory/leaf/src/lib.rs", free),
            Vec::<String>::new()
        );
        assert_eq!(
            messages("crates/executor/src/waker_list.rs", "unsafe fn g() {}").len(),
            1
        );
    }
}
