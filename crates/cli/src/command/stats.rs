//! `farleaf stats`: shows the contents of a pool and statistics of its tables.

use clap::Args;
use comfy_table::CellAlignment;
use farleaf::{
    Error, ErrorKind, OperationKind, PartRecord, PoolUsage, RetrainingReport, Session, TableStats,
};
use serde::Serialize;

use crate::arguments::{OutputArgument, PoolArguments};
use crate::command::cluster;
use crate::command::connection::open_sessions;
use crate::command::stats_bytes::{ByteTableReport, bytes_text};
use crate::command::table_list::{PartListed, part_text};
use crate::command::target::Sessions;
use crate::failure::Ending;
use crate::output::{Lines, OutputFormat, grid, print};
use farleaf_bench::quantity::{count, size};

/// Arguments of `farleaf stats`.
#[derive(Debug, Args)]
pub(crate) struct StatsArguments {
    /// Show only this table
    #[arg(short, long, value_name = "NAME")]
    table: Option<String>,

    #[command(flatten)]
    output: OutputArgument,
}

/// Statistics of a pool as JSON.
#[derive(Serialize)]
struct Report {
    pool: PoolReport,
    retraining: RetrainingLine,
    tables: Vec<AnyReport>,
    /// Costs of this command.
    counters: Vec<CounterReport>,
}

#[derive(Serialize)]
struct PoolReport {
    address: String,
    region_bytes: u64,
    size_bytes: u64,
    used_bytes: u64,
    sessions: u64,
    tables: u64,
}

/// Work of the node's retraining since the pool was created.
#[derive(Serialize)]
struct RetrainingLine {
    retrainings: u64,
    queue_length: u64,
    leaves_moved: u64,
    leaves_made: u64,
    records_retrained: u64,
    models_trained: u64,
    models_from_queue: u64,
    models_found: u64,
    time_ns_mean: u64,
    time_ns_max: u64,
    step_round_trips_max: u64,
    reclaimed_bytes: u64,
    no_space: u64,
}

/// Report on a table of either kind.
#[derive(Serialize)]
#[serde(untagged)]
enum AnyReport {
    Words(Box<TableReport>),
    Bytes(ByteTableReport),
}

/// Report on a table of words.
#[derive(Serialize)]
struct TableReport {
    name: String,
    id: u32,
    kind: &'static str,
    index: &'static str,
    /// Part of a table over several pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<PartListed>,
    #[serde(skip)]
    part_record: Option<PartRecord>,
    /// Whether the table has models to train: a tree has none.
    #[serde(skip)]
    has_models: bool,
    slots: u64,
    records: u64,
    leaves: u64,
    trained_leaves: u64,
    trained_records: u64,
    locked_leaves: u64,
    fill: f64,
    models: u64,
    metadata_bytes: u64,
    memory_bytes: u64,
    generation: u16,
    sound: bool,
    /// Keys that were on lost nodes.
    lost: Vec<LostReport>,
}

/// Range of keys that were on a lost node, or reachable only through it.
#[derive(Serialize)]
struct LostReport {
    node: u8,
    from: u64,
    to: u64,
}

#[derive(Serialize)]
struct CounterReport {
    kind: &'static str,
    operations: u64,
    round_trips: u64,
    doorbells: u64,
    verbs: u64,
    bytes_read: u64,
    bytes_written: u64,
    atomics: u64,
    retries: u64,
    leaves_read: u64,
    links: u64,
}

/// Reads all leaves of the tables. Several pools are reported separately.
pub(crate) fn run(pool: &PoolArguments, arguments: &StatsArguments) -> anyhow::Result<Ending> {
    let table = arguments.table.as_deref();
    if let Some(address) = &pool.cluster {
        return cluster::show_status(pool, address, table, arguments.output.output);
    }
    let reports = match &open_sessions(pool)? {
        Sessions::One(session) => vec![report(session, table)?],
        Sessions::Parts(session) => {
            if let Some(name) = table {
                // Inconsistent parts are reported before anything is read.
                session.open_table(name)?;
            }
            let reports = session
                .sessions()
                .iter()
                .map(|session| report(session, table));
            reports.collect::<anyhow::Result<Vec<_>>>()?
        }
    };
    match arguments.output.output {
        OutputFormat::Text => {
            let texts: Vec<String> = reports.iter().map(text).collect();
            print(texts.join("\n"))?;
        }
        OutputFormat::Json => {
            let mut lines = Lines::new(OutputFormat::Json);
            for report in &reports {
                lines.line("", report)?;
            }
            lines.finish()?;
        }
    }
    Ok(Ending::Done)
}

