//! Log messages about a coordinator that does not answer: at the start of an outage, at intervals,
//! and at its end. Requests fail many times a second meanwhile.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use farleaf_cluster::ClusterError;
use farleaf_cluster::coordinator::CoordinatorError;

use crate::sync::lock;

/// Interval of messages during an outage.
const REMINDER_INTERVAL: Duration = Duration::from_secs(10);

/// Text in place of a repeated reason.
const SAME: &str = "the reason has not changed";

fn is_unadopted(error: &ClusterError) -> bool {
    matches!(error, ClusterError::NotAdopted(_))
}

fn has_no_cluster(error: &ClusterError) -> bool {
    let ClusterError::Coordinator(CoordinatorError::OtherCluster { found, .. }) = error else {
        return false;
    };
    found == "no cluster"
}

/// Reachability of the coordinator for agent and master.
#[derive(Debug, Default)]
pub(crate) struct OutageLog {
    outage: Mutex<Option<Outage>>,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    logged_at: Instant,
    failure_count: u64,
    /// The last logged reason.
    last_reason: String,
    /// Whether the last reason was a missing `cluster adopt`.
    is_unadopted: bool,
    /// Callers that failed and were not answered since.
    failing: BTreeSet<&'static str>,
}

/// A message to log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OutageMessage {
    /// The outage began.
    Away(String),
    /// The outage continues.
    Still {
        time: Duration,
        failure_count: u64,
        how: String,
    },
    /// The cluster was adopted, and the coordinator's server has to notice that.
    NewId,
    /// The outage ended.
    Back { time: Duration, failure_count: u64 },
}

impl fmt::Display for OutageMessage {
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
                "failing for {} s ({}): {how}",
                time.as_secs(),
                failures(failure_count)
            ),
            Self::NewId => formatter.write_str("the cluster has a new id; reconnecting"),
            Self::Back {
                time,
                failure_count,
            } => write!(
                formatter,
                "the coordinator is reachable again after {} s ({})",
                time.as_secs(),
                failures(failure_count)
            ),
        }
    }
}

impl OutageLog {
    /// Notes the result of `who`'s last tick and returns the message to log, if any.
    /// `is_coordinator_reachable`: the coordinator has answered. A tick that did not use the
    /// coordinator changes nothing.
    pub(crate) fn note(
        &self,
        who: &'static str,
        done: Result<(), &ClusterError>,
        is_coordinator_reachable: bool,
    ) {
        match self.judge(who, done, is_coordinator_reachable, Instant::now()) {
            Some(message @ (OutageMessage::Back { .. } | OutageMessage::NewId)) => {
                tracing::info!("{message}");
            }
            Some(message) => tracing::warn!("{message}"),
            None => {}
        }
    }

