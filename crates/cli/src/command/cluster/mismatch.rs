//! Backups whose data differ from those of their primary, as `farleaf cluster status` shows them.

use farleaf::key::text::escape;
use farleaf_cluster::record::{PartSum, RegionRecord};
use farleaf_cluster::view::View;
use serde::Serialize;

/// Backup whose data differed from those of its primary.
#[derive(Serialize)]
pub(super) struct MismatchStatus {
    pub(super) region: u64,
    /// Server that had the backup.
    pub(super) server: u64,
    pub(super) replica: u64,
    /// Part that differed, such as `log segment 7`.
    pub(super) part: String,
    pub(super) primary: PartSum,
    pub(super) backup: PartSum,
}

/// Adds the mismatches that the primary of a region reports. Returns the number of all mismatches
/// that it has found.
pub(super) fn note_mismatches(
    view: &View,
    region: &RegionRecord,
    to: &mut Vec<MismatchStatus>,
) -> u64 {
    let report = region.primary.and_then(|it| view.report(region.region, it));
    let Some(primary) = report.and_then(|it| it.primary.as_ref()) else {
        return 0;
    };
    to.extend(primary.mismatches.iter().cloned().map(|it| MismatchStatus {
        region: region.region.0,
        server: it.server.0,
        replica: it.replica.0,
        part: it.part,
        primary: it.primary,
        backup: it.backup,
    }));
    primary.mismatch_count
}

/// Describes a mismatch and how the cluster handles it.
pub(super) fn mismatch_text(mismatch: &MismatchStatus) -> String {
    let MismatchStatus {
        region,
        server,
        replica,
        part,
        primary,
        backup,
    } = mismatch;
    let part = escape(part.as_bytes());
    let sum = |of: &PartSum| format!("{} bytes with checksum {}", of.size_bytes, of.checksum);
    format!(
        "region {region}: checksum mismatch in {part}: the primary has {}, server {server} \
         (replica {replica}) has {}; that replica is rebuilt from the primary",
        sum(primary),
        sum(backup)
    )
}

#[cfg(test)]
mod tests {
    use farleaf_cluster::coordinator::Revision;
    use farleaf_cluster::ids::{RegionId, ReplicaNumber, ServerId, TableId};
    use farleaf_cluster::record::region::Key;
    use farleaf_cluster::record::{MismatchReport, PrimaryReport, Record as _, ServerReport};

    use super::super::cluster_status::ClusterStatus;
    use super::super::cluster_status::tests::{replica, report};
    use super::*;

    /// Promise: a mismatch is shown with region, server, part, and both lengths and checksums.
    #[test]
    fn a_mismatch_is_shown_with_both_checksums() {
        let sum = |size_bytes, digit: &str| PartSum {
            size_bytes,
            checksum: digit.repeat(16),
        };
        let shown = mismatch_text(&MismatchStatus {
            region: 7,
            server: 3,
            replica: 12,
            part: "log segment 5".to_owned(),
            primary: sum(2_097_152, "a"),
            backup: sum(0, "0"),
        });
        let expected = "region 7: checksum mismatch in log segment 5: the primary has 2097152 \
                        bytes with checksum aaaaaaaaaaaaaaaa, server 3 (replica 12) has 0 bytes \
                        with checksum 0000000000000000; that replica is rebuilt from the \
                        primary";
        assert_eq!(shown, expected);
    }

    /// Promise: a backup that differed from its primary is a problem until the primary stops
    /// reporting it, and until then status does not report "no problems found".
    #[test]
    fn a_mismatch_is_seen() {
        let mut region = RegionRecord::new(TableId(1), RegionId(7), Key(Vec::new()), None);
        region.primary = Some(replica(1));
        let sum = |size_bytes| PartSum {
            size_bytes,
            checksum: "00000000000000ff".to_owned(),
        };
        let mismatch = MismatchReport {
            replica: ReplicaNumber(2),
            server: ServerId(3),
            part: "log segment 5".to_owned(),
            primary: sum(9),
            backup: sum(0),
        };
        for mismatches in [vec![mismatch], Vec::new()] {
            let is_whole = mismatches.is_empty();
            let mut entries = report(1, false, false, false);
            let mut report: ServerReport = serde_json::from_slice(&entries[1].value).expect("JSON");
            report.replicas[0].primary = Some(PrimaryReport {
                mismatches,
                mismatch_count: 4,
                ..PrimaryReport::default()
            });
            entries[1].value = report.encode();
            let view = View::of(Revision(9), &entries);
            assert!(view.damaged.is_empty(), "{:?}", view.damaged);
            let mut status = ClusterStatus::new(&view, "tcp:h:1", None);
            status.mismatch_count += note_mismatches(&view, &region, &mut status.mismatches);
            let servers: Vec<_> = status.mismatches.iter().map(|it| it.server).collect();
            assert_eq!(servers, if is_whole { vec![] } else { vec![3] });
            assert_eq!(status.mismatch_count, 4);
            let lacks = status.lacks().join("; ");
            let is_reported =
                lacks.contains("1 replica that differed from its primary is catching up");
            assert_eq!(is_reported, !is_whole, "{lacks}");
        }
    }
}
