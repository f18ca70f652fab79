//! Helpers for the followers' tests: an engine, and a directory that follows it without a network.

mod adopts;
mod crashes;
mod fresh;
mod gaps;
mod histories;
mod reach;
mod refusals;
mod remainders;
mod scrubs;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use super::{
    BaseManifest, Edit, Filling, Follow, FollowOptions, Follower, IndexKind, InstalledEdit,
    PieceSum, WriteFault,
};
use crate::engine::tests::tiny as options;
use crate::engine::{Direction, WorkDone};
use crate::log::extent::Extents;
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES, TreeId};
use crate::storage::{CrashStorage, Storage};
use crate::{Durability, Engine, LsmError};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn follow_options(index: IndexKind) -> FollowOptions {
    FollowOptions {
        index,
        replaces: false,
        engine: options(),
        previous: None,
        write_fault: WriteFault::default(),
    }
}

/// Follower that keeps all edits, and is never behind with the log.
#[derive(Debug, Default)]
struct Edits(Mutex<VecDeque<Edit>>);

impl Follow for Edits {
    fn reach(&self, _end: LogPosition) -> Result<(), LsmError> {
        Ok(())
    }

    fn needed_from(&self) -> LogNumber {
        LogNumber(0)
    }

    /// Alternates, so that some trees are read, and others are kept in memory.
    fn takes_trees(&self) -> bool {
        self.0.lock().expect("no panic").len().is_multiple_of(2)
    }

    fn edited(&self, edit: Edit) {
        self.0.lock().expect("no panic").push_back(edit);
    }
}

/// How a directory with a previous copy was filled.
#[derive(Debug, Default)]
struct Filled {
    has_previous: bool,
    taken_count: usize,
    sent_log: Vec<LogNumber>,
    sent_trees: Vec<(TreeId, usize)>,
}

/// Engine and its follower.
struct FollowedEngine {
    engine: Engine,
    edits: Arc<Edits>,
    follower: Option<Follower>,
    model: Model,
}

impl FollowedEngine {
    fn new(storage: &CrashStorage) -> Self {
        let engine = Engine::open(Arc::new(storage.clone()), options()).expect("made");
        let edits = Arc::new(Edits::default());
        engine.set_follow(Arc::clone(&edits) as Arc<dyn Follow>);
        Self {
            engine,
            edits,
            follower: None,
            model: Model::new(),
        }
    }

    /// Does one of many operations of an engine.
    fn step(&mut self, number: u64) {
        let key = format!("{}", number >> 40 & 63).into_bytes();
        match number % 16 {
            0..=8 => {
                let size_bytes = match number >> 8 & 63 {
                    0 => 5 << 20,
                    1..=3 => 700_000,
                    small => small as usize * 3,
                };
                let mut value = number.to_le_bytes().repeat(size_bytes / 8 + 1);
                value.truncate(size_bytes);
                let durability = if (number >> 16).is_multiple_of(4) {
                    Durability::Sync
                } else {
                    Durability::Memory
                };
                self.engine.put(&key, &value, durability).expect("put");
                self.model.insert(key, value);
            }
            9..=11 => {
                let deleted = self.engine.delete(&key, Durability::Memory);
                deleted.expect("deleted");
                self.model.remove(&key);
            }
            12 => self.engine.freeze(),
            _ => {
                self.engine.maintain().expect("no fault is set");
            }
        }
    }

    /// Creates a pair from an open engine and its contents.
    fn over(engine: Engine) -> Self {
        let edits = Arc::new(Edits::default());
        engine.set_follow(Arc::clone(&edits) as Arc<dyn Follow>);
        Self {
            model: all(&engine),
            engine,
            edits,
            follower: None,
        }
    }

    /// Fills a directory with the base.
    fn fill(&mut self, storage: &CrashStorage, index: IndexKind) -> Result<(), LsmError> {
        self.fill_beside(storage, follow_options(index)).map(drop)
    }

    /// Fills a directory, reusing pieces of a previous copy; returns which pieces were sent, and
    /// how many were reused.
    fn fill_beside(
        &mut self,
        storage: &CrashStorage,
        options: FollowOptions,
    ) -> Result<Filled, LsmError> {
        self.fill_into(Arc::new(storage.clone()), options)
    }

