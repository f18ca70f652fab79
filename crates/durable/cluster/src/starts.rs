//! Starts of the coordinator: recording them, accepting the loss of some, and recording that a
//! server refuses the coordinator. See docs/reference/control-plane.md, *Older copies of the
//! coordinator's data*.

use crate::admin;
use crate::coordinator::{
    Compare, Coordinator, CoordinatorError, Entry, Revision, Transaction, TransactionOutcome,
};
use crate::error::ClusterError;
use crate::ids::{ServerId, StartNonce};
use crate::record::server::cut;
use crate::record::start::{
    AcceptedLoss, REFUSAL_PREFIX, REFUSAL_SIZE_BYTES_MAX, Refusal, Start, accepted_loss_key,
    refusal_key, start_key,
};
use crate::record::{FORMAT_VERSION, IDS_KEY, Ids, Record, START_KEY, START_PREFIX};

/// Number of starts that are kept. A member that missed more of them finds the coordinator rolled
/// back.
const START_COUNT_MAX: usize = 1000;

/// Number of refusals that one transaction deletes.
const REFUSAL_PART_COUNT: usize = 100;

/// Records a start of the coordinator. The process that has the coordinator calls this before any
/// other use of it; for a coordinator that outlives processes, it is called once when its data
/// begin. Costs two round trips.
///
/// # Errors
/// [`ClusterError::Contended`] if another process has recorded a start meanwhile, and those of the
/// coordinator.
pub fn begin_start(coordinator: &impl Coordinator) -> Result<StartNonce, ClusterError> {
    let before = coordinator.range(START_KEY)?.entries;
    begin(coordinator, before, Transaction::new())
}

/// Records a start of a coordinator that has none, such as etcd that an older version began to use.
/// Costs at most two round trips.
///
/// # Errors
/// The errors of [`begin_start`].
pub fn begin_first_start(coordinator: &impl Coordinator) -> Result<(), ClusterError> {
    let before = coordinator.range(START_KEY)?.entries;
    if before.iter().any(|it| it.key == START_KEY) {
        return Ok(());
    }
    begin(coordinator, before, Transaction::new()).map(drop)
}

/// Records a start after the existing ones, with more writes.
fn begin(
    coordinator: &impl Coordinator,
    before: Vec<Entry>,
    more: Transaction,
) -> Result<StartNonce, ClusterError> {
    let nonce = StartNonce::draw().map_err(ClusterError::NoRandomId)?;
    let newest = before.iter().find(|it| it.key == START_KEY);
    let newest = newest.map_or(Revision::NEVER, |it| it.mod_revision);
    let mut stored: Vec<_> = before
        .into_iter()
        .filter(|it| it.key.starts_with(START_PREFIX))
        .map(|it| (it.create_revision, it.key))
        .collect();
    stored.sort();
    let bytes = Start::new(nonce).encode();
    let mut transaction = more
        .when(Compare::Modified(START_KEY.to_owned(), newest))
        .put(START_KEY, bytes.clone())
        .put(start_key(nonce), bytes);
    let surplus = (stored.len() + 1).saturating_sub(START_COUNT_MAX);
    for (_, key) in stored.into_iter().take(surplus.min(100)) {
        transaction = transaction.delete(key);
    }
    match coordinator.transact(&transaction)? {
        TransactionOutcome::Committed(_) => Ok(nonce),
        TransactionOutcome::Refused | TransactionOutcome::LeaseGone => Err(ClusterError::Contended),
    }
}

/// Checks that a server refuses the coordinator's records because of a start, so that an operator
/// does not accept the loss of a wrong one. Costs one round trip.
///
/// # Errors
/// [`ClusterError::StartNotLost`] if no server does, and those of the coordinator.
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

/// Accepts the loss of a start, or of its end, from the coordinator's history. Members that have
/// seen it then continue with the older records.
///
/// Records another start, so that members can tell new records from lost ones. Deletes all
/// refusals; servers that still refuse the records record that again. Skips numbers of tables and
/// regions, so that numbers from lost records are not reused. Costs five round trips, if there are
/// few refusals.
///
/// # Errors
/// - [`ClusterError::StartNotLost`]: the history has this start, and no server refuses the records.
/// - [`ClusterError::Contended`], [`NoNumbers`](ClusterError::NoNumbers),
///   [`Record`](ClusterError::Record), and those of the coordinator.
pub fn accept_lost_start(
    coordinator: &impl Coordinator,
    nonce: StartNonce,
) -> Result<(), ClusterError> {
    let starts = coordinator.range(START_KEY)?.entries;
    let refusals = coordinator.range(REFUSAL_PREFIX)?.entries;
    if refusals.is_empty() && starts.iter().any(|it| it.key == start_key(nonce)) {
        return Err(ClusterError::StartNotLost(nonce));
    }
    let record = AcceptedLoss {
        version: FORMAT_VERSION,
        nonce,
    };
    let mut forgiven = Transaction::new().put(accepted_loss_key(nonce), record.encode());
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

/// Records that a server refuses the coordinator's records, or, with `None`, that it no longer
/// does. The master changes nothing while a server refuses. Costs two round trips, or one if this
/// is already recorded.
///
/// # Errors
/// The errors of the coordinator.
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
