//! Begin and end of every operation, as the process's thread needs them (see the module `process`).

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_base::SequenceNumber;

use crate::process::{ProcessNote, SessionNote};

/// Counts a session's unfinished operations by the sequence number at which they began. There are
/// at most two such numbers at a time: the session catches up to a third only when the operations
/// of the first have ended.
#[derive(Debug)]
pub(crate) struct UnfinishedOperations {
    process: Arc<ProcessNote>,
    note: Arc<SessionNote>,
    /// The session's flag. Batches of a broken session may still be in flight, so its note stays
    /// until it is closed (LEAF-7).
    broken: Rc<Cell<bool>>,
    followed: Cell<SequenceNumber>,
    current_count: Cell<u32>,
    /// Operations that began before `followed`; the session's note still has their number.
    older_count: Cell<u32>,
}

/// One unfinished operation, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct OperationGuard<'a> {
    unfinished: &'a UnfinishedOperations,
    began: SequenceNumber,
}

impl OperationGuard<'_> {
    /// Returns whether the session has caught up to a later number since the operation began.
    pub(crate) fn is_behind(&self) -> bool {
        self.began != self.unfinished.followed.get()
    }
}

/// Operation that ends before anything else of its session runs, so that it need not be counted.
#[derive(Debug)]
pub(crate) struct BriefOperationGuard<'a> {
    unfinished: &'a UnfinishedOperations,
    /// Set if no other operation was unfinished, so that the session's note is only for this one.
    is_alone: bool,
}

impl<'a> BriefOperationGuard<'a> {
    /// Turns the operation into one that may continue.
    pub(crate) fn keep(self) -> OperationGuard<'a> {
        let unfinished = self.unfinished;
        let began = unfinished.followed.get();
        let current_count = &unfinished.current_count;
        current_count.set(current_count.get() + 1);
        core::mem::forget(self);
        OperationGuard { unfinished, began }
    }
}

impl Drop for BriefOperationGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_alone {
            self.unfinished.note.set_idle();
        }
    }
}

impl UnfinishedOperations {
    pub(crate) fn new(
        process: Arc<ProcessNote>,
        note: Arc<SessionNote>,
        broken: Rc<Cell<bool>>,
    ) -> Self {
        Self {
            process,
            note,
            broken,
            followed: Cell::default(),
            current_count: Cell::new(0),
            older_count: Cell::new(0),
        }
    }

    /// Returns whether the session has no unfinished operation.
    pub(crate) fn is_idle(&self) -> bool {
        self.current_count.get() + self.older_count.get() == 0
    }

    /// Returns the number to which the session has caught up.
    pub(crate) fn followed(&self) -> SequenceNumber {
        self.followed.get()
    }

    /// Returns whether operations are unfinished that began before the session last caught up.
    pub(crate) fn has_older(&self) -> bool {
        self.older_count.get() > 0
    }

    pub(crate) fn note(&self) -> &Arc<SessionNote> {
        &self.note
    }

    /// Begins an operation. `Some(number)` means that the session must catch up to that number,
    /// including the check for dropped tables, and then call [`follow`](Self::follow) before the
    /// operation continues.
    #[inline]
    pub(crate) fn begin(&self) -> (OperationGuard<'_>, Option<SequenceNumber>) {
        let followed = self.followed.get();
        if self.is_idle() {
            self.note.set_oldest(followed);
        }
        self.current_count.set(self.current_count.get() + 1);
        let sequence = self.process.sequence_after_note();
        let behind = (sequence != followed).then_some(sequence);
        (
            OperationGuard {
                unfinished: self,
                began: followed,
            },
            behind,
        )
    }

