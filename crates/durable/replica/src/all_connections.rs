//! Runs one action on the connections to all backups in parallel.

use farleaf_executor::{AllCompletions, block_on, together};
use farleaf_fabric::Endpoint;

use crate::error::BackupId;
use crate::log_connection::{LogConnection, LogConnectionError, LogSendState};

/// Runs an action on all connections in parallel. Returns the failure with the highest weight, if
/// any failed.
pub(crate) fn for_all<'w, E: Endpoint, F>(
    connections: &'w mut [LogConnection<E>],
    act: impl Fn(&'w mut LogSendState<E>, &'w E) -> F,
) -> Result<(), (BackupId, LogConnectionError)>
where
    F: Future<Output = Result<(), LogConnectionError>>,
{
    let failures = for_each(connections, act).into_iter();
    // Of failures with equal weight, the first.
    let worst = failures.rev().max_by_key(|(_, error)| error.weight());
    worst.map_or(Ok(()), Err)
}

/// Runs an action on all connections in parallel. Returns all failures.
pub(crate) fn for_each<'w, E: Endpoint, F>(
    connections: &'w mut [LogConnection<E>],
    act: impl Fn(&'w mut LogSendState<E>, &'w E) -> F,
) -> Vec<(BackupId, LogConnectionError)>
where
    F: Future<Output = Result<(), LogConnectionError>>,
{
    let mut endpoints = Vec::with_capacity(connections.len());
    let mut acts = Vec::with_capacity(connections.len());
    for connection in connections {
        let LogConnection { endpoint, sender } = connection;
        let (id, endpoint) = (sender.backup_entry.id, &*endpoint);
        endpoints.push(endpoint);
        let act = act(sender, endpoint);
        acts.push(async move { (id, act.await) });
    }
    let completions = AllCompletions::new(&endpoints, |it| it.completions());
    let outputs = block_on(together(acts), completions).into_iter();
    let failures = outputs.filter_map(|(id, output)| Some((id, output.err()?)));
    failures.collect()
}
