//! What is said of a coordinator that does not answer: that it is away, now and then that it still
//! is, and that it is back. Who asks it fails many times a second meanwhile.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farleaf_cluster::ClusterError;

/// How often it is said that it is away still.
const REMINDER_INTERVAL: Duration = Duration::from_secs(10);

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
            Some(said @ Said::Back { .. }) => tracing::info!("{said}"),
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
                *outage = Some(Outage {
                    since: now,
                    told_at: now,
                    failure_count: 1,
                    failing: BTreeSet::from([who]),
                });
                Some(Said::Away(error.to_string()))
            }
            (Err(error), Some(outage)) => {
                outage.failing.insert(who);
                outage.failure_count += 1;
                if now.duration_since(outage.told_at) < REMINDER_INTERVAL {
                    return None;
                }
                outage.told_at = now;
                Some(Said::Still {
                    time: now.duration_since(outage.since),
                    failure_count: outage.failure_count,
                    how: error.to_string(),
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
    use farleaf_cluster::coordinator::CoordinatorError;

    use super::*;

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
