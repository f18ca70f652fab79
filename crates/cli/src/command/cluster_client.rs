//! Opens clusters and their tables for commands.

use std::net::IpAddr;
use std::time::Duration;

use farleaf::persistent::{
    ClientError, ClientOptions, Cluster, OpenError, SharedCoordinator, open_coordinator,
};
use farleaf_cluster::ClusterError;
use farleaf_cluster::coordinator::{Bound, Coordinator as _, CoordinatorAddress};
use farleaf_cluster::view::View;
use farleaf_net::tls::host_of;

use super::connection::with_other_tables;
use super::coordinator_retry::{PATIENCE_DEFAULT_S, RetryingCoordinator, ask_with_retries};
use super::string_table::StringTable;
use crate::arguments::PoolArguments;
use crate::failure::BadArgument;
use crate::tls_options::TlsArguments;

/// Parses the coordinator's address; `option` names its source in error messages.
///
/// # Errors
/// The address is invalid, or options on the command line ask for encryption, which connections to
/// etcd on other hosts do not have.
pub(super) fn parse_address(
    option: &str,
    text: &str,
    tls: &TlsArguments,
) -> Result<CoordinatorAddress, BadArgument> {
    let parsed = text.parse::<CoordinatorAddress>();
    let address = parsed.map_err(|error| BadArgument(format!("{option}: {error}")))?;
    match tls.first_on_command_line() {
        Some(given) if is_etcd_elsewhere(&address) => Err(BadArgument(format!(
            "{} cannot be used with {address}: connections to etcd are not encrypted; run a TLS \
             proxy for etcd on this host, and use its address, such as etcd:127.0.0.1:2379",
            given.name()
        ))),
        _ => Ok(address),
    }
}

/// Returns whether requests to the coordinator cross the network unencrypted, whatever the options
/// of TLS.
pub(super) fn is_etcd_elsewhere(address: &CoordinatorAddress) -> bool {
    let CoordinatorAddress::Etcd(members) = address else {
        return false;
    };
    let is_local = |member: &String| {
        let host = host_of(member);
        let address = host.parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|it| it.is_loopback())
    };
    !members.iter().all(is_local)
}

/// Explains to the user why a coordinator cannot be opened.
pub(super) fn not_opened(option: &str, error: OpenError) -> anyhow::Error {
    match error {
        OpenError::Directory { .. } | OpenError::NoEtcd { .. } => {
            BadArgument(format!("{option}: {error}")).into()
        }
        other => other.into(),
    }
}

fn client_options(pool: &PoolArguments) -> anyhow::Result<ClientOptions> {
    Ok(ClientOptions {
        secret: pool.secret()?,
        tls: pool.tls.client()?,
        ..ClientOptions::default()
    })
}

/// Open cluster.
pub(super) struct Opened {
    pub(super) cluster: Cluster,
    /// Address, as given on the command line.
    pub(super) address: String,
}

const OPTION: &str = "--cluster";

/// Opens the cluster for commands that read and write. Waits until its coordinator can be reached;
/// later the client retries by itself.
pub(super) fn open_cluster(pool: &PoolArguments, address: &str) -> anyhow::Result<Opened> {
    let patience = Duration::from_secs(PATIENCE_DEFAULT_S.into());
    open(pool, address, patience, Duration::ZERO)
}

/// Opens the cluster. Each time the coordinator cannot be reached, now or later, waits for it for
/// this long.
pub(super) fn open_patiently(
    pool: &PoolArguments,
    address: &str,
    patience: Duration,
) -> anyhow::Result<Opened> {
    open(pool, address, patience, patience)
}

fn open(
    pool: &PoolArguments,
    address: &str,
    first: Duration,
    later: Duration,
) -> anyhow::Result<Opened> {
    let of = parse_address(OPTION, address, &pool.tls)?;
    let options = client_options(pool)?;
    let is_away = |error: &_| matches!(error, OpenError::Unreachable { .. });
    let opened = ask_with_retries(address, first, is_away, || open_coordinator(&of, &options));
    let coordinator = opened.map_err(|error| not_opened(OPTION, error))?;
    Ok(Opened {
        cluster: Cluster::new(RetryingCoordinator::shared(coordinator, later), options),
        address: address.to_owned(),
    })
}

impl Opened {
    pub(super) fn coordinator(&self) -> &Bound<SharedCoordinator> {
        self.cluster.coordinator()
    }

    pub(super) fn open_table(&self, name: &str) -> anyhow::Result<StringTable> {
        let opened = self.cluster.open_table(name);
        let opened = opened.map_err(|error| match error {
            ClientError::Cluster(ClusterError::NoTable(_)) => {
                with_other_tables(name, self.explain(error))
            }
            error => self.explain(error),
        });
        Ok(StringTable::Persistent {
            table: opened?,
            address: self.address.clone(),
        })
    }

    /// Returns all current records of the coordinator. Takes one round trip.
    pub(super) fn view(&self) -> anyhow::Result<View> {
        let snapshot = self.coordinator().range("");
        let snapshot = snapshot.map_err(|error| self.explain(ClusterError::from(error)))?;
        let view = View::of(snapshot.revision, &snapshot.entries);
        if view.cluster.is_none() && view.damaged.is_empty() {
            return Err(self.explain(ClusterError::NoCluster));
        }
        Ok(view)
    }

    pub(super) fn explain(&self, error: impl Into<ClientError>) -> anyhow::Error {
        explain(error.into(), &self.address)
    }
}

/// Converts an error of the client into a message for the user.
pub(super) fn explain(error: ClientError, address: &str) -> anyhow::Error {
    match error {
        ClientError::Cluster(ClusterError::NoTable(name)) | ClientError::TableGone { name } => {
            anyhow::anyhow!(
                "table '{name}' does not exist in the cluster at {address}; `farleaf table list` \
                 lists the tables"
            )
        }
        ClientError::Cluster(ClusterError::TableExists(name)) => {
            anyhow::anyhow!("table '{name}' already exists in the cluster at {address}")
        }
        ClientError::Cluster(ClusterError::BadTable(why)) => BadArgument(why).into(),
        error @ ClientError::TooLong { .. } => BadArgument(error.to_string()).into(),
        ClientError::Cluster(ClusterError::NoCluster) => anyhow::anyhow!(
            "the coordinator {address} has no cluster; create one with `farleaf cluster init`, or \
             correct the address"
        ),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: only etcd on this host counts as reached without a network, by each kind of name.
    #[test]
    fn etcd_on_other_hosts_is_recognized() {
        let is_elsewhere = |text: &str| is_etcd_elsewhere(&text.parse().expect(text));
        assert!(!is_elsewhere(
            "etcd:127.0.0.1:2379,[::1]:2379,localhost:2379"
        ));
        assert!(is_elsewhere("etcd:127.0.0.1:2379,10.0.0.5:2379"));
        assert!(is_elsewhere("etcd:etcd.example:2379"));
        assert!(!is_elsewhere("tcp:10.0.0.5:7480"));
    }
}
