//! Server of a coordinator for other processes.

use std::time::Duration;

use farleaf_net::request::{Caller, FRAME_SIZE_BYTES_MAX, Service};

use super::message::{CoordinatorFailure, CoordinatorReply, CoordinatorRequest, decode, encode};
use crate::coordinator::{Coordinator, CoordinatorError, Event, KeepAlive, TransactionOutcome};

/// Maximum time that a request waits for changes; short, so that the server can stop.
pub const POLL_TIME_MAX: Duration = Duration::from_secs(1);

/// Size of changes in one reply, plus the rest of the last revision, which is never split.
const CHANGES_SIZE_BYTES: usize = 4 << 20;

/// Answers requests of [`RemoteCoordinator`](super::RemoteCoordinator)s with a coordinator of this
/// process.
///
/// The service can be the only one of a listener. A listener with other services passes requests
/// that begin with [`COORDINATOR_TAG`](super::COORDINATOR_TAG) to
/// [`answer_coordinator`](Self::answer_coordinator).
#[derive(Clone, Debug)]
pub struct CoordinatorService<C> {
    coordinator: C,
}

impl<C: Coordinator> CoordinatorService<C> {
    /// Creates the service of a coordinator.
    pub fn new(coordinator: C) -> Self {
        Self { coordinator }
    }

    /// Answers one request, whatever bytes it has; an invalid one gets an error reply, and so does
    /// a change that the caller's key does not permit: only the secret itself does. Waits as
    /// long as the coordinator does, and for changes up to [`POLL_TIME_MAX`] more.
    pub fn answer_coordinator(&self, caller: &Caller, request: &[u8], reply: &mut Vec<u8>) {
        let start = reply.len();
        encode(&self.answer_to(caller, request), reply);
        if reply.len() - start > FRAME_SIZE_BYTES_MAX {
            reply.truncate(start);
            let how = format!("the reply is larger than {FRAME_SIZE_BYTES_MAX} bytes");
            encode(
                &CoordinatorReply::Failed(CoordinatorFailure::Unavailable(how)),
                reply,
            );
        }
    }

    /// Answers a request at a listener without a coordinator: the client has the wrong address.
    pub fn refuse(how: &str, reply: &mut Vec<u8>) {
        encode(
            &CoordinatorReply::Failed(CoordinatorFailure::Invalid(how.to_owned())),
            reply,
        );
    }

    fn answer_to(&self, caller: &Caller, request: &[u8]) -> CoordinatorReply {
        let request: CoordinatorRequest = match decode(request) {
            Ok(request) => request,
            Err(what) => {
                return CoordinatorReply::Failed(CoordinatorFailure::Invalid(format!(
                    "invalid request: {what}"
                )));
            }
        };
        let is_change = request.is_change();
        if is_change && !caller.is_administrator() {
            return CoordinatorReply::Failed(CoordinatorFailure::Invalid(format!(
                "permission denied: the right 'admin' is required, and key {} grants '{}'",
                caller.key, caller.rights
            )));
        }
        self.act(request).unwrap_or_else(|error| {
            CoordinatorReply::Failed(CoordinatorFailure::new(error, is_change))
        })
    }

    fn act(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, CoordinatorError> {
        let coordinator = &self.coordinator;
        Ok(match request {
            CoordinatorRequest::Range(prefix) => {
                CoordinatorReply::Range(coordinator.range(&prefix)?)
            }
            CoordinatorRequest::Transact(transaction) => {
                match coordinator.transact(&transaction)? {
                    TransactionOutcome::Committed(revision) => {
                        CoordinatorReply::Committed(revision)
                    }
                    TransactionOutcome::Refused => CoordinatorReply::Refused,
                    TransactionOutcome::LeaseGone => CoordinatorReply::LeaseGone,
                }
            }
            CoordinatorRequest::Grant(time_to_live) => {
                let (lease, granted) = coordinator.grant_lease(time_to_live)?;
                CoordinatorReply::Granted(lease, granted)
            }
            CoordinatorRequest::KeepAlive(lease) => match coordinator.keep_alive(lease)? {
                KeepAlive::Alive(time) => CoordinatorReply::Alive(time),
                KeepAlive::Gone => CoordinatorReply::Gone,
            },
            CoordinatorRequest::Revoke(lease) => {
                coordinator.revoke_lease(lease)?;
                CoordinatorReply::Revoked
            }
            CoordinatorRequest::Changes {
                prefix,
                after,
                wait,
            } => {
                let mut watch = coordinator.watch(&prefix, after)?;
                let mut events = watch.next(wait.min(POLL_TIME_MAX))?;
                events.truncate(whole_revisions(&events));
                CoordinatorReply::Changes(events)
            }
        })
    }
}

/// Returns how many of these changes go into one reply, in whole revisions.
fn whole_revisions(events: &[Event]) -> usize {
    let mut size_bytes = 0;
    let mut last = None;
    for (index, event) in events.iter().enumerate() {
        if size_bytes > CHANGES_SIZE_BYTES && last != Some(event.revision()) {
            return index;
        }
        last = Some(event.revision());
        size_bytes += event.key().len();
        if let Event::Put(entry) = event {
            size_bytes += entry.value.len();
        }
    }
    events.len()
}

impl<C: Coordinator> Service for CoordinatorService<C> {
    fn answer(&self, caller: &Caller, request: &[u8], reply: &mut Vec<u8>) {
        self.answer_coordinator(caller, request, reply);
    }

    /// Returns false: leases depend on these requests.
    fn may_wait(&self, _: &[u8]) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::Revision;

    /// A reply with many changes is cut between revisions, and is never empty.
    #[test]
    fn changes_are_cut_between_revisions() {
        let half_full = |revision| {
            Event::Put(crate::coordinator::Entry {
                key: "key".to_owned(),
                value: vec![0; CHANGES_SIZE_BYTES / 2],
                create_revision: Revision(2),
                mod_revision: Revision(revision),
                lease: None,
            })
        };
        let count = |revisions: &[u64]| {
            let events: Vec<_> = revisions.iter().map(|it| half_full(*it)).collect();
            whole_revisions(&events)
        };
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&[2]), 1);
        assert_eq!(count(&[2, 2, 2, 2, 2]), 5);
        assert_eq!(count(&[2, 3, 4, 5]), 2);
        assert_eq!(count(&[2, 3, 3, 3, 4]), 4);
    }
}
