//! `farleaf cluster status`: prints the state of a cluster as text or as JSON.

use std::fmt::Write as _;

use comfy_table::CellAlignment::{Left, Right};
use farleaf::key::text::escape;
use farleaf_cluster::admin;

use super::cluster_status::{
    ClusterStatus, Fault, KeyShown, RegionStatus, ReplicaStatus, ServerStatus, SpaceStatus, Trouble,
};
use super::identity::identity_text;
use super::mismatch::mismatch_text;
use super::verified;
use crate::command::cluster_client::Opened;
use crate::command::table_cluster;
use crate::failure::Ending;
use crate::output::{Lines, OutputFormat, counted, grid, print};
use farleaf_bench::quantity::{count, size};

/// Maximum number of bytes of a key in the output.
const SHOWN_SIZE_BYTES_MAX: usize = 16;

/// Prints the status. Returns [`Ending::Lacking`] if there is a problem.
pub(super) fn run(
    opened: &Opened,
    table: Option<&str>,
    format: OutputFormat,
) -> anyhow::Result<Ending> {
    let table = match table {
        Some(name) => {
            let named = admin::table_named(opened.coordinator(), name);
            Some(named.map_err(|error| opened.explain(error))?)
        }
        None => None,
    };
    let status = ClusterStatus::new(&opened.view()?, &opened.address, table);
    match format {
        OutputFormat::Text => print(text(&status))?,
        OutputFormat::Json => {
            let mut lines = Lines::new(format);
            lines.line("", &status)?;
            lines.finish()?;
        }
    }
    Ok(if status.lacking.is_empty() {
        Ending::Done
    } else {
        Ending::Lacking
    })
}

fn text(status: &ClusterStatus) -> String {
    let mut text = match status.cluster {
        Some(cluster) => format!("{cluster} at {}", status.coordinator),
        None => format!("a cluster at {}", status.coordinator),
    };
    let master = status.master.as_deref().map_or_else(
        || "no master".to_owned(),
        |address| format!("master at {address}"),
    );
    let _ = writeln!(text, ", revision {}, {master}", status.revision);
    if !status.servers.is_empty() {
        text += &servers_text(&status.servers);
    }
    if !status.tables.is_empty() {
        text += &table_cluster::text(&status.tables);
        text += &regions_text(&status.regions);
    }
    for damage in &status.damaged {
        let _ = writeln!(text, "{}", escape(damage.how.as_bytes()));
    }
    for problem in status.servers.iter().filter_map(space_text) {
        let _ = writeln!(text, "{problem}");
    }
    for fault in &status.faults {
        let _ = writeln!(text, "{}", fault_text(fault));
    }
    for mismatch in &status.mismatches {
        let _ = writeln!(text, "{}", mismatch_text(mismatch));
    }
    text += &identity_text(status);
    for waits in &status.waiting {
        let is_unavailable = |it: &RegionStatus| it.number == waits.region && !it.is_served;
        let state = if status.regions.iter().any(is_unavailable) {
            " unavailable:"
        } else {
            ""
        };
        let _ = writeln!(text, "region {}{state} needs {}", waits.region, waits.what);
    }
    let up_count = status.servers.iter().filter(|it| it.is_alive).count();
    let _ = match &status.lacking[..] {
        [] => writeln!(
            text,
            "no problems found: {} up, {} fully replicated",
            counted(up_count, "server"),
            counted(status.regions.len(), "region")
        ),
        lacking => writeln!(text, "problems: {}", lacking.join("; ")),
    };
    text
}

fn servers_text(servers: &[ServerStatus]) -> String {
    let header = [
        "server",
        "address",
        "state",
        "replicas",
        "primaries",
        "size",
        "free",
        "operations/s",
    ];
    let rows = servers.iter().map(|server| {
        let mut state = match (server.is_alive, server.is_drained) {
            (true, false) => "up",
            (true, true) => "up, drained",
            (false, false) => "down",
            (false, true) => "down, drained",
        }
        .to_owned();
        state += match server.disk_space {
            Some(SpaceStatus::Full) => ", disk full",
            Some(SpaceStatus::Low) => ", low on space",
            Some(SpaceStatus::Enough) | None => "",
        };
        [
            server.number.to_string(),
            server.address.clone().unwrap_or_else(|| "-".to_owned()),
            state,
            count(server.replica_count as u64),
            count(server.primary_count as u64),
            size(server.size_bytes),
            free_text(server),
            count(server.operations_per_second),
        ]
    });
    let alignments = [Right, Left, Left, Right, Right, Right, Right, Right];
    grid(header, alignments, rows)
}

