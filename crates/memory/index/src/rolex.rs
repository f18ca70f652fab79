//! ROLEX as in its paper (FAST'23, section 4). The compute node holds a leaf table and synonym leaf
//! tables, and one doorbell fetches all leaves that the models' error allows.
//!
//! Departures from the paper (see `docs/explanation/rolex.md`): the leaf table only maps the number
//! of a trained leaf to its address. Locks are in the leaves, and fences decide. The spare bits of
//! a table entry name the synonym leaf's parent. A client that meets more synonyms than the table
//! lists follows links.
//!
//! Leaves never move and are never retired ([`crate::retrain::paper`]). Leaves that a session has
//! met therefore stay valid under a newer directory; only the parents of synonyms change.

use std::collections::HashMap;
use std::sync::Arc;

use farleaf_base::RemoteAddr;

use crate::directory::Directory;
use crate::hint::{Announcement, Candidates, Hint, SearchLayer, paper_due_split_count};
use crate::synonyms::Synonyms;

/// Largest number of leaves that one doorbell fetches; links lead to others.
const CANDIDATE_COUNT_MAX: usize = 64;

/// ROLEX layer of one session on one table.
#[derive(Debug)]
pub struct RolexLayer {
    directory: Arc<Directory>,
    /// Leaf table (LT): one address of 8 bytes per trained leaf.
    leaf_table: Arc<[RemoteAddr]>,
    /// Synonym leaf tables (SLTs) of all models, adjacent, each with space for all its entries, as
    /// in the paper.
    synonym_tables: Vec<RemoteAddr>,
    /// Index in `synonym_tables` at which each model's SLT starts.
    synonym_starts: Vec<u32>,
    /// Last read value of `slot_use`, per model.
    announced: Vec<u32>,
    /// Leaves that the session met, by lower fence; used only to go left and to scan.
    met: Synonyms,
}

impl RolexLayer {
    /// Creates a layer over a directory that the process shares. The tables belong to this session.
    pub fn new(directory: Arc<Directory>) -> Self {
        let leaf_table = directory.leaf_table();
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

    /// Creates a layer over a newer directory, with what is still valid: synonym leaf tables of
    /// models that stayed, and leaves that were met and are not trained yet.
    #[must_use]
    pub fn with_directory(&self, directory: Arc<Directory>) -> Self {
        let mut newer = Self::new(directory);
        newer.keep_announcements(self);
        newer.keep_met(self);
        newer
    }

    /// Takes over the synonym leaf tables of models that stayed. A model has stayed if its synonym
    /// leaf table and its first leaf have: such a table is not reused while a session can know it
    /// (LEAF-7).
    fn keep_announcements(&mut self, older: &Self) {
        let name = |layer: &Self, model: usize| {
            let first = layer.directory.first_leaf_of(model);
            let announcement = layer.directory.announcement(first)?;
            let leaf = layer.leaf_table[first as usize];
            Some((announcement.counter, announcement.capacity, leaf))
        };
        let known = (0..older.announced.len()).filter(|model| older.announced[*model] > 0);
        let known = known.filter_map(|model| Some((name(older, model)?, model)));
        let known: HashMap<_, _> = known.collect();
        if known.is_empty() {
            return;
        }
        for model in 0..self.announced.len() {
            let same = name(self, model).and_then(|name| known.get(&name).copied());
            if let Some(same) = same {
                let entries = older.synonyms_of(same);
                let start = self.synonym_starts[model] as usize;
                self.synonym_tables[start..start + entries.len()].copy_from_slice(entries);
                self.announced[model] = older.announced[same];
            }
        }
    }

    /// Takes over the untrained leaves that were met. Each belongs to the trained leaf to its left:
    /// the last one that was met, or else its previous parent.
    fn keep_met(&mut self, older: &Self) {
        // Previous trained leaf: the old parent's address, and its number in the new directory.
        let mut trained: Option<(RemoteAddr, u32)> = None;
        for (low, leaf, parent) in older.met.iter() {
            // A trained leaf's number is in the range that is predicted for its lower fence.
            let (from, to) = self.directory.predicted_range(low);
            let find = |addr: RemoteAddr| {
                let mut numbers = (from..=to).rev();
                numbers.find(|number| self.leaf_table[*number as usize] == addr)
            };
            if let Some(number) = find(leaf) {
                trained = Some((parent, number));
                continue;
            }
            let parent = match trained {
                Some((before, number)) if before == parent => Some(number),
                _ => find(parent),
            };
            if let Some(parent) = parent {
                self.learn(low, Hint { addr: leaf, parent });
            }
        }
    }

    /// Returns the directory that the layer uses.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Returns every leaf that may have a key: the predicted range and its synonyms.
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
            // An entry is empty until its splitter has written it, and forever if the splitter
            // died.
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

    /// Returns the nonempty cached entries of a model's synonym leaf table.
    fn synonyms_of(&self, model: usize) -> &[RemoteAddr] {
        let start = self.synonym_starts[model] as usize;
        let capacity = self.directory.synonym_capacity(model);
        &self.synonym_tables[start..start + self.announced[model].min(capacity) as usize]
    }
}

impl SearchLayer for RolexLayer {
    /// Returns the leaf in the middle of the predicted range. A write starts there if it has not
    /// read the range.
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
        let addr = *self.leaf_table.get(parent as usize)?;
        let trained = Hint { addr, parent };
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

