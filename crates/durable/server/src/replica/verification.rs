//! Progress of the verification of a replica's files, for its status, and its pace.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farleaf_cluster::record::VerificationReport;
use farleaf_lsm::LsmError;
use farleaf_lsm::scrub::{ScrubCounts, Scrubbed};
use farleaf_replica::ReplicaError;

/// Number of scrub intervals after which a replica that is never idle takes a step.
pub(super) const BUSY_INTERVAL_COUNT: u32 = 10;

/// Interval of progress reports.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);
/// Interval of progress reports during a first verification.
const FIRST_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Verification of one replica since it was opened.
#[derive(Debug)]
pub(super) struct Verification {
    /// Whether the note says, or is to say, that the copy is verified.
    is_verified: bool,
    /// Whether damage was found in the current pass.
    has_damage: bool,
    /// Whether a pass has ended, whatever it found.
    has_passed: bool,
    ended_at: Option<SystemTime>,
    reported: Option<(VerificationReport, Instant)>,
}

impl Verification {
    /// Creates the state of an opened copy; the note says whether it was verified before.
    pub(super) const fn new(is_verified: bool) -> Self {
        Self {
            is_verified,
            has_damage: false,
            has_passed: false,
            ended_at: None,
            reported: None,
        }
    }

    /// Returns whether the copy still has to be verified for the first time.
    pub(super) const fn is_first(&self) -> bool {
        !self.is_verified && !self.has_passed
    }

    /// Notes the result of a step. Returns true if it completes the first verification.
    pub(super) fn note_step(&mut self, stepped: Result<Scrubbed, &ReplicaError>) -> bool {
        let scrubbed = match stepped {
            Ok(scrubbed) => scrubbed,
            Err(error) => {
                // A stopped engine was not read.
                let is_stopped = matches!(error, ReplicaError::Engine(LsmError::Stopped { .. }));
                self.has_damage |= !is_stopped;
                return false;
            }
        };
        if !scrubbed.is_round_over {
            return false;
        }
        let had_damage = std::mem::take(&mut self.has_damage);
        self.has_passed = true;
        self.ended_at = Some(SystemTime::now());
        let was_verified = self.is_verified;
        self.is_verified |= !had_damage;
        self.is_verified && !was_verified
    }

    /// Returns the report. Values that each step changes are up to a minute old: every report is
    /// sent to the coordinator.
    pub(super) fn report(&mut self, counts: ScrubCounts) -> VerificationReport {
        let now = Instant::now();
        let ended_at = self
            .ended_at
            .and_then(|it| it.duration_since(UNIX_EPOCH).ok());
        let report = VerificationReport {
            // Damage is reported separately.
            is_finished: !self.is_first(),
            pass_size_bytes: counts.round_size_bytes,
            passed_size_bytes: counts.passed_size_bytes,
            ended_at_unix_s: ended_at.map(|it| it.as_secs()),
        };
        let interval = if self.is_first() {
            FIRST_REPORT_INTERVAL
        } else {
            REPORT_INTERVAL
        };
        if let Some((before, at)) = self.reported {
            let facts = |it: &VerificationReport| (it.is_finished, it.ended_at_unix_s.is_some());
            if facts(&before) == facts(&report) && now - at < interval {
                return before;
            }
        }
        self.reported = Some((report, now));
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Scrubbed = Scrubbed {
        read_size_bytes: 1,
        is_round_over: false,
    };
    const END: Scrubbed = Scrubbed {
        read_size_bytes: 0,
        is_round_over: true,
    };

    fn damage() -> ReplicaError {
        ReplicaError::Engine(LsmError::CorruptLog {
            position: farleaf_lsm::place::LogPosition(7),
            how: String::new(),
        })
    }

    /// A copy is verified when a pass has ended without finding damage. A pass that found some
    /// counts as a pass, too, and the verification is not urgent any more.
    #[test]
    fn a_pass_without_damage_verifies() {
        let mut verification = Verification::new(false);
        assert!(verification.is_first());
        assert!(!verification.report(ScrubCounts::default()).is_finished);
        assert!(!verification.note_step(Ok(STEP)));
        assert!(!verification.note_step(Err(&damage())));
        assert!(!verification.note_step(Ok(END)));
        assert!(!verification.is_first());
        let report = verification.report(ScrubCounts::default());
        assert!(report.is_finished && report.ended_at_unix_s.is_some());
        assert!(!verification.note_step(Ok(STEP)));
        assert!(verification.note_step(Ok(END)), "nothing was damaged");
        assert!(!verification.note_step(Ok(END)), "it was known");
        assert!(!Verification::new(true).is_first());
    }

    /// The first end of a pass is reported at once; the progress of a pass at intervals.
    #[test]
    fn progress_is_reported_now_and_then() {
        let mut verification = Verification::new(true);
        let counts = |passed_size_bytes| ScrubCounts {
            round_size_bytes: 10,
            passed_size_bytes,
            ..ScrubCounts::default()
        };
        assert_eq!(verification.report(counts(1)).passed_size_bytes, 1);
        assert_eq!(verification.report(counts(2)).passed_size_bytes, 1);
        verification.note_step(Ok(END));
        assert_eq!(verification.report(counts(10)).passed_size_bytes, 10);
    }
}
