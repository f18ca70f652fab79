//! Writes records one by one into a table that has records.

use std::fmt::Display;

use farleaf::Error;
use indicatif::ProgressBar;

use crate::failure::tell;
use crate::output::{counted, print};
use crate::progress::count_bar;
use crate::records::{Source, StringRecords, WordRecord};
use crate::watch::Watched;
use farleaf_bench::quantity::count;

/// Number of records between two checks of the clock and the signals.
const PROGRESS_RECORD_COUNT: usize = 256;

/// Maximum number of bytes of a key in the output.
const SHOWN_SIZE_BYTES_MAX: usize = 64;

/// Records in the order of writing.
pub(super) trait InOrder: Sync {
    fn count(&self) -> usize;

    /// Returns a record's key for messages; `None` after the last record.
    fn shown_key(&self, index: usize) -> Option<String>;
}

impl InOrder for [WordRecord] {
    fn count(&self) -> usize {
        self.len()
    }

    fn shown_key(&self, index: usize) -> Option<String> {
        Some(self.get(index)?.key.to_string())
    }
}

impl InOrder for StringRecords {
    fn count(&self) -> usize {
        Self::count(self)
    }

    fn shown_key(&self, index: usize) -> Option<String> {
        let (key, _) = self.get(index)?;
        Some(match key.get(..SHOWN_SIZE_BYTES_MAX) {
            Some(beginning) => format!("'{}...'", farleaf::key::text::escape(beginning)),
            None => format!("'{}'", farleaf::key::text::escape(key)),
        })
    }
}

/// Progress of a load that stopped early.
pub(super) struct Stopped {
    pub(super) written_count: usize,
    pub(super) why: anyhow::Error,
}

/// Records of a file, and their target table.
pub(super) struct Writing<'a, R: ?Sized> {
    pub(super) source: &'a Source,
    pub(super) name: &'a str,
    pub(super) records: &'a R,
}

impl<R: InOrder + ?Sized> Writing<'_, R> {
    /// Puts the records one by one; `put` returns whether the key existed. Returns the number of
    /// existing keys.
    pub(super) fn run(
        &self,
        put: impl FnMut(usize) -> Result<bool, Error>,
    ) -> anyhow::Result<usize> {
        let bar = count_bar("writing", self.records.count() as u64);
        let written = self.write_each(put, &bar);
        bar.finish_and_clear();
        written.map_err(|stopped| self.partly_loaded(stopped))
    }

    /// Prints that all records are in the table.
    pub(super) fn tell_written(&self, updated_count: usize) -> anyhow::Result<()> {
        let record_count = self.records.count();
        print(format_args!(
            "wrote {} of {} into table '{}', which had records: {} inserted, {} updated\n",
            counted(record_count, "record"),
            self.source,
            self.name,
            count((record_count - updated_count) as u64),
            count(updated_count as u64),
        ))
    }

    /// Writes the records. SIGINT and SIGTERM stop it between two records, or while it waits for
    /// another client.
    fn write_each(
        &self,
        mut put: impl FnMut(usize) -> Result<bool, Error>,
        bar: &ProgressBar,
    ) -> Result<usize, Stopped> {
        let watched = Watched::new().map_err(|error| Stopped {
            written_count: 0,
            why: error.into(),
        })?;
        let interrupted = |written_count| Stopped {
            written_count,
            why: anyhow::anyhow!("interrupted"),
        };
        tracing::info!("the table has records: writing record by record");
        let work = || {
            let mut updated_count = 0;
            for written_count in 0..self.records.count() {
                if written_count % PROGRESS_RECORD_COUNT == 0 {
                    bar.set_position(written_count as u64);
                }
                if watched.note(written_count) {
                    return Err(interrupted(written_count));
                }
                match put(written_count) {
                    Ok(was_present) => updated_count += usize::from(was_present),
                    Err(error) => {
                        return Err(Stopped {
                            written_count,
                            why: error.into(),
                        });
                    }
                }
            }
            Ok(updated_count)
        };
        let report_waiting = |written_count: usize| {
            let key = self.records.shown_key(written_count).unwrap_or_default();
            tracing::warn!(
                "waiting at key {key} of table '{}' for a leaf lock of another client; check \
                 whether a client is stopped",
                self.name
            );
        };
        let give_up = |written_count| {
            bar.finish_and_clear();
            tell(&self.partly_loaded(interrupted(written_count)));
            // The waiting session holds no lock, and the memory node sweeps it.
            std::process::exit(1);
        };
        watched.run(work, report_waiting, give_up)
    }

    pub(super) fn partly_loaded(&self, stopped: Stopped) -> anyhow::Error {
        let (written, all) = (stopped.written_count, self.records.count());
        let last = written
            .checked_sub(1)
            .map(|last| self.records.shown_key(last));
        let which = which_are_written(last.flatten(), self.records.shown_key(written));
        stopped.why.context(format!(
            "only {} of {} of {} were written into table '{}' ({which}); load the file \
             again, which starts from the first record",
            count(written as u64),
            counted(all, "record"),
            self.source,
            self.name,
        ))
    }
}

fn which_are_written(last: Option<impl Display>, next: Option<impl Display>) -> String {
    match (last, next) {
        (Some(last), Some(next)) => format!("the keys up to {last}, and possibly {next}"),
        (None, Some(next)) => format!("and possibly key {next}"),
        (_, None) => "all of them".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{FileFormat, Input, read_words};

    fn input_of(content: &str) -> (tempfile::TempDir, Source) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("records");
        std::fs::write(&path, content).expect("a file");
        (folder, Source::File(path))
    }

    /// Returns the message of a load that stopped there.
    fn message<R: InOrder + ?Sized>(written_count: usize, records: &R) -> String {
        let writing = Writing {
            source: &Source::Stdin,
            name: "t",
            records,
        };
        let why = anyhow::anyhow!("the table 't' was dropped");
        let stopped = Stopped { written_count, why };
        format!("{:#}", writing.partly_loaded(stopped))
    }

    /// Promise: a load that stops early reports how many of how many records were written, up to
    /// which key, and why, also when it stops at the first record.
    #[test]
    fn a_load_that_stops_says_how_far_it_came() {
        let (_folder, source) = input_of("1\n2\n3\n5\n");
        let mut input = Input::open(&source, &ProgressBar::hidden()).expect("open");
        let words = read_words(&mut input, FileFormat::Tsv, false).expect("records");
        let half = message(2, &words[..]);
        assert!(half.contains("only 2 of 4 records of stdin"), "{half}");
        assert!(
            half.contains("(the keys up to 2, and possibly 3)"),
            "{half}"
        );
        assert!(
            half.contains("starts from the first record: the table 't' was dropped"),
            "{half}"
        );
        let none = message(0, &words[..]);
        assert!(none.contains("only 0 of 4 records of stdin"), "{none}");
        assert!(none.contains("(and possibly key 1)"), "{none}");
    }

    /// Promise: keys of bytes are printed without control characters, and truncated when long.
    #[test]
    fn keys_of_bytes_are_told_short() {
        let long = "k".repeat(100);
        let (_folder, source) = input_of(&format!("a\\n\t\n{long}\t\n"));
        let mut input = Input::open(&source, &ProgressBar::hidden()).expect("open");
        let strings = StringRecords::read(&mut input, FileFormat::Tsv).expect("records");
        let half = message(1, &strings);
        let shown = format!("(the keys up to 'a\\n', and possibly '{}...')", &long[..64]);
        assert!(half.contains(&shown), "{half}");
    }
}
