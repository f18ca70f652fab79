//! The agent of a region server: renews the server's lease, makes the host do what the records say,
//! and reports the result.
//!
//! | module | contents |
//! |---|---|
//! | [`host`] | [`RegionHost`]: the interface of the region server, and its promises |
//! | `reconcile` | turns records into calls of the host |
//! | `discard` | deletes copies that are no longer needed |
//! | `assigned` | region numbers that were assigned |
//! | `reporting` | turns the host's status into a report |

mod assigned;
mod discard;
pub mod host;
mod reconcile;
mod reporting;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use self::assigned::AssignedNumbers;
use self::host::{DiskCopies, RegionHost};
use self::reconcile::OrderedReplica;
pub use self::reporting::ORPHAN_COUNT_MAX;
use crate::admin;
use crate::coordinator::{Bound, Coordinator, CoordinatorError, Revision, SeenStart};
use crate::error::ClusterError;
use crate::ids::{ClusterId, Life, RegionId, ReplicaNumber, ServerId};
use crate::lease::{LeaseGuard, LeaseTerms};
use crate::leased_key::{LeasedKey, LeasedKeyChange};
use crate::omission::Omission;
use crate::record::server::{FAILURE_SIZE_BYTES_MAX, cut};
use crate::record::{
    FORMAT_VERSION, REGION_PREFIX, Record, SERVER_PREFIX, ServerRecord, ServerReport, server_key,
};
use crate::starts;
use crate::view::{Mirror, View};
use farleaf_base::clock::Clock;

/// Number of unusable copies that are reported: a report has to fit into a request.
const UNUSABLE_COUNT_MAX: usize = 256;

/// Interval after which a deleted refusal is recorded again.
const REFUSAL_INTERVAL: Duration = Duration::from_secs(2);

/// Configuration of a server's agent.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Cluster of the server's directory.
    pub cluster: ClusterId,
    /// Number of the server.
    pub server: ServerId,
    /// Address for clients and other servers.
    pub address: String,
    /// Parameters of leases, the same for the whole cluster. A lease is at most a day.
    pub terms: LeaseTerms,
    /// Interval of reports of sizes and rates, when nothing else is reported.
    pub load_interval: Duration,
    /// A check that a test leaves out.
    #[doc(hidden)]
    pub omission: Omission,
}

impl AgentOptions {
    /// Creates options of a server with default values.
    pub fn new(cluster: ClusterId, server: ServerId, address: &str) -> Self {
        Self {
            cluster,
            server,
            address: address.to_owned(),
            terms: LeaseTerms::default(),
            load_interval: Duration::from_secs(10),
            omission: Omission::NONE,
        }
    }
}

/// The part of a region server that executes the master's decisions.
#[derive(Debug)]
pub struct Agent<C: Debug, H> {
    coordinator: Bound<C>,
    clock: Arc<dyn Clock>,
    options: AgentOptions,
    host: H,
    leased_key: LeasedKey,
    life: Option<Life>,
    /// The other registration of this server's number for which a wait was logged.
    logged_holder: Option<Life>,
    /// Whether this server's refusal is recorded at the coordinator; `None` if unknown.
    is_refusal_recorded: Option<bool>,
    /// Earliest time of the next check of the recorded refusal.
    refusal_due_at: Duration,
    /// Whether it is on the server's disk that the last seen start was cut, if it was.
    is_cut_recorded: bool,
    /// Number of accepted losses with or after which this life began.
    accepted_loss_count: u64,
    mirror: Mirror<Bound<C>>,
    /// Servers that are alive: the primary's agent reports lost backups (CONTROL-14).
    servers: Mirror<Bound<C>>,
    ordered: BTreeMap<RegionId, OrderedReplica>,
    disk_copies: DiskCopies,
    /// Copies that nothing can continue with. Those of replicas that broke in this life are
    /// reported with the reason. Others are older copies of regions that have another replica here
    /// by now.
    abandoned: BTreeMap<(RegionId, ReplicaNumber), Option<String>>,
    /// Region numbers that the coordinator has assigned, and the regions' revision at which they
    /// were read (CONTROL-23).
    assigned_at: Option<(Revision, AssignedNumbers)>,
    /// Time before which no copy is deleted.
    discards_from: Duration,
    reported: Option<ServerReport>,
    reported_at: Duration,
}

