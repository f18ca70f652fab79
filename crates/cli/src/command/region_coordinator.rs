//! Connects a region server to its coordinator. The coordinator runs in this process, where
//! `--init` creates a cluster in it, or in another process, for which the server waits.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context;
use farleaf::persistent::{ClientOptions, OpenError, SharedCoordinator, open_coordinator};
use farleaf_base::clock::SystemClock;
use farleaf_cluster::coordinator::{CoordinatorAddress, CoordinatorError, Embedded, Started};
use farleaf_cluster::ids::ClusterId;
use farleaf_cluster::{ClusterError, admin};
use farleaf_lsm::storage::private;
use farleaf_server::{PreparedServer, ServerError, ServerOptions};

use super::cluster_client::not_opened;
use crate::failure::BadArgument;

/// Option with the address of the coordinator.
pub(super) const OPTION: &str = "--coordinator";

/// First and largest time between attempts; each is twice the previous one.
const REST: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Time that a server with an empty directory listens, before it starts, for members of an earlier
/// cluster that still connect to its address.
const SOUND_OUT_TIME: Duration = Duration::from_secs(1);

/// Time after which a rejection is checked again before it is reported.
const DOUBT: Duration = Duration::from_secs(1);

/// Interval of reminders that the server still waits for the coordinator.
const REMINDER_INTERVAL: Duration = Duration::from_secs(10);

/// Coordinator in another process.
pub(super) struct Elsewhere {
    pub(super) address: CoordinatorAddress,
    pub(super) options: ClientOptions,
}

/// Result of an attempt to connect to the coordinator.
pub(super) enum CoordinatorReply {
    There(SharedCoordinator),
    /// The coordinator cannot be reached now, with the reason; a later attempt may succeed.
    NotYet(anyhow::Error),
}

impl Elsewhere {
    /// Connects, and checks whether the coordinator has a cluster.
    ///
    /// # Errors
    /// The error is permanent: a wrong secret, another version, or no cluster.
    pub(super) fn ask(&self) -> anyhow::Result<CoordinatorReply> {
        let coordinator = match open_coordinator(&self.address, &self.options) {
            Ok(coordinator) => coordinator,
            Err(error @ OpenError::Unreachable { .. }) => {
                return Ok(CoordinatorReply::NotYet(error.into()));
            }
            Err(error) => return Err(not_opened(OPTION, error)),
        };
        match admin::cluster_id(&coordinator) {
            Ok(_) => Ok(CoordinatorReply::There(coordinator)),
            Err(ClusterError::Coordinator(error @ CoordinatorError::Unavailable { .. })) => {
                Ok(CoordinatorReply::NotYet(error.into()))
            }
            Err(ClusterError::NoCluster) => Err(no_cluster(&self.address)),
            Err(error) => {
                let what = format!(
                    "cannot read the cluster of the coordinator {}",
                    self.address
                );
                Err(anyhow::Error::new(error).context(what))
            }
        }
    }

    /// Connects like [`Self::ask`], but an error counts only if it occurs twice. A coordinator that
    /// has just started to listen may not have written its secret yet, so that the file still has
    /// the secret of the previous process.
    pub(super) fn ask_twice(&self) -> anyhow::Result<CoordinatorReply> {
        self.ask().or_else(|_| {
            std::thread::sleep(DOUBT);
            self.ask()
        })
    }

