//! Checks that no value block is overwritten within an operation that has read a page that refers
//! to it. The checksum that would detect this is a second line of defense that is never needed.

use super::Violation;
use crate::fabric::world::ClientId;

/// Reports the clients that read overwritten strings before they were fenced.
pub fn check(clients: &[ClientId]) -> Option<Violation> {
    let what = "read a string other than the one that its page refers to";
    judge(clients, "strings", what)
}

/// Reports the clients that searched with parts of roots that were no longer in force.
pub fn check_parts(clients: &[ClientId]) -> Option<Violation> {
    judge(clients, "parts", "searched with a part of an old root")
}

fn judge(clients: &[ClientId], promise: &'static str, what: &str) -> Option<Violation> {
    let client = clients.first()?.0;
    let how = format!("client {client} {what}; {} times in total", clients.len());
    Some(Violation::new(promise, how))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: one string or one part is enough for a finding.
    #[test]
    fn one_string_is_enough() {
        assert_eq!(check(&[]), None);
        let found = check(&[ClientId(3)]).expect("one client");
        assert!(found.how.starts_with("client 3 "), "{found}");
        assert_eq!(check_parts(&[]), None);
        let found = check_parts(&[ClientId(4)]).expect("one client");
        assert!(found.how.starts_with("client 4 "), "{found}");
    }
}
