//! Progress of the verification of replicas, as text and as JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farleaf_cluster::record::VerificationReport;
use serde::Serialize;

use super::cluster_status::{RegionStatus, ReplicaStatus};
use crate::output::counted;

/// Progress of the verification of a replica's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct VerificationStatus {
    /// Whether a pass has verified everything that an older version of Farleaf wrote.
    pub(super) is_finished: bool,
    /// Bytes that the current pass has to verify. `passed_size_bytes` are already verified.
    pub(super) pass_size_bytes: u64,
    pub(super) passed_size_bytes: u64,
    /// Seconds since the last full pass ended; `null` if none has ended.
    pub(super) last_pass_age_s: Option<u64>,
}

impl VerificationStatus {
    /// Returns the progress as of now.
    pub(super) fn new(report: &VerificationReport) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_s = now.unwrap_or(Duration::ZERO).as_secs();
        Self {
            is_finished: report.is_finished,
            pass_size_bytes: report.pass_size_bytes,
            passed_size_bytes: report.passed_size_bytes,
            // The clocks of two hosts can differ.
            last_pass_age_s: report.ended_at_unix_s.map(|it| now_s.saturating_sub(it)),
        }
    }

    fn percent(&self) -> u64 {
        let size_bytes = u128::from(self.pass_size_bytes.max(1));
        (u128::from(self.passed_size_bytes) * 100 / size_bytes) as u64
    }
}

/// Returns the number of replicas of a region that are not verified, and the number of all its
/// replicas.
pub(super) fn unfinished(region: &RegionStatus) -> (usize, usize) {
    let replicas = || region.primary.iter().chain(&region.backups);
    let is_unfinished = |it: &&ReplicaStatus| it.verification.is_some_and(|it| !it.is_finished);
    (replicas().filter(is_unfinished).count(), replicas().count())
}

/// Describes the verification of a region in a few words. The primary reports it, because it
/// compares its backups with itself.
pub(super) fn text(region: &RegionStatus) -> String {
    let primary = region.primary.as_ref();
    let Some(verification) = primary.and_then(|it| it.verification) else {
        return "-".to_owned();
    };
    let mut text = match (unfinished(region), verification.last_pass_age_s) {
        ((0, _), Some(age_s)) => age_text(age_s),
        ((0, _), None) => format!("{} %", verification.percent()),
        ((count, of), _) => format!("not finished: {count} of {of}"),
    };
    if region.mismatch_count > 0 {
        text += ", ";
        text += &mismatches(region.mismatch_count);
    }
    text
}

fn mismatches(count: u64) -> String {
    match count {
        1 => "1 mismatch".to_owned(),
        count => format!("{count} mismatches"),
    }
}

fn age_text(age_s: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match age_s {
        ..MINUTE => "just now".to_owned(),
        MINUTE..HOUR => format!("{} min ago", age_s / MINUTE),
        HOUR..DAY => format!("{} h ago", age_s / HOUR),
        DAY.. => format!("{} ago", counted((age_s / DAY) as usize, "day")),
    }
}

/// Returns a problem if regions are not verified since an older version wrote them.
pub(super) fn lacking(regions: &[RegionStatus]) -> Option<String> {
    let counts = regions.iter().map(unfinished);
    let counts: Vec<_> = counts.filter(|(count, _)| *count > 0).collect();
    let (count, of) = counts
        .iter()
        .fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    (count > 0).then(|| {
        format!(
            "verification not finished: {count} of {of} replicas in {}",
            counted(counts.len(), "region")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::cluster_status::KeyShown;
    use super::*;

    const WHOLE: VerificationStatus = VerificationStatus {
        is_finished: true,
        pass_size_bytes: 10 << 20,
        passed_size_bytes: 4 << 20,
        last_pass_age_s: None,
    };

    fn region(verifications: [Option<VerificationStatus>; 3]) -> RegionStatus {
        let replicas = (1..).zip(verifications);
        let mut replicas = replicas.map(|(server, verification)| ReplicaStatus {
            server,
            is_alive: true,
            is_in_sync: true,
            trouble: None,
            verification,
        });
        RegionStatus {
            number: 7,
            table: "t".to_owned(),
            from: KeyShown(Vec::new()),
            to: None,
            epoch: 1,
            primary: replicas.next(),
            backups: replicas.collect(),
            phase: "steady".to_owned(),
            size_bytes: None,
            is_served: true,
            mismatch_count: 0,
        }
    }

    /// Promise: the text shows the progress of the first pass, then the end of the last one and the
    /// number of mismatches. A replica that is not verified since an older version wrote it comes
    /// first.
    #[test]
    fn verification_is_shown_in_a_few_words() {
        let shown = |primary: VerificationStatus| text(&region([Some(primary), Some(WHOLE), None]));
        assert_eq!(shown(WHOLE), "40 %");
        for (age_s, expected) in [
            (0, "just now"),
            (59, "just now"),
            (300, "5 min ago"),
            (7_300, "2 h ago"),
            (90_000, "1 day ago"),
            (180_000, "2 days ago"),
        ] {
            let last_pass_age_s = Some(age_s);
            assert_eq!(
                shown(VerificationStatus {
                    last_pass_age_s,
                    ..WHOLE
                }),
                expected
            );
        }
        let found = VerificationStatus {
            last_pass_age_s: Some(300),
            ..WHOLE
        };
        let mut found = region([Some(found), None, None]);
        found.mismatch_count = 2;
        assert_eq!(text(&found), "5 min ago, 2 mismatches");
        let unverified = VerificationStatus {
            is_finished: false,
            ..WHOLE
        };
        assert_eq!(shown(unverified), "not finished: 1 of 3");
        assert_eq!(text(&region([None, Some(WHOLE), None])), "-");
        let regions = [
            region([Some(WHOLE), Some(unverified), Some(unverified)]),
            region([Some(WHOLE), Some(WHOLE), Some(WHOLE)]),
        ];
        assert_eq!(
            lacking(&regions).as_deref(),
            Some("verification not finished: 2 of 3 replicas in 1 region")
        );
        assert_eq!(lacking(&regions[1..]), None);
    }

    /// Promise: in JSON, names contain units, and unknown values are `null`.
    #[test]
    fn verification_is_golden_in_json() {
        let golden = concat!(
            r#"{"is_finished":true,"pass_size_bytes":10485760,"passed_size_bytes":4194304,"#,
            r#""last_pass_age_s":null}"#
        );
        assert_eq!(serde_json::to_string(&WHOLE).expect("JSON"), golden);
        let report = VerificationReport {
            ended_at_unix_s: Some(u64::MAX),
            ..VerificationReport::default()
        };
        let status = VerificationStatus::new(&report);
        assert_eq!((status.last_pass_age_s, status.percent()), (Some(0), 0));
    }
}
