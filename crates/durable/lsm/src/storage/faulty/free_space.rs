//! Disk space that the files use: their sizes without discarded blocks.

use std::collections::{BTreeMap, BTreeSet};

/// Size of a block in bytes; only whole blocks are discarded.
const BLOCK_SIZE_BYTES: u64 = 4096;

/// Identity of a file, whatever its name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(u64);

#[derive(Debug, Default)]
struct FileSpace {
    name: String,
    size_bytes: u64,
    /// Blocks below the size that were discarded and not written since.
    holes: BTreeSet<u64>,
    /// Whether the file has lost its name; its space counts as free then.
    is_removed: bool,
}

impl FileSpace {
    fn taken_bytes(&self) -> u64 {
        let hole_size_bytes = self.holes.len() as u64 * BLOCK_SIZE_BYTES;
        self.size_bytes.saturating_sub(hole_size_bytes)
    }
}

/// Known files.
#[derive(Debug, Default)]
pub(super) struct FileSpaces {
    files: BTreeMap<FileId, FileSpace>,
    names: BTreeMap<String, FileId>,
    id_next: u64,
}

impl FileSpaces {
    pub(super) fn knows(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    pub(super) fn name_of(&self, id: FileId) -> String {
        self.files
            .get(&id)
            .map(|file| file.name.clone())
            .unwrap_or_default()
    }

    /// Registers an opened file. If it is new, everything below its size counts as used.
    pub(super) fn opened(&mut self, name: &str, size_bytes: u64) -> FileId {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        let id = FileId(self.id_next);
        self.id_next += 1;
        self.names.insert(name.to_owned(), id);
        self.files.insert(
            id,
            FileSpace {
                name: name.to_owned(),
                size_bytes,
                ..FileSpace::default()
            },
        );
        id
    }

    /// Renames a file; returns the bytes of the file that it replaces.
    pub(super) fn renamed(&mut self, from: &str, to: &str) -> u64 {
        if self.names.get(from) == self.names.get(to) {
            return 0;
        }
        let given_bytes = self.removed(to);
        if let Some(id) = self.names.remove(from) {
            self.names.insert(to.to_owned(), id);
            if let Some(file) = self.files.get_mut(&id) {
                to.clone_into(&mut file.name);
            }
        }
        given_bytes
    }

    /// Removes a file; returns its bytes.
    pub(super) fn removed(&mut self, name: &str) -> u64 {
        let file = self.names.remove(name);
        let Some(file) = file.and_then(|id| self.files.get_mut(&id)) else {
            return 0;
        };
        file.is_removed = true;
        file.taken_bytes()
    }

    /// Registers a write. Returns how many of its bytes fit, from the first on, and the space that
    /// they need.
    pub(super) fn write(
        &mut self,
        id: FileId,
        size_bytes: u64,
        offset: u64,
        free_bytes: u64,
    ) -> (u64, u64) {
        let Some(file) = self.files.get_mut(&id).filter(|file| !file.is_removed) else {
            return (size_bytes, 0);
        };
        let end = offset.saturating_add(size_bytes);
        let (mut start, mut taken_bytes) = (offset, 0);
        while start < end {
            let block = start / BLOCK_SIZE_BYTES;
            let piece_end = end.min((block + 1).saturating_mul(BLOCK_SIZE_BYTES));
            // A gap between the size and the write belongs to the file, too.
            let mut needed_bytes = piece_end.saturating_sub(file.size_bytes);
            if file.holes.contains(&block) {
                needed_bytes += BLOCK_SIZE_BYTES;
            }
            if taken_bytes + needed_bytes > free_bytes {
                break;
            }
            taken_bytes += needed_bytes;
            file.holes.remove(&block);
            file.size_bytes = file.size_bytes.max(piece_end);
            start = piece_end;
        }
        (start - offset, taken_bytes)
    }

    /// Changes a size; returns the bytes that this uses, and those that it frees. Returns `None` if
    /// they do not fit; nothing has changed then.
    pub(super) fn resize(
        &mut self,
        id: FileId,
        size_bytes: u64,
        free_bytes: u64,
    ) -> Option<(u64, u64)> {
        let Some(file) = self.files.get_mut(&id).filter(|file| !file.is_removed) else {
            return Some((0, 0));
        };
        if size_bytes.saturating_sub(file.size_bytes) > free_bytes {
            return None;
        }
        let before_bytes = file.taken_bytes();
        file.holes
            .retain(|block| (block + 1) * BLOCK_SIZE_BYTES <= size_bytes);
        file.size_bytes = size_bytes;
        let after_bytes = file.taken_bytes();
        Some((
            after_bytes.saturating_sub(before_bytes),
            before_bytes.saturating_sub(after_bytes),
        ))
    }

    /// Registers a discard; returns the freed bytes.
    pub(super) fn discarded(&mut self, id: FileId, offset: u64, size_bytes: u64) -> u64 {
        let Some(file) = self.files.get_mut(&id).filter(|file| !file.is_removed) else {
            return 0;
        };
        let end = offset.saturating_add(size_bytes).min(file.size_bytes);
        let before_bytes = file.taken_bytes();
        file.holes
            .extend(offset.div_ceil(BLOCK_SIZE_BYTES)..end / BLOCK_SIZE_BYTES);
        before_bytes - file.taken_bytes()
    }
}
