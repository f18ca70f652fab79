//! Names of files: durable ones, current ones, and the changes between them.

use std::collections::{BTreeMap, BTreeSet};

use super::in_eighths;
use farleaf_base::random::Random;

/// Identity of a file, whatever its name is; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InodeId(pub(super) u64);

/// Change of names since the last sync.
#[derive(Clone, Debug)]
enum NameChange {
    Made {
        name: String,
        inode: InodeId,
    },
    Renamed {
        from: String,
        to: String,
        inode: InodeId,
    },
    Removed {
        name: String,
        inode: InodeId,
    },
}

impl NameChange {
    const fn inode(&self) -> InodeId {
        match self {
            Self::Made { inode, .. }
            | Self::Renamed { inode, .. }
            | Self::Removed { inode, .. } => *inode,
        }
    }

    /// Applies the change, or half of a rename, or nothing, each with a probability in eighths.
    fn survive(&self, names: &mut Surviving, eighths: u64, random: &mut Random) {
        if !in_eighths(random, eighths) {
            return;
        }
        match self {
            Self::Made { name, inode } => {
                names.put(name, *inode);
            }
            Self::Renamed { from, to, inode } => {
                // Only then: a rename never leaves the file without a name.
                if names.put(to, *inode) && in_eighths(random, eighths) {
                    names.take(from, *inode);
                }
            }
            Self::Removed { name, inode } => names.take(name, *inode),
        }
    }
}

/// Names that survive a power failure.
struct Surviving {
    names: BTreeMap<String, InodeId>,
    /// Files that would have a name without the failure.
    named_files: BTreeSet<InodeId>,
}

impl Surviving {
    /// Gives a file a name. Returns false if the file that has the name has no other one, although
    /// nothing removed or replaced it. Its rename did not survive, so the reuse of its old name
    /// does not, either.
    fn put(&mut self, name: &str, inode: InodeId) -> bool {
        if let Some(old) = self.names.get(name)
            && *old != inode
            && self.named_files.contains(old)
            && self.names.values().filter(|it| *it == old).count() == 1
        {
            return false;
        }
        self.names.insert(name.to_owned(), inode);
        true
    }

    fn take(&mut self, name: &str, inode: InodeId) {
        if self.names.get(name) == Some(&inode) {
            self.names.remove(name);
        }
    }
}

/// Names of a directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    durable: BTreeMap<String, InodeId>,
    current: BTreeMap<String, InodeId>,
    changes: Vec<NameChange>,
}

impl Names {
    pub(super) fn get(&self, name: &str) -> Option<InodeId> {
        self.current.get(name).copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&str, InodeId)> {
        self.current
            .iter()
            .map(|(name, inode)| (name.as_str(), *inode))
    }

    /// Names a new file.
    pub(super) fn make(&mut self, name: &str, inode: InodeId) {
        self.current.insert(name.to_owned(), inode);
        self.changes.push(NameChange::Made {
            name: name.to_owned(),
            inode,
        });
    }

    /// Renames a file; returns false if the name does not exist.
    pub(super) fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(inode) = self.get(from) else {
            return false;
        };
        // POSIX: a file that has both names, as after a power failure, keeps both.
        if self.get(to) != Some(inode) {
            self.current.remove(from);
            self.current.insert(to.to_owned(), inode);
            self.changes.push(NameChange::Renamed {
                from: from.to_owned(),
                to: to.to_owned(),
                inode,
            });
        }
        true
    }

    /// Removes a name; returns false if it does not exist.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let Some(inode) = self.current.remove(name) else {
            return false;
        };
        self.changes.push(NameChange::Removed {
            name: name.to_owned(),
            inode,
        });
        true
    }

    /// Makes all names durable.
    pub(super) fn make_durable(&mut self) {
        self.durable.clone_from(&self.current);
        self.changes.clear();
    }

    /// Returns true if the file has a name, or could have one after a power failure.
    pub(super) fn can_reach(&self, inode: InodeId) -> bool {
        self.current.values().any(|it| *it == inode)
            || self.durable.values().any(|it| *it == inode)
            || self.changes.iter().any(|change| change.inode() == inode)
    }

    /// Returns possible names after a power failure; each change survives with this probability, in
    /// eighths.
    pub(super) fn after_loss(&self, eighths: u64, random: &mut Random) -> Self {
        let mut surviving = Surviving {
            names: self.durable.clone(),
            named_files: self.current.values().copied().collect(),
        };
        for change in &self.changes {
            change.survive(&mut surviving, eighths, random);
        }
        Self {
            durable: surviving.names.clone(),
            current: surviving.names,
            changes: Vec::new(),
        }
    }
}
