//! The status of a work request, as the library numbers it.

/// The status of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompletionStatus(pub(super) u32);

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

impl CompletionStatus {
    pub(super) fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Returns true if the peer's card refused the verb, which had no effect.
    pub(super) fn is_refusal(self) -> bool {
        const REMOTE_INVALID_REQUEST: u32 = 9;
        const REMOTE_ACCESS: u32 = 10;
        [REMOTE_INVALID_REQUEST, REMOTE_ACCESS].contains(&self.0)
    }

    /// Returns the status's name.
    pub(super) fn name(self) -> &'static str {
        STATUS_NAMES
            .get(self.0 as usize)
            .unwrap_or(&"unknown error")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the numbers that determine a batch's outcome are the library's.
    #[test]
    fn numbers_have_their_names() {
        assert!(CompletionStatus(0).is_success() && !CompletionStatus(5).is_success());
        for (number, name, is_refusal) in [
            (5, "flushed", false),
            (9, "remote invalid request error", true),
            (10, "remote access error", true),
            (12, "no acknowledgement after all retries", false),
            (99, "unknown error", false),
        ] {
            let status = CompletionStatus(number);
            assert_eq!((status.name(), status.is_refusal()), (name, is_refusal));
        }
    }
}
