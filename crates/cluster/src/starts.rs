//! Starts of the coordinator (ID5): who has it records each, operators accept that some are lost,
//! and servers say that they refuse its records.

use crate::coordinator::{
    Compare, Coordinator, CoordinatorError, Revision, Transaction, TransactionOutcome,
};
use crate::error::ClusterError;
use crate::ids::{ServerId, StartNonce};
use crate::record::server::cut;
use crate::record::start::{
    Forgiven, REFUSAL_SIZE_BYTES_MAX, Refusal, Start, forgiven_key, refusal_key, start_key,
};
use crate::record::{FORMAT_VERSION, Record, START_KEY, START_PREFIX};

/// So many starts are kept. A member that has not been there for more of them is told that the
/// coordinator was rolled back.
const START_COUNT_MAX: usize = 1000;

/// Records a start of the coordinator: to be called by the process that has it, before anybody else
/// asks it; for one that outlives processes, once when its data begin, or are put back. Two round
/// trips.
///
/// # Errors
/// [`ClusterError::Contended`]: another process has done so meanwhile. Those of the coordinator.
pub fn begin_start(coordinator: &impl Coordinator) -> Result<StartNonce, ClusterError> {
    let nonce = StartNonce::draw().map_err(ClusterError::NoIdentity)?;
    let before = coordinator.range(START_KEY)?;
    let newest = before.entries.iter().find(|it| it.key == START_KEY);
    let newest = newest.map_or(Revision::NEVER, |it| it.mod_revision);
    let mut kept: Vec<_> = before
        .entries
        .into_iter()
        .filter(|it| it.key.starts_with(START_PREFIX))
        .map(|it| (it.create_revision, it.key))
        .collect();
    kept.sort();
    let bytes = Start::new(nonce).encode();
    let mut transaction = Transaction::new()
        .when(Compare::Modified(START_KEY.to_owned(), newest))
        .put(START_KEY, bytes.clone())
        .put(start_key(nonce), bytes);
    let surplus = (kept.len() + 1).saturating_sub(START_COUNT_MAX);
    for (_, key) in kept.into_iter().take(surplus.min(100)) {
        transaction = transaction.delete(key);
    }
    match coordinator.transact(&transaction)? {
        TransactionOutcome::Committed(_) => Ok(nonce),
        TransactionOutcome::Refused | TransactionOutcome::LeaseGone => Err(ClusterError::Contended),
    }
}

/// Accepts that a start, and all that was recorded in it, is not in the coordinator's history any
/// more: members that have seen it go on with the older records. One round trip.
///
/// # Errors
/// Those of the coordinator.
pub fn forgive(coordinator: &impl Coordinator, nonce: StartNonce) -> Result<(), ClusterError> {
    let record = Forgiven {
        version: FORMAT_VERSION,
        nonce,
    };
    let put = Transaction::new().put(forgiven_key(nonce), record.encode());
    coordinator.transact(&put)?;
    Ok(())
}

/// Says that a server refuses the coordinator's records; `None`: that it does not any more. Nothing
/// goes by it: people read it. One round trip.
///
/// # Errors
/// Those of the coordinator.
pub fn note_refusal(
    coordinator: &impl Coordinator,
    server: ServerId,
    how: Option<&CoordinatorError>,
) -> Result<(), CoordinatorError> {
    let key = refusal_key(server);
    let transaction = match how {
        Some(how) => {
            let record = Refusal {
                version: FORMAT_VERSION,
                server,
                how: cut(how.to_string(), REFUSAL_SIZE_BYTES_MAX),
            };
            Transaction::new().put(key, record.encode())
        }
        None => Transaction::new().delete(key),
    };
    coordinator.transact(&transaction)?;
    Ok(())
}
