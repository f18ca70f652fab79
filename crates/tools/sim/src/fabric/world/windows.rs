//! Windows: memory of clients that their node writes into (F10).
//!
//! Those of all clients of a machine lie side by side in one memory behind those of the nodes,
//! which only batches of [`World::write_window`] name.

use std::collections::BTreeMap;

use farleaf_fabric::{Batch, Verb};
use farleaf_types::{NodeId, WordAddr};

use super::{ClientId, ClientLife, Due, NodeLife, TaskId, World};

/// Where windows are.
#[derive(Debug)]
pub(super) struct WindowPlaces {
    /// Memories that are nodes'.
    node_count: usize,
    /// Whether clients get any.
    are_lent: bool,
    places: BTreeMap<ClientId, Place>,
    /// Tasks that are polled when a word of a memory is written.
    watches: BTreeMap<(u8, u64), TaskId>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
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
    /// From now on clients get windows that ask for them.
    pub fn lend_windows(&mut self) {
        self.windows.are_lent = true;
    }

    /// F10: whether the client has a window, or gets one of so many words now.
    pub(in crate::fabric) fn open_window(&mut self, client: ClientId, word_count: usize) -> bool {
        if !self.windows.are_lent {
            return false;
        }
        if self.windows.places.contains_key(&client) {
            return true;
        }
        let machine = self.modelled.as_ref().map_or(0, |it| it.machine_of(client));
        let memory = self.windows.node_count + machine;
        while self.nodes.len() <= memory {
            self.nodes.push(Vec::new());
            self.node_lives.push(NodeLife::Here);
        }
        let words = &mut self.nodes[memory];
        let start = words.len();
        words.resize(start + word_count, 0);
        let place = Place {
            memory: memory as u8,
            start: start as u64,
            word_count: word_count as u64,
        };
        self.windows.places.insert(client, place);
        true
    }

    /// F10: false: they are not all in the client's window, or it has no connection any more.
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

    /// F10: whether the task that is being polled is polled again when this word of the client's
    /// window is written: in modelled worlds, whose clients have connections for ever.
    pub(in crate::fabric) fn watch_window(&mut self, client: ClientId, index: u64) -> bool {
        let place = self.windows.places.get(&client);
        let start = place.and_then(|place| Some((place.memory, place.start_of(index, 1)?)));
        let (Some(word), Some(task)) = (start, self.current) else {
            return false;
        };
        let may_watch = self.modelled.is_some() && !self.is_still;
        if may_watch {
            self.windows.watches.insert(word, task);
        }
        may_watch
    }

    /// A verb has taken effect: who waits for that is polled.
    pub(in crate::fabric) fn tell_window_watchers(&mut self, verb: &Verb) {
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
            self.schedule(now, Due::Poll(task));
        }
    }

    /// F10: posts a batch of WRITEs into `of`'s window in the name of somebody on its node, who
    /// does not wait for it; at once if the world stands still for them. Without such a window
    /// nothing happens.
    ///
    /// # Panics
    /// A WRITE is not inside, which nobody would notice otherwise.
    pub fn write_window(
        &mut self,
        (writer, is_still): (ClientId, bool),
        of: ClientId,
        batch: &mut Batch,
    ) {
        let Some(place) = self.windows.places.get(&of).copied() else {
            return;
        };
        let (verbs, words, _) = batch.parts_mut();
        let verbs = verbs.iter().map(|verb| {
            let start = place.start_of(verb.addr.index(), verb.word_count.into());
            let start = start.expect("rings are inside of windows");
            Verb {
                addr: WordAddr::new(NodeId(place.memory), start),
                ..*verb
            }
        });
        let verbs: Vec<Verb> = verbs.collect();
        if is_still || self.is_still {
            let (_, done) = self.execute_now(writer, &verbs, words);
            done.expect("it is inside");
        } else {
            self.post_unwatched(writer, verbs, words);
        }
    }

    fn post_unwatched(&mut self, writer: ClientId, verbs: Vec<Verb>, words: &[u64]) {
        let batch = self.post(writer, None, verbs, words);
        if let Some(modelled) = &mut self.modelled {
            modelled.forget(batch);
        }
    }
}

impl Place {
    fn start_of(self, index: u64, word_count: u64) -> Option<u64> {
        let end = index.checked_add(word_count)?;
        (end <= self.word_count).then_some(self.start + index)
    }
}
