//! Scanner that separates code from comments and literals in Rust source.
//!
//! The scanner handles line comments, nested block comments, strings with escapes, raw strings, and
//! characters as opposed to lifetimes. Each line is split into three texts of the same length, each
//! with blanks in place of the other two, so that columns do not change.

use std::mem;

/// One line of Rust source, split into its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceLine {
    /// Code, including quotes.
    pub code: String,
    /// Text of comments, including their slashes.
    pub comment: String,
    /// Text of string and character literals.
    pub literal: String,
}

impl SourceLine {
    fn push(&mut self, class: Class, character: char) {
        let blank = if character == '\t' { '\t' } else { ' ' };
        for (text_class, text) in [
            (Class::Code, &mut self.code),
            (Class::Comment, &mut self.comment),
            (Class::Literal, &mut self.literal),
        ] {
            text.push(if text_class == class {
                character
            } else {
                blank
            });
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Code,
    Comment,
    Literal,
}

#[derive(Debug, Clone, Copy)]
enum ScannerState {
    Code,
    LineComment,
    /// Inside a block comment, with its depth of nesting.
    BlockComment(usize),
    /// Inside a literal, with its closing quote: `"` or `'`.
    Quoted(char),
    /// Inside a raw string, with the number of `#` around it.
    RawString(usize),
}

/// Splits a source text into its lines.
pub fn lines(text: &str) -> Vec<SourceLine> {
    let characters: Vec<char> = text.chars().collect();
    let mut scanner = Scanner {
        state: ScannerState::Code,
        line: SourceLine::default(),
        lines: Vec::new(),
    };
    let mut position = 0;
    while position < characters.len() {
        position += scanner.step(&characters[..position], &characters[position..]);
    }
    if !scanner.line.code.is_empty() {
        scanner.lines.push(scanner.line);
    }
    scanner.lines
}

struct Scanner {
    state: ScannerState,
    line: SourceLine,
    lines: Vec<SourceLine>,
}

impl Scanner {
    /// Consumes at least one character and returns how many.
    fn step(&mut self, before: &[char], rest: &[char]) -> usize {
        if rest[0] == '\n' {
            if matches!(self.state, ScannerState::LineComment) {
                self.state = ScannerState::Code;
            }
            self.lines.push(mem::take(&mut self.line));
            return 1;
        }
        match self.state {
            ScannerState::Code => self.step_code(before, rest),
            ScannerState::LineComment => self.take(Class::Comment, &rest[..1]),
            ScannerState::BlockComment(depth) => {
                if rest.starts_with(&['/', '*']) {
                    self.state = ScannerState::BlockComment(depth + 1);
                    self.take(Class::Comment, &rest[..2])
                } else if rest.starts_with(&['*', '/']) {
                    self.state = if depth == 1 {
                        ScannerState::Code
                    } else {
                        ScannerState::BlockComment(depth - 1)
                    };
                    self.take(Class::Comment, &rest[..2])
                } else {
                    self.take(Class::Comment, &rest[..1])
                }
            }
            ScannerState::Quoted(quote) => {
                if rest[0] == '\\' && rest.get(1).is_some_and(|&next| next != '\n') {
                    self.take(Class::Literal, &rest[..2])
                } else if rest[0] == quote {
                    self.state = ScannerState::Code;
                    self.take(Class::Code, &rest[..1])
                } else {
                    self.take(Class::Literal, &rest[..1])
                }
            }
            ScannerState::RawString(hash_count) => {
                let closes = rest[0] == '"' && count_hashes(&rest[1..]) >= hash_count;
                if closes {
                    self.state = ScannerState::Code;
                    self.take(Class::Code, &rest[..=hash_count])
                } else {
                    self.take(Class::Literal, &rest[..1])
                }
            }
        }
    }

    fn step_code(&mut self, before: &[char], rest: &[char]) -> usize {
        if rest.starts_with(&['/', '/']) {
            self.state = ScannerState::LineComment;
            return self.take(Class::Comment, &rest[..2]);
        }
        if rest.starts_with(&['/', '*']) {
            self.state = ScannerState::BlockComment(1);
            return self.take(Class::Comment, &rest[..2]);
        }
        if rest[0] == '"' {
            self.state = ScannerState::Quoted('"');
        } else if rest[0] == '\'' && is_character(rest) {
            self.state = ScannerState::Quoted('\'');
        } else if rest[0] == 'r' && starts_raw(before) {
            let hash_count = count_hashes(&rest[1..]);
            if rest.get(1 + hash_count) == Some(&'"') {
                self.state = ScannerState::RawString(hash_count);
                return self.take(Class::Code, &rest[..hash_count + 2]);
            }
        }
        self.take(Class::Code, &rest[..1])
    }

    fn take(&mut self, class: Class, characters: &[char]) -> usize {
        for &character in characters {
            self.line.push(class, character);
        }
        characters.len()
    }
}

fn count_hashes(characters: &[char]) -> usize {
    characters
        .iter()
        .take_while(|&&character| character == '#')
        .count()
}

/// Returns whether a quote opens a character and not a lifetime or label: `'a'` or `'\n'`, not
/// `'a`.
fn is_character(rest: &[char]) -> bool {
    rest.get(1) == Some(&'\\') || rest.get(2) == Some(&'\'')
}

/// Returns whether an `r` after this begins a prefix: `r"`, `br"`, `cr"`, but not the end of a
/// name.
fn starts_raw(before: &[char]) -> bool {
    let name_length = before
        .iter()
        .rev()
        .take_while(|it| is_name_character(**it))
        .count();
    name_length == 0 || (name_length == 1 && matches!(before.last(), Some('b' | 'c')))
}

fn is_name_character(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Word or single punctuation mark of the code, with its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    /// Text of the word or mark.
    pub text: &'a str,
    /// Index of the token's line, counted from 0.
    pub line_index: usize,
}

/// Returns the words and punctuation marks of the code, without comments and literals.
pub fn tokens(lines: &[SourceLine]) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (line_index, line) in lines.iter().enumerate() {
        let mut rest = line.code.trim_start();
        while let Some(first) = rest.chars().next() {
            let word_end = rest.find(|it| !is_name_character(it)).unwrap_or(rest.len());
            let end = if word_end == 0 {
                first.len_utf8()
            } else {
                word_end
            };
            tokens.push(Token {
                text: &rest[..end],
                line_index,
            });
            rest = rest[end..].trim_start();
        }
    }
    tokens
}

/// Returns whether the text contains this word, not as a part of another.
pub fn has_word(text: &str, word: &str) -> bool {
    text.split(|it| !is_name_character(it)).any(|it| it == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let words: Vec<_> = lines(text).into_iter().map(|line| line.code).collect();
        words.join("\n")
    }

    /// Promise: comments, also nested and over several lines, are not code.
    #[test]
    fn comments_are_not_code() {
        assert_eq!(code("a // b\nc"), "a     \nc");
        assert_eq!(code("a /* b /* c */ d */ e"), "a                   e");
        assert_eq!(code("a /* b\nc */ d"), "a     \n     d");
        assert_eq!(lines("a // b")[0].comment, "  // b");
    }

    /// Promise: the content of strings and characters is not code, and not a comment even if it
    /// looks like one.
    #[test]
    fn literals_are_neither_code_nor_comments() {
        assert_eq!(code(r#"f("a // b \" c") g"#), r#"f("           ") g"#);
        assert_eq!(code(r##"f(r#"a " b"#) g"##), r##"f(r#"     "#) g"##);
        assert_eq!(code(r#"f(br"a\") g"#), r#"f(br"  ") g"#);
        assert_eq!(code(r"f('\'', '/', b'x') g"), r"f('  ', ' ', b' ') g");
        assert_eq!(lines(r#"f("a // b")"#)[0].literal.trim(), "a // b");
        assert_eq!(code("f(\"a \\\n b\") g"), "f(\"   \n  \") g");
    }

    /// Promise: a lifetime, a label and a raw name open no literal.
    #[test]
    fn lifetimes_and_names_open_no_literal() {
        assert_eq!(code("fn f<'a>(x: &'a str)"), "fn f<'a>(x: &'a str)");
        assert_eq!(code("'outer: loop {} r#type"), "'outer: loop {} r#type");
    }

    /// Promise: tokens are words and marks, with their lines.
    #[test]
    fn tokens_are_words_and_marks() {
        let lines = lines("a::b_1 // c\n{");
        let found: Vec<_> = tokens(&lines)
            .iter()
            .map(|token| (token.text, token.line_index))
            .collect();
        assert_eq!(found, [("a", 0), (":", 0), (":", 0), ("b_1", 0), ("{", 1)]);
    }

    /// Promise: a word is found alone and not inside another.
    #[test]
    fn a_word_is_not_part_of_another() {
        assert!(has_word("// see this", "see"));
        assert!(!has_word("// seen", "see"));
    }
}
