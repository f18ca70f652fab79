//! Formats numbers and names for errors and pages, never longer than a line.

pub(crate) use farleaf_chart::shown::{amount, count, number, text};

/// Longest quoted part of a line, in characters.
const QUOTED_CHARS_MAX: usize = 60;
/// Longest quoted message of a TOML reader, in characters.
const MESSAGE_CHARS_MAX: usize = 400;

/// Shortens the message of a TOML reader, which quotes whole lines of the file.
pub(crate) fn message(error: &toml::de::Error) -> String {
    let full = error.to_string();
    let full = full.trim_end();
    if full.chars().nth(MESSAGE_CHARS_MAX).is_none() {
        return full.to_owned();
    }
    // The position is at the beginning and the reason at the end; between them is the line.
    let first = full.lines().next().unwrap_or_default();
    let first: String = first.chars().take(QUOTED_CHARS_MAX).collect();
    let reason: String = error.message().chars().take(MESSAGE_CHARS_MAX).collect();
    format!("{first}: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a line of a million characters does not become an error of the same length.
    #[test]
    fn messages_have_an_end() {
        let long = format!("a = {}", "x".repeat(1_000_000));
        let error = long.parse::<toml::Table>().expect_err("no TOML");
        let full = message(&error);
        assert!(full.len() < 600 && full.contains("line 1"), "{full}");
    }
}
