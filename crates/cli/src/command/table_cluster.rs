//! `farleaf table` with `--cluster`: persistent tables.

use comfy_table::CellAlignment;
use farleaf_cluster::plan::{PlanOptions, Waiting, plan};
use farleaf_cluster::record::TableRecord;
use farleaf_cluster::view::View;
use serde::Serialize;

use super::cluster_client::Opened;
use super::table::TableCommand;
use crate::cluster_options::PersistentArguments;
use crate::failure::Ending;
use crate::log::say;
use crate::output::{Lines, OutputFormat, counted, grid, print};
use farleaf_bench::quantity::{count, size};

/// Runs `farleaf table` for a cluster.
pub(super) fn run(opened: &Opened, command: &TableCommand) -> anyhow::Result<Ending> {
    match command {
        TableCommand::Create {
            name, persistent, ..
        } => create(opened, name, persistent)?,
        TableCommand::List { output } => list(opened, output.output)?,
        TableCommand::Drop { name, .. } => {
            let dropped = opened.cluster.drop_table(name);
            dropped.map_err(|error| opened.explain(error))?;
            print(format_args!("dropped table '{name}'\n"))?;
        }
    }
    Ok(Ending::Done)
}

fn create(opened: &Opened, name: &str, arguments: &PersistentArguments) -> anyhow::Result<()> {
    arguments.refuse_needless_encoding()?;
    let options = arguments.options()?;
    let created = opened.cluster.create_table(name, &options);
    created.map_err(|error| opened.explain(error))?;
    let (replica_count, region_count) = (options.replica_count, options.split_keys.len() + 1);
    print(format_args!(
        "created table '{name}' of {}, {} of each\n",
        counted(region_count, "region"),
        counted(replica_count, "replica"),
    ))?;
    let view = opened.view()?;
    let alive_count = view.lives.len();
    if alive_count < replica_count {
        say(format_args!(
            "warning: {} up, but each region needs {}: {}; add servers with `farleaf region serve`",
            match alive_count {
                0 => "no server is".to_owned(),
                1 => "1 server is".to_owned(),
                _ => format!("{alive_count} servers are"),
            },
            counted(replica_count, "replica"),
            match alive_count {
                0 => "regions are unavailable until a server starts",
                _ => "regions have fewer replicas until more servers start",
            }
        ));
    } else if let Some(waits) = nowhere(&view, name) {
        say(format_args!(
            "warning: {} is not served yet: needs {}; see `farleaf cluster status`",
            waits.region, waits.what
        ));
    }
    Ok(())
}

/// Returns a region of the table that no server can take, and what it waits for, if there is one.
fn nowhere(view: &View, name: &str) -> Option<Waiting> {
    let tables = view.tables.values().map(|entry| &entry.record);
    let table = tables
        .into_iter()
        .find(|it| it.name == name && !it.dropping)?;
    let regions = view.regions_of(table.table);
    let mut waiting = plan(view, &PlanOptions::default()).waiting.into_iter();
    waiting.find(|waits| {
        let of_table = regions.iter().find(|it| it.region == waits.region);
        of_table.is_some_and(|it| it.primary.is_none())
    })
}

/// Table, as `list` and `cluster status` show it.
#[derive(Serialize)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) replica_count: usize,
    pub(super) region_count: usize,
    /// Size of the table on its primaries, in bytes.
    pub(super) size_bytes: u64,
    /// Number of in-sync replicas of all regions.
    pub(super) in_sync_count: usize,
    pub(super) is_dropping: bool,
}

impl Listed {
    pub(super) fn new(view: &View, table: &TableRecord) -> Self {
        let regions = view.regions_of(table.table);
        let sizes = regions.iter().filter_map(|region| {
            let report = view.report(region.region, region.primary?)?;
            Some(report.size_bytes)
        });
        let members = regions.iter().flat_map(|region| region.members());
        Self {
            name: table.name.clone(),
            number: table.table.0,
            replica_count: table.replica_count,
            region_count: regions.len(),
            size_bytes: sizes.sum(),
            in_sync_count: members.filter(|member| view.is_alive(*member)).count(),
            is_dropping: table.dropping,
        }
    }

    fn cells(&self) -> [String; 6] {
        let wanted = self.region_count * self.replica_count;
        [
            self.name.clone(),
            self.number.to_string(),
            self.replica_count.to_string(),
            count(self.region_count as u64),
            size(self.size_bytes),
            if self.is_dropping {
                "dropping".to_owned()
            } else {
                format!("{} of {}", self.in_sync_count, wanted)
            },
        ]
    }
}

/// Formats the tables as a grid.
pub(super) fn text(tables: &[Listed]) -> String {
    let (left, right) = (CellAlignment::Left, CellAlignment::Right);
    let header = ["table", "number", "replicas", "regions", "size", "in sync"];
    let alignments = [left, right, right, right, right, right];
    grid(header, alignments, tables.iter().map(Listed::cells))
}

/// Returns the tables of a view, sorted by name.
pub(super) fn tables_of(view: &View) -> Vec<Listed> {
    let tables = view.tables.values();
    let mut tables: Vec<_> = tables
        .map(|entry| Listed::new(view, &entry.record))
        .collect();
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    tables
}

fn list(opened: &Opened, format: OutputFormat) -> anyhow::Result<()> {
    let mut tables = tables_of(&opened.view()?);
    tables.retain(|table| !table.is_dropping);
    match format {
        OutputFormat::Text if tables.is_empty() => print(format_args!(
            "the cluster at {} has no tables; create one with `farleaf table create NAME`\n",
            opened.address
        )),
        OutputFormat::Text => print(text(&tables)),
        OutputFormat::Json => {
            let mut lines = Lines::new(format);
            for table in &tables {
                lines.line("", table)?;
            }
            lines.finish()
        }
    }
}