    /// Waits until the coordinator is available, at most for the given time. Returns `None` if the
    /// program should stop.
    pub(super) fn wait(
        &self,
        mut why: anyhow::Error,
        patience: Option<Duration>,
        stopped: &Receiver<()>,
    ) -> anyhow::Result<Option<SharedCoordinator>> {
        let address = &self.address;
        let since = Instant::now();
        let (mut rest, mut told_at) = (REST.0, since);
        let mut is_doubted = false;
        tracing::warn!("waiting for the coordinator {address} (Ctrl-C to stop): {why:#}");
        loop {
            let left = patience.map_or(rest, |it| it.saturating_sub(since.elapsed()));
            if left.is_zero() {
                let waited = format!("timed out after {} s", since.elapsed().as_secs());
                return Err(why.context(waited));
            }
            match stopped.recv_timeout(rest.min(left)) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
            rest = (rest * 2).min(REST.1);
            match self.ask() {
                Ok(CoordinatorReply::There(coordinator)) => {
                    let waited_s = since.elapsed().as_secs();
                    tracing::info!("connected to the coordinator {address} after {waited_s} s");
                    return Ok(Some(coordinator));
                }
                Ok(CoordinatorReply::NotYet(error)) => {
                    why = error;
                    is_doubted = false;
                }
                // A coordinator that has just started may not have written its secret yet.
                Err(_) if !is_doubted => is_doubted = true,
                Err(error) => return Err(error),
            }
            if told_at.elapsed() >= REMINDER_INTERVAL {
                told_at = Instant::now();
                let waited_s = since.elapsed().as_secs();
                tracing::warn!(
                    "still waiting for the coordinator {address} after {waited_s} s: {why:#}"
                );
            }
        }
    }
}

/// Returns the error for a coordinator without a cluster.
pub(super) fn no_cluster(address: &CoordinatorAddress) -> anyhow::Error {
    anyhow::anyhow!(
        "the coordinator {address} has no cluster; create one with `farleaf cluster init --cluster \
         {address}`, or correct the address"
    )
}

/// Rejects `--init` for a coordinator of another process.
pub(super) fn check_init(is_init: bool, address: &CoordinatorAddress) -> Result<(), BadArgument> {
    match address {
        CoordinatorAddress::Served(_) if is_init => Err(BadArgument(format!(
            "--init and --coordinator {address} cannot be used together: --init creates a cluster \
             with a coordinator in this process, --coordinator joins the cluster of another process"
        ))),
        CoordinatorAddress::Etcd(_) if is_init => Err(BadArgument(format!(
            "--init creates a cluster with a coordinator in this process; \
             `farleaf cluster init --cluster {address}` creates one in etcd"
        ))),
        _ => Ok(()),
    }
}

/// Rejects a directory that has neither a server nor a coordinator. Only `--init` creates a
/// cluster, and not at an address that members of another cluster know as their coordinator's.
/// Creates nothing.
pub(super) fn refuse_empty(
    path: &Path,
    data: &Path,
    options: &ServerOptions,
    is_init: bool,
    explain: impl FnOnce(ServerError) -> anyhow::Error,
) -> anyhow::Result<()> {
    let has_coordinator = Embedded::is_in(path).with_context(|| unreadable(path))?;
    let has_server = PreparedServer::is_in(data).with_context(|| unreadable(data))?;
    if has_coordinator || has_server {
        return Ok(());
    }
    // No member can know a port that the system picks.
    if options.address.port() != 0 {
        let found = PreparedServer::detect_cluster(options, SOUND_OUT_TIME);
        if let Some(cluster) = found.map_err(explain)? {
            return Err(mistaken(data, options, cluster));
        }
    }
    if is_init { Ok(()) } else { Err(empty(data)) }
}

fn unreadable(path: &Path) -> String {
    format!(
        "cannot read directory '{}'; check that it is a directory that this user can read",
        path.display()
    )
}

fn mistaken(data: &Path, options: &ServerOptions, cluster: ClusterId) -> anyhow::Error {
    let (data, address) = (data.display(), options.address);
    anyhow::anyhow!(
        "'{data}' is empty, but servers or clients of {cluster} connect to {address}, where a \
         server of that cluster was running. If the coordinator of that cluster was in '{data}', \
         its records (tables, regions and their servers) are lost; the other servers keep all \
         their files, but serve nothing until the coordinator is back. Restore '{data}', and run \
         the same command again. A new cluster (--init) cannot take over their files, and needs \
         another address (--listen). Nothing was changed"
    )
}

