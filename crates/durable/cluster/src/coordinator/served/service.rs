//! The side that has the coordinator.

use std::time::Duration;

use farleaf_wire::{FRAME_SIZE_BYTES_MAX, Service};

use super::message::{Failure, Reply, Request, decode, encode, transaction};
use crate::coordinator::{Coordinator, CoordinatorError, Event, KeepAlive, TransactionOutcome};

/// No request for changes is answered later than this, so that who serves them can end (CS4).
pub const POLL_TIME_MAX: Duration = Duration::from_secs(1);

/// Changes that one answer has, but for those of its last revision, which is whole.
const CHANGES_SIZE_BYTES: usize = 4 << 20;

/// Answers requests of [`RemoteCoordinator`](super::RemoteCoordinator)s by a coordinator of this
/// process.
///
/// It is a service of its own; whoever has other requests to answer at the same listener takes
/// those that begin with [`COORDINATOR_TAG`](super::COORDINATOR_TAG) to
/// [`answer_coordinator`](Self::answer_coordinator).
#[derive(Clone, Debug)]
pub struct CoordinatorService<C> {
    coordinator: C,
}

impl<C: Coordinator> CoordinatorService<C> {
    /// The service of this coordinator.
    pub fn new(coordinator: C) -> Self {
        Self { coordinator }
    }

    /// Answers one request, whatever bytes it has: what is none is answered by an error reply.
    /// Waits as the coordinator does, and for changes up to [`POLL_TIME_MAX`] more.
    pub fn answer_coordinator(&self, request: &[u8], reply: &mut Vec<u8>) {
        let start = reply.len();
        encode(&self.answer_to(request), reply);
        if reply.len() - start > FRAME_SIZE_BYTES_MAX {
            reply.truncate(start);
            let how = format!("the answer is larger than {FRAME_SIZE_BYTES_MAX} bytes");
            encode(&Reply::Failed(Failure::Unavailable(how)), reply);
        }
    }

    /// Answers a request where there is no coordinator: whoever asks has the wrong address.
    pub fn refuse(how: &str, reply: &mut Vec<u8>) {
        encode(&Reply::Failed(Failure::Invalid(how.to_owned())), reply);
    }

    fn answer_to(&self, request: &[u8]) -> Reply {
        let request: Request = match decode(request) {
            Ok(request) => request,
            Err(what) => return Reply::Failed(Failure::Invalid(format!("it was sent {what}"))),
        };
        let is_change = request.is_change();
        let done = self.act(request);
        done.unwrap_or_else(|error| Reply::Failed(Failure::new(error, is_change)))
    }

    fn act(&self, request: Request) -> Result<Reply, CoordinatorError> {
        let coordinator = &self.coordinator;
        Ok(match request {
            Request::Range(prefix) => coordinator.range(&prefix)?.into(),
            Request::Transact { compares, writes } => {
                match coordinator.transact(&transaction(compares, writes))? {
                    TransactionOutcome::Committed(revision) => Reply::Committed(revision),
                    TransactionOutcome::Refused => Reply::Refused,
                    TransactionOutcome::LeaseGone => Reply::LeaseGone,
                }
            }
            Request::Grant(time_to_live) => {
                let (lease, granted) = coordinator.grant_lease(time_to_live)?;
                Reply::Granted(lease, granted)
            }
            Request::KeepAlive(lease) => match coordinator.keep_alive(lease)? {
                KeepAlive::Alive(time) => Reply::Alive(time),
                KeepAlive::Gone => Reply::Gone,
            },
            Request::Revoke(lease) => {
                coordinator.revoke_lease(lease)?;
                Reply::Revoked
            }
            Request::Changes {
                prefix,
                after,
                wait,
            } => {
                let mut watch = coordinator.watch(&prefix, after)?;
                let mut events = watch.next(wait.min(POLL_TIME_MAX))?;
                events.truncate(whole_revisions(&events));
                events.into()
            }
        })
    }
}

/// How many of these changes go into one answer: whole revisions (CS4).
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
    fn answer(&self, request: &[u8], reply: &mut Vec<u8>) {
        self.answer_coordinator(request, reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::Revision;

    /// Promise: an answer with many changes is cut between revisions, and never empty.
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
