//! Formats numbers and names for errors and pages, never longer than a line.

/// Numbers from here on are formatted with an exponent.
const PLAIN_BELOW: f64 = 1e15;
/// Longest part of a foreign text that an error quotes, in characters.
const QUOTED_CHARS_MAX: usize = 60;

/// Formats a number in about twenty characters at most: `1e300` does not become 301 digits.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let is_plain = size == 0.0 || (1e-6..PLAIN_BELOW).contains(&size) || !size.is_finite();
    if is_plain {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

/// Formats a count with a comma between thousands.
pub fn count(of: u64) -> String {
    let digits = of.to_string();
    let mut shown = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Formats a number, with a comma between thousands if it is an integer.
pub fn amount(value: f64) -> String {
    if value.fract() == 0.0 && (0.0..PLAIN_BELOW).contains(&value) {
        return count(value as u64);
    }
    number(value)
}

/// Formats a text: shortened if it is long, and without characters that move a terminal's cursor.
pub fn text(of: &str) -> String {
    let shown: String = of.chars().take(QUOTED_CHARS_MAX).collect();
    let shown = shown.escape_debug().to_string();
    if of.chars().nth(QUOTED_CHARS_MAX).is_some() {
        return format!("{shown}...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: numbers that people write are formatted as they wrote them, and no number is long.
    #[test]
    fn numbers_are_short() {
        for (value, shown) in [
            (0.0, "0"),
            (-2.5, "-2.5"),
            (82e6, "82000000"),
            (1e300, "1e300"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(number(value), shown);
        }
    }

    /// Promise: thousands are grouped from the right.
    #[test]
    fn counts_are_grouped() {
        for (of, shown) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (2_000_000, "2,000,000"),
            (12_345, "12,345"),
        ] {
            assert_eq!(count(of), shown);
        }
        for (of, shown) in [(82e6, "82,000,000"), (2.33, "2.33"), (1e300, "1e300")] {
            assert_eq!(amount(of), shown);
        }
    }

    /// Promise: a quoted text has one line and limited length, whatever its content.
    #[test]
    fn texts_are_short_and_harmless() {
        assert_eq!(text("rolex"), "rolex");
        assert_eq!(text("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(text(&"x".repeat(61)), format!("{}...", "x".repeat(60)));
    }
}
