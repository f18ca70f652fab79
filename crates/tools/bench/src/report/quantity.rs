//! Formats quantities with three significant digits and a unit.

pub(crate) use farleaf_chart::shown::count;

const SECONDS: [(f64, &str); 4] = [(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")];
const BYTES: [(f64, &str); 4] = [(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB")];
const COUNTS: [(f64, &str); 3] = [(1e6, "M"), (1e9, "G"), (1e12, "T")];
const RATES: [(f64, &str); 4] = [(1.0, "/s"), (1e3, "k/s"), (1e6, "M/s"), (1e9, "G/s")];

/// Formats a latency: `850 ns`, `12.3 µs`, `4.00 s`.
pub(crate) fn latency(nanoseconds: u64) -> String {
    scaled(nanoseconds as f64, nanoseconds < 1_000, &SECONDS)
}

/// Formats a size: `176 B`, `1.54 kB`.
pub(crate) fn bytes(bytes: f64) -> String {
    scaled(bytes, false, &BYTES)
}

/// Formats a rate: `1.23 M/s`.
pub(crate) fn rate(per_second: f64) -> String {
    scaled(per_second, false, &RATES)
}

/// Formats a percentage: `99.3 %`; less than all is never shown as `100 %`.
pub(crate) fn percentage(fraction: f64) -> String {
    if fraction >= 1.0 {
        "100 %".to_owned()
    } else {
        format!("{:.1} %", (fraction * 1e3).floor() / 10.0)
    }
}

/// Formats a count exactly up to ten million, then as `12.3 M`.
pub(crate) fn short_count(number: u64) -> String {
    if number < 10_000_000 {
        count(number)
    } else {
        scaled(number as f64, false, &COUNTS)
    }
}

fn scaled(value: f64, is_whole: bool, units: &[(f64, &str)]) -> String {
    // 999.5 of a unit would be shown as 1000 of it: it is 1.00 of the next one.
    let unit = units
        .iter()
        .rev()
        .find(|(size, _)| value >= size * 0.9995)
        .unwrap_or(&units[0]);
    let value = value / unit.0;
    let decimals = match value {
        _ if is_whole => 0,
        0.0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", unit.1)
}

/// Returns the median; for an even number of values, the mean of the middle two.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some(f64::midpoint(values[low], values[high]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: three significant digits, whole nanoseconds, never `1000` of a unit.
    #[test]
    fn quantities_have_three_digits() {
        let latencies = [
            0,
            7,
            999,
            1_000,
            9_994,
            9_996,
            12_345,
            999_600,
            60_000_000_000,
        ];
        let want = [
            "0 ns", "7 ns", "999 ns", "1.00 µs", "9.99 µs", "10.0 µs", "12.3 µs", "1.00 ms",
            "60.0 s",
        ];
        assert_eq!(latencies.map(latency), want.map(str::to_owned));
        assert_eq!(
            [0.0, 0.213, 176.0, 1_536.0].map(bytes),
            ["0 B", "0.21 B", "176 B", "1.54 kB"]
        );
        assert_eq!([950.0, 1_234_567.0].map(rate), ["950 /s", "1.23 M/s"]);
    }

    /// Promise: less than all is never shown as all.
    #[test]
    fn percentages_do_not_round_up_to_all() {
        assert_eq!(
            [1.0, 0.99999, 0.993, 0.0].map(percentage),
            ["100 %", "99.9 %", "99.3 %", "0.0 %"]
        );
    }

    /// Promise: counts are exact and grouped.
    #[test]
    fn counts_are_grouped() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [9_999_999, 12_345_678].map(short_count),
            ["9,999,999", "12.3 M"]
        );
    }
}
