//! What is said of a coordinator that does not answer: that it is away, now and then that it still
//! is, and that it is back. Who asks it fails many times a second meanwhile.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farleaf_cluster::ClusterError;
use farleaf_cluster::coordinator::CoordinatorError;

/// How often it is said that it is away still.
const REMINDER_INTERVAL: Duration = Duration::from_secs(10);

/// What is said of the same reason again.
const SAME: &str = "the reason is still the one above";

fn is_unadopted(error: &ClusterError) -> bool {
    matches!(error, ClusterError::NotAdopted(_))
}

fn has_no_cluster(error: &ClusterError) -> bool {
    let ClusterError::Coordinator(CoordinatorError::OtherCluster { found, .. }) = error else {
        return false;
    };
    found == "no cluster"
}

/// Whether those who ask the coordinator are answered: agent and master.
#[derive(Debug, Default)]
pub(crate) struct Contact {
    outage: Mutex<Option<Outage>>,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    told_at: Instant,
    failure_count: u64,
    /// What was told last.
    told: String,
    /// It waited for `cluster adopt` last (ID1).
    is_unadopted: bool,
    /// Who has failed, and was not answered since.
    failing: BTreeSet<&'static str>,
}

/// What there is to be said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// It went away.
    Away(String),
    /// It is away still.
    Still {
        time: Duration,
        failure_count: u64,
        how: String,
    },
    /// Its cluster was adopted, which the coordinator's server has to notice.
    NewId,
    /// It is back.
    Back { time: Duration, failure_count: u64 },
}

impl fmt::Display for Said {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failures = |count: &u64| match count {
            1 => "1 failure".to_owned(),
            count => format!("{count} failures"),
        };
        match self {
            Self::Away(how) => formatter.write_str(how),
            Self::Still {
                time,
                failure_count,
                how,
            } => write!(
                formatter,
                "for {} s now ({}): {how}",
                time.as_secs(),
                failures(failure_count)
            ),
            Self::NewId => formatter.write_str("the cluster has a new id; connecting again"),
            Self::Back {
                time,
                failure_count,
            } => write!(
                formatter,
                "the coordinator answers again, after {} s and {}",
                time.as_secs(),
                failures(failure_count)
            ),
        }
    }
}

impl Contact {
    /// Notes what came of `who`'s last look, and says what there is to be said. `is_in_touch`: the
    /// coordinator has answered; a look that did not ask it says nothing about it.
    pub(crate) fn note(
        &self,
        who: &'static str,
        done: Result<(), &ClusterError>,
        is_in_touch: bool,
    ) {
        match self.judge(who, done, is_in_touch, Instant::now()) {
            Some(said @ (Said::Back { .. } | Said::NewId)) => tracing::info!("{said}"),
            Some(said) => tracing::warn!("{said}"),
            None => {}
        }
    }

