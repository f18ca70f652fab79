//! The thread of a server's agent. It renews the lease, so it never waits for a disk.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_cluster::ClusterError;
use farleaf_cluster::agent::Agent;
use farleaf_cluster::coordinator::SharedCoordinator;
use farleaf_cluster::ids::{ClusterId, ServerId};
use farleaf_net::request::Membership;

use crate::directory::adopt;
use crate::error::ServerError;
use crate::host::Host;
use crate::outage_log::OutageLog;
use crate::seen_file::SeenNotes;
use crate::server::{TICK, set};
use crate::sync::lock;

/// Interval at which a server checks whether its cluster was adopted, and tries to adopt its
/// directory.
const ADOPTION_INTERVAL: Duration = Duration::from_secs(1);

/// State of the thread.
pub(crate) struct AgentThread {
    pub(crate) agent: Agent<SharedCoordinator, Host>,
    pub(crate) seen: SeenNotes,
    pub(crate) directory: PathBuf,
    pub(crate) server: ServerId,
    pub(crate) membership: Membership,
    pub(crate) outage_log: Arc<OutageLog>,
    /// Reason why the server will never serve anything.
    pub(crate) failure: Arc<Mutex<Option<ServerError>>>,
    pub(crate) has_joined: Arc<AtomicBool>,
}

impl AgentThread {
    /// Ticks until the server ends or cannot continue, then ends the lease.
    pub(crate) fn run(mut self, is_over: &AtomicBool) {
        // The last logged reason why the directory could not be adopted.
        let mut logged_error = None;
        while !is_over.load(Ordering::Acquire) {
            self.agent.note_recorded_start(self.seen.recorded());
            let ticked = self.agent.tick(TICK);
            self.seen.note(self.agent.seen());
            match ticked {
                Err(error @ ClusterError::NumberTaken { .. }) => {
                    let mut failure = lock(&self.failure);
                    *failure = Some(error.into());
                    break;
                }
                Err(ClusterError::AdoptedAs { cluster, .. }) => {
                    if let Err(error) = self.adopt(cluster) {
                        let error = error.to_string();
                        if logged_error.as_ref() != Some(&error) {
                            let server = self.server;
                            tracing::warn!("{server} cannot adopt {cluster}: {error}");
                            logged_error = Some(error);
                        }
                        rest(ADOPTION_INTERVAL, is_over);
                    }
                }
                ticked => self.note(&ticked, is_over),
            }
        }
        if let Err(error) = self.agent.leave() {
            tracing::warn!(%error, "cannot give up the lease; it will expire");
        }
        self.seen.note(self.agent.seen());
    }

    /// Assigns the directory, and everything open, to the cluster's new identifier.
    fn adopt(&mut self, cluster: ClusterId) -> Result<(), ServerError> {
        adopt(&self.directory, self.server, cluster)?;
        self.agent.host().adopt_cluster(cluster);
        self.agent.adopt(cluster);
        self.seen.adopt(cluster);
        set(&self.membership, cluster);
        Ok(())
    }

    /// Handles the result of a tick, and sleeps if there is nothing to wait for.
    fn note(&self, ticked: &Result<(), ClusterError>, is_over: &AtomicBool) {
        let is_coordinator_reachable = self.agent.is_coordinator_reachable();
        self.outage_log
            .note("agent", ticked.as_ref().copied(), is_coordinator_reachable);
        let is_alive = self.agent.life().is_some();
        if is_alive {
            self.has_joined.store(true, Ordering::Release);
        }
        if matches!(ticked, Err(ClusterError::NotAdopted(_))) {
            rest(ADOPTION_INTERVAL, is_over);
        } else if !is_alive || ticked.is_err() {
            // The agent waits only for a lease; and an error that was returned at once must not
            // cause a busy loop.
            thread::sleep(TICK);
        }
    }
}

/// Sleeps for a time, or until the server ends.
fn rest(time: Duration, is_over: &AtomicBool) {
    let since = Instant::now();
    while since.elapsed() < time && !is_over.load(Ordering::Acquire) {
        thread::sleep(TICK);
    }
}