    /// Begins an operation that will end, or be kept, before anything else of the session runs.
    /// `None`: the session must catch up first, see [`begin`](Self::begin).
    #[inline]
    pub(crate) fn begin_briefly(&self) -> Option<BriefOperationGuard<'_>> {
        let followed = self.followed.get();
        let is_alone = self.is_idle();
        if is_alone {
            self.note.set_oldest(followed);
        }
        let guard = BriefOperationGuard {
            unfinished: self,
            is_alone,
        };
        (self.process.sequence_after_note() == followed).then_some(guard)
    }

    /// Records that the session has caught up to a number, as part of the operation `guard`.
    /// Earlier operations keep their number.
    pub(crate) fn follow<'a>(
        &'a self,
        guard: OperationGuard<'a>,
        sequence: SequenceNumber,
    ) -> OperationGuard<'a> {
        if self.older_count.get() > 0 || sequence <= self.followed.get() {
            return guard;
        }
        let rest = self.current_count.get() - 1;
        self.older_count.set(rest);
        self.followed.set(sequence);
        self.current_count.set(1);
        core::mem::forget(guard);
        if rest == 0 {
            self.note.set_oldest(sequence);
        }
        OperationGuard {
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
        if self.older_count.get() > 0 || self.broken.get() {
            return;
        }
        if self.current_count.get() == 0 {
            self.note.set_idle();
        } else {
            self.note.set_oldest(self.followed.get());
        }
    }
}

