//! Encoding of requests to a coordinator in another process and of its replies: a tag, and JSON
//! with a version. Values are base64; times are seconds and nanoseconds, so nothing is rounded.
//!
//! | request | reply |
//! |---|---|
//! | `range` | `range` |
//! | `transact` | `committed`, `refused`, `lease_gone` |
//! | `grant` | `granted` |
//! | `keep_alive` | `alive`, `gone` |
//! | `revoke` | `revoked` |
//! | `changes` | `changes` |
//! | any | `failed` |

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::coordinator::{
    CoordinatorError, Entry, Event, IDENTITY_KEYS, LeaseId, Revision, Snapshot, Transaction,
};

/// First byte of requests to a coordinator and their replies, so that other services can share the
/// listener.
pub const COORDINATOR_TAG: u8 = b'C';

/// Version of requests and replies; both sides must have the same.
pub const MESSAGE_VERSION: u32 = 2;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum CoordinatorRequest {
    Range(String),
    Transact(Transaction),
    Grant(Duration),
    KeepAlive(LeaseId),
    Revoke(LeaseId),
    /// Requests changes of a prefix after a revision, waiting at most for the given time.
    Changes {
        prefix: String,
        after: Revision,
        wait: Duration,
    },
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum CoordinatorReply {
    Range(Snapshot),
    Committed(Revision),
    Refused,
    LeaseGone,
    Granted(LeaseId, Duration),
    Alive(Duration),
    Gone,
    Revoked,
    Changes(Vec<Event>),
    Failed(CoordinatorFailure),
}

/// Reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum CoordinatorFailure {
    /// The request was not executed.
    Unavailable(String),
    /// The change was done, will be done, or never (CONTROL-5).
    OutcomeUnknown(String),
    /// Changes up to this revision are not kept.
    Compacted(Revision),
    /// The request is not valid for any coordinator.
    Invalid(String),
}

/// Content of a message after the tag.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Enveloped<T> {
    version: u32,
    message: T,
}

/// The part of a message that all versions have.
#[derive(Deserialize)]
struct OnlyVersion {
    version: u32,
}

/// Appends an encoded request or reply.
pub(super) fn encode(message: &impl Serialize, to: &mut Vec<u8>) {
    to.push(COORDINATOR_TAG);
    let version = MESSAGE_VERSION;
    let enveloped = Enveloped { version, message };
    serde_json::to_writer(to, &enveloped).expect("messages are plain values, and memory takes all");
}

/// Decodes a message. The error text completes "invalid request: ..." and "invalid reply: ...".
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let json = match bytes {
        [COORDINATOR_TAG, json @ ..] => json,
        [other, ..] => {
            return Err(format!(
                "not a coordinator message (it begins with '{}')",
                other.escape_ascii()
            ));
        }
        [] => return Err("not a coordinator message (it is empty)".to_owned()),
    };
    let no_message = |error: serde_json::Error| format!("not a coordinator message: {error}");
    let OnlyVersion { version } = serde_json::from_slice(json).map_err(no_message)?;
    if version != MESSAGE_VERSION {
        return Err(format!(
            "expected message version {MESSAGE_VERSION}, found {version}; run the same version on \
             both sides"
        ));
    }
    let enveloped: Enveloped<T> = serde_json::from_slice(json).map_err(no_message)?;
    Ok(enveloped.message)
}

impl CoordinatorRequest {
    /// Returns whether the request changes something, so that a missing reply leaves its outcome
    /// unknown.
    pub(super) fn is_change(&self) -> bool {
        match self {
            Self::Range(_) | Self::Changes { .. } => false,
            Self::Transact(_) | Self::Grant(_) | Self::KeepAlive(_) | Self::Revoke(_) => true,
        }
    }
}

/// Checks the snapshot of a prefix in a reply. The error says why it is invalid.
pub(super) fn check_snapshot(prefix: &str, snapshot: &Snapshot) -> Result<(), String> {
    let Snapshot {
        revision,
        entries,
        identity,
    } = snapshot;
    let are_in_order = |entries: &[Entry]| entries.is_sorted_by(|a, b| a.key < b.key);
    let is_then =
        |it: &Entry| it.create_revision <= it.mod_revision && it.mod_revision <= *revision;
    let is_requested = |it: &Entry| it.key.starts_with(prefix);
    let presents = |it: &Entry| IDENTITY_KEYS.contains(&it.key.as_str());
    if !are_in_order(entries) || !entries.iter().all(|it| is_then(it) && is_requested(it)) {
        return Err(format!("not a range of keys with prefix '{prefix}'"));
    }
    if !are_in_order(identity) || !identity.iter().all(|it| is_then(it) && presents(it)) {
        return Err("invalid identity keys".to_owned());
    }
    Ok(())
}

