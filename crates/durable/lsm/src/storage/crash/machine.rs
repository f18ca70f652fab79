//! Simulated computer: all files, all names, and its power.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::PowerLoss;
use super::inode::Inode;
use super::names::{InodeId, Names};
use farleaf_base::random::Random;

#[derive(Debug, Default)]
struct OpenInode {
    inode: Inode,
    handle_count: usize,
}

/// State shared by all clones of a storage and its handles.
#[derive(Debug)]
pub(super) struct Machine {
    random: Random,
    is_on: bool,
    operation_count: u64,
    /// Index of the operation at which the power fails.
    fails_at: Option<u64>,
    /// Names by directory.
    directories: BTreeMap<u32, Names>,
    inodes: BTreeMap<InodeId, OpenInode>,
    inode_next: u64,
    locked: BTreeSet<InodeId>,
}

fn power_off() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the power is off")
}

impl Machine {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            is_on: true,
            operation_count: 0,
            fails_at: None,
            directories: BTreeMap::new(),
            inodes: BTreeMap::new(),
            inode_next: 0,
            locked: BTreeSet::new(),
        }
    }

    pub(super) const fn operation_count(&self) -> u64 {
        self.operation_count
    }

    pub(super) const fn cut_power_at(&mut self, operation_index: u64) {
        self.fails_at = Some(operation_index);
    }

    /// Returns an error if the power is off. For operations that change nothing and so are not
    /// counted.
    pub(super) fn check_power(&self) -> io::Result<()> {
        if self.is_on { Ok(()) } else { Err(power_off()) }
    }

    /// Runs and counts an operation that can matter after a power failure. `act` receives whether
    /// the power fails during it; then the operation fails, however much of it was done.
    pub(super) fn operate<T>(
        &mut self,
        act: impl FnOnce(&mut Self, bool) -> io::Result<T>,
    ) -> io::Result<T> {
        self.check_power()?;
        self.operation_count += 1;
        let is_cut = self.fails_at.is_some_and(|at| self.operation_count >= at);
        self.is_on = !is_cut;
        let result = act(self, is_cut);
        if is_cut { Err(power_off()) } else { result }
    }

    /// Turns the power off, and returns one of the possible states after it returns.
    pub(super) fn lose_power(&mut self, loss: PowerLoss) -> Self {
        self.is_on = false;
        let mut left = Self::new(self.random.bits());
        left.inode_next = self.inode_next;
        for (directory, names) in &self.directories {
            let eighths = loss.eighths(&mut self.random);
            let names = names.after_loss(eighths, &mut self.random);
            left.directories.insert(*directory, names);
        }
        for (_, id) in left.directories.values().flat_map(Names::all) {
            // Once for each file, several names of which can be left.
            left.inodes.entry(id).or_insert_with(|| OpenInode {
                inode: self.inodes.get(&id).map_or_else(Inode::default, |open| {
                    let eighths = loss.eighths(&mut self.random);
                    open.inode.after_loss(eighths, &mut self.random)
                }),
                handle_count: 0,
            });
        }
        left
    }

    /// Returns the file of a handle, and the random numbers for operations on it.
    pub(super) fn inode(&mut self, id: InodeId) -> (&mut Inode, &mut Random) {
        (
            &mut self.inodes.entry(id).or_default().inode,
            &mut self.random,
        )
    }

    fn names(&mut self, directory: u32) -> &mut Names {
        self.directories.entry(directory).or_default()
    }

    fn can_reach(&self, id: InodeId) -> bool {
        self.directories.values().any(|names| names.can_reach(id))
    }

    pub(super) fn find(&self, directory: u32, name: &str) -> io::Result<InodeId> {
        let names = self.directories.get(&directory);
        let found = names.and_then(|names| names.get(name));
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Creates an empty file, or truncates an existing one.
    pub(super) fn create(&mut self, directory: u32, name: &str) -> io::Result<InodeId> {
        if let Ok(id) = self.find(directory, name) {
            let (inode, random) = self.inode(id);
            inode.set_size(0, random)?;
            return Ok(id);
        }
        let id = InodeId(self.inode_next);
        self.inode_next += 1;
        self.inodes.insert(id, OpenInode::default());
        self.names(directory).make(name, id);
        Ok(id)
    }

    /// Links a file into another directory.
    pub(super) fn link(&mut self, id: InodeId, to: u32, name: &str) -> io::Result<()> {
        if self.find(to, name).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.names(to).make(name, id);
        Ok(())
    }

    pub(super) fn rename(&mut self, directory: u32, from: &str, to: &str) -> io::Result<()> {
        if self.names(directory).rename(from, to) {
            Ok(())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    pub(super) fn remove(&mut self, directory: u32, name: &str) -> io::Result<()> {
        if self.names(directory).remove(name) {
            Ok(())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    pub(super) fn list(&self, directory: u32) -> Vec<String> {
        let names = self.directories.get(&directory);
        let names = names.into_iter().flat_map(Names::all);
        names.map(|(name, _)| name.to_owned()).collect()
    }

    pub(super) fn sync_names(&mut self, directory: u32) {
        self.names(directory).make_durable();
        let directories = &self.directories;
        let can_reach = |id| directories.values().any(|names| names.can_reach(id));
        self.inodes
            .retain(|id, open| open.handle_count > 0 || can_reach(*id));
    }

    /// Writes to a file. A torn write leaves nothing, everything, or any sectors.
    pub(super) fn write(
        &mut self,
        id: InodeId,
        bytes: &[u8],
        offset: u64,
        is_torn: bool,
    ) -> io::Result<()> {
        let (inode, random) = self.inode(id);
        match if is_torn { random.below(3) } else { 1 } {
            0 => Ok(()),
            1 => inode.write(bytes, offset, false, random),
            _ => inode.write(bytes, offset, true, random),
        }
    }

    /// Locks a file; returns false if it is locked.
    pub(super) fn lock(&mut self, id: InodeId) -> bool {
        self.locked.insert(id)
    }

    pub(super) fn unlock(&mut self, id: InodeId) {
        self.locked.remove(&id);
    }

    /// Counts a handle, which keeps a file without a name.
    pub(super) fn add_handle(&mut self, id: InodeId) {
        self.inodes.entry(id).or_default().handle_count += 1;
    }

    pub(super) fn drop_handle(&mut self, id: InodeId) {
        if let Some(open) = self.inodes.get_mut(&id) {
            open.handle_count = open.handle_count.saturating_sub(1);
            if open.handle_count == 0 && !self.can_reach(id) {
                self.inodes.remove(&id);
            }
        }
    }
}