impl<C: Coordinator + Clone + Debug, H: RegionHost> Agent<C, H> {
    /// Creates the agent of a server whose host has nothing open. The coordinator's handle must be
    /// one of the same cluster.
    pub fn new(
        coordinator: Bound<C>,
        clock: Arc<dyn Clock>,
        options: AgentOptions,
        host: H,
    ) -> Self {
        let record = ServerRecord {
            version: FORMAT_VERSION,
            server: options.server,
            address: options.address.clone(),
            lease_ms: u64::try_from(options.terms.time_to_live.as_millis()).ok(),
        };
        let key = server_key(options.server);
        let leased_key = LeasedKey::new(key, record.encode(), options.terms, clock.clone());
        Self {
            mirror: Mirror::new(coordinator.clone(), REGION_PREFIX),
            servers: Mirror::new(coordinator.clone(), SERVER_PREFIX),
            coordinator,
            leased_key: leased_key.leaving_out(options.omission),
            clock,
            options,
            host,
            life: None,
            logged_holder: None,
            is_refusal_recorded: None,
            refusal_due_at: Duration::ZERO,
            is_cut_recorded: true,
            accepted_loss_count: 0,
            ordered: BTreeMap::new(),
            disk_copies: DiskCopies::default(),
            abandoned: BTreeMap::new(),
            assigned_at: None,
            discards_from: Duration::ZERO,
            reported: None,
            reported_at: Duration::ZERO,
        }
    }

    /// Returns the host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Returns the current life, as far as is known.
    pub fn life(&self) -> Option<Life> {
        self.life
    }

    /// Returns the guard of this life.
    pub fn guard(&self) -> Option<&LeaseGuard> {
        self.leased_key.guard()
    }

    /// Returns whether the coordinator answered the last lease request.
    pub fn is_coordinator_reachable(&self) -> bool {
        self.leased_key.is_coordinator_reachable()
    }

    /// Returns the newest state seen of the coordinator; the server keeps it on its disk.
    pub fn seen(&self) -> Option<SeenStart> {
        self.coordinator.seen()
    }

    /// Notes which [`seen`](Self::seen) state is on the server's disk. To be called before each
    /// tick. A refusal is recorded only after its reason is on the disk. A restarted server could
    /// not find the reason again, because the record itself raises the coordinator's revision.
    pub fn note_recorded_start(&mut self, recorded: Option<SeenStart>) {
        self.is_cut_recorded = recorded.is_some_and(|recorded| recorded.is_cut);
    }

    /// Returns the regions as last seen.
    pub fn view(&self) -> &View {
        self.mirror.view()
    }

    /// Does what is due, and waits for a change of the records at most for `timeout`. Call it
    /// repeatedly, several times in a [`keep_alive_interval`](LeaseTerms::keep_alive_interval).
    /// Costs no round trip if nothing is due and everything on this server has a record
    /// (CONTROL-23).
    ///
    /// # Errors
    /// - The errors of the coordinator: a later call retries, and open replicas continue as long as
    ///   the lease is usable.
    /// - [`CoordinatorError::OtherCluster`]: likewise; nothing is closed or removed because of that
    ///   coordinator's records.
    /// - [`ClusterError::NotAdopted`], [`AdoptedAs`](ClusterError::AdoptedAs),
    ///   [`LeaseTooLong`](ClusterError::LeaseTooLong): nothing was begun.
    /// - [`NumberTaken`](ClusterError::NumberTaken): another running server has the same number. A
    ///   restarted server waits until its former life is over, at most a lease.
    pub fn tick(&mut self, timeout: Duration) -> Result<(), ClusterError> {
        let ticked = self
            .restart_life_if_loss_accepted()
            .and_then(|()| self.do_due(timeout));
        self.record_refusal(ticked.as_ref().err());
        ticked
    }

    /// Closes everything and registers anew after an operator accepted a loss, as after a restart:
    /// nothing derived from the newer records holds any more.
    fn restart_life_if_loss_accepted(&mut self) -> Result<(), ClusterError> {
        let count = self.coordinator.accepted_loss_count();
        if count == self.accepted_loss_count {
            return Ok(());
        }
        self.accepted_loss_count = count;
        tracing::warn!(
            "{} closes its replicas and registers again, because the loss of newer records was \
             accepted",
            self.options.server
        );
        self.servers = Mirror::new(self.coordinator.clone(), SERVER_PREFIX);
        self.end_life();
        Ok(self.leased_key.resign(&self.coordinator)?)
    }

    /// Records at the coordinator that this server refuses its records, and again if that record
    /// was deleted; deletes it when the server no longer refuses them.
    fn record_refusal(&mut self, error: Option<&ClusterError>) {
        let refused = match error {
            None if self.life.is_some() => None,
            Some(ClusterError::Coordinator(how @ CoordinatorError::RolledBack { .. })) => Some(how),
            _ => return,
        };
        let is_refused = refused.is_some();
        let is_done = !is_refused && self.is_refusal_recorded == Some(false);
        let now = self.clock.now();
        if is_done || now < self.refusal_due_at || !self.is_reason_recorded() {
            return;
        }
        self.refusal_due_at = now + REFUSAL_INTERVAL;
        // The refused records would fail the check, so this access goes without it.
        let inner = self.coordinator.inner();
        match starts::note_refusal(inner, self.options.server, refused) {
            Ok(()) => self.is_refusal_recorded = Some(is_refused),
            Err(error) => {
                tracing::debug!(%error, "cannot record that this server refuses the records");
            }
        }
    }

    fn is_reason_recorded(&self) -> bool {
        self.is_cut_recorded || !self.seen().is_some_and(|seen| seen.is_cut)
    }

