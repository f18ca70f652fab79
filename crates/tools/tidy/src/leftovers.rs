//! Checks for unfinished work, and for modules with meaningless names.

use crate::rust_text::{self, Token};
use crate::{SourceTree, Violation};

/// Macros that mark unfinished work.
pub const FORBIDDEN_MACROS: &[&str] = &["todo", "unimplemented", "dbg"];

/// Words that mark unfinished work, in comments or names.
pub const FORBIDDEN_WORDS: &[&str] = &["FIXME", "XXX"];

/// Module names under which unrelated code may gather.
pub const FORBIDDEN_MODULES: &[&str] = &["util", "utils", "common"];

/// Finds all three kinds in the Rust files.
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files_with_extension("rs") {
        let lines = rust_text::lines(text);
        for (line_index, line) in lines.iter().enumerate() {
            for word in FORBIDDEN_WORDS {
                if rust_text::has_word(&line.comment, word) || rust_text::has_word(&line.code, word)
                {
                    let message =
                        format!("'{word}' marks unfinished work; finish it and remove the mark");
                    violations.push(Violation::in_line(path, line_index, message));
                }
            }
        }
        for pair in rust_text::tokens(&lines).windows(2) {
            if let Some(message) = judge(pair) {
                violations.push(Violation::in_line(path, pair[0].line_index, message));
            }
        }
        let names = path
            .split('/')
            .map(|part| part.strip_suffix(".rs").unwrap_or(part));
        if let Some(name) = names
            .into_iter()
            .find(|name| FORBIDDEN_MODULES.contains(name))
        {
            violations.push(Violation::in_file(path, module_message(name)));
        }
    }
    violations
}

fn judge(pair: &[Token<'_>]) -> Option<String> {
    let (first, second) = (pair[0].text, pair[1].text);
    if second == "!" && FORBIDDEN_MACROS.contains(&first) {
        Some(format!("`{first}!` marks unfinished work; remove it"))
    } else if first == "mod" && FORBIDDEN_MODULES.contains(&second) {
        Some(module_message(second))
    } else {
        None
    }
}

fn module_message(name: &str) -> String {
    format!("module name '{name}' has no meaning; name the module after its contents")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let found = check(&SourceTree::planted([(path, text)]));
        found.into_iter().map(|it| it.message).collect()
    }

    /// Promise: each kind is found, also when it spans lines and as the name of a file or folder.
    #[test]
    fn leftovers_are_found() {
        assert_eq!(
            messages("a.rs", "fn f() { todo!() }"),
            ["`todo!` marks unfinished work; remove it"]
        );
        assert_eq!(
            messages("a.rs", "std::unimplemented !(\"later\")"),
            ["`unimplemented!` marks unfinished work; remove it"]
        );
        assert_eq!(
            messages("a.rs", "dbg!(x);"),
            ["`dbg!` marks unfinished work; remove it"]
        );
        assert_eq!(
            messages("a.rs", "// FIXME: slow"),
            ["'FIXME' marks unfinished work; finish it and remove the mark"]
        );
        assert_eq!(
            messages("a.rs", "/* XXX */"),
            ["'XXX' marks unfinished work; finish it and remove the mark"]
        );
        assert_eq!(messages("a.rs", "pub mod util;"), [module_message("util")]);
        assert_eq!(
            messages("tests/common/mod.rs", ""),
            [module_message("common")]
        );
        assert_eq!(messages("src/utils.rs", ""), [module_message("utils")]);
    }

    /// Promise: the same words in other places are not reported.
    #[test]
    fn innocent_text_passes() {
        for text in [
            "// todo!",
            "let todo = !a;",
            "let a = \"FIXME dbg!\";",
            "// XXXL",
            "mod utility;",
        ] {
            assert_eq!(messages("a.rs", text), Vec::<String>::new(), "{text}");
        }
    }
}
