//! Starts of the coordinator (ID5): recording them, accepting that some are lost, and recording
//! that a server refuses the coordinator.

use crate::admin;
use crate::coordinator::{
    Compare, Coordinator, CoordinatorError, Entry, Revision, Transaction, TransactionOutcome,
};
use crate::error::ClusterError;
use crate::ids::{ServerId, StartNonce};
use crate::record::server::cut;
use crate::record::start::{
    Forgiven, REFUSAL_PREFIX, REFUSAL_SIZE_BYTES_MAX, Refusal, Start, forgiven_key, refusal_key,
    start_key,
};
use crate::record::{FORMAT_VERSION, IDS_KEY, Ids, Record, START_KEY, START_PREFIX};

/// So many starts are kept. A member that has not been there for more of them is told that the
/// coordinator was rolled back.
const START_COUNT_MAX: usize = 1000;

/// So many refusals are deleted by one transaction.
const REFUSAL_PART_COUNT: usize = 100;

/// Records a start of the coordinator: to be called by the process that has it, before anybody else
/// asks it; for one that outlives processes, once when its data begin. Two round trips.
///
/// # Errors
/// [`ClusterError::Contended`]: another process has done so meanwhile. Those of the coordinator.
pub fn begin_start(coordinator: &impl Coordinator) -> Result<StartNonce, ClusterError> {
    let before = coordinator.range(START_KEY)?.entries;
    begin(coordinator, before, Transaction::new())
}

/// Records a start of a coordinator that has none: one of etcd that an older version began to use.
/// Two round trips at the most.
///
/// # Errors
/// As of [`begin_start`].
pub fn begin_first_start(coordinator: &impl Coordinator) -> Result<(), ClusterError> {
    let before = coordinator.range(START_KEY)?.entries;
    if before.iter().any(|it| it.key == START_KEY) {
        return Ok(());
    }
    begin(coordinator, before, Transaction::new()).map(drop)
}

/// Records a start behind those that were there before, with more writes.
fn begin(
    coordinator: &impl Coordinator,
    before: Vec<Entry>,
    more: Transaction,
) -> Result<StartNonce, ClusterError> {
    let nonce = StartNonce::draw().map_err(ClusterError::NoIdentity)?;
    let newest = before.iter().find(|it| it.key == START_KEY);
    let newest = newest.map_or(Revision::NEVER, |it| it.mod_revision);
    let mut kept: Vec<_> = before
        .into_iter()
        .filter(|it| it.key.starts_with(START_PREFIX))
        .map(|it| (it.create_revision, it.key))
        .collect();
    kept.sort();
    let bytes = Start::new(nonce).encode();
    let mut transaction = more
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

/// Checks that a server refuses the coordinator's records because of a start, so that an operator
/// who accepts its loss has not mistaken it. One round trip.
///
/// # Errors
/// [`ClusterError::StartNotLost`]: none does. Those of the coordinator.
pub fn check_refused(
    coordinator: &impl Coordinator,
    nonce: StartNonce,
) -> Result<(), ClusterError> {
    let refusals = coordinator.range(REFUSAL_PREFIX)?.entries;
    let is_of = |it: &Entry| {
        let refusal = Refusal::decode(&it.key, &it.value);
        refusal.is_ok_and(|it| it.nonce == Some(nonce))
    };
    let is_refused = refusals.iter().any(is_of);
    is_refused
        .then_some(())
        .ok_or(ClusterError::StartNotLost(nonce))
}

/// Accepts that a start, or the end of one, is not in the coordinator's history any more: members
/// that have seen it go on with the older records. Records another start, so that they know what is
/// recorded from now on from what is lost, and deletes all refusals: servers that still refuse the
/// records write theirs again. Skips numbers of tables and regions, so that none is given away that
/// the lost records gave away. Five round trips, if there are few refusals.
///
/// # Errors
/// [`ClusterError::StartNotLost`]: the history has this start, and no server refuses the records.
/// [`ClusterError::Contended`], [`NoNumbers`](ClusterError::NoNumbers),
/// [`Record`](ClusterError::Record). Those of the coordinator.
pub fn forgive(coordinator: &impl Coordinator, nonce: StartNonce) -> Result<(), ClusterError> {
    let starts = coordinator.range(START_KEY)?.entries;
    let refusals = coordinator.range(REFUSAL_PREFIX)?.entries;
    if refusals.is_empty() && starts.iter().any(|it| it.key == start_key(nonce)) {
        return Err(ClusterError::StartNotLost(nonce));
    }
    let record = Forgiven {
        version: FORMAT_VERSION,
        nonce,
    };
    let mut forgiven = Transaction::new().put(forgiven_key(nonce), record.encode());
    if let Some(ids) = admin::read::<Ids>(coordinator, IDS_KEY)? {
        let raised = ids.record.skipping_lost().ok_or(ClusterError::NoNumbers)?;
        forgiven = forgiven
            .when(Compare::Modified(IDS_KEY.to_owned(), ids.modified))
            .put(IDS_KEY, raised.encode());
    }
    begin(coordinator, starts, forgiven)?;
    for part in refusals.chunks(REFUSAL_PART_COUNT) {
        let mut deletion = Transaction::new();
        for refusal in part {
            deletion = deletion.delete(refusal.key.clone());
        }
        coordinator.transact(&deletion)?;
    }
    Ok(())
}

/// Records that a server refuses the coordinator's records; `None`: that it does not any more. The
/// master changes nothing while a server does. Two round trips, one if this is recorded already.
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
                nonce: match how {
                    CoordinatorError::RolledBack { seen, .. } => Some(seen.nonce),
                    _ => None,
                },
                how: cut(how.to_string(), REFUSAL_SIZE_BYTES_MAX),
            };
            let bytes = record.encode();
            let recorded = coordinator.range(&key)?.entries;
            if recorded.iter().any(|it| it.value == bytes) {
                return Ok(());
            }
            Transaction::new().put(key, bytes)
        }
        None => Transaction::new().delete(key),
    };
    coordinator.transact(&transaction)?;
    Ok(())
}
