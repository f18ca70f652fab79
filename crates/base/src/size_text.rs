//! Sizes in bytes, formatted for people.

/// Formats a size: in whole units where it is exact, else with one decimal.
pub fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((shift, unit)) = units.into_iter().find(|(shift, _)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let whole = 1_u64 << shift;
    if bytes.is_multiple_of(whole) {
        format!("{} {unit}", bytes / whole)
    } else {
        format!("{:.1} {unit}", bytes as f64 / whole as f64)
    }
}

/// Formats a size for an error: in bytes, and from 1 KiB also in the largest unit that fits.
pub fn size_in_bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        _ => format!("{bytes} bytes ({})", size(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: errors give the exact size, and a large one also in units.
    #[test]
    fn sizes_are_exact_and_readable() {
        assert_eq!(size_in_bytes(5), "5 bytes");
        assert_eq!(size_in_bytes(2 << 20), "2097152 bytes (2 MiB)");
        assert_eq!(size_in_bytes(900 << 40), "989560464998400 bytes (900 TiB)");
        assert_eq!(size_in_bytes(1536), "1536 bytes (1.5 KiB)");
    }
}
