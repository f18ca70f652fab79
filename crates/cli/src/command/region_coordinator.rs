//! How a region server comes to its coordinator: it has one itself, in which it creates a cluster
//! where `--init` says so; or another process has it, which is waited for.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context;
use farleaf::persistent::{ClientOptions, OpenError, SharedCoordinator, open_coordinator};
use farleaf_cluster::clock::SystemClock;
use farleaf_cluster::coordinator::{CoordinatorAddress, CoordinatorError, Embedded, Started};
use farleaf_cluster::ids::ClusterId;
use farleaf_cluster::{ClusterError, admin};
use farleaf_lsm::storage::private;
use farleaf_server::{PreparedServer, ServerError, ServerOptions};

use super::cluster_way::not_opened;
use crate::failure::BadArgument;

/// The option that says where it is.
pub(super) const OPTION: &str = "--coordinator";

/// Rests between tries, each twice as long as the one before.
const REST: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// How long a server with an empty directory listens, before it starts, for members of an earlier
/// cluster that still connect to its address.
const SOUND_OUT_TIME: Duration = Duration::from_secs(1);

/// Before a refusal is believed.
const DOUBT: Duration = Duration::from_secs(1);

/// How often it is said that the coordinator is waited for still.
const REMINDER_INTERVAL: Duration = Duration::from_secs(10);

/// A coordinator that another process has.
pub(super) struct Elsewhere {
    pub(super) address: CoordinatorAddress,
    pub(super) options: ClientOptions,
}

/// What came of asking for it.
pub(super) enum Asked {
    There(SharedCoordinator),
    /// It is not reached, and may be later: why.
    NotYet(anyhow::Error),
}

impl Elsewhere {
    /// Connects, and looks whether it has a cluster. What will not be otherwise later is an error:
    /// a wrong secret, another version, no cluster.
    pub(super) fn ask(&self) -> anyhow::Result<Asked> {
        let coordinator = match open_coordinator(&self.address, &self.options) {
            Ok(coordinator) => coordinator,
            Err(error @ OpenError::Unreachable { .. }) => return Ok(Asked::NotYet(error.into())),
            Err(error) => return Err(not_opened(OPTION, error)),
        };
        match admin::cluster_id(&coordinator) {
            Ok(_) => Ok(Asked::There(coordinator)),
            Err(ClusterError::Coordinator(error @ CoordinatorError::Unavailable { .. })) => {
                Ok(Asked::NotYet(error.into()))
            }
            Err(ClusterError::NoCluster) => Err(no_cluster(&self.address)),
            Err(error) => Err(anyhow::Error::new(error).context(self.address.to_string())),
        }
    }

    /// The same, but a refusal counts only when it comes twice: one that has just begun to listen
    /// may not have left its secret yet, and what lies there is of the process before.
    pub(super) fn ask_twice(&self) -> anyhow::Result<Asked> {
        self.ask().or_else(|_| {
            std::thread::sleep(DOUBT);
            self.ask()
        })
    }

    /// Waits until it is there; for so long at the most, if that is said. None: the program is to
    /// end.
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
        tracing::warn!("waiting for the coordinator {address} (Ctrl-C ends that): {why:#}");
        loop {
            let left = patience.map_or(rest, |it| it.saturating_sub(since.elapsed()));
            if left.is_zero() {
                let waited = format!("waited for {} s", since.elapsed().as_secs());
                return Err(why.context(waited));
            }
            match stopped.recv_timeout(rest.min(left)) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
            rest = (rest * 2).min(REST.1);
            match self.ask() {
                Ok(Asked::There(coordinator)) => {
                    let waited_s = since.elapsed().as_secs();
                    tracing::info!("the coordinator {address} is there, after {waited_s} s");
                    return Ok(Some(coordinator));
                }
                Ok(Asked::NotYet(error)) => {
                    why = error;
                    is_doubted = false;
                }
                // One that has just begun to listen may have left its secret not yet.
                Err(_) if !is_doubted => is_doubted = true,
                Err(error) => return Err(error),
            }
            if told_at.elapsed() >= REMINDER_INTERVAL {
                told_at = Instant::now();
                let waited_s = since.elapsed().as_secs();
                tracing::warn!(
                    "waiting for the coordinator {address}, for {waited_s} s now: {why:#}"
                );
            }
        }
    }
}

/// What it means that a coordinator knows no cluster.
pub(super) fn no_cluster(address: &CoordinatorAddress) -> anyhow::Error {
    anyhow::anyhow!(
        "the coordinator {address} knows no cluster: `farleaf cluster init --cluster {address}` \
         creates one, or give the right address"
    )
}

/// Refuses `--init` for a coordinator of another process.
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

