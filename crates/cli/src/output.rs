//! Output on stdout.

use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write};

use clap::ValueEnum;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use farleaf_bench::quantity::count;
use serde::Serialize;

/// Table style with rules above and below, and below the header.
const GRID_STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// Format in which results are printed: text, or one JSON object per line. (The variants have no
/// help of their own, which would make every command's help long.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    #[default]
    // Older name of the format in benchmarks.
    #[value(alias = "table")]
    Text,
    Json,
}

/// Error: the reader of stdout has closed it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stdout was closed by its reader")]
pub(crate) struct StdoutClosed;

/// Buffered lines for stdout: call [`Lines::finish`] at the end.
pub(crate) struct Lines {
    format: OutputFormat,
    stdout: BufWriter<StdoutLock<'static>>,
}

impl Lines {
    pub(crate) fn new(format: OutputFormat) -> Self {
        Self {
            format,
            stdout: BufWriter::new(io::stdout().lock()),
        }
    }

    /// Writes one line: the text or the object, depending on the format.
    ///
    /// # Errors
    /// [`StdoutClosed`], or another error of the system.
    pub(crate) fn line(
        &mut self,
        text: impl Display,
        object: &impl Serialize,
    ) -> anyhow::Result<()> {
        match self.format {
            OutputFormat::Text => write_result(writeln!(self.stdout, "{text}")),
            OutputFormat::Json => {
                let object = serde_json::to_string(object)?;
                write_result(writeln!(self.stdout, "{object}"))
            }
        }
    }

    /// Writes bytes unchanged.
    ///
    /// # Errors
    /// As for [`Lines::line`].
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        write_result(self.stdout.write_all(bytes))
    }

    /// Writes the buffered lines.
    ///
    /// # Errors
    /// As for [`Lines::line`].
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        write_result(self.stdout.flush())
    }
}

/// Prints text that ends with its line feed.
///
/// # Errors
/// As for [`Lines::line`].
pub(crate) fn print(text: impl Display) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    write_result(write!(stdout, "{text}"))?;
    write_result(stdout.flush())
}

/// Writes bytes unchanged.
///
/// # Errors
/// As for [`Lines::line`].
pub(crate) fn print_raw(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    write_result(stdout.write_all(bytes))?;
    write_result(stdout.flush())
}

fn write_result(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(StdoutClosed.into()),
        Err(error) => Err(anyhow::Error::new(error).context("cannot write to stdout")),
        Ok(()) => Ok(()),
    }
}

/// Formats a number with its noun: `1 region`, `2 regions`.
pub(crate) fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(number as u64))
}

/// Formats rows as a table, with rules above and below and below the header.
pub(crate) fn grid<const COLUMN_COUNT: usize>(
    header: [&str; COLUMN_COUNT],
    alignments: [CellAlignment; COLUMN_COUNT],
    rows: impl IntoIterator<Item = [String; COLUMN_COUNT]>,
) -> String {
    let mut table = Table::new();
    table.load_style(GRID_STYLE).set_header(header);
    for (column, alignment) in table.column_iter_mut().zip(alignments) {
        column.set_cell_alignment(alignment);
        column.set_padding((0, 1));
    }
    for row in rows {
        table.add_row(row);
    }
    table
        .lines()
        .fold(String::new(), |text, line| text + line.trim_end() + "\n")
}
