//! Lines of operations that wait for a leaf (H1 to H5).

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};

use farleaf_types::{Incarnation, NodeId, SessionId};

use super::*;
use crate::LeafGeometry;

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

fn poll<'a>(turn: Pin<&mut (impl Future<Output = Turn<'a>> + ?Sized)>) -> Poll<Turn<'a>> {
    turn.poll(&mut Context::from_waker(Waker::noop()))
}

/// Operations that wait behind another one, of a session each.
fn line<'a>(
    locks: &'a LocalLocks,
    broken: &'a Cell<bool>,
) -> Vec<Pin<Box<dyn Future<Output = Turn<'a>> + 'a>>> {
    let mut waiting = Vec::new();
    for number in 2..16 {
        let mut next: Pin<Box<dyn Future<Output = _>>> =
            Box::pin(locks.turn(place(), owner(number), broken));
        assert!(poll(next.as_mut()).is_pending());
        waiting.push(next);
    }
    waiting
}

fn ready<'a>(turn: Pin<&mut (impl Future<Output = Turn<'a>> + ?Sized)>) -> Turn<'a> {
    match poll(turn) {
        Poll::Ready(turn) => turn,
        Poll::Pending => panic!("it is its turn"),
    }
}

/// Promise (H2, H3): the next in line gets what was committed, under its own name, once that is
/// known to be executed, and not before.
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
    assert!(locks.shard(place()).lines.is_empty(), "nobody is left");
}

/// Promise (H3): whose batch fails has promised, and the next in line asks the lock word.
#[test]
fn a_promise_that_fails_is_asked_after() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let first = ready(pin!(locks.turn(place(), owner(1), &broken)));
    let mut second = pin!(locks.turn(place(), owner(2), &broken));
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!(first.promise(), owner(2).handed());
    drop(first);
    assert!(matches!(ready(second).admission(), Admission::AskPromised(by) if by == owner(1)));
    assert!(!broken.get());
}

/// Promise: a promise that nothing was posted for counts for nothing.
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

/// Promise (H4): who is cut off while a lock is promised to it has broken its session, and who
/// only waited has not; the others go on.
#[test]
fn only_who_was_promised_a_lock_breaks_its_session() {
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

/// Promise (H4): who is cut off after the hand-over holds the lock, and the line goes on.
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

/// Promise (H2): after so many hand-overs in a row the lock is given back, for others to take.
#[test]
fn hand_overs_in_a_row_are_bounded() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let mut turn = ready(pin!(locks.turn(place(), owner(1), &broken)));
    let mut waiting = line(&locks, &broken);
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

/// Promise (H2): promises whose batch failed may have been kept, so they count.
#[test]
fn hand_overs_that_are_unconfirmed_count() {
    let (locks, broken) = (LocalLocks::default(), Cell::new(false));
    let mut turn = ready(pin!(locks.turn(place(), owner(1), &broken)));
    let mut waiting = line(&locks, &broken);
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

/// Promise (H5): nothing is promised to another operation of the same session, nor to a session
/// that still asks after a promise: the word would be taken for another one's lock. (Two
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
    let mut asking = pin!(locks.turn(place(), owner(2), &broken));
    assert!(poll(asking.as_mut()).is_pending());
    assert_eq!(first.promise(), owner(2).handed());
    let asking = farleaf_executor::block_on(asking, || 0);
    let mut other = pin!(locks.turn(place(), owner(2), &broken));
    assert!(poll(other.as_mut()).is_pending());
    assert_eq!(first.promise(), OwnerWord::FREE);
    drop(asking);
    assert_eq!(first.promise(), owner(2).handed());
}

/// Promise (H1): nobody waits for ever for one that is not polled; what was promised to it then
/// is asked after.
#[test]
fn who_waits_for_long_goes_on_beside_the_line() {
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
        assert_eq!(matches!(admission, Admission::AskPromised(_)), is_promised);
        assert!(turn.promise().is_free(), "it is in no line");
    }
    assert!(matches!(
        locks.turn_now(place(), owner(5)).promise(),
        OwnerWord::FREE
    ));
    drop(first);
    assert!(locks.shard(place()).lines.is_empty());
}
