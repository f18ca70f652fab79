//! How a work request ended, as the library numbers it.

/// What a completion says of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(pub(super) u32);

const STATUS_NAMES: [&str; 22] = [
    "success",
    "local length error",
    "local queue pair operation error",
    "local EE context operation error",
    "local protection error",
    "flushed",
    "memory window bind error",
    "bad response",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "no acknowledgement after all retries",
    "receiver not ready after all retries",
    "local RDD violation",
    "remote invalid RD request",
    "remote aborted",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timed out",
    "general error",
];

impl Status {
    pub(super) fn is_success(self) -> bool {
        self.0 == 0
    }

    /// The peer's card says that the verb is not to be done, and has done nothing of it.
    pub(super) fn is_refusal(self) -> bool {
        const REMOTE_INVALID_REQUEST: u32 = 9;
        const REMOTE_ACCESS: u32 = 10;
        [REMOTE_INVALID_REQUEST, REMOTE_ACCESS].contains(&self.0)
    }

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        STATUS_NAMES
            .get(self.0 as usize)
            .unwrap_or(&"unknown error")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the numbers that decide what a batch's outcome is are the library's.
    #[test]
    fn numbers_have_their_names() {
        assert!(Status(0).is_success() && !Status(5).is_success());
        for (number, name, is_refusal) in [
            (5, "flushed", false),
            (9, "remote invalid request error", true),
            (10, "remote access error", true),
            (12, "no acknowledgement after all retries", false),
            (99, "unknown error", false),
        ] {
            let status = Status(number);
            assert_eq!((status.name(), status.is_refusal()), (name, is_refusal));
        }
    }
}
