//! Within one operation no value block is written anew that a page refers to which was read (BV4):
//! the sum that would find it (BV2) is a second line, and never needed.

use super::Violation;
use crate::fabric::world::ClientId;

/// Judges by the clients that have met strings which had changed, before they were fenced.
pub fn check(met: &[ClientId]) -> Option<Violation> {
    let what = "has read a string that was not the one which its page refers to";
    judge(met, "strings", what)
}

/// BL4: judges by the clients that have searched by parts of roots that were in force no more.
pub fn check_parts(met: &[ClientId]) -> Option<Violation> {
    judge(met, "parts", "has searched by a part of an old root")
}

fn judge(met: &[ClientId], promise: &'static str, what: &str) -> Option<Violation> {
    let client = met.first()?.0;
    let how = format!("client {client} {what}; {} times in all", met.len());
    Some(Violation::new(promise, how))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: one string is enough, and one part.
    #[test]
    fn one_string_is_enough() {
        assert_eq!(check(&[]), None);
        let found = check(&[ClientId(3)]).expect("one was met");
        assert!(found.how.starts_with("client 3 "), "{found}");
        assert_eq!(check_parts(&[]), None);
        let found = check_parts(&[ClientId(4)]).expect("one was met");
        assert!(found.how.starts_with("client 4 "), "{found}");
    }
}
