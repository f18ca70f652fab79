//! The way to a cluster and its tables.

use std::time::Duration;

use farleaf::persistent::{
    ClientError, ClientOptions, Cluster, OpenError, SharedCoordinator, open_coordinator,
};
use farleaf_cluster::ClusterError;
use farleaf_cluster::coordinator::{Bound, Coordinator as _, CoordinatorAddress};
use farleaf_cluster::view::View;

use super::patient::{PATIENCE_DEFAULT_S, Patient, ask_patiently};
use super::string_table::StringTable;
use crate::arguments::PoolArguments;
use crate::failure::BadArgument;

/// The coordinator's address; `option` is where it was given.
pub(super) fn parse_address(option: &str, text: &str) -> Result<CoordinatorAddress, BadArgument> {
    let parsed = text.parse::<CoordinatorAddress>();
    parsed.map_err(|error| BadArgument(format!("{option}: {error}")))
}

/// Why a coordinator cannot be opened, as it is told to who has typed the command.
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
        ..ClientOptions::default()
    })
}

/// A cluster, as `--cluster` says.
pub(super) struct Opened {
    pub(super) cluster: Cluster,
    /// As it was given.
    pub(super) address: String,
}

const OPTION: &str = "--cluster";

/// The cluster that `--cluster` says, for commands that read and write: its coordinator is waited
/// for until it is there. Later the client asks it again by itself.
pub(super) fn open_cluster(pool: &PoolArguments, address: &str) -> anyhow::Result<Opened> {
    let patience = Duration::from_secs(PATIENCE_DEFAULT_S.into());
    open(pool, address, (patience, Duration::ZERO))
}

/// The same; a coordinator that is away, now or later, is waited for each time for so long.
pub(super) fn open_patiently(
    pool: &PoolArguments,
    address: &str,
    patience: Duration,
) -> anyhow::Result<Opened> {
    open(pool, address, (patience, patience))
}

fn open(
    pool: &PoolArguments,
    address: &str,
    (first, later): (Duration, Duration),
) -> anyhow::Result<Opened> {
    let of = parse_address(OPTION, address)?;
    let options = client_options(pool)?;
    let is_away = |error: &_| matches!(error, OpenError::Unreachable { .. });
    let opened = ask_patiently(address, first, is_away, || open_coordinator(&of, &options));
    let coordinator = opened.map_err(|error| not_opened(OPTION, error))?;
    Ok(Opened {
        cluster: Cluster::new(Patient::shared(coordinator, later), options),
        address: address.to_owned(),
    })
}

impl Opened {
    pub(super) fn coordinator(&self) -> &Bound<SharedCoordinator> {
        self.cluster.coordinator()
    }

    pub(super) fn open_table(&self, name: &str) -> anyhow::Result<StringTable> {
        let opened = self.cluster.open_table(name);
        Ok(StringTable::Persistent {
            table: opened.map_err(|error| self.told(error))?,
            address: self.address.clone(),
        })
    }

    /// Everything that the coordinator has, as of now. One round trip.
    pub(super) fn view(&self) -> anyhow::Result<View> {
        let snapshot = self.coordinator().range("");
        let snapshot = snapshot.map_err(|error| self.told(ClusterError::from(error)))?;
        let view = View::of(snapshot.revision, &snapshot.entries);
        if view.cluster.is_none() && view.damaged.is_empty() {
            return Err(self.told(ClusterError::NoCluster));
        }
        Ok(view)
    }

    pub(super) fn told(&self, error: impl Into<ClientError>) -> anyhow::Error {
        told(error.into(), &self.address)
    }
}

/// An error as it is told to who has typed the command.
pub(super) fn told(error: ClientError, address: &str) -> anyhow::Error {
    match error {
        ClientError::Cluster(ClusterError::NoTable(name)) | ClientError::TableGone { name } => {
            anyhow::anyhow!(
                "there is no table '{name}' in the cluster at {address}; `farleaf table list` \
                 shows what there is"
            )
        }
        ClientError::Cluster(ClusterError::TableExists(name)) => {
            anyhow::anyhow!("there is a table '{name}' already in the cluster at {address}")
        }
        ClientError::Cluster(ClusterError::BadTable(why)) => BadArgument(why).into(),
        error @ ClientError::TooLong { .. } => BadArgument(error.to_string()).into(),
        ClientError::Cluster(ClusterError::NoCluster) => anyhow::anyhow!(
            "the coordinator {address} knows no cluster: `farleaf cluster init` creates one, or \
             give the right address"
        ),
        other => other.into(),
    }
}