/// Checks the changes of a prefix after a revision in a reply. The error says why they are invalid.
pub(super) fn check_events(prefix: &str, after: Revision, events: &[Event]) -> Result<(), String> {
    let is_in_order = events.is_sorted_by_key(Event::revision);
    let is_behind = events.first().is_none_or(|it| it.revision() > after);
    if is_in_order && is_behind && events.iter().all(|it| it.key().starts_with(prefix)) {
        return Ok(());
    }
    Err(format!(
        "changes out of order, without prefix '{prefix}', or not after {after}"
    ))
}

impl CoordinatorFailure {
    /// Converts a coordinator's error for a client in another process; `is_change` says whether the
    /// request changes something.
    pub(super) fn new(error: CoordinatorError, is_change: bool) -> Self {
        match error {
            CoordinatorError::Unavailable { name, how } => {
                Self::Unavailable(format!("{name}: {how}"))
            }
            CoordinatorError::OutcomeUnknown { name, how } => {
                Self::OutcomeUnknown(format!("{name}: {how}"))
            }
            CoordinatorError::Compacted { oldest } => Self::Compacted(oldest),
            CoordinatorError::Invalid { what } => Self::Invalid(what),
            // The change may have been written.
            CoordinatorError::Storage { .. } | CoordinatorError::Damaged { .. } if is_change => {
                Self::OutcomeUnknown(error.to_string())
            }
            CoordinatorError::OtherCluster { .. }
            | CoordinatorError::RolledBack { .. }
            | CoordinatorError::Storage { .. }
            | CoordinatorError::Damaged { .. }
            | CoordinatorError::Newer { .. }
            | CoordinatorError::Locked { .. }
            | CoordinatorError::Displaced(_)
            | CoordinatorError::Stopped { .. } => Self::Unavailable(error.to_string()),
        }
    }