    fn do_due(&mut self, timeout: Duration) -> Result<(), ClusterError> {
        self.check_cluster()?;
        let change = self.leased_key.tick(&self.coordinator);
        match &change {
            Ok(LeasedKeyChange::Won(guard)) => self.begin_life(guard.clone()),
            Ok(LeasedKeyChange::Lost) => {
                tracing::warn!("{} has lost its lease", self.options.server);
                self.end_life();
            }
            Ok(LeasedKeyChange::Unchanged) | Err(_) => {}
        }
        let Some(life) = self.life else {
            change?;
            return self.check_other_holder();
        };
        let refreshed = self.mirror.refresh(timeout);
        let refreshed = refreshed.and(self.servers.refresh(Duration::ZERO));
        if self.mirror.view().revision >= life.0 {
            self.reconcile(life);
        }
        let reported = self.report(life);
        change?;
        refreshed?;
        Ok(reported?)
    }

    /// Checks that the cluster has a 128-bit identifier. [`Bound`] compares the identifier itself
    /// on every contact.
    fn check_cluster(&self) -> Result<(), ClusterError> {
        self.options.terms.check()?;
        let own = self.options.cluster;
        if !own.is_legacy() {
            return Ok(());
        }
        let current = admin::cluster(&self.coordinator)?;
        Err(if current.formerly == Some(own) {
            ClusterError::AdoptedAs {
                formerly: own,
                cluster: current.cluster,
            }
        } else {
            ClusterError::NotAdopted(own)
        })
    }

    /// Adopts the new identifier of the cluster, when the server's directory has it. To be called
    /// after [`ClusterError::AdoptedAs`].
    ///
    /// # Panics
    /// If the cluster already had a 128-bit identifier.
    pub fn adopt(&mut self, cluster: ClusterId) {
        assert!(self.options.cluster.is_legacy(), "it has an identifier");
        self.options.cluster = cluster;
    }

    /// Logs once which registration is waited for; returns an error if it certainly is another
    /// server's.
    fn check_other_holder(&mut self) -> Result<(), ClusterError> {
        let Some(other_holder) = self.leased_key.other_holder() else {
            return Ok(());
        };
        let server = self.options.server;
        let record = ServerRecord::decode(&server_key(server), &other_holder.value);
        let own_lease = self.options.terms.time_to_live;
        let (address, lease) = match record {
            Ok(record) => {
                let lease = record.lease_ms.map(Duration::from_millis);
                (record.address, lease.unwrap_or(own_lease))
            }
            Err(error) => (format!("an unreadable address ({error})"), own_lease),
        };
        // The registration may be of this server's former life, with a longer lease than the
        // current one.
        if self.leased_key.other_holder_is_alive(lease) {
            return Err(ClusterError::NumberTaken {
                server,
                address,
                waited_s: other_holder.waited.as_secs(),
            });
        }
        let life = Life(other_holder.since);
        if self.logged_holder != Some(life) {
            tracing::warn!(
                "{server} is waiting: a server with this number is registered at {address}, in \
                 {life}; if that is an earlier run of this server, its lease ends within {} s; if \
                 it is another server, stop one of the two",
                lease.as_secs_f32()
            );
            self.logged_holder = Some(life);
        }
        Ok(())
    }

    fn begin_life(&mut self, guard: LeaseGuard) {
        self.life = self.leased_key.held_since().map(Life);
        if let Some(life) = self.life {
            tracing::info!("{} begins {life}", self.options.server);
        }
        self.logged_holder = None;
        self.host.begin_life(guard);
        self.disk_copies = self.host.copies();
        let unusable_count = self.disk_copies.unusable.len();
        if unusable_count > UNUSABLE_COUNT_MAX {
            tracing::error!(
                "{unusable_count} copies cannot be used; only {UNUSABLE_COUNT_MAX} are reported"
            );
            self.disk_copies.unusable.truncate(UNUSABLE_COUNT_MAX);
        }
        for unusable in &mut self.disk_copies.unusable {
            let how = std::mem::take(&mut unusable.how);
            unusable.how = cut(how, FAILURE_SIZE_BYTES_MAX);
        }
        // Copies are deleted by current records only, not by what was read earlier.
        self.mirror = Mirror::new(self.coordinator.clone(), REGION_PREFIX);
        self.assigned_at = None;
        self.reported = None;
    }

    fn end_life(&mut self) {
        self.host.end_life();
        self.life = None;
        self.ordered.clear();
        self.disk_copies = DiskCopies::default();
        // The next life finds these copies on the disk.
        self.abandoned.clear();
    }

    /// Leaves the cluster: closes everything and ends the lease, so that others need not wait for
    /// its end. Costs one round trip.
    ///
    /// # Errors
    /// The errors of the coordinator: the lease then ends by itself.
    pub fn leave(&mut self) -> Result<(), CoordinatorError> {
        self.end_life();
        self.leased_key.resign(&self.coordinator)
    }
}