    fn judge(
        &self,
        who: &'static str,
        done: Result<(), &ClusterError>,
        is_coordinator_reachable: bool,
        now: Instant,
    ) -> Option<OutageMessage> {
        let mut outage = lock(&self.outage);
        match (done, &mut *outage) {
            (Err(error), None) => {
                let last_reason = error.to_string();
                *outage = Some(Outage {
                    since: now,
                    logged_at: now,
                    failure_count: 1,
                    last_reason: last_reason.clone(),
                    is_unadopted: is_unadopted(error),
                    failing: BTreeSet::from([who]),
                });
                Some(OutageMessage::Away(last_reason))
            }
            (Err(error), Some(outage)) => {
                outage.failing.insert(who);
                outage.failure_count += 1;
                if outage.is_unadopted && has_no_cluster(error) {
                    // The coordinator's server adopts its own directory within a second.
                    outage.is_unadopted = false;
                    outage.logged_at = now;
                    outage.last_reason.clear();
                    return Some(OutageMessage::NewId);
                }
                outage.is_unadopted |= is_unadopted(error);
                if now.duration_since(outage.logged_at) < REMINDER_INTERVAL {
                    return None;
                }
                outage.logged_at = now;
                let how = error.to_string();
                let is_same = std::mem::replace(&mut outage.last_reason, how.clone()) == how;
                Some(OutageMessage::Still {
                    time: now.duration_since(outage.since),
                    failure_count: outage.failure_count,
                    // Some reasons have 600 characters.
                    how: if is_same { SAME.to_owned() } else { how },
                })
            }
            (Ok(()), Some(of)) if is_coordinator_reachable => {
                of.failing.remove(who);
                if !of.failing.is_empty() {
                    return None;
                }
                let message = OutageMessage::Back {
                    time: now.duration_since(of.since),
                    failure_count: of.failure_count,
                };
                *outage = None;
                Some(message)
            }
            (Ok(()), _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use farleaf_cluster::ids::ClusterId;

    use super::*;

    /// After the adoption of a cluster of an older version, it is no error that the coordinator's
    /// server has not noticed that yet. If this continues, it is logged.
    #[test]
    fn an_adoption_is_no_alarm() {
        let outage_log = OutageLog::default();
        let start = Instant::now();
        let judge = |error: &ClusterError, after_s| {
            let now = start + Duration::from_secs(after_s);
            outage_log.judge("agent", Err(error), false, now)
        };
        let waits = ClusterError::NotAdopted(ClusterId(5));
        assert!(matches!(judge(&waits, 0), Some(OutageMessage::Away(_))));
        let other = ClusterError::Coordinator(CoordinatorError::OtherCluster {
            own: ClusterId(5 << 64),
            found: "no cluster".to_owned(),
        });
        assert_eq!(judge(&other, 11), Some(OutageMessage::NewId));
        assert_eq!(judge(&other, 20), None);
        let message = judge(&other, 22).expect("it stays so").to_string();
        assert!(
            message.contains("the coordinator has no cluster"),
            "{message}"
        );
    }

    /// An unchanged reason is logged once; reminders refer to it.
    #[test]
    fn the_same_reason_is_told_once() {
        let outage_log = OutageLog::default();
        let start = Instant::now();
        let error = ClusterError::NoCluster;
        let messages = (0..100).filter_map(|number| {
            let now = start + Duration::from_millis(333) * number;
            outage_log.judge("agent", Err(&error), false, now)
        });
        let messages: Vec<_> = messages.map(|it| it.to_string()).collect();
        assert_eq!(messages.len(), 4);
        assert_eq!(messages[0], error.to_string());
        assert_eq!(
            messages[1],
            "failing for 10 s (32 failures): the reason has not changed"
        );
        assert!(
            messages[2..].iter().all(|it| it.ends_with(SAME)),
            "{messages:?}"
        );
    }

    /// An outage is logged once at its start, then every ten seconds with its duration and number
    /// of failures. Its end is logged once, when all callers are answered. Ticks without use of the
    /// coordinator log nothing. Outages were once logged seven times a second.
    #[test]
    fn an_outage_is_told_now_and_then() {
        let outage_log = OutageLog::default();
        let start = Instant::now();
        let mut messages = Vec::new();
        // Two minutes: both fail three times a second, and tick four times without using the
        // coordinator.
        for number in 0..360_u32 {
            let now = start + Duration::from_millis(333) * number;
            for who in ["agent", "master"] {
                // The reason is not always the same.
                let how = format!("refused, {number}");
                let name = "there".to_owned();
                let error = CoordinatorError::Unavailable { name, how }.into();
                messages.extend(outage_log.judge(who, Err(&error), false, now));
                messages.extend(outage_log.judge(who, Ok(()), false, now));
            }
        }
        assert!(matches!(&messages[0], OutageMessage::Away(how) if how.contains("refused, 0")));
        assert_eq!(messages.len(), 12, "{messages:?}");
        let OutageMessage::Still {
            time,
            failure_count,
            how,
        } = &messages[1]
        else {
            panic!("{messages:?}")
        };
        assert_eq!(time.as_secs(), 10);
        assert!(
            (60..66).contains(failure_count) && how.contains("refused, 3"),
            "{messages:?}"
        );
        let now = start + Duration::from_mins(2);
        assert_eq!(outage_log.judge("agent", Ok(()), true, now), None);
        let back = outage_log
            .judge("master", Ok(()), true, now)
            .expect("both are answered");
        assert_eq!(
            back.to_string(),
            "the coordinator is reachable again after 120 s (720 failures)"
        );
        assert_eq!(outage_log.judge("agent", Ok(()), true, now), None);
    }
}
