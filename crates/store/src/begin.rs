//! The beginning and the end of every operation (rules P1 and P4 of the process's thread).

use std::cell::Cell;
use std::sync::Arc;

use farleaf_types::SequenceNumber;

use crate::process::{ProcessNote, SessionNote};

/// Counts a session's unfinished operations, by the sequence number at which they began. There are
/// two numbers at most at a time: a third is followed only when the operations of the first are
/// done.
#[derive(Debug)]
pub(crate) struct Unfinished {
    process: Arc<ProcessNote>,
    note: Arc<SessionNote>,
    followed: Cell<SequenceNumber>,
    current_count: Cell<u32>,
    /// Operations that began before `followed`; the session's note still has their number.
    older_count: Cell<u32>,
}

/// One unfinished operation; it is finished when this is dropped.
#[derive(Debug)]
pub(crate) struct Begun<'a> {
    unfinished: &'a Unfinished,
    began: SequenceNumber,
}

/// An operation that ends before anything else of its session runs: nobody needs to count it.
#[derive(Debug)]
pub(crate) struct BegunBriefly<'a> {
    unfinished: &'a Unfinished,
    /// No other operation was unfinished: the note (P1) is there for this one alone.
    is_alone: bool,
}

impl<'a> BegunBriefly<'a> {
    /// The operation does not end yet.
    pub(crate) fn keep(self) -> Begun<'a> {
        let unfinished = self.unfinished;
        let began = unfinished.followed.get();
        let current_count = &unfinished.current_count;
        current_count.set(current_count.get() + 1);
        core::mem::forget(self);
        Begun { unfinished, began }
    }
}

impl Drop for BegunBriefly<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_alone {
            self.unfinished.note.set_idle();
        }
    }
}

impl Unfinished {
    pub(crate) fn new(process: Arc<ProcessNote>, note: Arc<SessionNote>) -> Self {
        Self {
            process,
            note,
            followed: Cell::default(),
            current_count: Cell::new(0),
            older_count: Cell::new(0),
        }
    }

    pub(crate) fn note(&self) -> &Arc<SessionNote> {
        &self.note
    }

    /// Begins an operation. `Some(number)`: before it goes on, the session must follow to that
    /// number (P4) and then call [`follow`](Self::follow).
    #[inline]
    pub(crate) fn begin(&self) -> (Begun<'_>, Option<SequenceNumber>) {
        let followed = self.followed.get();
        if self.current_count.get() + self.older_count.get() == 0 {
            self.note.set_oldest(followed);
        }
        self.current_count.set(self.current_count.get() + 1);
        let sequence = self.process.sequence_after_note();
        let behind = (sequence != followed).then_some(sequence);
        (
            Begun {
                unfinished: self,
                began: followed,
            },
            behind,
        )
    }

    /// Begins an operation that will end, or be kept, before anything else of the session runs.
    /// `None`: the session must follow first, see [`begin`](Self::begin).
    #[inline]
    pub(crate) fn begin_briefly(&self) -> Option<BegunBriefly<'_>> {
        let followed = self.followed.get();
        let is_alone = self.current_count.get() + self.older_count.get() == 0;
        if is_alone {
            self.note.set_oldest(followed);
        }
        let begun = BegunBriefly {
            unfinished: self,
            is_alone,
        };
        (self.process.sequence_after_note() == followed).then_some(begun)
    }

    /// The session has followed to a number, as part of the operation that `begun` is. Operations
    /// that began before keep their number.
    pub(crate) fn follow<'a>(&'a self, begun: Begun<'a>, sequence: SequenceNumber) -> Begun<'a> {
        if self.older_count.get() > 0 || sequence <= self.followed.get() {
            return begun;
        }
        let rest = self.current_count.get() - 1;
        self.older_count.set(rest);
        self.followed.set(sequence);
        self.current_count.set(1);
        core::mem::forget(begun);
        if rest == 0 {
            self.note.set_oldest(sequence);
        }
        Begun {
            unfinished: self,
            began: sequence,
        }
    }

    #[inline]
    fn finish(&self, began: SequenceNumber) {
        if began == self.followed.get() {
            self.current_count.set(self.current_count.get() - 1);
        } else {
            self.older_count.set(self.older_count.get() - 1);
        }
        if self.older_count.get() > 0 {
            return;
        }
        if self.current_count.get() == 0 {
            self.note.set_idle();
        } else {
            self.note.set_oldest(self.followed.get());
        }
    }
}

impl Drop for Begun<'_> {
    #[inline]
    fn drop(&mut self) {
        self.unfinished.finish(self.began);
    }
}
