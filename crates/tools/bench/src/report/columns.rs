//! Tables that are printed while they grow: the widths of columns are known before.

/// Columns of a table: names and widths in characters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<const N: usize> {
    pub(crate) columns: [(&'static str, usize); N],
    /// Number of leading columns with words, which are left-aligned; numbers are right-aligned.
    pub(crate) word_count: usize,
}

impl<const N: usize> Columns<N> {
    /// Returns the names and a rule below them, with their line feeds.
    pub(crate) fn header(&self) -> String {
        let names = self.row(self.columns.map(|(name, _)| name.to_owned()));
        let width = self.columns.iter().map(|(_, width)| width).sum();
        format!("{names}{}\n", "─".repeat(width))
    }

    /// Returns one row, with its line feed.
    pub(crate) fn row(&self, cells: [String; N]) -> String {
        let cells = cells.into_iter().zip(self.columns).enumerate();
        let cells = cells.map(|(index, (cell, (_, width)))| {
            if index < self.word_count {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        cells.collect::<String>() + "\n"
    }
}