    /// Uses the paper's threshold: half of the table's entries.
    fn announcement(&self, parent: u32) -> Option<Announcement> {
        let announcement = self.directory.announcement(parent)?;
        Some(Announcement {
            due_split_count: paper_due_split_count(announcement.capacity),
            ..announcement
        })
    }

    fn announced_read_count(&self, model: u32) -> u32 {
        // An operation that began under an older directory may name one of that directory's models.
        self.announced.get(model as usize).copied().unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Model;
    use farleaf_base::NodeId;
    use farleaf_leaf::words::LeafGeometry;

    fn place(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    /// Creates a directory with leaves that begin at multiples of 100, four or more per model, at
    /// these addresses.
    fn directory(models: &[(u32, u64)], leaves: &[u64]) -> Arc<Directory> {
        let mut first = 0;
        let models: Vec<Model> = models
            .iter()
            .map(|(leaf_count, table)| {
                let model = Model {
                    first_key: first as u64 * 100,
                    slope: 0.01,
                    intercept: 0.0,
                    error_max: 0.1,
                    base: place(leaves[first]),
                    leaf_count: *leaf_count,
                    synonym_table: place(*table),
                    synonym_capacity: 4,
                };
                first += *leaf_count as usize;
                model
            })
            .collect();
        let geometry = LeafGeometry::new(8).expect("there are such leaves");
        let residuals = vec![0; leaves.len()];
        let directory = Directory::new(geometry, 1, 0, 0, &models, residuals);
        let leaves = leaves.iter().map(|block| place(*block)).collect();
        Arc::new(directory.with_leaf_table(leaves))
    }

    fn hint(block: u64, parent: u32) -> Hint {
        Hint {
            addr: place(block),
            parent,
        }
    }

    /// Every way to look up a leaf uses the leaf table, and every key's leaf is among its
    /// candidates.
    #[test]
    fn leaves_are_where_the_leaf_table_says() {
        let leaves = [900, 30, 33, 36, 700, 10, 13, 500];
        let directory = directory(&[(4, 5000), (4, 6000)], &leaves);
        let layer = RolexLayer::new(Arc::clone(&directory));
        for (number, block) in (0..).zip(leaves) {
            assert_eq!(directory.leaf(number), Some(hint(block, number)));
            let found = layer.candidates(u64::from(number) * 100 + 50).leaves;
            assert!(found.contains(&hint(block, number)), "{found:?}");
        }
        assert_eq!(directory.leaf(8), None);
        assert_eq!(layer.next_trained(3), Some(hint(700, 4)));
        assert_eq!(layer.left_of(0, hint(700, 4)), Some(hint(36, 3)));
    }

    /// A run contains only adjacent leaves of one model, and no more than requested.
    #[test]
    fn runs_end_where_the_next_leaf_is_elsewhere() {
        let directory = directory(&[(5, 5000), (3, 6000)], &[900, 30, 33, 36, 39, 42, 13, 500]);
        let run = |from, max| {
            directory
                .run_from(from, max)
                .map(|(leaf, count)| (leaf.addr, count))
        };
        assert_eq!(run(0, 9), Some((place(900), 1)));
        assert_eq!(
            run(1, 9),
            Some((place(30), 4)),
            "the sixth is another model's"
        );
        assert_eq!(run(1, 2), Some((place(30), 2)));
        assert_eq!(run(5, 9), Some((place(42), 1)));
        assert_eq!(run(8, 9), None);
    }

    /// After a retraining a session keeps what it met. A leaf that is trained now is not a synonym
    /// any more; one that is not belongs to the trained leaf to its left.
    #[test]
    fn what_was_met_follows_a_newer_directory() {
        let mut older = RolexLayer::new(directory(&[(2, 5000), (2, 6000)], &[900, 30, 700, 10]));
        older.learn(100, hint(50, 0));
        older.learn(120, hint(60, 0));
        older.learn(210, hint(70, 1));
        older.learn(110, hint(55, 0));
        // The leaf at 50 is trained now; all others have moved by one.
        let newer =
            older.with_directory(directory(&[(3, 8000), (2, 6000)], &[900, 50, 30, 700, 10]));
        let met: Vec<_> = newer.met.iter().collect();
        let expected = [(110, 55, 50), (120, 60, 50), (210, 70, 30)]
            .map(|(low, leaf, trained)| (low, place(leaf), place(trained)));
        assert_eq!(met, expected);
    }

    /// Announcements of a model that stayed need not be read again; those of a different model with
    /// the same number must be.
    #[test]
    fn announcements_of_models_that_stayed_are_kept() {
        let mut older = RolexLayer::new(directory(&[(2, 5000), (2, 6000)], &[900, 30, 700, 10]));
        older.note_announced(0, 1, &[hint(50, 0).addr.word()]);
        let entry = place(71).with_spare(1).word();
        older.note_announced(1, 6, &[entry, 0, entry, entry]);
        let newer = older.with_directory(directory(
            &[(1, 8000), (2, 9000), (2, 6000)],
            &[900, 50, 30, 700, 10],
        ));
        let seen = [0, 1, 2].map(|model| newer.announced_read_count(model));
        assert_eq!(seen, [0, 0, 6]);
        assert_eq!(newer.synonyms_of(2), older.synonyms_of(1));
        assert_eq!(newer.announced_read_count(3), 0, "there is no such model");
    }
}
