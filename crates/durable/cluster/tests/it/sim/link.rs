//! The way from an actor to the coordinator: it takes time, is cut off, loses requests and answers,
//! and its watches lag behind.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farleaf_cluster::clock::ManualClock;
use farleaf_cluster::coordinator::{
    Coordinator, CoordinatorError, Embedded, Event, KeepAlive, LeaseId, Revision, Snapshot,
    Transaction, TransactionOutcome, Watch, Write,
};
use farleaf_cluster::record::{MASTER_KEY, MasterRecord, REGION_PREFIX, Record};

use super::random::Random;

/// True time, and clocks that are faster or slower than it.
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

    /// Another clock, whose rate is so many per mille of true time's.
    pub(crate) fn clock(&mut self, rate_per_mille: u64) -> ManualClock {
        let clock = ManualClock::new();
        // Clocks have nothing to do with each other.
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

/// How bad the way is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    /// Nothing gets through before this.
    pub(crate) cut_until: Duration,
    /// One request in so many is lost, and one answer; 0: none.
    pub(crate) loss_one_in: u64,
    /// What watches tell is as old as this.
    pub(crate) watch_delay: Duration,
    /// Answers take up to this.
    pub(crate) answer_delay_max: Duration,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) time: Time,
    pub(crate) random: Random,
    /// The one that answers now.
    pub(crate) embedded: Embedded,
    /// How often another one has taken its place: connections to the one before are broken.
    pub(crate) replaced_count: u64,
    pub(crate) weather: Vec<Weather>,
    /// What somebody who is not master has written to regions.
    pub(crate) usurpations: Vec<String>,
}

/// An actor's way.
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

    fn weather(shared: &Shared, actor: usize) -> Weather {
        shared.weather[actor]
    }

    /// Goes there, does it, and comes back.
    fn call<T>(
        &self,
        body: impl FnOnce(&Embedded) -> Result<T, CoordinatorError>,
    ) -> Result<T, CoordinatorError> {
        self.with(|shared| {
            let weather = Self::weather(shared, self.actor);
            let is_lost = |shared: &mut Shared| {
                weather.loss_one_in > 0 && shared.random.one_in(weather.loss_one_in)
            };
            if shared.time.now() < weather.cut_until || is_lost(shared) {
                return Err(CoordinatorError::Unavailable {
                    name: "simulated".to_owned(),
                    how: "the way is cut".to_owned(),
                });
            }
            delay(shared, weather);
            let done = body(&shared.embedded.clone());
            delay(shared, weather);
            if is_lost(shared) {
                return Err(CoordinatorError::OutcomeUnknown {
                    name: "simulated".to_owned(),
                    how: "the answer is lost".to_owned(),
                });
            }
            done
        })
    }

    /// What somebody who is not master at this moment has written to a region.
    fn usurpation(&self, embedded: &Embedded, transaction: &Transaction) -> Option<String> {
        let is_update = |write: &Write| write.key().starts_with(REGION_PREFIX);
        // Tables are made by others.
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

fn delay(shared: &mut Shared, weather: Weather) {
    let max_ns = weather.answer_delay_max.as_nanos() as u64;
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
                usurped = self.usurpation(embedded, transaction);
            }
            Ok(outcome)
        });
        self.with(|shared| shared.usurpations.extend(usurped));
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
    /// Which coordinator it is a connection to.
    of: u64,
    inner: Box<dyn Watch>,
    coming: VecDeque<(Duration, Event)>,
}

impl Watch for LaggingWatch {
    fn next(&mut self, _: Duration) -> Result<Vec<Event>, CoordinatorError> {
        let actor = self.link.actor;
        let (now, weather, breaks, now_of) = self.link.with(|shared| {
            let breaks = shared.random.one_in(200);
            let of = shared.replaced_count;
            (shared.time.now(), shared.weather[actor], breaks, of)
        });
        if now_of != self.of {
            return Err(CoordinatorError::Unavailable {
                name: "simulated".to_owned(),
                how: "the process has ended".to_owned(),
            });
        }
        if now < weather.cut_until {
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
            self.coming.push_back((now + weather.watch_delay, event));
        }
        let mut told: Vec<Event> = Vec::new();
        while let Some((at, event)) = self.coming.front() {
            // What is of one revision comes together.
            let is_same = told
                .last()
                .is_some_and(|it| it.revision() == event.revision());
            if *at > now && !is_same {
                break;
            }
            told.extend(self.coming.pop_front().map(|(_, event)| event));
        }
        Ok(told)
    }
}
