//! The thread of a server's agent: it keeps the lease, and so waits for no disk.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_cluster::ClusterError;
use farleaf_cluster::agent::Agent;
use farleaf_cluster::coordinator::SharedCoordinator;
use farleaf_cluster::ids::{ClusterId, ServerId};
use farleaf_wire::Membership;

use crate::contact::Contact;
use crate::directory::adopt;
use crate::error::ServerError;
use crate::host::Host;
use crate::seen_file::SeenNotes;
use crate::server::{TICK, set};

/// How often a server asks whether its cluster was adopted, and tries to adopt its directory.
const ADOPTION_INTERVAL: Duration = Duration::from_secs(1);

/// What the thread has.
pub(crate) struct AgentThread {
    pub(crate) agent: Agent<SharedCoordinator, Host>,
    pub(crate) seen: SeenNotes,
    pub(crate) directory: PathBuf,
    pub(crate) server: ServerId,
    pub(crate) membership: Membership,
    pub(crate) contact: Arc<Contact>,
    /// Why the server will never serve anything.
    pub(crate) failure: Arc<Mutex<Option<ServerError>>>,
    pub(crate) has_joined: Arc<AtomicBool>,
}

impl AgentThread {
    /// Ticks until the server ends, or cannot go on; and gives the lease back.
    pub(crate) fn run(mut self, is_over: &AtomicBool) {
        // Why the directory could not be adopted, which was logged.
        let mut told = None;
        while !is_over.load(Ordering::Acquire) {
            self.agent.note_kept(self.seen.kept());
            let ticked = self.agent.tick(TICK);
            self.seen.note(self.agent.seen());
            match ticked {
                Err(error @ ClusterError::NumberTaken { .. }) => {
                    let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                    *failure = Some(error.into());
                    break;
                }
                Err(ClusterError::AdoptedAs { cluster, .. }) => {
                    if let Err(error) = self.adopt(cluster) {
                        let error = error.to_string();
                        if told.as_ref() != Some(&error) {
                            let server = self.server;
                            tracing::warn!("{server} cannot adopt {cluster}: {error}");
                            told = Some(error);
                        }
                        rest(ADOPTION_INTERVAL, is_over);
                    }
                }
                ticked => self.note(&ticked, is_over),
            }
        }
        if let Err(error) = self.agent.leave() {
            tracing::warn!(%error, "the lease ends by itself");
        }
        self.seen.note(self.agent.seen());
    }

    /// Has the directory, and all that is open, belong to the identifier that the cluster was given
    /// (ID1).
    fn adopt(&mut self, cluster: ClusterId) -> Result<(), ServerError> {
        adopt(&self.directory, self.server, cluster)?;
        self.agent.host().adopt_cluster(cluster);
        self.agent.adopt(cluster);
        self.seen.adopt(cluster);
        set(&self.membership, cluster);
        Ok(())
    }

    /// Notes what came of a tick, and rests where nothing is to be waited for.
    fn note(&self, ticked: &Result<(), ClusterError>, is_over: &AtomicBool) {
        let is_in_touch = self.agent.is_in_touch();
        self.contact
            .note("agent", ticked.as_ref().copied(), is_in_touch);
        let is_alive = self.agent.life().is_some();
        if is_alive {
            self.has_joined.store(true, Ordering::Release);
        }
        if matches!(ticked, Err(ClusterError::NotAdopted(_))) {
            rest(ADOPTION_INTERVAL, is_over);
        } else if !is_alive || ticked.is_err() {
            // It waits for a lease, and for nothing else; and whatever it was that failed at once
            // is not asked without a rest.
            thread::sleep(TICK);
        }
    }
}

/// Sleeps for so long, or until the server ends.
fn rest(time: Duration, is_over: &AtomicBool) {
    let since = Instant::now();
    while since.elapsed() < time && !is_over.load(Ordering::Acquire) {
        thread::sleep(TICK);
    }
}
