//! Limits of a client's verbs: gates, which end them (FABRIC-6), and grants (FABRIC-7).

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock};
use std::time::Instant;

use farleaf_base::locks::{lock, read, write};
use farleaf_net::secret::Rights;

/// Gate of the verbs of one connection. Closing it waits for verbs that the node is executing;
/// after that none is executed (FABRIC-6).
#[derive(Debug, Default)]
pub(super) struct Gate {
    is_closed: Mutex<bool>,
}

/// Guard that keeps the gate open.
pub(super) struct GateGuard<'a> {
    _open: MutexGuard<'a, bool>,
}

impl Gate {
    /// Enters the gate; returns `None` if it is closed, which it then stays for ever.
    #[inline]
    pub(super) fn pass(&self) -> Option<GateGuard<'_>> {
        let open = lock(&self.is_closed);
        (!*open).then_some(GateGuard { _open: open })
    }

    /// Closes the gate: admits no more verbs, and returns when none is being executed (FABRIC-6).
    pub(super) fn close(&self) {
        *lock(&self.is_closed) = true;
    }

    /// Returns when the verbs executed now have ended.
    pub(super) fn wait(&self) {
        drop(self.is_closed.lock());
    }

    pub(super) fn is_closed(&self) -> bool {
        *lock(&self.is_closed)
    }
}

/// Words of a node's memory, by index, that holders of certain rights may change.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    /// Index from which on all words may be changed.
    pub open_from: u64,
    /// Further ranges that may be changed.
    pub open: Vec<Range<u64>>,
}

impl Grant {
    /// Returns a grant of no words.
    pub fn nothing() -> Self {
        Self {
            open_from: u64::MAX,
            open: Vec::new(),
        }
    }

    /// Returns a grant of all words.
    pub fn everything() -> Self {
        Self::default()
    }
}

/// State shared by the connections of one client.
#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) rights: Rights,
    grant: Grant,
    /// Blocks of the client's own sessions.
    own: RwLock<Vec<Range<u64>>>,
    created_at: Instant,
    last_input_ms: AtomicU64,
}

impl ClientState {
    pub(super) fn new(rights: Rights, grant: Grant) -> Self {
        Self {
            rights,
            grant,
            own: RwLock::default(),
            created_at: Instant::now(),
            last_input_ms: AtomicU64::new(0),
        }
    }

    /// Returns true if the client may change these words (FABRIC-7).
    #[inline]
    pub(super) fn may_change(&self, words: &Range<u64>) -> bool {
        words.start >= self.grant.open_from || words.is_empty() || self.is_open(words)
    }

    fn is_open(&self, words: &Range<u64>) -> bool {
        let holds = |open: &Range<u64>| open.start <= words.start && words.end <= open.end;
        let own = read(&self.own);
        own.iter().chain(&self.grant.open).any(holds)
    }

    /// Adds the words of a new session of the client.
    pub(super) fn add_own(&self, words: Range<u64>) {
        write(&self.own).push(words);
    }

    /// Removes the words of a session. Verbs in execution may still change them: see
    /// [`Gate::wait`].
    pub(super) fn remove_own(&self, words: &Range<u64>) {
        let mut own = write(&self.own);
        own.retain(|other| other != words);
    }

    /// Records that something has arrived from the client.
    #[inline]
    pub(super) fn on_input(&self) {
        let elapsed_ms = self.created_at.elapsed().as_millis() as u64;
        self.last_input_ms.store(elapsed_ms, Ordering::Relaxed);
    }

    /// Returns the time since something last arrived from the client, in milliseconds.
    pub(super) fn silence_ms(&self) -> u64 {
        let elapsed_ms = self.created_at.elapsed().as_millis() as u64;
        elapsed_ms.saturating_sub(self.last_input_ms.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (FABRIC-6): closing a gate waits for verbs in execution, and a closed gate never
    /// reopens.
    #[test]
    fn closing_waits_for_what_is_under_way() {
        let gate = Gate::default();
        let passage = gate.pass().expect("open");
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| gate.close());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!closing.is_finished(), "it closed behind somebody's back");
            drop(passage);
            closing.join().expect("closed");
        });
        assert!(gate.is_closed() && gate.pass().is_none());
    }

    /// Promise (FABRIC-7): a client may change exactly the words that its rights allow, and its own
    /// sessions' blocks while they are its own.
    #[test]
    fn grants_have_edges() {
        let open = std::iter::once(10..12).collect();
        let grant = Grant {
            open_from: 100,
            open,
        };
        let client = ClientState::new(Rights::Write, grant);
        for (words, may) in [
            (10..12, true),
            (11..13, false),
            (9..10, false),
            (99..101, false),
            (100..5000, true),
            (5..5, true),
        ] {
            assert_eq!(client.may_change(&words), may, "{words:?}");
        }
        client.add_own(20..24);
        assert!(client.may_change(&(21..22)) && !client.may_change(&(21..25)));
        client.remove_own(&(20..24));
        assert!(!client.may_change(&(21..22)));
        let reader = ClientState::new(Rights::Read, Grant::nothing());
        assert!(!reader.may_change(&(1 << 40..(1 << 40) + 1)));
    }
}