/// Describes the free space of a server's disk.
fn free_text(server: &ServerStatus) -> String {
    match (server.free_bytes, server.capacity_bytes) {
        (Some(free), Some(capacity)) => format!("{} of {}", size(free), size(capacity)),
        (Some(free), None) => size(free),
        (None, _) => "-".to_owned(),
    }
}

/// Describes the consequences of little free space, if a server has little.
fn space_text(server: &ServerStatus) -> Option<String> {
    let (number, free) = (server.number, free_text(server));
    let least = server.low_below_bytes.map_or_else(String::new, size);
    match server.disk_space? {
        SpaceStatus::Full => Some(format!(
            "the disk of server {number} is full: {free} is free; free space on it, or enlarge it: \
             its replicas then continue automatically, and it gets new ones when {least} is free"
        )),
        SpaceStatus::Low => Some(format!(
            "server {number} is low on disk space: {free} is free; it gets no new replicas until \
             {least} is free"
        )),
        SpaceStatus::Enough => None,
    }
}

/// Describes the corruption and how to repair it.
fn fault_text(fault: &Fault) -> String {
    let Fault {
        region,
        server,
        is_replica,
        is_broken,
        how,
    } = fault;
    let how = escape(how.as_bytes());
    if *is_broken {
        format!(
            "region {region} is corrupted on server {server}: {how}; that replica has stopped and \
             is being replaced from another one"
        )
    } else if *is_replica {
        format!(
            "region {region} is corrupted on server {server}: {how}; the intact records are \
             served, but no other replica can repair the others: if you have a copy of that \
             directory, stop the server, restore the directory, and start the server again; \
             otherwise write the unreadable records again with `farleaf load` (`put` and `del` \
             read the old value)"
        )
    } else {
        format!("server {server} keeps a copy of region {region}, but does not use it: {how}")
    }
}

fn regions_text(regions: &[RegionStatus]) -> String {
    let header = [
        "region", "table", "keys", "epoch", "primary", "backups", "phase", "size", "verified",
    ];
    let rows = regions.iter().map(|region| {
        let primary = match &region.primary {
            Some(primary) => replica_text(primary, region.is_served),
            None => "none yet".to_owned(),
        };
        let backups = region.backups.iter();
        let backups: Vec<String> = backups.map(|it| replica_text(it, true)).collect();
        [
            region.number.to_string(),
            region.table.clone(),
            keys_text(region),
            region.epoch.to_string(),
            primary,
            if backups.is_empty() {
                "-".to_owned()
            } else {
                backups.join(", ")
            },
            region.phase.clone(),
            region.size_bytes.map_or_else(|| "-".to_owned(), size),
            verified::text(region),
        ]
    });
    let alignments = [Right, Left, Left, Right, Left, Left, Left, Right, Left];
    grid(header, alignments, rows)
}

/// Formats a server's number, and the problem of its replica, if there is one.
fn replica_text(replica: &ReplicaStatus, is_served: bool) -> String {
    let what = match replica {
        ReplicaStatus {
            trouble: Some(Trouble::Restarted),
            ..
        } => " (restarted)",
        ReplicaStatus {
            is_alive: false, ..
        } => " (down)",
        ReplicaStatus {
            trouble: Some(Trouble::Broken),
            ..
        } => " (broken)",
        ReplicaStatus {
            is_in_sync: false, ..
        } => " (catching up)",
        _ if !is_served => " (opening)",
        _ => "",
    };
    format!("{}{what}", replica.server)
}

/// Formats the range of keys, shortened.
fn keys_text(region: &RegionStatus) -> String {
    let key = |KeyShown(key): &KeyShown| match key.get(..SHOWN_SIZE_BYTES_MAX) {
        Some(beginning) if key.len() > SHOWN_SIZE_BYTES_MAX => {
            format!("{}...", escape(beginning))
        }
        _ => escape(key),
    };
    match (region.from.0.is_empty(), &region.to) {
        (true, None) => "all".to_owned(),
        (true, Some(to)) => format!("below {}", key(to)),
        (false, None) => format!("from {}", key(&region.from)),
        (false, Some(to)) => format!("from {} to {}", key(&region.from), key(to)),
    }
}

#[cfg(test)]
mod tests {
    use farleaf_cluster::coordinator::{Entry, Revision};
    use farleaf_cluster::view::View;

    use super::*;

