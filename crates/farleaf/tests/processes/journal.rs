//! Acknowledged writes of a worker, in a file that outlives its process.
//!
//! A worker owns a class of keys. Its journal has one word per key, the last acknowledged value,
//! and a header that names the next write. The worker writes the header before it calls an
//! operation, and the word after the operation has returned. Each is one `write(2)` into the page
//! cache, which SIGKILL does not undo. After a kill, each key therefore has the value in its word,
//! except the one in the header, whose write may have taken effect or not.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const HEADER_SIZE_WORDS: usize = 8;

/// Write that is about to be executed. Values are never 0, which means "absent".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Intent {
    pub(crate) index: u64,
    pub(crate) old: u64,
    pub(crate) new: u64,
}

/// Totals of a class's workers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OperationTotals {
    pub(crate) operation_count: u64,
    pub(crate) write_count: u64,
    pub(crate) stall_ns_max: u64,
}

/// Journal of one class of keys.
pub(crate) struct Journal {
    file: File,
    /// Acknowledged value of each key of the class.
    pub(crate) values: Vec<u64>,
    pub(crate) intent: Intent,
    pub(crate) tally: OperationTotals,
}

fn path(directory: &Path, class: u64) -> PathBuf {
    directory.join(format!("class-{class}"))
}

impl Journal {
    pub(crate) fn create(directory: &Path, class: u64, values: &[u64]) {
        let mut bytes = vec![0; HEADER_SIZE_WORDS * 8];
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        std::fs::write(path(directory, class), bytes).expect("a journal");
    }

    pub(crate) fn open(directory: &Path, class: u64) -> Self {
        let path = path(directory, class);
        let bytes = std::fs::read(&path).expect("a journal");
        let words = bytes.chunks_exact(8).map(|word| {
            let word = word.try_into().expect("eight bytes");
            u64::from_le_bytes(word)
        });
        let mut header: Vec<u64> = words.collect();
        let values = header.split_off(HEADER_SIZE_WORDS);
        let file = File::options().write(true).open(path).expect("a journal");
        Self {
            file,
            values,
            intent: Intent {
                index: header[0],
                old: header[1],
                new: header[2],
            },
            tally: OperationTotals {
                operation_count: header[3],
                write_count: header[4],
                stall_ns_max: header[5],
            },
        }
    }

    /// Records a write that is about to be executed, and the totals so far.
    pub(crate) fn intend(&mut self, intent: Intent) {
        self.intent = intent;
        let words = [
            intent.index,
            intent.old,
            intent.new,
            self.tally.operation_count,
            self.tally.write_count,
            self.tally.stall_ns_max,
        ];
        let mut bytes = [0; 48];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.file.write_all_at(&bytes, 0).expect("a journal");
    }

    /// Records a key's value, after the operation that wrote it has returned.
    pub(crate) fn acknowledge(&mut self, index: u64, value: u64) {
        self.values[index as usize] = value;
        let offset = (HEADER_SIZE_WORDS as u64 + index) * 8;
        self.file
            .write_all_at(&value.to_le_bytes(), offset)
            .expect("a journal");
    }

    /// Returns the key whose value is in doubt: its write was about to be executed and was not
    /// acknowledged.
    pub(crate) fn in_doubt(&self) -> Option<Intent> {
        let intent = self.intent;
        let acknowledged = self.values[intent.index as usize];
        (intent.old != intent.new && acknowledged == intent.old).then_some(intent)
    }
}
