//! What a region server runs: it keeps the server's lease, has the host do what the records say,
//! and reports what came of it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`host`] | [`RegionHost`]: what the region server does, and promises |
//! | `reconcile` | from records to calls of the host |
//! | `given` | which regions there ever were |
//! | `reporting` | from the host's status to a report |

mod discard;
mod given;
pub mod host;
mod reconcile;
mod reporting;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use self::given::Given;
use self::host::{DiskCopies, RegionHost};
use self::reconcile::Held;
pub use self::reporting::ORPHAN_COUNT_MAX;
use crate::admin;
use crate::clock::Clock;
use crate::coordinator::{Bound, Coordinator, CoordinatorError, Revision, SeenStart};
use crate::error::ClusterError;
use crate::ids::{ClusterId, Life, RegionId, ReplicaNumber, ServerId};
use crate::lease::{LeaseGuard, LeaseTerms};
use crate::omission::Omission;
use crate::record::server::{FAILURE_SIZE_BYTES_MAX, cut};
use crate::record::{
    FORMAT_VERSION, REGION_PREFIX, Record, SERVER_PREFIX, ServerRecord, ServerReport, server_key,
};
use crate::starts;
use crate::tenure::{Tenure, TenureChange};
use crate::view::{Mirror, View};

/// So many copies that cannot be used are reported: a report has to fit into a request.
const UNUSABLE_COUNT_MAX: usize = 256;

/// How often it is recorded again that the coordinator's records are refused, if that was deleted.
const REFUSAL_INTERVAL: Duration = Duration::from_secs(2);

/// What a server says of itself.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// To which cluster its directory belongs.
    pub cluster: ClusterId,
    /// Which server it is.
    pub server: ServerId,
    /// Where clients and other servers reach it.
    pub address: String,
    /// What is agreed on about leases: the same for all of a cluster. A lease is a day at the most.
    pub terms: LeaseTerms,
    /// How often sizes and rates are reported, when nothing else is.
    pub load_interval: Duration,
    /// A check that is left out, in tests of the tests.
    #[doc(hidden)]
    pub omission: Omission,
}

impl AgentOptions {
    /// Those of a server, with everything else as it is by default.
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

/// A region server's side of the control plane.
#[derive(Debug)]
pub struct Agent<C: Debug, H> {
    coordinator: Bound<C>,
    clock: Arc<dyn Clock>,
    options: AgentOptions,
    host: H,
    tenure: Tenure,
    life: Option<Life>,
    /// Whose registration was told to be waited for.
    told_rival: Option<Life>,
    /// Whether the coordinator was told that its records are refused (ID5); none: not known.
    is_refusal_told: Option<bool>,
    /// When that is looked at again at the earliest.
    refusal_due_at: Duration,
    /// A restarted server would still know that its start was cut (ID5), if it was.
    is_cut_kept: bool,
    /// How many accepted losses this life began with or after (ID5).
    accepted_loss_count: u64,
    mirror: Mirror<Bound<C>>,
    /// Which servers are alive: of backups that are lost it is the primary that says so (CP14).
    servers: Mirror<Bound<C>>,
    held: BTreeMap<RegionId, Held>,
    found: DiskCopies,
    /// Copies that nobody can go on with: of replicas that broke in this life, which is told with
    /// why; and of earlier ones, of regions that have another replica here by now.
    left: BTreeMap<(RegionId, ReplicaNumber), Option<String>>,
    /// CP23: what the coordinator has said of numbers of regions, and at which of their revisions.
    given_at: Option<(Revision, Given)>,
    /// No copy is given up before.
    discards_from: Duration,
    reported: Option<ServerReport>,
    reported_at: Duration,
}

impl<C: Coordinator + Clone + Debug, H: RegionHost> Agent<C, H> {
    /// One of a server whose host has nothing open. The coordinator's handle is one of the same
    /// cluster.
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
        let tenure = Tenure::new(key, record.encode(), options.terms, clock.clone());
        Self {
            mirror: Mirror::new(coordinator.clone(), REGION_PREFIX),
            servers: Mirror::new(coordinator.clone(), SERVER_PREFIX),
            coordinator,
            tenure: tenure.leaving_out(options.omission),
            clock,
            options,
            host,
            life: None,
            told_rival: None,
            is_refusal_told: None,
            refusal_due_at: Duration::ZERO,
            is_cut_kept: true,
            accepted_loss_count: 0,
            held: BTreeMap::new(),
            found: DiskCopies::default(),
            left: BTreeMap::new(),
            given_at: None,
            discards_from: Duration::ZERO,
            reported: None,
            reported_at: Duration::ZERO,
        }
    }