/// Refuses to serve a directory that has neither a server nor a coordinator: a cluster is never
/// created without `--init` (ID1), nor at an address that members of another one know as their
/// coordinator's. Nothing is made.
pub(super) fn refuse_empty(
    (path, data): (&Path, &Path),
    (options, is_init): (&ServerOptions, bool),
    told: impl FnOnce(ServerError) -> anyhow::Error,
) -> anyhow::Result<()> {
    let failed = |path: &Path| format!("cannot look into {}", path.display());
    let has_coordinator = Embedded::is_in(path).with_context(|| failed(path))?;
    let has_server = PreparedServer::is_in(data).with_context(|| failed(data))?;
    if has_coordinator || has_server {
        return Ok(());
    }
    // Nobody knows a port that is free.
    if options.address.port() != 0 {
        let found = PreparedServer::sound_out(options, SOUND_OUT_TIME);
        if let Some(cluster) = found.map_err(told)? {
            return Err(mistaken(data, options, cluster));
        }
    }
    if is_init { Ok(()) } else { Err(empty(data)) }
}

fn mistaken(data: &Path, options: &ServerOptions, cluster: ClusterId) -> anyhow::Error {
    let (data, address) = (data.display(), options.address);
    anyhow::anyhow!(
        "{data} is empty, and servers or clients of {cluster} come to {address}, as a server of \
         that cluster was there. If its coordinator was in {data}, then its records are lost (which \
         tables and regions there are, and which servers have them); the other servers keep all \
         their files, and serve nothing until the coordinator is back: put {data} back from where \
         it is, or from a copy, and run the same command again. A new cluster (--init) cannot take \
         over their files, and needs another address (--listen). Nothing was changed"
    )
}

fn empty(data: &Path) -> anyhow::Error {
    let data = data.display();
    anyhow::anyhow!(
        "{data} has no cluster, and neither --init nor --coordinator was given: --init creates a \
         new cluster here, --coordinator tcp:HOST:PORT joins the one whose coordinator listens \
         there. If a cluster's coordinator was in {data}, then its records are lost (which tables \
         and regions there are, and which servers have them); the other servers keep all their \
         files, and serve nothing until the coordinator is back: put {data} back from where it is, \
         or from a copy, and run the same command again. A new cluster cannot take over their \
         files. Nothing was changed"
    )
}

/// A coordinator of this process, and the cluster that was created in it, if it had none.
pub(super) struct Own {
    pub(super) coordinator: SharedCoordinator,
    pub(super) founded: Option<ClusterId>,
}

impl Own {
    /// Opens it. A cluster is created only where `is_init` says so, and never for a server whose
    /// directory belongs to a cluster: the coordinator of that one is somewhere else, or lost.
    pub(super) fn open(
        (address, path): (&CoordinatorAddress, &Path),
        (prepared, data): (&PreparedServer, &Path),
        is_init: bool,
    ) -> anyhow::Result<Self> {
        let is_there = Embedded::is_in(path);
        let is_there = is_there.with_context(|| format!("cannot look into {}", path.display()))?;
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
                return Err(foreign(path, (data, own), found.cluster));
            }
            (Ok(_), _) => None,
            (Err(ClusterError::NoCluster), Some(cluster)) => {
                return Err(lost(address, data, cluster));
            }
            (Err(ClusterError::NoCluster), None) if !is_init => return Err(empty(data)),
            (Err(ClusterError::NoCluster), None) => {
                let founded = admin::found(&coordinator);
                let cluster = founded.with_context(|| address.to_string())?;
                tracing::info!("created {cluster} in {address}");
                Some(cluster)
            }
            (Err(error), _) => return Err(anyhow::Error::new(error).context(address.to_string())),
        };
        let started = Started::begin(coordinator).with_context(|| address.to_string())?;
        Ok(Self {
            coordinator: SharedCoordinator::new(started, &address.to_string()),
            founded,
        })
    }
}

fn foreign(path: &Path, (data, own): (&Path, ClusterId), found: ClusterId) -> anyhow::Error {
    let (path, data) = (path.display(), data.display());
    anyhow::anyhow!(
        "{path} holds the data of the coordinator of {found}, and {data} belongs to {own}: put \
         back the directory that {path} was before, or its newest copy; nothing was changed"
    )
}

fn lost(address: &CoordinatorAddress, data: &Path, cluster: ClusterId) -> anyhow::Error {
    let data = data.display();
    anyhow::anyhow!(
        "{data} belongs to {cluster}, and the data of that one's coordinator are not in {address}: \
         if another server has the coordinator, say where it listens (--coordinator \
         tcp:HOST:PORT); if they are lost, restore that directory from a copy; the other servers \
         keep all their files meanwhile, and serve nothing; --init with another --data creates a \
         new cluster, which cannot take over their files; nothing was changed"
    )
}

fn open_embedded(path: &Path) -> anyhow::Result<Embedded> {
    if let Some(parent) = path.parent() {
        private::create_directory_all(parent)
            .with_context(|| format!("cannot make {}", parent.display()))?;
    }
    let opened = Embedded::open_directory(path, Arc::new(SystemClock))?;
    // It is this process's now.
    Embedded::tighten(path);
    Ok(opened)
}
