//! Tests of queues of operations that wait for a leaf.

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};

use farleaf_base::{Incarnation, NodeId, SessionId};

use super::*;
use crate::words::LeafGeometry;

fn owner(number: u16) -> OwnerWord {
    let session = SessionId::new(number).expect("not zero");
    OwnerWord::new(session, Incarnation::new(1))
}

fn leaf(low: u64) -> LeafBuffer {
    let geometry = LeafGeometry::new(8).expect("allowed");
    LeafBuffer::new(geometry, low, u64::MAX, RemoteAddr::NULL)
}

fn place() -> RemoteAddr {
    RemoteAddr::new(NodeId(0), 100)
}

fn poll<'a>(turn: Pin<&mut (impl Future<Output = LockTurn<'a>> + ?Sized)>) -> Poll<LockTurn<'a>> {
    turn.poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns operations, each of its own session, that wait behind another one.
fn queue<'a>(
    locks: &'a LocalLocks,
    broken: &'a Cell<bool>,
) -> Vec<Pin<Box<dyn Future<Output = LockTurn<'a>> + 'a>>> {
    let mut waiting = Vec::new();
    for number in 2..16 {
        let mut next: Pin<Box<dyn Future<Output = _>>> =
            Box::pin(locks.turn(place(), owner(number), broken));
        assert!(poll(next.as_mut()).is_pending());
        waiting.push(next);
    }
    waiting
}

fn ready<'a>(turn: Pin<&mut (impl Future<Output = LockTurn<'a>> + ?Sized)>) -> LockTurn<'a> {
    match poll(turn) {
        Poll::Ready(turn) => turn,
        Poll::Pending => panic!("it is its turn"),
    }
}

/// Promise: the next in the queue gets the committed contents under its own name, but only once the
/// batch is known to be executed.
#[test]
fn a_leaf_is_handed_to_the_next_in_line() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let mut first = ready(pin!(locks.turn(place(), owner(1), &broken)));
    assert!(matches!(first.admission(), Admission::Ask));
    assert_eq!(first.promise(), OwnerWord::FREE, "nobody waits");
    let mut second = pin!(locks.turn(place(), owner(2), &broken));
    let mut third = pin!(locks.turn(place(), owner(3), &broken));
    assert!(poll(second.as_mut()).is_pending() && poll(third.as_mut()).is_pending());
    assert_eq!(first.promise(), owner(2).handed());
    assert!(poll(second.as_mut()).is_pending(), "it is promised only");
    first.hand_over(&leaf(7));
    assert!(poll(third.as_mut()).is_pending());
    let mut second = ready(second);
    let Admission::Handed(image) = second.admission() else {
        panic!("it is handed over");
    };
    assert_eq!(image.image().low(), 7);
    assert!(matches!(second.admission(), Admission::Ask), "only once");
    drop(second);
    assert!(matches!(ready(third).admission(), Admission::Ask));
    assert!(!broken.get());
    assert!(locks.shard(place()).queues.is_empty(), "nobody is left");
}

/// Promise: after a failed batch its promise stands, and the next in the queue checks the lock
/// word.
#[test]
fn a_promise_that_fails_is_asked_after() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let first = ready(pin!(locks.turn(place(), owner(1), &broken)));
    let mut second = pin!(locks.turn(place(), owner(2), &broken));
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!(first.promise(), owner(2).handed());
    drop(first);
    assert!(matches!(ready(second).admission(), Admission::CheckPromised(by) if by == owner(1)));
    assert!(!broken.get());
}

/// Promise: a promise for which no batch was posted has no effect.
#[test]
fn a_promise_can_be_withdrawn() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let first = ready(pin!(locks.turn(place(), owner(1), &broken)));
    let mut second = pin!(locks.turn(place(), owner(2), &broken));
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!(first.promise(), owner(2).handed());
    first.withdraw();
    drop(first);
    assert!(matches!(ready(second).admission(), Admission::Ask));
}

/// Promise: interrupting an operation to which a lock is promised breaks its session; interrupting
/// one that only waited does not. The others continue.
#[test]
fn only_a_promised_lock_breaks_a_session() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let first = ready(pin!(locks.turn(place(), owner(1), &broken)));
    {
        let mut gone = pin!(locks.turn(place(), owner(2), &broken));
        assert!(poll(gone.as_mut()).is_pending());
    }
    assert!(!broken.get(), "it only waited");
    let mut last = pin!(locks.turn(place(), owner(4), &broken));
    {
        let mut gone = pin!(locks.turn(place(), owner(3), &broken));
        assert!(poll(gone.as_mut()).is_pending());
        assert_eq!(first.promise(), owner(3).handed());
        assert!(poll(last.as_mut()).is_pending());
    }
    assert!(broken.get(), "the lock may be its own");
    first.hand_over(&leaf(0));
    assert!(
        matches!(ready(last).admission(), Admission::Ask),
        "it was promised to somebody else"
    );
}