    /// The host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The host.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// The life that goes on, as far as is known.
    pub fn life(&self) -> Option<Life> {
        self.life
    }

    /// The guard of this life.
    pub fn guard(&self) -> Option<&LeaseGuard> {
        self.tenure.guard()
    }

    /// Whether the coordinator has answered when the lease was asked for last.
    pub fn is_in_touch(&self) -> bool {
        self.tenure.is_in_touch()
    }

    /// What was seen of the coordinator last (ID5): the server keeps it on its disk.
    pub fn seen(&self) -> Option<SeenStart> {
        self.coordinator.seen()
    }

    /// Says what of [`seen`](Self::seen) is on the server's disk, before each tick. A refusal is
    /// recorded no sooner than its reason is kept: a restarted server could not find the reason
    /// again, because the record itself makes the coordinator's revision rise.
    pub fn note_kept(&mut self, kept: Option<SeenStart>) {
        self.is_cut_kept = kept.is_some_and(|kept| kept.is_cut);
    }

    /// The regions as they were seen last.
    pub fn view(&self) -> &View {
        self.mirror.view()
    }

    /// Does what is due, and waits for a change of the records, for so long at the most. To be
    /// called again and again, several times in a
    /// [`keep_alive_interval`](LeaseTerms::keep_alive_interval). No round trip if nothing is due,
    /// and all that is here has a record (CP23).
    ///
    /// # Errors
    /// Those of the coordinator: what could not be done is done by a later call, and what is open
    /// goes on for as long as the lease is usable. [`CoordinatorError::OtherCluster`]:
    /// so, too, and nothing is closed or removed because of what that one says.
    /// [`ClusterError::NotAdopted`], [`AdoptedAs`](ClusterError::AdoptedAs),
    /// [`LeaseTooLong`](ClusterError::LeaseTooLong): nothing was begun.
    /// [`NumberTaken`](ClusterError::NumberTaken): another server has this one's number, and goes
    /// on; a server that was started again waits until its former life is over, at most a lease.
    pub fn tick(&mut self, timeout: Duration) -> Result<(), ClusterError> {
        let ticked = self
            .begin_anew_if_lost()
            .and_then(|()| self.do_due(timeout));
        self.tell_refusal(ticked.as_ref().err());
        ticked
    }

    /// ID5: after an operator accepted a loss, nothing that was found out by the newer records
    /// holds. So the server closes all and registers anew, as after a restart.
    fn begin_anew_if_lost(&mut self) -> Result<(), ClusterError> {
        let count = self.coordinator.accepted_loss_count();
        if count == self.accepted_loss_count {
            return Ok(());
        }
        self.accepted_loss_count = count;
        tracing::warn!(
            "{} closes its replicas and registers anew, because the loss of newer records was \
             accepted",
            self.options.server
        );
        self.servers = Mirror::new(self.coordinator.clone(), SERVER_PREFIX);
        self.end_life();
        Ok(self.tenure.resign(&self.coordinator)?)
    }

    /// ID5: records at the coordinator that this server refuses its records, and again if that was
    /// deleted meanwhile; and deletes that when it does not refuse them any more.
    fn tell_refusal(&mut self, error: Option<&ClusterError>) {
        let refused = match error {
            None if self.life.is_some() => None,
            Some(ClusterError::Coordinator(how @ CoordinatorError::RolledBack { .. })) => Some(how),
            _ => return,
        };
        let is_refused = refused.is_some();
        let is_done = !is_refused && self.is_refusal_told == Some(false);
        let now = self.clock.now();
        if is_done || now < self.refusal_due_at || !self.is_reason_kept() {
            return;
        }
        self.refusal_due_at = now + REFUSAL_INTERVAL;
        // These records are not trusted: so without the check.
        let inner = self.coordinator.inner();
        match starts::note_refusal(inner, self.options.server, refused) {
            Ok(()) => self.is_refusal_told = Some(is_refused),
            Err(error) => {
                tracing::debug!(%error, "cannot record that this server refuses the coordinator");
            }
        }
    }

    fn is_reason_kept(&self) -> bool {
        self.is_cut_kept || !self.seen().is_some_and(|seen| seen.is_cut)
    }

