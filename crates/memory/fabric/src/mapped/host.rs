//! How much memory the host can give.

use std::io;

/// Refuses a size that the host cannot give. The kernel would not: allocating the pages of a memfd
/// goes on until the host has no page left, and then kills some process, not always the one that
/// asked.
///
/// Only a check against a size that is far off: the memory is not reserved, and limits of a
/// control group are not looked at. A host that does not tell is trusted.
pub(super) fn check_available(size_bytes: u64) -> io::Result<()> {
    let Some(available) = available_bytes() else {
        return Ok(());
    };
    if size_bytes <= available {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::OutOfMemory,
        format!("a region of {size_bytes} bytes where the host has {available} bytes available"),
    ))
}

/// The kernel's estimate of what can be allocated without pushing anything out but caches.
fn available_bytes() -> Option<u64> {
    parse_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood_and_others_are_not() {
        let text = "MemTotal:       24683520 kB\nMemAvailable:   24303616 kB\nBuffers: 1 kB\n";
        assert_eq!(parse_available(text), Some(24_303_616 * 1024));
        for other in [
            "",
            "MemAvailable:",
            "MemAvailable: x kB",
            "MemAvailable: 99999999999999999999 kB",
        ] {
            assert_eq!(parse_available(other), None);
        }
    }

    #[test]
    fn what_the_host_does_not_have_is_refused() {
        check_available(1).expect("a byte is left");
        let error = check_available(1 << 62).expect_err("no host has that");
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }
}
