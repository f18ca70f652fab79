//! What keeps a client's verbs in bounds: gates, which end them (F6), and grants (F7).

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use crate::tcp::secret::Rights;

/// Stands before the verbs of one connection. The node executes them, so it can also stop: who
/// closes the gate waits for those that are being executed, and after that there are none (F6).
#[derive(Debug, Default)]
pub(super) struct Gate {
    is_closed: Mutex<bool>,
}

/// While it lives, the gate stays open.
pub(super) struct Passage<'a> {
    _open: MutexGuard<'a, bool>,
}

impl Gate {
    /// `None`: it is closed, for ever.
    #[inline]
    pub(super) fn pass(&self) -> Option<Passage<'_>> {
        let open = self
            .is_closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        (!*open).then_some(Passage { _open: open })
    }

    /// F6: returns when no verb is being executed behind it, and lets no further one through.
    pub(super) fn close(&self) {
        *self
            .is_closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Returns when what was being executed behind it has been.
    pub(super) fn wait(&self) {
        drop(self.is_closed.lock());
    }

    pub(super) fn is_closed(&self) -> bool {
        *self
            .is_closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// What of a region the holders of certain rights may change: indexes of words.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    /// From here on, everything.
    pub open_from: u64,
    /// And these.
    pub open: Vec<Range<u64>>,
}

impl Grant {
    /// Nothing.
    pub fn nothing() -> Self {
        Self {
            open_from: u64::MAX,
            open: Vec::new(),
        }
    }

    /// Everything.
    pub fn everything() -> Self {
        Self::default()
    }
}

/// What the connections of one client have in common.
#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) rights: Rights,
    grant: Grant,
    /// The blocks of the client's own sessions.
    own: RwLock<Vec<Range<u64>>>,
    begun: Instant,
    heard_ms: AtomicU64,
}

impl ClientState {
    pub(super) fn new(rights: Rights, grant: Grant) -> Self {
        Self {
            rights,
            grant,
            own: RwLock::default(),
            begun: Instant::now(),
            heard_ms: AtomicU64::new(0),
        }
    }

    /// F7: whether the client may change these words.
    #[inline]
    pub(super) fn may_change(&self, words: &Range<u64>) -> bool {
        words.start >= self.grant.open_from || words.is_empty() || self.is_open(words)
    }

    fn is_open(&self, words: &Range<u64>) -> bool {
        let holds = |open: &Range<u64>| open.start <= words.start && words.end <= open.end;
        let own = self.own.read().unwrap_or_else(PoisonError::into_inner);
        own.iter().chain(&self.grant.open).any(holds)
    }

    /// The words of a new session of the client are its own.
    pub(super) fn add_own(&self, words: Range<u64>) {
        self.own
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(words);
    }

    /// They are no more. Who is executing verbs may still take them for its own: see
    /// [`Gate::wait`].
    pub(super) fn remove_own(&self, words: &Range<u64>) {
        let mut own = self.own.write().unwrap_or_else(PoisonError::into_inner);
        own.retain(|other| other != words);
    }

    /// Something has come from the client.
    #[inline]
    pub(super) fn hear(&self) {
        let elapsed_ms = self.begun.elapsed().as_millis() as u64;
        self.heard_ms.store(elapsed_ms, Ordering::Relaxed);
    }

    /// For how long nothing has come from it, in milliseconds.
    pub(super) fn silence_ms(&self) -> u64 {
        let elapsed_ms = self.begun.elapsed().as_millis() as u64;
        elapsed_ms.saturating_sub(self.heard_ms.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (F6): a gate closes only when nothing is under way behind it, and never opens again.
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

    /// Promise (F7): a client may change what its rights open, and its own sessions' blocks as long
    /// as they are its own.
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