/// Returns the report on one pool, with one table of it or all.
fn report(session: &Session, table: Option<&str>) -> anyhow::Result<Report> {
    let mut names: Vec<String> = match table {
        Some(name) => vec![name.to_owned()],
        None => session
            .list_tables()?
            .into_iter()
            .map(|table| table.name)
            .collect(),
    };
    names.sort();
    let tables = names.iter().map(|name| any_report(session, name));
    let tables = tables.collect::<Result<Vec<_>, _>>()?;
    let usage = session.pool().usage()?;
    let pool = pool_report(
        session.pool().info().address,
        session.pool().info().size_bytes,
        usage,
    );
    let retraining = retraining_line(session.pool().retraining()?);
    Ok(Report {
        pool,
        retraining,
        tables,
        counters: counter_reports(session),
    })
}

/// Returns the report on a table of either kind.
fn any_report(session: &Session, name: &str) -> Result<AnyReport, Error> {
    match session.open_part(name) {
        Err(error) if matches!(error.kind(), ErrorKind::TableOfOtherKind { .. }) => {
            let table = session.open_byte_table(name)?;
            let report = ByteTableReport::new(table.info(), &table.stats()?);
            Ok(AnyReport::Bytes(report))
        }
        opened => {
            let table = opened?;
            let report = table_report(table.info(), &table.stats()?);
            Ok(AnyReport::Words(Box::new(report)))
        }
    }
}

fn pool_report(address: String, region_bytes: u64, usage: PoolUsage) -> PoolReport {
    PoolReport {
        address,
        region_bytes,
        size_bytes: usage.size_bytes,
        used_bytes: usage.used_bytes,
        sessions: usage.session_count,
        tables: usage.table_count,
    }
}

fn retraining_line(report: RetrainingReport) -> RetrainingLine {
    let tally = report.tally;
    RetrainingLine {
        retrainings: tally.retraining_count,
        queue_length: report.queue_length,
        leaves_moved: tally.moved_count,
        leaves_made: tally.made_count,
        records_retrained: tally.record_count,
        models_trained: tally.model_count,
        models_from_queue: tally.queued_count,
        models_found: tally.found_count,
        time_ns_mean: tally
            .time_ns
            .checked_div(tally.retraining_count)
            .unwrap_or(0),
        time_ns_max: tally.time_ns_max,
        step_round_trips_max: tally.step_round_trips_max,
        reclaimed_bytes: tally.reclaimed_bytes,
        no_space: tally.no_space_count,
    }
}

fn table_report(table: &farleaf::TableInfo, stats: &TableStats) -> TableReport {
    TableReport {
        name: table.name.clone(),
        id: table.id,
        kind: table.options.kind.name(),
        index: table.options.layer.name(),
        part: table.part.as_ref().map(Into::into),
        part_record: table.part,
        has_models: !table.options.layer.has_tree(),
        slots: table.options.slots,
        records: stats.records,
        leaves: stats.leaves,
        trained_leaves: stats.trained_leaves,
        trained_records: stats.trained_records,
        locked_leaves: stats.locked_leaves,
        fill: stats.fill,
        models: stats.models,
        metadata_bytes: stats.metadata_bytes,
        memory_bytes: stats.memory_bytes,
        generation: stats.generation,
        sound: stats.sound,
        lost: stats
            .lost
            .iter()
            .map(|range| LostReport {
                node: range.node.0,
                from: range.low,
                to: range.high,
            })
            .collect(),
    }
}

fn counter_reports(session: &Session) -> Vec<CounterReport> {
    let kinds = OperationKind::ALL.map(|kind| (kind, session.counters(kind)));
    let used = kinds
        .into_iter()
        .filter(|(_, counters)| counters.operations > 0);
    used.map(|(kind, counters)| CounterReport {
        kind: kind.name(),
        operations: counters.operations,
        round_trips: counters.cost.round_trips,
        doorbells: counters.cost.doorbells,
        verbs: counters.cost.verbs,
        bytes_read: counters.cost.bytes_read,
        bytes_written: counters.cost.bytes_written,
        atomics: counters.cost.atomics,
        retries: counters.cost.retries,
        leaves_read: counters.cost.leaves_read,
        links: counters.cost.links,
    })
    .collect()
}

