//! ROLEX as its paper has it (FAST'23, section 4): a leaf table and synonym leaf tables on the
//! compute node, and all leaves that the models' error allows fetched with one doorbell.
//!
//! Where it departs: the leaf table maps the number of a trained leaf to its address, as in the
//! paper, but locks are in the leaves, and fences decide (see `docs/learned-layer.md`). A synonym
//! leaf's parent is named in the spare bits of its table entry. A client that meets more synonyms
//! than the table lists follows links.

use std::sync::Arc;

use farleaf_types::RemoteAddr;

use crate::directory::Directory;
use crate::hint::{Announcement, Candidates, Hint, SearchLayer, paper_due_split_count};
use crate::synonyms::Synonyms;

/// Leaves fetched with one doorbell at the most; what is not among them is found by links.
const CANDIDATE_COUNT_MAX: usize = 64;

/// One session's ROLEX layer on one table.
#[derive(Debug)]
pub struct RolexLayer {
    directory: Arc<Directory>,
    /// LT: one address of 8 bytes per trained leaf.
    leaf_table: Vec<RemoteAddr>,
    /// SLTs of all models side by side, each with room for all its entries, as the paper has them.
    synonym_tables: Vec<RemoteAddr>,
    /// Where each model's SLT starts in `synonym_tables`.
    synonym_starts: Vec<u32>,
    /// `slot_use` as last read, per model.
    announced: Vec<u32>,
    /// Lower fences that were met on the way; only to go left and to scan.
    met: Synonyms,
}

impl RolexLayer {
    /// A layer over a directory that the process shares; its tables are this session's own.
    pub fn new(directory: Arc<Directory>) -> Self {
        let leaves = (0..directory.leaf_count()).filter_map(|number| directory.leaf(number));
        let leaf_table = leaves.map(|leaf| leaf.addr).collect();
        let mut synonym_starts = Vec::with_capacity(directory.model_count());
        let mut entry_count = 0;
        for model in 0..directory.model_count() {
            synonym_starts.push(entry_count);
            entry_count += directory.synonym_capacity(model);
        }
        Self {
            leaf_table,
            synonym_tables: vec![RemoteAddr::NULL; entry_count as usize],
            synonym_starts,
            announced: vec![0; directory.model_count()],
            directory,
            met: Synonyms::default(),
        }
    }

    /// The directory that it searches in.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Every leaf that may hold a key: the predicted range and its synonyms.
    pub fn candidates(&self, key: u64) -> Candidates {
        let (from, to) = self.directory.predicted_range(key);
        let model = self.directory.model_of(from);
        let first = self.directory.first_leaf_of(model);
        let mut leaves = Vec::with_capacity((to - from + 1) as usize);
        let synonyms = self.synonyms_of(model);
        for parent in from..=to {
            leaves.push(Hint {
                addr: self.leaf_table[parent as usize],
                parent,
            });
            // An entry is empty while, or for ever if, its splitter has not written it.
            let written = synonyms.iter().filter(|entry| !entry.is_null());
            let own = written.filter(|entry| u32::from(entry.spare()) == parent - first);
            leaves.extend(own.map(|entry| Hint {
                addr: entry.place(),
                parent,
            }));
            leaves.extend(
                self.met
                    .find(self.trained(parent), key)
                    .filter(|met| !leaves.contains(met)),
            );
            if leaves.len() >= CANDIDATE_COUNT_MAX {
                break;
            }
        }
        leaves.truncate(CANDIDATE_COUNT_MAX);
        let counter = self
            .directory
            .announcement(from)
            .map(|announcement| announcement.counter);
        Candidates {
            leaves,
            counter,
            model: model as u32,
            ..Candidates::default()
        }
    }

    fn trained(&self, parent: u32) -> Hint {
        let addr = self.leaf_table[parent as usize];
        Hint { addr, parent }
    }

    /// Entries of a model's synonym leaf table that are cached and not empty.
    fn synonyms_of(&self, model: usize) -> &[RemoteAddr] {
        let start = self.synonym_starts[model] as usize;
        let capacity = self.directory.synonym_capacity(model);
        &self.synonym_tables[start..start + self.announced[model].min(capacity) as usize]
    }
}

impl SearchLayer for RolexLayer {
    /// The leaf in the middle of the predicted range: what a write starts with when it has not read
    /// the range first.
    fn locate(&self, key: u64) -> Hint {
        let (from, to) = self.directory.predicted_range(key);
        let parent = from + (to - from) / 2;
        let trained = Hint {
            addr: self.leaf_table[parent as usize],
            parent,
        };
        self.met.find(trained, key).unwrap_or(trained)
    }

    fn left_of(&self, key: u64, failed: Hint) -> Option<Hint> {
        let parent = failed.parent.checked_sub(1)?;
        let trained = Hint {
            addr: self.leaf_table[parent as usize],
            parent,
        };
        Some(self.met.find(trained, key).unwrap_or(trained))
    }

    fn next_trained(&self, parent: u32) -> Option<Hint> {
        let addr = *self.leaf_table.get(parent as usize + 1)?;
        Some(Hint {
            addr,
            parent: parent + 1,
        })
    }

    fn learn(&mut self, low: u64, leaf: Hint) {
        let trained = self.trained(leaf.parent);
        let leaf_count = self.directory.leaf_count();
        self.met.insert(low, leaf.addr, trained, leaf_count);
    }

    fn synonyms_above(&self, parent: u32, from: u64, limit: usize, found: &mut Vec<RemoteAddr>) {
        self.met.above(self.trained(parent), from, limit, found);
    }

    /// The paper's threshold: half of the table's entries.
    fn announcement(&self, parent: u32) -> Option<Announcement> {
        let announcement = self.directory.announcement(parent)?;
        Some(Announcement {
            due_split_count: paper_due_split_count(announcement.capacity),
            ..announcement
        })
    }

    fn announced_seen(&self, model: u32) -> u32 {
        self.announced[model as usize]
    }

    fn note_announced(&mut self, model: u32, seen: u32, entries: &[u64]) {
        let model = model as usize;
        let known = self.announced[model].min(self.directory.synonym_capacity(model)) as usize;
        let start = self.synonym_starts[model] as usize + known;
        for (slot, entry) in self.synonym_tables[start..].iter_mut().zip(entries) {
            *slot = RemoteAddr::from_word(*entry);
        }
        self.announced[model] = seen;
    }

    fn metadata_bytes(&self) -> u64 {
        let tables = size_of_val(&*self.leaf_table)
            + size_of_val(&*self.synonym_tables)
            + size_of_val(&*self.synonym_starts)
            + size_of_val(&*self.announced);
        self.directory.model_bytes() + tables as u64 + self.met.size_bytes()
    }
}
