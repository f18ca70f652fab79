//! The computer whose power can be lost: all files, all names, and the switch.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::PowerLoss;
use super::inode::Inode;
use super::names::{InodeId, Names};
use super::random::Random;

#[derive(Debug, Default)]
struct OpenInode {
    inode: Inode,
    handle_count: usize,
}

/// What all clones of a storage and its handles share.
#[derive(Debug)]
pub(super) struct Machine {
    random: Random,
    is_on: bool,
    operation_count: u64,
    /// The operation at which the power goes.
    cut_at: Option<u64>,
    /// Of each directory.
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
            cut_at: None,
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
        self.cut_at = Some(operation_index);
    }

    /// Who changes nothing, and so is not counted, asks this first.
    pub(super) fn check_power(&self) -> io::Result<()> {
        if self.is_on { Ok(()) } else { Err(power_off()) }
    }

    /// Does what can matter to a loss of power, and counts it. It is told whether the power goes
    /// while it is done: then it fails, whatever was done of it.
    pub(super) fn operate<T>(
        &mut self,
        act: impl FnOnce(&mut Self, bool) -> io::Result<T>,
    ) -> io::Result<T> {
        self.check_power()?;
        self.operation_count += 1;
        let is_cut = self.cut_at.is_some_and(|at| self.operation_count >= at);
        self.is_on = !is_cut;
        let result = act(self, is_cut);
        if is_cut { Err(power_off()) } else { result }
    }

    /// Turns the power off, and gives one of the states that can be found when it is back.
    pub(super) fn lose_power(&mut self, loss: PowerLoss) -> Self {
        self.is_on = false;
        let mut left = Self::new(self.random.next());
        left.inode_next = self.inode_next;
        for (directory, names) in &self.directories {
            let eighths = loss.eighths(&mut self.random);
            let names = names.after_loss(eighths, &mut self.random);
            left.directories.insert(*directory, names);
        }
        for (_, id) in left.directories.values().flat_map(Names::all) {
            // Once for each file, of which several names can be left.
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

    /// The file of a handle, and the random numbers for what is done with it.
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

    pub(super) fn find(&self, (directory, name): (u32, &str)) -> io::Result<InodeId> {
        let names = self.directories.get(&directory);
        let found = names.and_then(|names| names.get(name));
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Makes an empty file, or one that is there empty.
    pub(super) fn create(&mut self, (directory, name): (u32, &str)) -> io::Result<InodeId> {
        if let Ok(id) = self.find((directory, name)) {
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

    /// Gives a file a name in another directory, too.
    pub(super) fn link(&mut self, from: (u32, &str), (to, name): (u32, &str)) -> io::Result<()> {
        let id = self.find(from)?;
        if self.find((to, name)).is_ok() {
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

    pub(super) fn remove(&mut self, (directory, name): (u32, &str)) -> io::Result<()> {
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
        self.names(directory).settle();
        let directories = &self.directories;
        let can_reach = |id| directories.values().any(|names| names.can_reach(id));
        self.inodes
            .retain(|id, open| open.handle_count > 0 || can_reach(*id));
    }

    /// A torn write leaves nothing, all, or any sectors.
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

    /// False: somebody has it.
    pub(super) fn lock(&mut self, id: InodeId) -> bool {
        self.locked.insert(id)
    }

    pub(super) fn unlock(&mut self, id: InodeId) {
        self.locked.remove(&id);
    }

    /// Counts a handle, which keeps a file that has no name.
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
