//! Counters of operations and bytes, by file.

use std::collections::BTreeMap;

/// Kind of operation: the methods of [`Storage`](crate::storage::Storage) and
/// [`StorageFile`](crate::storage::StorageFile).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// The method `create`.
    Create,
    /// The method `open`.
    Open,
    /// The method `rename`, counted for the file's old name.
    Rename,
    /// The method `remove`.
    Remove,
    /// The method `list`, counted for no file.
    List,
    /// The method `sync_names`, counted for no file.
    SyncNames,
    /// The method `lock`.
    Lock,
    /// The method `read_at`.
    Read,
    /// The method `write_at`.
    Write,
    /// The method `sync`.
    Sync,
    /// The method `size`.
    Size,
    /// The method `set_size`.
    SetSize,
    /// The method `discard`.
    Discard,
}

impl Operation {
    /// All kinds of operations.
    pub const ALL: &'static [Self] = &[
        Self::Create,
        Self::Open,
        Self::Rename,
        Self::Remove,
        Self::List,
        Self::SyncNames,
        Self::Lock,
        Self::Read,
        Self::Write,
        Self::Sync,
        Self::Size,
        Self::SetSize,
        Self::Discard,
    ];
}

/// Number of kinds: the index of the last one plus one.
const OPERATION_COUNT: usize = Operation::Discard as usize + 1;
const _: () = assert!(Operation::ALL.len() == OPERATION_COUNT);

/// Counters of one file, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    operation_counts: [u64; OPERATION_COUNT],
    /// Bytes of successful reads.
    pub read_bytes: u64,
    /// Bytes written, including those of writes that failed in part.
    pub written_bytes: u64,
}

impl Counters {
    /// Returns the number of operations of a kind, successful or not.
    pub const fn operation_count(&self, operation: Operation) -> u64 {
        self.operation_counts[operation as usize]
    }
}

/// Counters of a storage.
#[derive(Debug, Default)]
pub(super) struct AllCounters {
    total: Counters,
    by_file: BTreeMap<String, Counters>,
}

impl AllCounters {
    pub(super) const fn total(&self) -> Counters {
        self.total
    }

    pub(super) fn of(&self, file: &str) -> Counters {
        self.by_file.get(file).copied().unwrap_or_default()
    }

    pub(super) fn by_file(&self) -> BTreeMap<String, Counters> {
        self.by_file.clone()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn operation(&mut self, operation: Operation, file: Option<&str>) {
        self.add(file, |to| to.operation_counts[operation as usize] += 1);
    }

    pub(super) fn read(&mut self, file: &str, size_bytes: usize) {
        self.add(Some(file), |to| to.read_bytes += size_bytes as u64);
    }

    pub(super) fn written(&mut self, file: &str, size_bytes: usize) {
        self.add(Some(file), |to| to.written_bytes += size_bytes as u64);
    }

    fn add(&mut self, file: Option<&str>, mut add: impl FnMut(&mut Counters)) {
        add(&mut self.total);
        let Some(file) = file else { return };
        if let Some(counters) = self.by_file.get_mut(file) {
            add(counters);
        } else {
            add(self.by_file.entry(file.to_owned()).or_default());
        }
    }
}