    /// Promise: a corrupted record is reported as corrupted, and one that a newer version has
    /// written as such, with what to do. Both count as unreadable records.
    #[test]
    fn records_that_cannot_be_read_are_told() {
        let entry = |key: &str, value: &[u8]| Entry {
            key: key.to_owned(),
            value: value.to_vec(),
            create_revision: Revision(2),
            mod_revision: Revision(2),
            lease: None,
        };
        let entries = [
            entry("cluster", br#"{"version":3,"name":"c"}"#),
            entry("ids", b"{"),
        ];
        let view = View::of(Revision(3), &entries);
        let text = text(&ClusterStatus::new(&view, "tcp:h:1", None));
        let newer = "the record 'cluster' has format version 3, but this version of Farleaf \
                     supports up to 2: a newer version has written it; use that version here, too\n";
        assert!(text.contains(newer), "{text}");
        assert!(
            text.contains("the record 'ids' is corrupted: EOF"),
            "{text}"
        );
        assert!(text.contains("2 records cannot be read"), "{text}");
    }

    /// Promise: corruption of a replica is reported with its place, its kind, and what to do.
    #[test]
    fn damaged_copies_are_told() {
        let fault = |is_replica, is_broken| Fault {
            region: 7,
            server: 3,
            is_replica,
            is_broken,
            how: "block 0 of tree 9 is corrupted: why (byte 4096 of d/trees)".to_owned(),
        };
        let text = fault_text(&fault(true, false));
        assert!(
            text.starts_with("region 7 is corrupted on server 3: block 0 of tree 9 is corrupted")
        );
        assert!(text.contains("(byte 4096 of d/trees)") && text.contains("restore the directory"));
        let text = fault_text(&fault(true, true));
        assert!(
            text.starts_with("region 7 is corrupted on server 3: block 0 of tree 9 is corrupted")
        );
        assert!(text.ends_with("is being replaced from another one"));
        let text = fault_text(&fault(false, false));
        assert!(
            text.starts_with("server 3 keeps a copy of region 7"),
            "{text}"
        );
    }

    /// Promise: the problem of a replica is shown with its server's number. Of several problems,
    /// the root cause is shown.
    #[test]
    fn replicas_that_lack_something_are_told() {
        let whole = ReplicaStatus {
            server: 3,
            is_alive: true,
            is_in_sync: true,
            trouble: None,
            verification: None,
        };
        assert_eq!(replica_text(&whole, true), "3");
        assert_eq!(replica_text(&whole, false), "3 (opening)");
        let mut replica = whole;
        replica.is_in_sync = false;
        assert_eq!(replica_text(&replica, false), "3 (catching up)");
        replica.trouble = Some(Trouble::Broken);
        assert_eq!(replica_text(&replica, false), "3 (broken)");
        replica.is_alive = false;
        assert_eq!(replica_text(&replica, false), "3 (down)");
        replica.trouble = Some(Trouble::Restarted);
        assert_eq!(replica_text(&replica, false), "3 (restarted)");
    }

    fn server(free_bytes: Option<u64>, disk_space: Option<SpaceStatus>) -> ServerStatus {
        ServerStatus {
            number: 3,
            address: None,
            is_alive: true,
            is_drained: false,
            replica_count: 0,
            primary_count: 0,
            size_bytes: 0,
            operations_per_second: 0,
            capacity_bytes: Some(60 << 20),
            free_bytes,
            low_below_bytes: Some(15 << 20),
            disk_space,
        }
    }

    /// Promise (CONTROL-22): a full or nearly full disk is reported with its free space, what to
    /// do, and when the server gets replicas again. Otherwise nothing is reported.
    #[test]
    fn low_disk_space_is_reported() {
        let enough = server(Some(20 << 20), Some(SpaceStatus::Enough));
        assert_eq!(space_text(&enough), None);
        assert_eq!(free_text(&enough), "20 MiB of 60 MiB");
        assert_eq!(free_text(&server(None, None)), "-");
        let low = space_text(&server(Some(8 << 20), Some(SpaceStatus::Low)));
        let text = "server 3 is low on disk space: 8 MiB of 60 MiB is free; it gets no new \
                    replicas until 15 MiB is free";
        assert_eq!(low.as_deref(), Some(text));
        let full = server(Some(0), Some(SpaceStatus::Full));
        let text = space_text(&full).expect("it is full");
        assert!(
            text.starts_with("the disk of server 3 is full: 0 B of 60 MiB is free; free space")
        );
        assert!(servers_text(&[full]).contains("up, disk full"));
    }
}
