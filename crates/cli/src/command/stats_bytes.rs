//! `farleaf stats` for tables of byte strings.

use comfy_table::CellAlignment;
use farleaf::{ByteTableStats, TableInfo, TableKind};
use serde::Serialize;

use crate::output::grid;
use farleaf_bench::quantity::{count, size};

/// Report on a table of byte strings.
#[derive(Serialize)]
pub(super) struct ByteTableReport {
    name: String,
    id: u32,
    kind: &'static str,
    index: &'static str,
    page_size_bytes: u64,
    inline_value_size_bytes: u64,
    records: u64,
    pages: u64,
    trained_pages: u64,
    trained_records: u64,
    locked_pages: u64,
    fill: f64,
    value_blocks: u64,
    models: u64,
    front_coded_models: u64,
    metadata_bytes: u64,
    memory_bytes: u64,
    generation: u16,
    sound: bool,
}

impl ByteTableReport {
    pub(super) fn new(table: &TableInfo, stats: &ByteTableStats) -> Self {
        let pages = match table.options.kind {
            TableKind::Bytes(pages) => pages,
            TableKind::Words => unreachable!("it is open as a table of byte strings"),
        };
        Self {
            name: table.name.clone(),
            id: table.id,
            kind: table.options.kind.name(),
            index: table.options.layer.name(),
            page_size_bytes: pages.page_size_bytes,
            inline_value_size_bytes: pages.inline_value_size_bytes,
            records: stats.records,
            pages: stats.pages,
            trained_pages: stats.trained_pages,
            trained_records: stats.trained_records,
            locked_pages: stats.locked_pages,
            fill: stats.fill,
            value_blocks: stats.value_blocks,
            models: stats.models,
            front_coded_models: stats.front_coded_models,
            metadata_bytes: stats.metadata_bytes,
            memory_bytes: stats.memory_bytes,
            generation: stats.generation,
            sound: stats.sound,
        }
    }
}

/// Formats the reports on tables of byte strings.
pub(super) fn bytes_text(tables: &[&ByteTableReport]) -> String {
    if tables.is_empty() {
        return String::new();
    }
    let header = [
        "of bytes", "page", "records", "pages", "trained", "locked", "fill", "blocks", "models",
        "metadata", "memory",
    ];
    let mut alignments = [CellAlignment::Right; 11];
    alignments[0] = CellAlignment::Left;
    let rows = tables.iter().map(|table| {
        [
            table.name.clone(),
            table.page_size_bytes.to_string(),
            count(table.records),
            count(table.pages),
            count(table.trained_pages),
            count(table.locked_pages),
            format!("{:.1} %", table.fill * 100.0),
            count(table.value_blocks),
            count(table.models),
            size(table.metadata_bytes),
            size(table.memory_bytes),
        ]
    });
    let mut text = grid(header, alignments, rows);
    let damaged = tables.iter().filter(|table| !table.sound);
    text.extend(damaged.map(|table| {
        format!(
            "table '{}' is CORRUPTED: its pages do not cover all keys, or contain keys of other \
             pages\n",
            table.name
        )
    }));
    text
}
