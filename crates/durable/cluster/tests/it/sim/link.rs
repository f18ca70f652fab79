//! Connection from an actor to the coordinator, with delays, cuts, lost requests and replies, and
//! watches that lag behind.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farleaf_base::clock::ManualClock;
use farleaf_cluster::coordinator::{
    Coordinator, CoordinatorError, Embedded, Event, KeepAlive, LeaseId, Revision, Snapshot,
    Transaction, TransactionOutcome, Watch, Write,
};
use farleaf_cluster::record::{MASTER_KEY, MasterRecord, REGION_PREFIX, Record};

use farleaf_base::random::Random;

/// True time, and clocks that are faster or slower.
#[derive(Debug)]
pub(crate) struct Time {
    now_ns: u64,
    clocks: Vec<(ManualClock, u64)>,
}

impl Time {
    pub(crate) fn new() -> Self {
        Self {
            now_ns: 0,
            clocks: Vec::new(),
        }
    }

    /// Creates a clock with this rate, in per mille of true time's.
    pub(crate) fn clock(&mut self, rate_per_mille: u64) -> ManualClock {
        let clock = ManualClock::new();
        // Readings of different clocks are unrelated.
        clock.set(Duration::from_nanos(rate_per_mille * 1_000_000_007));
        self.clocks.push((clock.clone(), rate_per_mille));
        clock
    }

    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns)
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        let by_ns = by.as_nanos() as u64;
        self.now_ns += by_ns;
        for (clock, rate) in &self.clocks {
            clock.advance(Duration::from_nanos(by_ns * rate / 1000));
        }
    }
}

/// Faults of the connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkFaults {
    /// Time until which nothing gets through.
    pub(crate) cut_until: Duration,
    /// One request and one reply in so many are lost; 0: none.
    pub(crate) loss_one_in: u64,
    /// Age of the events that watches return.
    pub(crate) watch_delay: Duration,
    /// Longest delay of a reply.
    pub(crate) answer_delay_max: Duration,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) time: Time,
    pub(crate) random: Random,
    /// The coordinator that answers now.
    pub(crate) embedded: Embedded,
    /// Number of replacements; connections to an earlier coordinator are broken.
    pub(crate) replaced_count: u64,
    pub(crate) link_faults: Vec<LinkFaults>,
    /// Writes to regions by a process that is not master.
    pub(crate) foreign_writes: Vec<String>,
}

/// Connection of an actor.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) shared: Arc<Mutex<Shared>>,
    pub(crate) actor: usize,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Link {}", self.actor)
    }
}

impl Link {
    fn with<T>(&self, body: impl FnOnce(&mut Shared) -> T) -> T {
        body(&mut self.shared.lock().expect("one thread"))
    }

    fn link_faults(shared: &Shared, actor: usize) -> LinkFaults {
        shared.link_faults[actor]
    }

    /// Executes a call with the delays of request and reply.
    fn call<T>(
        &self,
        body: impl FnOnce(&Embedded) -> Result<T, CoordinatorError>,
    ) -> Result<T, CoordinatorError> {
        self.with(|shared| {
            let link_faults = Self::link_faults(shared, self.actor);
            let is_lost = |shared: &mut Shared| {
                link_faults.loss_one_in > 0 && shared.random.one_in(link_faults.loss_one_in)
            };
            if shared.time.now() < link_faults.cut_until || is_lost(shared) {
                return Err(CoordinatorError::Unavailable {
                    name: "simulated".to_owned(),
                    how: "the way is cut".to_owned(),
                });
            }
            delay(shared, link_faults);
            let done = body(&shared.embedded.clone());
            delay(shared, link_faults);
            if is_lost(shared) {
                return Err(CoordinatorError::OutcomeUnknown {
                    name: "simulated".to_owned(),
                    how: "the answer is lost".to_owned(),
                });
            }
            done
        })
    }

    /// Describes a write to a region by a process that is not master at this moment.
    fn foreign_write(&self, embedded: &Embedded, transaction: &Transaction) -> Option<String> {
        let is_update = |write: &Write| write.key().starts_with(REGION_PREFIX);
        // Tables are created by administrators.
        let makes_table = transaction
            .writes
            .iter()
            .any(|it| it.key().starts_with("name/"));
        if makes_table || !transaction.writes.iter().any(is_update) {
            return None;
        }
        let entries = embedded.range(MASTER_KEY).expect("it is there").entries;
        let address = entries.first().map(|entry| {
            let record = MasterRecord::decode(&entry.key, &entry.value);
            record.expect("it was encoded").address
        });
        let own = format!("actor {}", self.actor);
        let is_master = address.as_deref() == Some(&own);
        (!is_master).then(|| format!("{own} has written a region, and master is {address:?}"))
    }
}

fn delay(shared: &mut Shared, link_faults: LinkFaults) {
    let max_ns = link_faults.answer_delay_max.as_nanos() as u64;
    if max_ns > 0 {
        let by = Duration::from_nanos(shared.random.below(max_ns));
        shared.time.advance(by);
    }
}

impl Coordinator for Link {
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        self.call(|embedded| embedded.range(prefix))
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        let mut usurped = None;
        let outcome = self.call(|embedded| {
            let outcome = embedded.transact(transaction)?;
            if let TransactionOutcome::Committed(_) = outcome {
                usurped = self.foreign_write(embedded, transaction);
            }
            Ok(outcome)
        });
        self.with(|shared| shared.foreign_writes.extend(usurped));
        outcome
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        self.call(|embedded| embedded.grant_lease(time_to_live))
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        self.call(|embedded| embedded.keep_alive(lease))
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        self.call(|embedded| embedded.revoke_lease(lease))
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        let inner = self.call(|embedded| embedded.watch(prefix, after))?;
        Ok(Box::new(LaggingWatch {
            link: self.clone(),
            of: self.with(|shared| shared.replaced_count),
            inner,
            coming: VecDeque::new(),
        }))
    }
}

struct LaggingWatch {
    link: Link,
    /// Number of the connected coordinator.
    of: u64,
    inner: Box<dyn Watch>,
    coming: VecDeque<(Duration, Event)>,
}

impl Watch for LaggingWatch {
    fn next(&mut self, _: Duration) -> Result<Vec<Event>, CoordinatorError> {
        let actor = self.link.actor;
        let (now, link_faults, breaks, now_of) = self.link.with(|shared| {
            let breaks = shared.random.one_in(200);
            let of = shared.replaced_count;
            (shared.time.now(), shared.link_faults[actor], breaks, of)
        });
        if now_of != self.of {
            return Err(CoordinatorError::Unavailable {
                name: "simulated".to_owned(),
                how: "the process has ended".to_owned(),
            });
        }
        if now < link_faults.cut_until {
            // Some connections break, others are silent.
            if breaks {
                return Err(CoordinatorError::Unavailable {
                    name: "simulated".to_owned(),
                    how: "the watch is broken".to_owned(),
                });
            }
            return Ok(Vec::new());
        }
        for event in self.inner.next(Duration::ZERO)? {
            self.coming
                .push_back((now + link_faults.watch_delay, event));
        }
        let mut events: Vec<Event> = Vec::new();
        while let Some((at, event)) = self.coming.front() {
            // Changes of one revision are returned together.
            let is_same = events
                .last()
                .is_some_and(|it| it.revision() == event.revision());
            if *at > now && !is_same {
                break;
            }
            events.extend(self.coming.pop_front().map(|(_, event)| event));
        }
        Ok(events)
    }
}
