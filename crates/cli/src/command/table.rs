//! `farleaf table`: create, list and drop tables.

use clap::{Args, Subcommand};
use comfy_table::CellAlignment;
use farleaf::TableInfo;
use serde::Serialize;

use crate::arguments::{OutputArgument, PoolArguments, TableOptionArguments};
use crate::command::connection::open_session;
use crate::failure::Ending;
use crate::output::{Lines, OutputFormat, grid, print};

/// What to do with tables.
#[derive(Debug, Args)]
pub(crate) struct TableArguments {
    #[command(subcommand)]
    pub(crate) command: TableCommand,
}

/// What to do with tables.
#[derive(Debug, Subcommand)]
pub(crate) enum TableCommand {
    /// Make an empty table
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        options: TableOptionArguments,
    },
    /// Show which tables there are
    List {
        #[command(flatten)]
        output: OutputArgument,
    },
    /// Drop a table and all its records
    Drop {
        /// Its name
        name: String,
    },
}

/// A table as JSON.
#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    id: u32,
    slots: u64,
    index: &'static str,
    fill_percent: u8,
    epsilon_keys: f64,
}

/// Does it.
pub(crate) fn run(pool: &PoolArguments, arguments: &TableArguments) -> anyhow::Result<Ending> {
    match &arguments.command {
        TableCommand::Create { name, options } => {
            let table = open_session(pool)?.create_table(name, &(*options).into())?;
            print(format_args!("created table '{}'\n", table.info().name))?;
        }
        TableCommand::List { output } => list(pool, output.output)?,
        TableCommand::Drop { name } => {
            open_session(pool)?.drop_table(name)?;
            print(format_args!("dropped table '{name}'\n"))?;
        }
    }
    Ok(Ending::Done)
}

fn list(pool: &PoolArguments, format: OutputFormat) -> anyhow::Result<()> {
    let mut tables = open_session(pool)?.list_tables()?;
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    match format {
        OutputFormat::Text if tables.is_empty() => print(format_args!(
            "{pool} has no tables; `farleaf table create NAME` makes one\n"
        )),
        OutputFormat::Text => print(text(&tables)),
        OutputFormat::Json => {
            let mut lines = Lines::new(format);
            for table in &tables {
                lines.line("", &listed(table))?;
            }
            lines.finish()
        }
    }
}

fn text(tables: &[TableInfo]) -> String {
    let rows = tables.iter().map(|table| {
        let options = &table.options;
        [
            table.name.clone(),
            options.layer.to_string(),
            options.slots.to_string(),
            format!("{} %", options.fill_percent),
            options.epsilon_keys.to_string(),
            table.id.to_string(),
        ]
    });
    let header = ["table", "index", "slots", "fill", "epsilon", "id"];
    let (left, right) = (CellAlignment::Left, CellAlignment::Right);
    grid(header, [left, left, right, right, right, right], rows)
}

fn listed(table: &TableInfo) -> Listed<'_> {
    let options = &table.options;
    Listed {
        name: &table.name,
        id: table.id,
        slots: options.slots,
        index: options.layer.name(),
        fill_percent: options.fill_percent,
        epsilon_keys: options.epsilon_keys,
    }
}
