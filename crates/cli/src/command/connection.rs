//! The way to a pool and a table that most commands begin with.

use farleaf::{ConnectOptions, OperationKind, Pool, Session, Table, TlsClient};

use crate::arguments::PoolArguments;
use crate::failure::BadArgument;

/// A session in the pool.
pub(super) fn open_session(pool: &PoolArguments) -> anyhow::Result<Session> {
    Ok(open_pool(pool)?.session()?)
}

/// The pool.
pub(super) fn open_pool(pool: &PoolArguments) -> anyhow::Result<Pool> {
    if pool.pool.starts_with("mem:") {
        let message = "a 'mem:' pool is gone with the process that made it, so there is nothing in \
                       it for a command; serve a pool with `farleaf serve` and take 'shm:NAME'";
        return Err(BadArgument(message.to_owned()).into());
    }
    if let Some(rights) = pool.rights
        && !["tcp:", "verbs:"]
            .iter()
            .any(|kind| pool.pool.starts_with(kind))
    {
        let message = format!(
            "--rights {rights} cannot be used with {pool}: only a node that is reached by \
             'tcp:HOST:PORT' or 'verbs:HOST:PORT' can hold anybody to them"
        );
        return Err(BadArgument(message).into());
    }
    Ok(Pool::open_with(&pool.pool, &connect_options(pool)?)?)
}

/// How nodes on the network are connected to.
pub(super) fn connect_options(pool: &PoolArguments) -> anyhow::Result<ConnectOptions> {
    let tls = pool.tls_ca.as_deref().map(TlsClient::from_file);
    Ok(ConnectOptions {
        secret: pool.secret()?,
        rights: pool.rights,
        tls: tls.transpose()?,
        verbs: (&pool.rdma).into(),
        ..ConnectOptions::default()
    })
}

/// A session in the pool, and a table of it.
pub(super) fn open_table(pool: &PoolArguments, name: &str) -> anyhow::Result<(Session, Table)> {
    let session = open_session(pool)?;
    let table = session.open_table(name)?;
    Ok((session, table))
}

/// Tells the log what the session has cost so far, for `-v`.
pub(super) fn log_costs(session: &Session) {
    for kind in OperationKind::ALL {
        let counters = session.counters(kind);
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
