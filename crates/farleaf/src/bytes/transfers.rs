//! What of a session's operations on tables that the memory node holds goes in parts (J8, J10).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Operations of one session that are under way at once; more wait. The node gives up what a
/// session has used least lately when it has 128 values and loads in parts (J8), and an operation
/// has two at the most.
const OPERATION_COUNT_MAX: u32 = 48;

/// All of a session.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    operation_count: Cell<u32>,
    /// Operations that wait for others to end, in the order in which they came. There are none
    /// unless as many as there may be are under way.
    waiting: RefCell<VecDeque<Waiting>>,
    begun_count: Cell<u64>,
    open: RefCell<Vec<Open>>,
    /// Numbers of what operations have left that failed or were dropped, unless J10 has told the
    /// node of them: it is told with the next one.
    given_up: RefCell<Vec<u64>>,
}

/// Something that the node may have under this number for an operation.
#[derive(Clone, Copy, Debug)]
struct Open {
    number: u64,
    operation: u64,
}

/// One operation. What it leaves open is given up.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    transfers: &'a Transfers,
    /// Nothing else of the session has this number.
    operation: u64,
}

/// An operation that waits for another one to end.
#[derive(Debug)]
struct Waiting {
    operation: u64,
    waker: Waker,
}

/// An operation that begins, as a future: when there are fewer than there may be, or all that came
/// before it had their turn. It is woken once, then, and not before; if it is dropped, its turn is
/// the next one's.
#[derive(Debug)]
pub(super) struct Beginning<'a> {
    transfers: &'a Transfers,
    /// Under which number it waits, or has its turn; `None`: it has not been polled.
    operation: Option<u64>,
}

impl Transfers {
    /// An operation begins, when there is room for one more. Nothing is allocated if there is.
    pub(super) fn permit(&self) -> Beginning<'_> {
        Beginning {
            transfers: self,
            operation: None,
        }
    }

    fn next_operation(&self) -> u64 {
        self.begun_count.update(|count| count + 1);
        self.begun_count.get()
    }

    /// An operation has ended: whoever has waited for the longest time has its place.
    fn end(&self) {
        // Whatever a waker does, nothing is borrowed.
        let next = self.waiting.borrow_mut().pop_front();
        match next {
            Some(next) => next.waker.wake(),
            None => self.operation_count.update(|count| count - 1),
        }
    }

    fn place_in_queue(&self, operation: u64) -> Option<usize> {
        let waiting = self.waiting.borrow();
        let found = waiting.binary_search_by_key(&operation, |waiting| waiting.operation);
        found.ok()
    }

    /// J10, of a session whose next number this is.
    pub(super) fn lowest_open(&self, next: u64) -> u64 {
        let open = self.open.borrow();
        let numbers = open.iter().map(|open| open.number);
        numbers.min().unwrap_or(next)
    }

    fn take_given_up(&self, lowest_open: u64) -> Option<u64> {
        let mut given_up = self.given_up.borrow_mut();
        // Of what is below, the next request tells, whichever that is.
        given_up.retain(|number| *number >= lowest_open);
        given_up.pop()
    }
}

impl<'a> Future for Beginning<'a> {
    type Output = Permit<'a>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit<'a>> {
        let transfers = self.transfers;
        let permit = |operation| {
            Poll::Ready(Permit {
                transfers,
                operation,
            })
        };
        let Some(operation) = self.operation else {
            let operation = transfers.next_operation();
            let count = transfers.operation_count.get();
            if count < OPERATION_COUNT_MAX {
                transfers.operation_count.set(count + 1);
                return permit(operation);
            }
            let waker = context.waker().clone();
            let mut waiting = transfers.waiting.borrow_mut();
            waiting.push_back(Waiting { operation, waker });
            self.operation = Some(operation);
            return Poll::Pending;
        };
        let Some(place) = transfers.place_in_queue(operation) else {
            self.operation = None;
            return permit(operation);
        };
        let waker = context.waker().clone();
        let mut waiting = transfers.waiting.borrow_mut();
        let before = mem::replace(&mut waiting[place].waker, waker);
        // Whatever a waker does, nothing is borrowed.
        drop(waiting);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        let Some(operation) = self.operation else {
            return;
        };
        match self.transfers.place_in_queue(operation) {
            Some(place) => {
                let left = self.transfers.waiting.borrow_mut().remove(place);
                drop(left);
            }
            // It had its turn, and was not polled since.
            None => self.transfers.end(),
        }
    }
}

