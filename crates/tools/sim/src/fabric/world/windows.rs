//! Windows: memory of clients into which their node writes (FABRIC-10).
//!
//! The windows of all clients of a machine are adjacent in one memory, which follows those of the
//! nodes. Only WRITEs to windows address it.

use std::collections::BTreeMap;

use farleaf_base::{NodeId, WordAddr};
use farleaf_fabric::Verb;

use super::{ClientId, ClientLife, DueEvent, NodeLife, TaskId, World};

/// Locations of windows.
#[derive(Debug)]
pub(super) struct WindowPlaces {
    /// Number of memories that belong to nodes.
    node_count: usize,
    /// Whether clients can get windows.
    are_lent: bool,
    places: BTreeMap<ClientId, WindowPlace>,
    /// Tasks that are polled when a word of a memory is written.
    watches: BTreeMap<(u8, u64), TaskId>,
}

#[derive(Clone, Copy, Debug)]
struct WindowPlace {
    memory: u8,
    start: u64,
    word_count: u64,
}

impl WindowPlaces {
    pub(super) fn behind(node_count: usize) -> Self {
        Self {
            node_count,
            are_lent: false,
            places: BTreeMap::new(),
            watches: BTreeMap::new(),
        }
    }

    pub(super) fn node_count(&self) -> u8 {
        self.node_count as u8
    }
}

impl World {
    /// Gives windows to clients that request them, from now on.
    pub fn lend_windows(&mut self) {
        self.windows.are_lent = true;
    }

    /// Returns whether the client has a window, or gets one of this many words now (FABRIC-10) on
    /// its machine.
    pub(in crate::fabric) fn open_window(
        &mut self,
        client: ClientId,
        word_count: usize,
        machine: impl FnOnce() -> usize,
    ) -> bool {
        if !self.windows.are_lent {
            return false;
        }
        if self.windows.places.contains_key(&client) {
            return true;
        }
        let memory = self.windows.node_count + machine();
        while self.nodes.len() <= memory {
            self.nodes.push(Vec::new());
            self.node_lives.push(NodeLife::Here);
        }
        let words = &mut self.nodes[memory];
        let start = words.len();
        words.resize(start + word_count, 0);
        let place = WindowPlace {
            memory: memory as u8,
            start: start as u64,
            word_count: word_count as u64,
        };
        self.windows.places.insert(client, place);
        true
    }

    /// Reads words of the client's window (FABRIC-10). Returns false if some are outside it, or if
    /// the client has no connection anymore.
    pub(in crate::fabric) fn read_window(
        &self,
        client: ClientId,
        index: u64,
        to: &mut [u64],
    ) -> bool {
        let Some(place) = self.windows.places.get(&client) else {
            return false;
        };
        if self.life(client) != ClientLife::Connected {
            return false;
        }
        let Some(start) = place.start_of(index, to.len() as u64) else {
            return false;
        };
        let start = start as usize;
        let words = &self.nodes[usize::from(place.memory)];
        to.copy_from_slice(&words[start..start + to.len()]);
        true
    }

    /// Registers the task that is being polled, to be polled again when this word of the client's
    /// window is written (FABRIC-10). Returns whether that is possible.
    pub(in crate::fabric) fn watch_window(&mut self, client: ClientId, index: u64) -> bool {
        let place = self.windows.places.get(&client);
        let start = place.and_then(|place| Some((place.memory, place.start_of(index, 1)?)));
        let (Some(word), Some(task)) = (start, self.current) else {
            return false;
        };
        if !self.is_still {
            self.windows.watches.insert(word, task);
        }
        !self.is_still
    }

    /// Polls the tasks that wait for a word that a verb has written.
    pub(in crate::fabric) fn notify_window_watchers(&mut self, verb: &Verb) {
        let (memory, start) = (verb.addr.node().0, verb.addr.index());
        if usize::from(memory) < self.windows.node_count {
            return;
        }
        let words = (memory, start)..(memory, start + u64::from(verb.word_count));
        let watched = self.windows.watches.range(words);
        let watched: Vec<((u8, u64), TaskId)> =
            watched.map(|(word, task)| (*word, *task)).collect();
        for (word, task) in watched {
            self.windows.watches.remove(&word);
            let now = self.now;
            self.schedule(now, DueEvent::Poll(task));
        }
    }

    /// Returns the verbs of a batch of WRITEs at their place in a client's window, if it has one.
    ///
    /// # Panics
    /// A WRITE is outside the window; nothing else would detect that.
    pub(in crate::fabric) fn verbs_to_window(
        &self,
        of: ClientId,
        verbs: &[Verb],
    ) -> Option<Vec<Verb>> {
        let place = self.windows.places.get(&of)?;
        let verbs = verbs.iter().map(|verb| {
            let start = place.start_of(verb.addr.index(), verb.word_count.into());
            let start = start.expect("rings are inside of windows");
            Verb {
                addr: WordAddr::new(NodeId(place.memory), start),
                ..*verb
            }
        });
        Some(verbs.collect())
    }
}

impl WindowPlace {
    fn start_of(self, index: u64, word_count: u64) -> Option<u64> {
        let end = index.checked_add(word_count)?;
        (end <= self.word_count).then_some(self.start + index)
    }
}
