//! Names of files: the durable ones, the current ones, and the changes that lie between.

use std::collections::{BTreeMap, BTreeSet};

use super::random::Random;

/// A file, whatever it is called; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InodeId(pub(super) u64);

/// What was done with names since they were last synced.
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

    /// Does it, or does not, or does half of a rename, each with a probability in eighths.
    fn survive(&self, names: &mut Surviving, eighths: u64, random: &mut Random) {
        if !random.in_eighths(eighths) {
            return;
        }
        match self {
            Self::Made { name, inode } => {
                names.put(name, *inode);
            }
            Self::Renamed { from, to, inode } => {
                // Only then: the file is never without a name because it was renamed.
                if names.put(to, *inode) && random.in_eighths(eighths) {
                    names.take(from, *inode);
                }
            }
            Self::Removed { name, inode } => names.take(name, *inode),
        }
    }
}

/// Names that survive a loss of power.
struct Surviving {
    names: BTreeMap<String, InodeId>,
    /// Files that have a name without a loss.
    kept: BTreeSet<InodeId>,
}

impl Surviving {
    /// False: the name's file has no other one, and nobody removed or replaced it. It was renamed,
    /// which did not survive, and then its old name was used again: that does not, either.
    fn put(&mut self, name: &str, inode: InodeId) -> bool {
        if let Some(old) = self.names.get(name)
            && *old != inode
            && self.kept.contains(old)
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

/// The names of a directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    settled: BTreeMap<String, InodeId>,
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

    /// False: nothing has the name.
    pub(super) fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(inode) = self.get(from) else {
            return false;
        };
        // POSIX: a file that has both names, as a loss of power can leave one, keeps both.
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

    /// False: nothing has the name.
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

    /// Makes all of it durable.
    pub(super) fn settle(&mut self) {
        self.settled.clone_from(&self.current);
        self.changes.clear();
    }

    /// Whether the file has a name, or could have one after a loss of power.
    pub(super) fn can_reach(&self, inode: InodeId) -> bool {
        self.current.values().any(|it| *it == inode)
            || self.settled.values().any(|it| *it == inode)
            || self.changes.iter().any(|change| change.inode() == inode)
    }

    /// What a loss of power leaves, of which each change survives so many times of 8.
    pub(super) fn after_loss(&self, eighths: u64, random: &mut Random) -> Self {
        let mut surviving = Surviving {
            names: self.settled.clone(),
            kept: self.current.values().copied().collect(),
        };
        for change in &self.changes {
            change.survive(&mut surviving, eighths, random);
        }
        Self {
            settled: surviving.names.clone(),
            current: surviving.names,
            changes: Vec::new(),
        }
    }
}