fn empty(data: &Path) -> anyhow::Error {
    let data = data.display();
    anyhow::anyhow!(
        "'{data}' has no cluster, and neither --init nor --coordinator was given; use --init to \
         create a new cluster here, or --coordinator tcp:HOST:PORT to join an existing one. If the \
         coordinator of a cluster was in '{data}', its records (tables, regions and their servers) \
         are lost; the other servers keep all their files, but serve nothing until the coordinator \
         is back. Restore '{data}', and run the same command again. A new cluster cannot take over \
         their files. Nothing was changed"
    )
}

/// Coordinator of this process, and the cluster that was created in it, if it had none.
pub(super) struct Own {
    pub(super) coordinator: SharedCoordinator,
    pub(super) founded: Option<ClusterId>,
}

impl Own {
    /// Opens the coordinator. Creates a cluster only if `is_init` is set, and never for a server
    /// whose directory belongs to a cluster: its coordinator is elsewhere or lost.
    pub(super) fn open(
        address: &CoordinatorAddress,
        path: &Path,
        prepared: &PreparedServer,
        data: &Path,
        is_init: bool,
    ) -> anyhow::Result<Self> {
        let is_there = Embedded::is_in(path);
        let is_there = is_there.with_context(|| unreadable(path))?;
        if let Some(cluster) = prepared.cluster()
            && !is_there
        {
            return Err(lost(address, data, cluster));
        }
        let opened = open_embedded(path);
        let coordinator =
            opened.with_context(|| format!("cannot open the coordinator {address}"))?;
        let founded = match (admin::cluster(&coordinator), prepared.cluster()) {
            (Ok(found), Some(own)) if found.cluster != own && found.formerly != Some(own) => {
                return Err(foreign(path, data, own, found.cluster));
            }
            (Ok(_), _) => None,
            (Err(ClusterError::NoCluster), Some(cluster)) => {
                return Err(lost(address, data, cluster));
            }
            (Err(ClusterError::NoCluster), None) if !is_init => return Err(empty(data)),
            (Err(ClusterError::NoCluster), None) => {
                let founded = admin::create_cluster(&coordinator);
                let cluster =
                    founded.with_context(|| format!("cannot create a cluster in {address}"))?;
                tracing::info!("created {cluster} in {address}");
                Some(cluster)
            }
            (Err(error), _) => {
                let what = format!("cannot read the records of the coordinator {address}");
                return Err(anyhow::Error::new(error).context(what));
            }
        };
        let started = Started::begin(coordinator);
        let started = started.with_context(|| format!("cannot start the coordinator {address}"))?;
        Ok(Self {
            coordinator: SharedCoordinator::new(started, &address.to_string()),
            founded,
        })
    }
}

fn foreign(path: &Path, data: &Path, own: ClusterId, found: ClusterId) -> anyhow::Error {
    let (path, data) = (path.display(), data.display());
    anyhow::anyhow!(
        "'{path}' has the coordinator data of {found}, but '{data}' belongs to {own}; restore the \
         original '{path}' or its newest copy; nothing was changed"
    )
}

fn lost(address: &CoordinatorAddress, data: &Path, cluster: ClusterId) -> anyhow::Error {
    let data = data.display();
    anyhow::anyhow!(
        "'{data}' belongs to {cluster}, but {address} does not have the coordinator data of that \
         cluster. If another server runs the coordinator, set its address (--coordinator \
         tcp:HOST:PORT); if the data are lost, restore that directory from a copy. Until then, the \
         other servers keep all their files, but serve nothing. --init with another --data creates \
         a new cluster, which cannot take over their files. Nothing was changed"
    )
}

fn open_embedded(path: &Path) -> anyhow::Result<Embedded> {
    if let Some(parent) = path.parent() {
        private::create_directory_all(parent).with_context(|| {
            let parent = parent.display();
            format!("cannot create directory '{parent}' for the coordinator's data")
        })?;
    }
    let opened = Embedded::open_directory(path, Arc::new(SystemClock))?;
    // The directory now belongs to this process.
    Embedded::tighten(path);
    Ok(opened)
}
