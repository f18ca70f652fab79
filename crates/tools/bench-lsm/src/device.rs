//! Device bytes that this process writes and reads.

use std::fs;

/// Bytes that the system has counted for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Bytes written, counted when they were passed to the system's cache or the device.
    pub written: u64,
    /// Bytes read from the device.
    pub read: u64,
}

impl DeviceBytes {
    /// Returns the current counts; `None` if the system does not report them.
    pub fn now() -> Option<Self> {
        parse(&fs::read_to_string("/proc/self/io").ok()?)
    }

    /// Returns the difference from an earlier count.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            written: self.written.saturating_sub(before.written),
            read: self.read.saturating_sub(before.read),
        }
    }
}

fn parse(text: &str) -> Option<DeviceBytes> {
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some(DeviceBytes {
        written: field("write_bytes:")?,
        read: field("read_bytes:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the two fields are found by their whole names, whatever surrounds them.
    #[test]
    fn fields_are_found() {
        let text =
            "rchar: 1\nwchar: 2\nread_bytes: 30\nwrite_bytes: 4096\ncancelled_write_bytes: 7\n";
        let expected = DeviceBytes {
            written: 4096,
            read: 30,
        };
        assert_eq!(parse(text), Some(expected));
        assert_eq!(parse("rchar: 1\n"), None);
        assert_eq!(parse("read_bytes: x\nwrite_bytes: 1\n"), None);
    }
}