/// Promise: an operation interrupted after the hand-over holds the lock, and the queue continues.
#[test]
fn a_hand_over_that_nobody_takes_breaks_that_session() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let first = ready(pin!(locks.turn(place(), owner(1), &broken)));
    let mut last = pin!(locks.turn(place(), owner(3), &broken));
    {
        let mut gone = pin!(locks.turn(place(), owner(2), &broken));
        assert!(poll(gone.as_mut()).is_pending());
        assert!(poll(last.as_mut()).is_pending());
        assert_eq!(first.promise(), owner(2).handed());
        first.hand_over(&leaf(0));
    }
    assert!(broken.get());
    assert!(matches!(ready(last).admission(), Admission::Ask));
}

/// Promise: after the maximum number of hand-overs in a row the lock is released for other
/// processes.
#[test]
fn hand_overs_in_a_row_are_bounded() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let mut turn = ready(pin!(locks.turn(place(), owner(1), &broken)));
    let mut waiting = queue(&locks, &broken);
    let mut handed = Vec::new();
    for next in &mut waiting {
        handed.push(!turn.promise().is_free());
        turn.hand_over(&leaf(0));
        turn = ready(next.as_mut());
    }
    let most = HAND_OVER_COUNT_MAX as usize;
    let expected: Vec<bool> = (0..handed.len()).map(|index| index != most).collect();
    assert!(handed.len() > most, "there are enough");
    assert_eq!(handed, expected);
}

/// Promise: promises whose batch failed may have been kept, so they count.
#[test]
fn hand_overs_that_are_unconfirmed_count() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let mut turn = ready(pin!(locks.turn(place(), owner(1), &broken)));
    let mut waiting = queue(&locks, &broken);
    let mut promise_count = 0;
    for next in &mut waiting {
        if turn.promise().is_free() {
            break;
        }
        promise_count += 1;
        drop(turn);
        turn = ready(next.as_mut());
    }
    assert_eq!(promise_count, HAND_OVER_COUNT_MAX);
}

/// Promise: nothing is promised to another operation of the same session, nor to a session that is
/// still checking a promise: the word would be mistaken for another operation's lock. (Two
/// operations of a session held one leaf; found by seed 409 of `trees`.)
#[test]
fn a_session_s_own_flagged_word_means_one_thing() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let first = ready(pin!(locks.turn(place(), owner(1), &broken)));
    let mut same = pin!(locks.turn(place(), owner(1), &broken));
    assert!(poll(same.as_mut()).is_pending());
    assert_eq!(first.promise(), OwnerWord::FREE);
    first.hand_over(&leaf(0));
    let first = ready(same);
    let mut checking_sessions = pin!(locks.turn(place(), owner(2), &broken));
    assert!(poll(checking_sessions.as_mut()).is_pending());
    assert_eq!(first.promise(), owner(2).handed());
    let checking_sessions = farleaf_executor::block_on(checking_sessions, || 0);
    let mut other = pin!(locks.turn(place(), owner(2), &broken));
    assert!(poll(other.as_mut()).is_pending());
    assert_eq!(first.promise(), OwnerWord::FREE);
    drop(checking_sessions);
    assert_eq!(first.promise(), owner(2).handed());
}

/// Promise: no operation waits forever for one that is not polled; the promise to the latter is
/// then checked at the lock word.
#[test]
fn long_waits_continue_outside_the_queue() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let first = ready(pin!(locks.turn(place(), owner(1), &broken)));
    let mut second = pin!(locks.turn(place(), owner(2), &broken));
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!(first.promise(), owner(2).handed());
    let mut third = pin!(locks.turn(place(), owner(3), &broken));
    let second = farleaf_executor::block_on(second, || 0);
    let third = farleaf_executor::block_on(third.as_mut(), || 0);
    for (mut turn, is_promised) in [(second, true), (third, false)] {
        let admission = turn.admission();
        assert_eq!(
            matches!(admission, Admission::CheckPromised(_)),
            is_promised
        );
        assert!(turn.promise().is_free(), "it is in no line");
    }
    assert!(matches!(
        locks.turn_without_waiting(place(), owner(5)).promise(),
        OwnerWord::FREE
    ));
    drop(first);
    assert!(locks.shard(place()).queues.is_empty());
}
