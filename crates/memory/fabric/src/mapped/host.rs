//! Available memory of the host.

use std::io;

use farleaf_base::size_text::size_in_bytes;

/// Returns an error for a size that the host cannot provide. The kernel would return none: it
/// allocates pages of a memfd until the host has none left, and then kills some process, not always
/// the one that allocated.
///
/// The check is coarse: it reserves no memory and ignores limits of a control group. If the host
/// does not report its free memory, every size is accepted.
pub(super) fn check_available(size_bytes: u64) -> io::Result<()> {
    let Some(available) = available_bytes() else {
        return Ok(());
    };
    if size_bytes <= available {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::OutOfMemory,
        format!("this host has {} available", size_in_bytes(available)),
    ))
}

/// Returns the kernel's estimate of the bytes that can be allocated without evicting anything but
/// caches.
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
