//! The beginning and the end of every operation (rules P1 and P4 of the process's thread).

use std::cell::Cell;
use std::rc::Rc;
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
    /// The session's: what was cut off may still be on its way, so the note stays until the session
    /// is closed (D7).
    broken: Rc<Cell<bool>>,
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

impl Begun<'_> {
    /// Whether the session has followed further since the operation began.
    pub(crate) fn is_behind(&self) -> bool {
        self.began != self.unfinished.followed.get()
    }
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

    /// Whether no operation is unfinished.
    pub(crate) fn is_idle(&self) -> bool {
        self.current_count.get() + self.older_count.get() == 0
    }

    /// The number that the session has followed to.
    pub(crate) fn followed(&self) -> SequenceNumber {
        self.followed.get()
    }

    /// Whether operations are unfinished that began before the session followed last.
    pub(crate) fn has_older(&self) -> bool {
        self.older_count.get() > 0
    }

    pub(crate) fn note(&self) -> &Arc<SessionNote> {
        &self.note
    }

    /// Begins an operation. `Some(number)`: before it goes on, the session must follow to that
    /// number (P4) and then call [`follow`](Self::follow).
    #[inline]
    pub(crate) fn begin(&self) -> (Begun<'_>, Option<SequenceNumber>) {
        let followed = self.followed.get();
        if self.is_idle() {
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
        let is_alone = self.is_idle();
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

impl Drop for Begun<'_> {
    #[inline]
    fn drop(&mut self) {
        self.unfinished.finish(self.began);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_types::{Incarnation, OwnerWord, SessionId};

    const fn number(number: u64) -> SequenceNumber {
        SequenceNumber(number)
    }

    /// A session at number 0 that does nothing.
    fn session() -> Unfinished {
        let owner = OwnerWord::new(SessionId::new(1).expect("a number"), Incarnation::new(1));
        let note = Arc::new(SessionNote::idle(owner));
        Unfinished::new(Arc::default(), note, Rc::default())
    }

    fn noted(session: &Unfinished) -> Option<SequenceNumber> {
        session.note().oldest()
    }

    /// Begins an operation that has to follow, and follows.
    fn begin_and_follow(session: &Unfinished) -> Begun<'_> {
        let (begun, behind) = session.begin();
        let sequence = behind.expect("the process has seen another number");
        session.follow(begun, sequence)
    }

    /// P1: from its begin to its end an operation is noted, and after the last one nothing is,
    /// whichever ends first.
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

    /// P1: a brief operation alone is noted while it lasts; beside others it leaves their note.
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

    /// P1: a brief operation that is kept counts like any other, alone or not.
    #[test]
    fn a_brief_operation_that_is_kept_is_noted_until_it_ends() {
        let session = session();
        let kept = session.begin_briefly().expect("nothing to follow").keep();
        assert_eq!(noted(&session), Some(number(0)));
        let (other, _) = session.begin();
        let another = session.begin_briefly().expect("nothing to follow").keep();
        drop(kept);
        drop(other);
        assert_eq!(noted(&session), Some(number(0)), "one is unfinished");
        drop(another);
        assert_eq!(noted(&session), None);
    }

    /// P4: an operation that sees a new number as it begins is told to follow, every one of them
    /// until one has; a brief one does not begin at all, and leaves the note as it was.
    #[test]
    fn an_operation_that_sees_a_new_number_must_follow() {
        let session = session();
        session.process.see(number(2));
        assert!(session.begin_briefly().is_none());
        assert_eq!(noted(&session), None, "it has not begun");

        let (begun, behind) = session.begin();
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

        let begun = session.follow(begun, number(2));
        assert_eq!(noted(&session), Some(number(2)));
        assert!(session.begin_briefly().is_some());
        assert_eq!(session.begin().1, None, "the session has followed");
        drop(begun);
        assert_eq!(noted(&session), None);
        let (next, _) = session.begin();
        assert_eq!(
            noted(&session),
            Some(number(2)),
            "it begins where the last one was"
        );
        drop(next);
    }

    /// An operation that cannot follow, because looking for dropped tables failed, ends as it was.
    #[test]
    fn an_operation_that_gives_up_before_it_follows_leaves_nothing() {
        let session = session();
        session.process.see(number(1));
        let (begun, behind) = session.begin();
        assert!(behind.is_some());
        drop(begun);
        assert_eq!(noted(&session), None);
        assert_eq!(
            session.begin().1,
            Some(number(1)),
            "the next one has to follow"
        );
    }

    /// P1 and P4: while an operation of an older number is unfinished, the note stays at its
    /// number, though others have followed and some of them end; then it is theirs.
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

    /// D7: what a broken session has cut off may still be on its way: its note stays.
    #[test]
    fn a_broken_session_stays_noted() {
        let session = session();
        let (begun, _) = session.begin();
        session.broken.set(true);
        drop(begun);
        assert_eq!(noted(&session), Some(number(0)));
        assert!(session.is_idle());
    }

    /// The newer ones may end first, too.
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

    /// There are two numbers at most: a third is not followed while operations of the first go on,
    /// and is as soon as they are done. No number is lost meanwhile.
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

    /// Two operations that both saw the number, one of which has followed: the other must not
    /// follow again, to the same number or an older one.
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