    fn fill_into(
        &mut self,
        storage: Arc<dyn Storage>,
        options: FollowOptions,
    ) -> Result<Filled, LsmError> {
        let mut filled = Filled::default();
        let edits = &self.edits.0;
        let base = self
            .engine
            .base(|_| edits.lock().expect("no panic").clear())?;
        let mut filling = Filling::begin(storage, options, base.engine)?;
        filled.has_previous = filling.has_previous();
        let mut buffer = Vec::new();
        let mut extents = Extents::new(base.engine, base.read_from);
        for (number, end) in &base.log {
            self.engine.log().read_raw(number.start(), &mut buffer)?;
            let counted = &buffer[..extents.size_of(*number, *end, &buffer)];
            if filling.take_log(*number, *end, counted.len() as u32, PieceSum::of(counted))? {
                filled.taken_count += 1;
                continue;
            }
            filled.sent_log.push(*number);
            filling.put_log(*number, *end, &buffer)?;
        }
        for (level, tree) in &base.trees {
            for index in 0..tree.segment_count() {
                let blocks = tree.read_segment(index, &mut buffer)?;
                if filling.take_tree_segment(
                    tree.id(),
                    index,
                    blocks.len() as u32,
                    PieceSum::of(blocks),
                )? {
                    filled.taken_count += 1;
                    continue;
                }
                filled.sent_trees.push((tree.id(), index));
                filling.put_tree_segment(tree.id(), index, blocks)?;
            }
            filling.put_tree(*level, tree.id(), tree.shape())?;
        }
        self.follower = Some(filling.finish(BaseManifest {
            next_log: base.next_log,
            read_from: base.read_from,
            next_tree: base.next_tree,
            edit_count: base.edit_count,
        })?);
        Ok(filled)
    }

    /// Sends the log to the follower.
    fn follow_log(&mut self) -> Result<(), LsmError> {
        let follower = self.follower.as_mut().expect("it was filled");
        let mut buffer = Vec::new();
        loop {
            let at = follower.written_to();
            let next = self.engine.log().read_raw(at, &mut buffer)?;
            if next == at {
                return Ok(());
            }
            let is_closed = next.number() > at.number();
            follower.write_log(at, &buffer, is_closed)?;
            // Checksums of written data agree.
            if let Some(closed) = follower.closed_sum().filter(|_| is_closed) {
                let own = self
                    .engine
                    .log()
                    .sum_of(at.number(), SEGMENT_SIZE_BYTES as u32)?;
                assert_eq!((closed.number, closed.written), (at.number(), own));
            }
        }
    }

    /// Sends the log and the next edit, or does the follower's own background work.
    fn follow(&mut self) -> Result<bool, LsmError> {
        self.follow_log()?;
        let follower = self.follower.as_mut().expect("it was filled");
        let edit = self.edits.0.lock().expect("no panic").pop_front();
        if follower.maintain()? {
            return Ok(true);
        }
        let Some(edit) = edit else {
            return Ok(false);
        };
        let mut buffer = Vec::new();
        if follower.index() == IndexKind::Built {
            return Ok(true);
        }
        if let Some((_, tree)) = &edit.added {
            for index in 0..tree.segment_count() {
                let blocks = tree.read_segment(index, &mut buffer)?;
                follower.put_tree_segment(tree.id(), index, blocks)?;
            }
        }
        follower.install(&InstalledEdit {
            log_end: edit.log_end,
            read_from: edit.read_from,
            removed: edit.removed,
            added: edit
                .added
                .map(|(level, tree)| (level, tree.id(), tree.shape())),
            freed: edit.freed,
        })?;
        Ok(true)
    }
}

/// Returns all contents of an engine, by a scan and by gets, which must agree.
fn all(engine: &Engine) -> Model {
    let snapshot = engine.snapshot();
    let range = (Bound::Unbounded, Bound::Unbounded);
    let scan = snapshot.scan(range, Direction::Ascending).expect("a scan");
    let model: Model = scan.map(|pair| pair.expect("it can be read")).collect();
    for number in 0..64 {
        let key = format!("{number}").into_bytes();
        let value = engine.get(&key).expect("it can be read");
        assert_eq!(value.as_ref(), model.get(&key), "{number}");
    }
    model
}

fn maintain_all(engine: &Engine) {
    while engine.maintain().expect("no fault is set") != WorkDone::Nothing {}
}
