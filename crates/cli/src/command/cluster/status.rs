//! `farleaf cluster status`: what is seen of a cluster, for people and for programs.

use std::fmt::Write as _;

use comfy_table::CellAlignment::{Left, Right};
use farleaf::key::text::escape;
use farleaf_cluster::admin;

use super::seen::{KeyShown, Seen, SeenRegion, SeenReplica, SeenServer};
use crate::command::cluster_way::Opened;
use crate::command::table_cluster;
use crate::failure::Ending;
use crate::output::{Lines, OutputFormat, grid, print};
use crate::quantity::{count, size};

/// Bytes of a key that are shown.
const SHOWN_SIZE_BYTES_MAX: usize = 16;

/// Prints it; [`Ending::Lacking`] if something is not as it should be.
pub(super) fn run(
    opened: &Opened,
    table: Option<&str>,
    format: OutputFormat,
) -> anyhow::Result<Ending> {
    let table = match table {
        Some(name) => {
            let named = admin::table_named(opened.coordinator(), name);
            Some(named.map_err(|error| opened.told(error))?)
        }
        None => None,
    };
    let seen = Seen::new(&opened.view()?, &opened.address, table);
    match format {
        OutputFormat::Text => print(text(&seen))?,
        OutputFormat::Json => {
            let mut lines = Lines::new(format);
            lines.line("", &seen)?;
            lines.finish()?;
        }
    }
    Ok(if seen.lacking.is_empty() {
        Ending::Done
    } else {
        Ending::Lacking
    })
}

fn text(seen: &Seen) -> String {
    let mut text = match seen.cluster {
        Some(number) => format!("cluster {number} at {}", seen.coordinator),
        None => format!("a cluster at {}", seen.coordinator),
    };
    let master = seen.master.as_deref().map_or_else(
        || "no master".to_owned(),
        |address| format!("master at {address}"),
    );
    let _ = writeln!(text, ", revision {}, {master}", seen.revision);
    if !seen.servers.is_empty() {
        text += &servers_text(&seen.servers);
    }
    if !seen.tables.is_empty() {
        text += &table_cluster::text(&seen.tables);
        text += &regions_text(&seen.regions);
    }
    for damage in &seen.damaged {
        let _ = writeln!(text, "{}", escape(damage.how.as_bytes()));
    }
    for waits in &seen.waiting {
        let _ = writeln!(text, "region {} waits for {}", waits.region, waits.what);
    }
    let _ = match &seen.lacking[..] {
        [] => writeln!(text, "all is whole"),
        lacking => writeln!(text, "not whole: {}", lacking.join("; ")),
    };
    text
}

fn servers_text(servers: &[SeenServer]) -> String {
    let header = [
        "server",
        "address",
        "state",
        "replicas",
        "primaries",
        "size",
        "operations/s",
    ];
    let rows = servers.iter().map(|server| {
        let state = match (server.is_alive, server.is_drained) {
            (true, false) => "alive",
            (true, true) => "alive, drained",
            (false, false) => "gone",
            (false, true) => "gone, drained",
        };
        [
            server.number.to_string(),
            server.address.clone().unwrap_or_else(|| "-".to_owned()),
            state.to_owned(),
            count(server.replica_count as u64),
            count(server.primary_count as u64),
            size(server.size_bytes),
            count(server.operations_per_second),
        ]
    });
    grid(
        header,
        [Right, Left, Left, Right, Right, Right, Right],
        rows,
    )
}

fn regions_text(regions: &[SeenRegion]) -> String {
    let header = [
        "region", "table", "keys", "epoch", "primary", "backups", "phase", "size",
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
        ]
    });
    let alignments = [Right, Left, Left, Right, Left, Left, Left, Right];
    grid(header, alignments, rows)
}

/// A server's number, and what is wrong with what it has, if something is.
fn replica_text(replica: &SeenReplica, is_served: bool) -> String {
    let what = match replica {
        SeenReplica {
            is_alive: false, ..
        } => " (gone)",
        SeenReplica {
            is_in_sync: false, ..
        } => " (filling)",
        _ if !is_served => " (opening)",
        _ => "",
    };
    format!("{}{what}", replica.server)
}

/// The range of keys, shortened.
fn keys_text(region: &SeenRegion) -> String {
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

    /// Promise: a record that is damaged is told as that, and one that a newer program has written
    /// as that, with what to do; both count as records that cannot be read.
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
            entry("cluster", br#"{"version":2,"name":"c"}"#),
            entry("ids", b"{"),
        ];
        let view = View::of(Revision(3), &entries);
        let text = text(&Seen::new(&view, "tcp:h:1", None));
        let newer = "the record cluster has format version 2, and this program knows version 1: a \
                     newer program has written it; use that program here, too\n";
        assert!(text.contains(newer), "{text}");
        assert!(text.contains("the record ids is damaged: EOF"), "{text}");
        assert!(text.contains("2 records cannot be read"), "{text}");
    }
}
