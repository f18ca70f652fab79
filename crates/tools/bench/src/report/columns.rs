//! Tables that grow while one looks at them: columns of widths that are known before.

/// The columns of a table: names and widths in characters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<const N: usize> {
    pub(crate) columns: [(&'static str, usize); N],
    /// How many of the first are words, which begin where the column does; numbers end there.
    pub(crate) word_count: usize,
}

impl<const N: usize> Columns<N> {
    /// The names and a rule below them, with their line feeds.
    pub(crate) fn header(&self) -> String {
        let names = self.row(self.columns.map(|(name, _)| name.to_owned()));
        let width = self.columns.iter().map(|(_, width)| width).sum();
        format!("{names}{}\n", "─".repeat(width))
    }

    /// One row, with its line feed.
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