    fn judge(
        &self,
        who: &'static str,
        done: Result<(), &ClusterError>,
        is_in_touch: bool,
        now: Instant,
    ) -> Option<Said> {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        match (done, &mut *outage) {
            (Err(error), None) => {
                let told = error.to_string();
                *outage = Some(Outage {
                    since: now,
                    told_at: now,
                    failure_count: 1,
                    told: told.clone(),
                    is_unadopted: is_unadopted(error),
                    failing: BTreeSet::from([who]),
                });
                Some(Said::Away(told))
            }
            (Err(error), Some(outage)) => {
                outage.failing.insert(who);
                outage.failure_count += 1;
                if outage.is_unadopted && has_no_cluster(error) {
                    // The coordinator's server adopts its own directory within a second.
                    outage.is_unadopted = false;
                    outage.told_at = now;
                    outage.told.clear();
                    return Some(Said::NewId);
                }
                outage.is_unadopted |= is_unadopted(error);
                if now.duration_since(outage.told_at) < REMINDER_INTERVAL {
                    return None;
                }
                outage.told_at = now;
                let how = error.to_string();
                let is_same = std::mem::replace(&mut outage.told, how.clone()) == how;
                Some(Said::Still {
                    time: now.duration_since(outage.since),
                    failure_count: outage.failure_count,
                    // Some reasons have 600 characters.
                    how: if is_same { SAME.to_owned() } else { how },
                })
            }
            (Ok(()), Some(of)) if is_in_touch => {
                of.failing.remove(who);
                if !of.failing.is_empty() {
                    return None;
                }
                let said = Said::Back {
                    time: now.duration_since(of.since),
                    failure_count: of.failure_count,
                };
                *outage = None;
                Some(said)
            }
            (Ok(()), _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use farleaf_cluster::ids::ClusterId;

    use super::*;

    /// Promise: when a cluster of an older version was adopted, it is no alarm that the
    /// coordinator's server has not noticed that yet; if it stays so, it is told.
    #[test]
    fn an_adoption_is_no_alarm() {
        let contact = Contact::default();
        let start = Instant::now();
        let judge = |error: &ClusterError, after_s| {
            let now = start + Duration::from_secs(after_s);
            contact.judge("agent", Err(error), false, now)
        };
        let waits = ClusterError::NotAdopted(ClusterId(5));
        assert!(matches!(judge(&waits, 0), Some(Said::Away(_))));
        let other = ClusterError::Coordinator(CoordinatorError::OtherCluster {
            own: ClusterId(5 << 64),
            found: "no cluster".to_owned(),
        });
        assert_eq!(judge(&other, 11), Some(Said::NewId));
        assert_eq!(judge(&other, 20), None);
        let said = judge(&other, 22).expect("it stays so").to_string();
        assert!(said.contains("the coordinator has no cluster"), "{said}");
    }

    /// Promise: a reason that stays the same is written once; the reminders say that it stays.
    #[test]
    fn the_same_reason_is_told_once() {
        let contact = Contact::default();
        let start = Instant::now();
        let error = ClusterError::NoCluster;
        let said = (0..100).filter_map(|number| {
            let now = start + Duration::from_millis(333) * number;
            contact.judge("agent", Err(&error), false, now)
        });
        let said: Vec<_> = said.map(|it| it.to_string()).collect();
        assert_eq!(said.len(), 4);
        assert_eq!(said[0], error.to_string());
        assert_eq!(
            said[1],
            "for 10 s now (32 failures): the reason is still the one above"
        );
        assert!(said[2..].iter().all(|it| it.ends_with(SAME)), "{said:?}");
    }

    /// Promise: that a coordinator is away is said once, then every ten seconds with for how long
    /// and how often, and once that it is back, when all who asked are answered; looks that did not
    /// ask it say nothing. Once it was said seven times a second.
    #[test]
    fn an_outage_is_told_now_and_then() {
        let contact = Contact::default();
        let start = Instant::now();
        let mut said = Vec::new();
        // Two minutes: both fail three times a second, and look four times without asking.
        for number in 0..360_u32 {
            let now = start + Duration::from_millis(333) * number;
            for who in ["agent", "master"] {
                // What is met is not always the same.
                let how = format!("refused, {number}");
                let name = "there".to_owned();
                let error = CoordinatorError::Unavailable { name, how }.into();
                said.extend(contact.judge(who, Err(&error), false, now));
                said.extend(contact.judge(who, Ok(()), false, now));
            }
        }
        assert!(matches!(&said[0], Said::Away(how) if how.contains("refused, 0")));
        assert_eq!(said.len(), 12, "{said:?}");
        let Said::Still {
            time,
            failure_count,
            how,
        } = &said[1]
        else {
            panic!("{said:?}")
        };
        assert_eq!(time.as_secs(), 10);
        assert!(
            (60..66).contains(failure_count) && how.contains("refused, 3"),
            "{said:?}"
        );
        let now = start + Duration::from_mins(2);
        assert_eq!(contact.judge("agent", Ok(()), true, now), None);
        let back = contact
            .judge("master", Ok(()), true, now)
            .expect("both are answered");
        assert_eq!(
            back.to_string(),
            "the coordinator answers again, after 120 s and 720 failures"
        );
        assert_eq!(contact.judge("agent", Ok(()), true, now), None);
    }
}