fn text(report: &Report) -> String {
    let pool = &report.pool;
    let mut text = format!(
        "{}: {}, {} of {} in use, sessions {} (with the node's and this one), tables {}\n",
        pool.address,
        size(pool.region_bytes),
        size(pool.used_bytes),
        size(pool.size_bytes),
        pool.sessions,
        pool.tables
    );
    text.push_str(&retraining_text(&report.retraining));
    let mut words = Vec::new();
    let mut bytes = Vec::new();
    for table in &report.tables {
        match table {
            AnyReport::Words(table) => words.push(&**table),
            AnyReport::Bytes(table) => bytes.push(table),
        }
    }
    text.push_str(&words_text(&words));
    text.push_str(&bytes_text(&bytes));
    text.extend(report.counters.iter().map(|counters| {
        format!(
            "costs ({}): {} operations, {} round trips, {} verbs, {} read, {} \
             retries, {} links\n",
            counters.kind,
            count(counters.operations),
            count(counters.round_trips),
            count(counters.verbs),
            size(counters.bytes_read),
            count(counters.retries),
            count(counters.links)
        )
    }));
    text
}

/// Describes the lost ranges of a table; of many, only the first few.
fn lost_text(table: &TableReport) -> Option<String> {
    let count_max = 4;
    let range = |lost: &LostReport| format!("{} to {} (node {})", lost.from, lost.to, lost.node);
    let ranges: Vec<String> = table.lost.iter().take(count_max).map(range).collect();
    let more = match table.lost.len().saturating_sub(count_max) {
        0 => String::new(),
        more => format!(
            ", and {} more ranges (`--output json` has all)",
            count(more as u64)
        ),
    };
    (!ranges.is_empty()).then(|| {
        let name = &table.name;
        let ranges = ranges.join(", ");
        format!("table '{name}': lost with nodes, not counted above: keys {ranges}{more}\n")
    })
}

fn retraining_text(retraining: &RetrainingLine) -> String {
    let no_space = match retraining.no_space {
        0 => String::new(),
        times => format!(", out of space {} times", count(times)),
    };
    format!(
        "retraining: {} done, {} pending, {} leaves rebuilt into {}, mean {:.1} ms, max {:.1} ms, \
         {} freed{no_space}\n",
        count(retraining.retrainings),
        count(retraining.queue_length),
        count(retraining.leaves_moved),
        count(retraining.leaves_made),
        retraining.time_ns_mean as f64 / 1e6,
        retraining.time_ns_max as f64 / 1e6,
        size(retraining.reclaimed_bytes)
    )
}

/// Formats the reports on tables of words.
fn words_text(tables: &[&TableReport]) -> String {
    let mut text = String::new();
    if !tables.is_empty() {
        text.push_str(&tables_text(tables));
    }
    text.extend(tables.iter().filter_map(|table| {
        let part = table.part_record.as_ref()?;
        Some(part_text(&table.name, part))
    }));
    let damaged = tables.iter().filter(|table| !table.sound);
    text.extend(damaged.map(|table| {
        format!(
            "table '{}' is CORRUPTED: its leaves do not cover all keys, or contain keys of other \
             leaves\n",
            table.name
        )
    }));
    text.extend(tables.iter().filter_map(|table| lost_text(table)));
    text
}

fn tables_text(tables: &[&TableReport]) -> String {
    let header = [
        "table", "index", "slots", "records", "leaves", "trained", "locked", "fill", "models",
        "metadata", "memory",
    ];
    let mut alignments = [CellAlignment::Right; 11];
    alignments[..2].fill(CellAlignment::Left);
    let rows = tables.iter().map(|table| {
        [
            table.name.clone(),
            table.index.to_owned(),
            table.slots.to_string(),
            count(table.records),
            count(table.leaves),
            trained_text(table),
            count(table.locked_leaves),
            format!("{:.1} %", table.fill * 100.0),
            count(table.models),
            size(table.metadata_bytes),
            size(table.memory_bytes),
        ]
    });
    grid(header, alignments, rows)
}

fn trained_text(table: &TableReport) -> String {
    if table.has_models {
        count(table.trained_leaves)
    } else {
        "-".to_owned()
    }
}