impl Drop for OperationGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.unfinished.finish(self.began);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::{Incarnation, OwnerWord, SessionId};

    const fn number(number: u64) -> SequenceNumber {
        SequenceNumber(number)
    }

    /// Returns an idle session at number 0.
    fn session() -> UnfinishedOperations {
        let owner = OwnerWord::new(SessionId::new(1).expect("a number"), Incarnation::new(1));
        let note = Arc::new(SessionNote::idle(owner));
        UnfinishedOperations::new(Arc::default(), note, Rc::default())
    }

    fn noted(session: &UnfinishedOperations) -> Option<SequenceNumber> {
        session.note().oldest()
    }

    /// Begins an operation that has to catch up, and catches up.
    fn begin_and_follow(session: &UnfinishedOperations) -> OperationGuard<'_> {
        let (guard, behind) = session.begin();
        let sequence = behind.expect("the process has seen another number");
        session.follow(guard, sequence)
    }

    /// Promise: a session has a note from the begin of its first operation to the end of its last
    /// one, in whichever order they end.
    #[test]
    fn operations_are_noted_until_the_last_one_ends() {
        let session = session();
        assert_eq!(noted(&session), None);
        let (first, behind) = session.begin();
        assert_eq!((noted(&session), behind), (Some(number(0)), None));
        let (second, _) = session.begin();
        drop(first);
        assert_eq!(noted(&session), Some(number(0)));
        drop(second);
        assert_eq!(noted(&session), None);
    }

    /// Promise: a brief operation alone has a note until it ends; among others it leaves their
    /// note.
    #[test]
    fn a_brief_operation_takes_back_only_its_own_note() {
        let session = session();
        let brief = session.begin_briefly().expect("nothing to follow");
        assert_eq!(noted(&session), Some(number(0)));
        drop(brief);
        assert_eq!(noted(&session), None);

        let (other, _) = session.begin();
        let brief = session.begin_briefly().expect("nothing to follow");
        drop(brief);
        assert_eq!(noted(&session), Some(number(0)), "the other goes on");
        drop(other);
        assert_eq!(noted(&session), None);
    }

    /// Promise: a brief operation that is kept counts like any other, alone or not.
    #[test]
    fn a_brief_operation_that_is_kept_is_noted_until_it_ends() {
        let session = session();
        let operation = session.begin_briefly().expect("nothing to follow").keep();
        assert_eq!(noted(&session), Some(number(0)));
        let (other, _) = session.begin();
        let another = session.begin_briefly().expect("nothing to follow").keep();
        drop(operation);
        drop(other);
        assert_eq!(noted(&session), Some(number(0)), "one is unfinished");
        drop(another);
        assert_eq!(noted(&session), None);
    }

    /// Promise: every operation that sees a new number at its begin must catch up until one has. A
    /// brief operation does not begin at all and leaves the note unchanged.
    #[test]
    fn an_operation_that_sees_a_new_number_must_follow() {
        let session = session();
        session.process.see(number(2));
        assert!(session.begin_briefly().is_none());
        assert_eq!(noted(&session), None, "it has not begun");

        let (guard, behind) = session.begin();
        assert_eq!(
            (noted(&session), behind),
            (Some(number(0)), Some(number(2)))
        );
        assert!(session.begin_briefly().is_none());
        assert_eq!(
            noted(&session),
            Some(number(0)),
            "another one is unfinished"
        );

        let guard = session.follow(guard, number(2));
        assert_eq!(noted(&session), Some(number(2)));
        assert!(session.begin_briefly().is_some());
        assert_eq!(session.begin().1, None, "the session has followed");
        drop(guard);
        assert_eq!(noted(&session), None);
        let (next, _) = session.begin();
        assert_eq!(
            noted(&session),
            Some(number(2)),
            "it begins where the last one was"
        );
        drop(next);
    }

    /// Promise: an operation that cannot catch up, because the check for dropped tables failed,
    /// leaves no trace when it ends.
    #[test]
    fn an_operation_that_gives_up_before_it_follows_leaves_nothing() {
        let session = session();
        session.process.see(number(1));
        let (guard, behind) = session.begin();
        assert!(behind.is_some());
        drop(guard);
        assert_eq!(noted(&session), None);
        assert_eq!(
            session.begin().1,
            Some(number(1)),
            "the next one has to follow"
        );
    }

    /// Promise: while an operation of an older number is unfinished, the note stays at its number,
    /// even if others have caught up and ended. Then the note takes the others' number.
    #[test]
    fn older_operations_keep_their_number_noted() {
        let session = session();
        let (older, _) = session.begin();
        let older_still = session.begin_briefly().expect("nothing to follow").keep();
        session.process.see(number(1));
        let newer = begin_and_follow(&session);
        assert_eq!(noted(&session), Some(number(0)));
        let brief = session.begin_briefly().expect("the session has followed");
        drop(brief);
        assert_eq!(noted(&session), Some(number(0)));
        let newest = session.begin_briefly().expect("it has followed").keep();
        drop(newest);
        drop(older);
        assert_eq!(
            noted(&session),
            Some(number(0)),
            "one that is older goes on"
        );
        drop(older_still);
        assert_eq!(noted(&session), Some(number(1)));
        drop(newer);
        assert_eq!(noted(&session), None);
    }

    /// Promise: the note of a broken session stays, because its batches may still be in flight
    /// (LEAF-7).
    #[test]
    fn a_broken_session_stays_noted() {
        let session = session();
        let (guard, _) = session.begin();
        session.broken.set(true);
        drop(guard);
        assert_eq!(noted(&session), Some(number(0)));
        assert!(session.is_idle());
    }

    /// Promise: newer operations may end first.
    #[test]
    fn an_older_operation_may_be_the_last_to_end() {
        let session = session();
        let (older, _) = session.begin();
        session.process.see(number(1));
        drop(begin_and_follow(&session));
        assert_eq!(noted(&session), Some(number(0)));
        let (newer, behind) = session.begin();
        assert_eq!(behind, None);
        drop(newer);
        assert_eq!(noted(&session), Some(number(0)));
        drop(older);
        assert_eq!(noted(&session), None);
    }

    /// Promise: with operations at two numbers, the session does not catch up to a third until
    /// those of the first have ended, and then it does. No number is lost meanwhile.
    #[test]
    fn a_third_number_is_followed_when_the_first_is_done() {
        let session = session();
        let (first, _) = session.begin();
        session.process.see(number(1));
        let second = begin_and_follow(&session);
        session.process.see(number(2));
        let waiting = begin_and_follow(&session);
        assert_eq!(waiting.began, number(1), "counted where the session is");
        assert_eq!(noted(&session), Some(number(0)));
        assert!(session.begin_briefly().is_none(), "it is still behind");
        drop(first);
        assert_eq!(noted(&session), Some(number(1)));
        let third = begin_and_follow(&session);
        assert_eq!(third.began, number(2));
        assert_eq!(
            noted(&session),
            Some(number(1)),
            "two of them are unfinished"
        );
        drop(waiting);
        drop(second);
        assert_eq!(noted(&session), Some(number(2)));
        drop(third);
        assert_eq!(noted(&session), None);
    }

    /// Promise: if two operations see a number and one catches up, the other does not catch up
    /// again, neither to the same number nor to an older one.
    #[test]
    fn a_number_is_followed_once() {
        let session = session();
        session.process.see(number(1));
        let (one, _) = session.begin();
        let (other, _) = session.begin();
        let one = session.follow(one, number(1));
        drop(session.follow(other, number(1)));
        assert_eq!(noted(&session), Some(number(1)));
        let one = session.follow(one, number(1));
        let one = session.follow(one, number(0));
        assert_eq!((one.began, noted(&session)), (number(1), Some(number(1))));
        drop(one);
        assert_eq!(noted(&session), None);
    }
}