    /// Converts the failure to the client's error; `name` is the coordinator that failed.
    pub(super) fn into_error(self, name: String) -> CoordinatorError {
        match self {
            Self::Unavailable(how) => CoordinatorError::Unavailable { name, how },
            Self::OutcomeUnknown(how) => CoordinatorError::OutcomeUnknown { name, how },
            Self::Compacted(oldest) => CoordinatorError::Compacted { oldest },
            Self::Invalid(what) => CoordinatorError::Invalid { what },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::Compare;

    fn encoded(message: &impl Serialize) -> String {
        let mut bytes = Vec::new();
        encode(message, &mut bytes);
        String::from_utf8(bytes).expect("JSON")
    }

    /// Requests have these bytes, so that processes of one version understand each other.
    #[test]
    fn requests_are_golden() {
        let second = Duration::from_millis(1_500);
        let every = Transaction::new()
            .when(Compare::Created("a".to_owned(), Revision(2)))
            .when(Compare::Modified("b".to_owned(), Revision::NEVER))
            .when(Compare::Holds("c".to_owned(), vec![1]))
            .put("c", vec![0, 0xFF, b'"'])
            .put_leased("d", Vec::new(), LeaseId(u64::MAX))
            .delete("e");
        let changes = CoordinatorRequest::Changes {
            prefix: "p/".to_owned(),
            after: Revision(9),
            wait: second,
        };
        let cases = [
            (
                CoordinatorRequest::Range("p/".to_owned()),
                r#"{"range":"p/"}"#,
            ),
            (
                CoordinatorRequest::Transact(every),
                concat!(
                    r#"{"transact":{"compares":[{"created":["a",2]},{"modified":["b",0]},"#,
                    r#"{"holds":["c","AQ=="]}],"#,
                    r#""writes":[{"put":["c","AP8i",null]},"#,
                    r#"{"put":["d","",18446744073709551615]},{"delete":"e"}]}}"#
                ),
            ),
            (
                CoordinatorRequest::Grant(second),
                r#"{"grant":{"secs":1,"nanos":500000000}}"#,
            ),
            (
                CoordinatorRequest::KeepAlive(LeaseId(7)),
                r#"{"keep_alive":7}"#,
            ),
            (CoordinatorRequest::Revoke(LeaseId(7)), r#"{"revoke":7}"#),
            (
                changes,
                concat!(
                    r#"{"changes":{"prefix":"p/","after":9,"#,
                    r#""wait":{"secs":1,"nanos":500000000}}}"#
                ),
            ),
        ];
        for (request, json) in cases {
            let text = format!(r#"C{{"version":2,"message":{json}}}"#);
            assert_eq!(encoded(&request), text);
            assert_eq!(decode(text.as_bytes()), Ok(request));
        }
    }

    /// Replies have these bytes, so that processes of one version understand each other.
    #[test]
    fn replies_are_golden() {
        let held = Entry {
            key: "p/a".to_owned(),
            value: vec![1, 2, 3, 4],
            create_revision: Revision(3),
            mod_revision: Revision(5),
            lease: Some(LeaseId(7)),
        };
        let range = Snapshot {
            revision: Revision(8),
            entries: vec![held.clone()],
            identity: vec![Entry {
                key: "cluster".to_owned(),
                lease: None,
                ..held.clone()
            }],
        };
        let gone = Event::Delete("p/b".to_owned(), Revision(6));
        let failed = |failure| CoordinatorReply::Failed(failure);
        let cases = [
            (
                CoordinatorReply::Range(range),
                concat!(
                    r#"{"range":{"revision":8,"entries":[["p/a","AQIDBA==",3,5,7]],"#,
                    r#""identity":[["cluster","AQIDBA==",3,5,null]]}}"#
                ),
            ),
            (
                CoordinatorReply::Committed(Revision(4)),
                r#"{"committed":4}"#,
            ),
            (CoordinatorReply::Refused, r#""refused""#),
            (CoordinatorReply::LeaseGone, r#""lease_gone""#),
            (
                CoordinatorReply::Granted(LeaseId(7), Duration::from_secs(2)),
                r#"{"granted":[7,{"secs":2,"nanos":0}]}"#,
            ),
            (
                CoordinatorReply::Alive(Duration::from_secs(2)),
                r#"{"alive":{"secs":2,"nanos":0}}"#,
            ),
            (CoordinatorReply::Gone, r#""gone""#),
            (CoordinatorReply::Revoked, r#""revoked""#),
            (
                CoordinatorReply::Changes(vec![Event::Put(held), gone]),
                r#"{"changes":[{"put":["p/a","AQIDBA==",3,5,7]},{"delete":["p/b",6]}]}"#,
            ),
            (
                failed(CoordinatorFailure::Unavailable("x".to_owned())),
                r#"{"failed":{"unavailable":"x"}}"#,
            ),
            (
                failed(CoordinatorFailure::OutcomeUnknown("x".to_owned())),
                r#"{"failed":{"outcome_unknown":"x"}}"#,
            ),
            (
                failed(CoordinatorFailure::Compacted(Revision(3))),
                r#"{"failed":{"compacted":3}}"#,
            ),
            (
                failed(CoordinatorFailure::Invalid("x".to_owned())),
                r#"{"failed":{"invalid":"x"}}"#,
            ),
        ];
        for (reply, json) in cases {
            let text = format!(r#"C{{"version":2,"message":{json}}}"#);
            assert_eq!(encoded(&reply), text);
            assert_eq!(decode(text.as_bytes()), Ok(reply));
        }
    }

    /// Other tags, other versions and other JSON are refused with a description.
    #[test]
    fn what_is_no_message_is_refused() {
        let cases = [
            ("", "it is empty"),
            ("K1", "begins with 'K'"),
            ("C", "not a coordinator message"),
            (r#"C{"version":2}"#, "missing field"),
            (r#"C{"version":3,"message":{"new":[]}}"#, "found 3"),
            (r#"C{"version":2,"message":{"range":5}}"#, "invalid type"),
            (
                r#"C{"version":2,"message":{"grant":{"secs":18446744073709551615,"nanos":4000000000}}}"#,
                "overflow",
            ),
            (
                r#"C{"version":2,"message":{"range":""},"more":1}"#,
                "unknown field",
            ),
            (r#"C{"version":2,"message":{"range":""}} "#, ""),
        ];
        for (text, said) in cases {
            let decoded: Result<CoordinatorRequest, String> = decode(text.as_bytes());
            match decoded {
                Ok(_) => assert_eq!(said, "", "{text}"),
                Err(error) => assert!(!said.is_empty() && error.contains(said), "{error}"),
            }
        }
    }
}