    fn do_due(&mut self, timeout: Duration) -> Result<(), ClusterError> {
        self.check_cluster()?;
        let change = self.tenure.tick(&self.coordinator);
        match &change {
            Ok(TenureChange::Won(guard)) => self.begin_life(guard.clone()),
            Ok(TenureChange::Lost) => {
                tracing::warn!("{} has lost its lease", self.options.server);
                self.end_life();
            }
            Ok(TenureChange::Unchanged) | Err(_) => {}
        }
        let Some(life) = self.life else {
            change?;
            return self.look_at_rival();
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

    /// Checks that the cluster has a 128-bit identifier (ID1). That the coordinator has this
    /// cluster is checked on every contact ([`Bound`]).
    fn check_cluster(&self) -> Result<(), ClusterError> {
        self.options.terms.check()?;
        let own = self.options.cluster;
        if !own.is_legacy() {
            return Ok(());
        }
        let found = admin::cluster(&self.coordinator)?;
        Err(if found.formerly == Some(own) {
            ClusterError::AdoptedAs {
                formerly: own,
                cluster: found.cluster,
            }
        } else {
            ClusterError::NotAdopted(own)
        })
    }

    /// Goes on as a server of the identifier that its cluster was given (ID1), when the server's
    /// directory says so. To be called after [`ClusterError::AdoptedAs`].
    ///
    /// # Panics
    /// The cluster had a 128-bit identifier before.
    pub fn adopt(&mut self, cluster: ClusterId) {
        assert!(self.options.cluster.is_legacy(), "it has an identifier");
        self.options.cluster = cluster;
    }

    /// Says whose registration is waited for, once; an error if it surely is another server's.
    fn look_at_rival(&mut self) -> Result<(), ClusterError> {
        let Some(rival) = self.tenure.rival() else {
            return Ok(());
        };
        let server = self.options.server;
        let record = ServerRecord::decode(&server_key(server), &rival.value);
        let own_lease = self.options.terms.time_to_live;
        let (address, lease) = match record {
            Ok(record) => {
                let lease = record.lease_ms.map(Duration::from_millis);
                (record.address, lease.unwrap_or(own_lease))
            }
            Err(error) => (
                format!("an address that cannot be read ({error})"),
                own_lease,
            ),
        };
        // It may be one's own of before, and longer than one's leases are now.
        if self.tenure.rival_is_alive(lease) {
            return Err(ClusterError::NumberTaken {
                server,
                address,
                waited_s: rival.waited.as_secs(),
            });
        }
        let life = Life(rival.since);
        if self.told_rival != Some(life) {
            tracing::warn!(
                "{server} waits: one of this number has registered at {address}, in {life}; if it \
                 was this one before it ended, its lease is over within {} s; if it is another \
                 one, stop one of the two",
                lease.as_secs_f32()
            );
            self.told_rival = Some(life);
        }
        Ok(())
    }

    fn begin_life(&mut self, guard: LeaseGuard) {
        self.life = self.tenure.held_since().map(Life);
        if let Some(life) = self.life {
            tracing::info!("{} begins {life}", self.options.server);
        }
        self.told_rival = None;
        self.host.begin_life(guard);
        self.found = self.host.copies();
        let unusable_count = self.found.unusable.len();
        if unusable_count > UNUSABLE_COUNT_MAX {
            tracing::error!("of {unusable_count} copies that cannot be used, not all are reported");
            self.found.unusable.truncate(UNUSABLE_COUNT_MAX);
        }
        for unusable in &mut self.found.unusable {
            let how = std::mem::take(&mut unusable.how);
            unusable.how = cut(how, FAILURE_SIZE_BYTES_MAX);
        }
        // Copies are given up by what the records say now, not by what they said once.
        self.mirror = Mirror::new(self.coordinator.clone(), REGION_PREFIX);
        self.given_at = None;
        self.reported = None;
    }

    fn end_life(&mut self) {
        self.host.end_life();
        self.life = None;
        self.held.clear();
        self.found = DiskCopies::default();
        // The next life finds them on the disk.
        self.left.clear();
    }

    /// Leaves: everything is closed, and others need not wait for the lease's end. One round trip.
    ///
    /// # Errors
    /// Those of the coordinator: the lease then ends by itself.
    pub fn leave(&mut self) -> Result<(), CoordinatorError> {
        self.end_life();
        self.tenure.resign(&self.coordinator)
    }
}
