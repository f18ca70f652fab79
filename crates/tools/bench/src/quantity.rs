//! Parses and formats keys, counts, times and sizes for people.

use std::ops::RangeInclusive;

pub use farleaf_base::size_text::size;
pub use farleaf_chart::shown::count;

/// Error of an invalid quantity: the words after "invalid value 'x' for ...:".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAQuantity(String);

/// Parses a key or a value of decimal digits without anything else.
pub fn parse_key(text: &str) -> Result<u64, NotAQuantity> {
    key_of(text.as_bytes())
        .ok_or_else(|| NotAQuantity(format!("expected a whole number from 0 to {}", u64::MAX)))
}

/// Parses bytes of a file like [`parse_key`], a hundred million times per second.
pub fn key_of(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |key, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        key.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Parses a count: digits, `_` between them, and k, M or G for thousands, millions and billions.
pub fn parse_count(text: &str) -> Result<u64, NotAQuantity> {
    let (digits, unit) = split_unit(text);
    let factor = match unit {
        "" => Some(1),
        "k" | "K" => Some(1_000),
        "m" | "M" => Some(1_000_000),
        "g" | "G" => Some(1_000_000_000),
        _ => None,
    };
    let count = factor.and_then(|factor| digits_of(digits)?.checked_mul(factor));
    count.ok_or_else(|| {
        NotAQuantity("expected a count, such as 250000, 10_000_000, 250k or 10M".to_owned())
    })
}

/// Parses a count like [`parse_count`], except 0.
pub fn parse_positive_count(text: &str) -> Result<u64, NotAQuantity> {
    match parse_count(text)? {
        0 => Err(NotAQuantity("expected at least one".to_owned())),
        count => Ok(count),
    }
}

/// Parses whole seconds in a range: digits, optionally with `s`.
pub fn parse_seconds(text: &str, range: RangeInclusive<u32>) -> Result<u32, NotAQuantity> {
    let digits = text.strip_suffix('s').unwrap_or(text);
    let seconds = digits_of(digits).and_then(|it| u32::try_from(it).ok());
    let seconds = seconds.filter(|seconds| range.contains(seconds));
    seconds.ok_or_else(|| {
        let (from, to) = (range.start(), range.end());
        NotAQuantity(format!(
            "expected whole seconds from {from} to {to}, such as 10 or 10s"
        ))
    })
}

/// Parses a size in bytes: digits, and KiB, MiB, GiB or TiB.
pub fn parse_size(text: &str) -> Result<u64, NotAQuantity> {
    let (digits, unit) = split_unit(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "kib" => Some(10),
        "mib" => Some(20),
        "gib" => Some(30),
        "tib" => Some(40),
        _ => None,
    };
    let size = shift.and_then(|shift| digits_of(digits)?.checked_mul(1 << shift));
    size.ok_or_else(|| {
        NotAQuantity("expected a size, such as 67108864, 64MiB or 2GiB (or KiB, TiB)".to_owned())
    })
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '_')
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Parses digits with `_` between them, not before or after.
fn digits_of(text: &str) -> Option<u64> {
    if text.starts_with('_') || text.ends_with('_') {
        return None;
    }
    key_of(text.replace('_', "").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: whole seconds of the range are accepted, with and without their unit. Other units,
    /// fractions and out-of-range values are refused with the expected form.
    #[test]
    fn seconds_are_whole_and_in_their_range() {
        for (text, seconds) in [("1", 1), ("1s", 1), ("600s", 600), ("060", 60)] {
            assert_eq!(parse_seconds(text, 1..=600), Ok(seconds), "{text}");
        }
        for bad in ["", "s", "0", "601", "-1", "1m", "1.5s", "1 s", "5000000000"] {
            let refused = parse_seconds(bad, 1..=600).expect_err(bad).to_string();
            assert_eq!(
                refused,
                "expected whole seconds from 1 to 600, such as 10 or 10s"
            );
        }
    }

    /// Promise: 0 and the largest u64 are keys; signs, blanks, fractions and larger numbers are
    /// not.
    #[test]
    fn keys_are_digits_and_nothing_else() {
        assert_eq!(parse_key("0"), Ok(0));
        assert_eq!(parse_key("007"), Ok(7));
        assert_eq!(parse_key("18446744073709551615"), Ok(u64::MAX));
        for bad in [
            "",
            "-1",
            "+1",
            " 1",
            "1.0",
            "1_000",
            "0x10",
            "18446744073709551616",
            "é",
        ] {
            assert!(parse_key(bad).is_err(), "{bad}");
        }
    }

    /// Promise: the forms that the help describes are accepted, and overflow is refused.
    #[test]
    fn counts_have_underscores_and_suffixes() {
        for (text, want) in [
            ("10_000_000", 10_000_000),
            ("10M", 10_000_000),
            ("250k", 250_000),
        ] {
            assert_eq!(parse_count(text), Ok(want));
        }
        assert_eq!(parse_count("1G"), Ok(1_000_000_000));
        assert_eq!(parse_count("0"), Ok(0));
        for bad in [
            "",
            "k",
            "_1",
            "1_",
            "-1",
            "1.5M",
            "10 M",
            "10MiB",
            "99999999999999999999G",
        ] {
            assert!(parse_count(bad).is_err(), "{bad}");
        }
        assert!(parse_positive_count("0").is_err());
    }

    /// Promise: sizes are binary, and ambiguous units are refused.
    #[test]
    fn sizes_are_binary() {
        for (text, want) in [
            ("5", 5),
            ("64KiB", 1 << 16),
            ("3mib", 3 << 20),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(want));
        }
        for bad in ["", "GiB", "1GB", "1G", "1.5GiB", "-1", "99999999999TiB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    /// Promise: quantities are formatted in the largest unit and in groups of three digits.
    #[test]
    fn quantities_are_shown_short() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1 << 30, "1 GiB"),
            (3 << 19, "1.5 MiB"),
        ];
        for (bytes, want) in sizes {
            assert_eq!(size(bytes), want);
        }
        for (value, want) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(count(value), want);
        }
    }
}