impl Permit<'_> {
    /// Under this number something may go in parts.
    pub(super) fn open(&self, number: u64) {
        let operation = self.operation;
        let mut open = self.transfers.open.borrow_mut();
        open.push(Open { number, operation });
    }

    /// The node has nothing under this number any more.
    pub(super) fn close(&self, number: u64) {
        let mut open = self.transfers.open.borrow_mut();
        let is_it = |open: &Open| open.number == number && open.operation == self.operation;
        open.retain(|open| !is_it(open));
    }

    /// Something that was given up, of which J10 tells nothing as something older is open. Until
    /// the node has forgotten it, it is this operation's to give up.
    pub(super) fn take_given_up(&self, next: u64) -> Option<u64> {
        let lowest_open = self.transfers.lowest_open(next);
        let number = self.transfers.take_given_up(lowest_open)?;
        self.open(number);
        Some(number)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        {
            let mut open = self.transfers.open.borrow_mut();
            let own = open.extract_if(.., |open| open.operation == self.operation);
            let mut given_up = self.transfers.given_up.borrow_mut();
            given_up.extend(own.map(|open| open.number));
        }
        self.transfers.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use farleaf_executor::block_on;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Bell(AtomicU32);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An operation that begins, and its bell.
    struct Comer<'a> {
        beginning: Beginning<'a>,
        bell: Arc<Bell>,
    }

    impl<'a> Comer<'a> {
        fn new(transfers: &'a Transfers) -> Self {
            Self {
                beginning: transfers.permit(),
                bell: Arc::default(),
            }
        }

        fn poll(&mut self) -> Option<Permit<'a>> {
            let waker = Waker::from(Arc::clone(&self.bell));
            let mut context = Context::from_waker(&waker);
            match Pin::new(&mut self.beginning).poll(&mut context) {
                Poll::Ready(permit) => Some(permit),
                Poll::Pending => None,
            }
        }

        fn woken_count(&self) -> u32 {
            self.bell.0.load(Ordering::Relaxed)
        }
    }

    /// Promise: operations beyond those that there may be wait in the order in which they came,
    /// each woken once, when it has its turn, though it is polled meanwhile; who comes later does
    /// not get before them; and until there are as many, nothing is allocated.
    #[test]
    fn who_waits_has_its_turn() {
        let transfers = Transfers::default();
        let permit = || Comer::new(&transfers).poll().expect("there is room");
        let mut permits: Vec<Permit<'_>> = (0..OPERATION_COUNT_MAX).map(|_| permit()).collect();
        assert_eq!(transfers.waiting.borrow().capacity(), 0);
        let mut comers: [_; 4] = std::array::from_fn(|_| Comer::new(&transfers));
        for _ in 0..100 {
            assert!(comers.iter_mut().all(|comer| comer.poll().is_none()));
        }
        for turn in 0..4 {
            permits.pop();
            let woken = comers.each_ref().map(Comer::woken_count);
            assert_eq!(woken, std::array::from_fn(|at| u32::from(at <= turn)));
            assert!(Comer::new(&transfers).poll().is_none(), "it came later");
            permits.push(comers[turn].poll().expect("its turn"));
        }
        permits.clear();
        assert_eq!(transfers.operation_count.get(), 0);
    }

    /// Promise: who is dropped while it waits, or when it has its turn, keeps nobody from it.
    #[test]
    fn who_goes_leaves_its_turn() {
        let transfers = Transfers::default();
        let permit = || Comer::new(&transfers).poll().expect("there is room");
        let mut permits: Vec<Permit<'_>> = (0..OPERATION_COUNT_MAX).map(|_| permit()).collect();
        let mut comers: Vec<_> = (0..4).map(|_| Comer::new(&transfers)).collect();
        assert!(comers.iter_mut().all(|comer| comer.poll().is_none()));
        drop(comers.remove(1));
        permits.pop();
        assert_eq!(comers[0].woken_count(), 1);
        drop(comers.remove(0));
        let woken: Vec<u32> = comers.iter().map(Comer::woken_count).collect();
        assert_eq!(woken, [1, 0]);
        permits.push(comers[0].poll().expect("its turn"));
        comers.clear();
        permits.clear();
        assert_eq!(transfers.operation_count.get(), 0);
    }

    /// Promise (J10): the lowest number that is open is what any operation has open, and the next
    /// one when none has; what was given up is told by itself only where something older is open.
    #[test]
    fn what_is_open_is_told() {
        let transfers = Transfers::default();
        let permit = || block_on(transfers.permit(), || 0);
        assert_eq!(transfers.lowest_open(1), 1, "nothing has begun");
        let (load, put) = (permit(), permit());
        load.open(1);
        put.open(2);
        put.open(3);
        put.close(2);
        assert_eq!(transfers.lowest_open(4), 1);
        drop(put);
        let next = permit();
        assert_eq!(next.take_given_up(4), Some(3), "the load is older");
        assert_eq!(next.take_given_up(4), None, "once");
        drop(next);
        let next = permit();
        assert_eq!(next.take_given_up(4), Some(3), "it was not forgotten");
        next.close(3);
        assert_eq!(next.take_given_up(4), None);
        next.open(4);
        load.close(1);
        assert_eq!(transfers.lowest_open(5), 4);
        drop(next);
        assert_eq!(transfers.lowest_open(5), 5);
        assert_eq!(permit().take_given_up(5), None, "every request tells");
    }
}
