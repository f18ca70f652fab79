//! `farleaf table list`: lists the tables of a pool, or over several pools.

use comfy_table::CellAlignment;
use farleaf::{
    ListedPartition, PageOptions, PartRecord, PartitionedInfo, TableInfo, TableKind, TableOptions,
};
use serde::Serialize;

use super::connection::open_sessions;
use super::table::bounds_text;
use super::target::Sessions;
use crate::arguments::PoolArguments;
use crate::output::{Lines, OutputFormat, grid, print};

/// Table as JSON.
#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u32>,
    #[serde(flatten)]
    options: OptionsListed,
    /// Part of a table over several pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<PartListed>,
    /// First keys of the parts of a table over several pools, except the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    bounds: Option<&'a [u64]>,
}

/// Options of a table; those of the other kind are omitted.
#[derive(Serialize)]
struct OptionsListed {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u64>,
    index: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inline_value_size_bytes: Option<u64>,
    fill_percent: u8,
    epsilon_keys: f64,
}

/// Part of a table over several pools, as JSON.
#[derive(Serialize)]
pub(super) struct PartListed {
    number: u16,
    count: u16,
    from: u64,
    to: u64,
}

/// Table over several pools that these pools cannot open, as JSON.
#[derive(Serialize)]
struct Faulty<'a> {
    name: &'a str,
    fault: String,
}

impl From<&TableOptions> for OptionsListed {
    fn from(options: &TableOptions) -> Self {
        let (slots, pages) = of_kind(options);
        Self {
            kind: options.kind.name(),
            slots,
            index: options.layer.name(),
            page_size_bytes: pages.map(|pages| pages.page_size_bytes),
            inline_value_size_bytes: pages.map(|pages| pages.inline_value_size_bytes),
            fill_percent: options.fill_percent,
            epsilon_keys: options.epsilon_keys,
        }
    }
}

/// Returns the options that only tables of words have, and those that only tables of bytes have.
fn of_kind(options: &TableOptions) -> (Option<u64>, Option<PageOptions>) {
    match options.kind {
        TableKind::Words => (Some(options.slots), None),
        TableKind::Bytes(pages) => (None, Some(pages)),
    }
}

impl From<&PartRecord> for PartListed {
    fn from(part: &PartRecord) -> Self {
        Self {
            number: part.number,
            count: part.count,
            from: part.low,
            to: part.high,
        }
    }
}

/// Prints the tables of the pool, or the tables that span all of several pools.
pub(super) fn list(pool: &PoolArguments, format: OutputFormat) -> anyhow::Result<()> {
    match open_sessions(pool)? {
        Sessions::One(session) => list_one(pool, session.list_tables()?, format),
        Sessions::Parts(session) => list_parts(pool, &session.list_tables()?, format),
    }
}

fn list_one(
    pool: &PoolArguments,
    mut tables: Vec<TableInfo>,
    format: OutputFormat,
) -> anyhow::Result<()> {
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    match format {
        OutputFormat::Text if tables.is_empty() => print(format_args!(
            "{pool} has no tables; create one with `farleaf table create NAME`\n"
        )),
        OutputFormat::Text => print(text(&tables)),
        OutputFormat::Json => {
            let mut lines = Lines::new(format);
            for table in &tables {
                let listed = Listed {
                    name: &table.name,
                    id: Some(table.id),
                    options: (&table.options).into(),
                    part: table.part.as_ref().map(Into::into),
                    bounds: None,
                };
                lines.line("", &listed)?;
            }
            lines.finish()
        }
    }
}

fn text(tables: &[TableInfo]) -> String {
    let rows = tables.iter().map(|table| {
        let [kind, index, slots, page, inline, fill, epsilon] = option_cells(&table.options);
        let (name, id) = (table.name.clone(), table.id.to_string());
        [name, kind, index, slots, page, inline, fill, epsilon, id]
    });
    let header = [
        "table", "kind", "index", "slots", "page", "inline", "fill", "epsilon", "id",
    ];
    let mut alignments = [CellAlignment::Right; 9];
    alignments[..3].fill(CellAlignment::Left);
    let mut text = grid(header, alignments, rows);
    text.extend(tables.iter().filter_map(|table| {
        let part = table.part.as_ref()?;
        Some(part_text(&table.name, part))
    }));
    text
}

/// Formats a line about a part of a table over several pools.
pub(super) fn part_text(name: &str, part: &PartRecord) -> String {
    format!(
        "table '{name}' is part {} of {} of a table over several pools: keys {} to {}\n",
        part.number, part.count, part.low, part.high
    )
}

fn option_cells(options: &TableOptions) -> [String; 7] {
    let (slots, pages) = of_kind(options);
    let cell = |of: Option<u64>| of.map_or_else(|| "-".to_owned(), |of| of.to_string());
    [
        options.kind.name().to_owned(),
        options.layer.to_string(),
        cell(slots),
        cell(pages.map(|pages| pages.page_size_bytes)),
        cell(pages.map(|pages| pages.inline_value_size_bytes)),
        format!("{} %", options.fill_percent),
        options.epsilon_keys.to_string(),
    ]
}

fn list_parts(
    pool: &PoolArguments,
    tables: &[ListedPartition],
    format: OutputFormat,
) -> anyhow::Result<()> {
    match format {
        OutputFormat::Text if tables.is_empty() => print(format_args!(
            "no tables over {pool}; create one with `farleaf table create NAME`\n"
        )),
        OutputFormat::Text => print(parts_text(tables)),
        OutputFormat::Json => {
            let mut lines = Lines::new(format);
            for table in tables {
                match &table.found {
                    Ok(info) => lines.line("", &partition_listed(info))?,
                    Err(error) => {
                        let (name, fault) = (&table.name, error.to_string());
                        lines.line("", &Faulty { name, fault })?;
                    }
                }
            }
            lines.finish()
        }
    }
}

fn partition_listed(info: &PartitionedInfo) -> Listed<'_> {
    Listed {
        name: &info.name,
        id: None,
        options: (&info.options).into(),
        part: None,
        bounds: Some(info.bounds.first_keys()),
    }
}

fn parts_text(tables: &[ListedPartition]) -> String {
    let whole = tables.iter().filter_map(|table| table.found.as_ref().ok());
    let rows: Vec<_> = whole
        .map(|info| {
            let [_, index, slots, _, _, fill, epsilon] = option_cells(&info.options);
            let (name, parts) = (info.name.clone(), info.bounds.part_count().to_string());
            let bounds = bounds_text(&info.bounds);
            [name, index, slots, fill, epsilon, parts, bounds]
        })
        .collect();
    let mut text = String::new();
    if !rows.is_empty() {
        let header = [
            "table", "index", "slots", "fill", "epsilon", "parts", "bounds",
        ];
        let (left, right) = (CellAlignment::Left, CellAlignment::Right);
        let alignments = [left, left, right, right, right, right, left];
        text = grid(header, alignments, rows);
    }
    let faults = tables.iter().filter_map(|table| table.found.as_ref().err());
    text.extend(faults.map(|error| format!("{error}\n")));
    text
}
