//! Opens pools and tables for commands.

use farleaf::{
    ConnectOptions, ControlError, Error, ErrorKind, OperationKind, PartitionedPool, Pool, TlsClient,
};

use super::cluster_client::open_cluster;
use super::target::{AnyTable, Sessions};
use crate::arguments::{DEFAULT_POOL, DEFAULT_TABLE, PoolArguments};
use crate::failure::BadArgument;

/// Opens a session in the pool, or in each of several pools.
pub(super) fn open_sessions(pool: &PoolArguments) -> anyhow::Result<Sessions> {
    let addresses = pool.addresses();
    if addresses.len() == 1 {
        return Ok(Sessions::One(open_pool(pool)?.session()?));
    }
    for address in &addresses {
        check_address(pool, address)?;
    }
    let pools = PartitionedPool::open_with(&addresses, &connect_options(pool)?)?;
    Ok(Sessions::Parts(pools.session()?))
}

/// Opens the pool, for commands that support only one.
pub(super) fn open_pool(pool: &PoolArguments) -> anyhow::Result<Pool> {
    if pool.addresses().len() > 1 {
        let message = format!(
            "--pool '{pool}' has several addresses, but this command supports \
             only one"
        );
        return Err(BadArgument(message).into());
    }
    check_address(pool, &pool.pool)?;
    let opened = Pool::open_with(&pool.pool, &connect_options(pool)?);
    opened.map_err(|error| with_other_places(pool, error))
}

/// Adds to the error of a default pool that is not served how to name another pool, or a cluster.
fn with_other_places(pool: &PoolArguments, error: Error) -> anyhow::Error {
    let is_away = matches!(
        error.kind(),
        ErrorKind::Control(ControlError::Unreachable { .. })
    );
    if is_away && pool.pool == DEFAULT_POOL {
        return anyhow::anyhow!(
            "{error} Use --pool for another pool, and --cluster for persistent tables"
        );
    }
    error.into()
}

/// Adds to the error of a missing table, if it is the default one, how to name another one.
pub(super) fn with_other_tables(name: &str, error: anyhow::Error) -> anyhow::Error {
    if name != DEFAULT_TABLE {
        return error;
    }
    anyhow::anyhow!(
        "{error}; without --table, commands use table '{name}'; `farleaf table create {name}` \
         creates it"
    )
}

/// Rejects addresses that commands do not support, though the library does.
fn check_address(pool: &PoolArguments, address: &str) -> anyhow::Result<()> {
    if address.starts_with("mem:") {
        let message = "a 'mem:' pool exists only in the process that created it, so a command \
                       cannot open it; start a pool with `farleaf serve`, and use 'shm:NAME'";
        return Err(BadArgument(message.to_owned()).into());
    }
    if let Some(rights) = pool.rights
        && !["tcp:", "verbs:"]
            .iter()
            .any(|kind| address.starts_with(kind))
    {
        let message = format!(
            "--rights {rights} cannot be used with {address}: only pools at 'tcp:HOST:PORT' or \
             'verbs:HOST:PORT' enforce rights"
        );
        return Err(BadArgument(message).into());
    }
    Ok(())
}

/// Returns the options for connections to nodes on the network.
fn connect_options(pool: &PoolArguments) -> anyhow::Result<ConnectOptions> {
    connect_options_with(pool, pool.tls.client()?)
}

/// Returns the options for connections with this encryption to nodes on the network.
pub(super) fn connect_options_with(
    pool: &PoolArguments,
    tls: Option<TlsClient>,
) -> anyhow::Result<ConnectOptions> {
    Ok(ConnectOptions {
        secret: pool.secret()?,
        rights: pool.rights,
        tls,
        verbs: (&pool.rdma).into(),
        ..ConnectOptions::default()
    })
}

/// Opens a table, and a session in its pool or in each of several pools. A table of a cluster has
/// no sessions.
pub(super) fn open_table(
    pool: &PoolArguments,
    name: &str,
) -> anyhow::Result<(Option<Sessions>, AnyTable)> {
    if let Some(address) = &pool.cluster {
        let table = open_cluster(pool, address)?.open_table(name)?;
        return Ok((None, AnyTable::Bytes(table)));
    }
    let sessions = open_sessions(pool)?;
    let table = sessions.open_table(name);
    let table = table.map_err(|error| match error.kind() {
        ErrorKind::TableNotFound { .. } => with_other_tables(name, error.into()),
        _ => error.into(),
    })?;
    Ok((Some(sessions), table))
}

/// Logs the costs of the sessions so far, for `-v`.
pub(super) fn log_costs(sessions: Option<&Sessions>) {
    let Some(sessions) = sessions else {
        return;
    };
    for kind in OperationKind::ALL {
        let counters = sessions.counters(kind);
        if counters.operations > 0 {
            tracing::info!(
                operations = counters.operations,
                round_trips = counters.cost.round_trips,
                bytes_read = counters.cost.bytes_read,
                bytes_written = counters.cost.bytes_written,
                atomics = counters.cost.atomics,
                retries = counters.cost.retries,
                "cost of {}",
                kind.name()
            );
        }
    }
}
