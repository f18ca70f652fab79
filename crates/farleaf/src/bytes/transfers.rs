//! Multi-part transfers of a session to and from tables that the memory node stores.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Concurrent operations of one session; further ones wait. The node holds 128 values and loads in
/// parts per session and discards the least recently used beyond that; an operation has at most
/// two.
const OPERATION_COUNT_MAX: u32 = 48;

/// All transfers of a session.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    operation_count: Cell<u32>,
    /// Operations that wait for others to end, in order of arrival. Empty unless as many as allowed
    /// are running.
    waiting: RefCell<VecDeque<WaitingOperation>>,
    begun_count: Cell<u64>,
    open: RefCell<Vec<OpenTransfer>>,
    /// Numbers of transfers that failed or dropped operations have left, unless a request has told
    /// the node the lowest open number above them. The next operation makes the node discard them.
    abandoned: RefCell<Vec<u64>>,
}

/// Transfer whose data the node may hold for an operation.
#[derive(Clone, Copy, Debug)]
struct OpenTransfer {
    number: u64,
    operation: u64,
}

/// One operation; dropping it gives up the transfers that it left open.
#[derive(Debug)]
pub(super) struct TransferPermit<'a> {
    transfers: &'a Transfers,
    /// Number of the operation, unique within the session.
    operation: u64,
}

/// Operation that waits for another one to end.
#[derive(Debug)]
struct WaitingOperation {
    operation: u64,
    waker: Waker,
}

/// Future of an operation's begin. It completes when fewer operations than allowed are running, or
/// when its turn in the queue comes. It is woken exactly once, at its turn; if it is dropped, its
/// turn passes to the next one.
#[derive(Debug)]
pub(super) struct PermitFuture<'a> {
    transfers: &'a Transfers,
    /// Number under which it waits or has its turn; `None` before the first poll.
    operation: Option<u64>,
}

impl Transfers {
    /// Begins an operation once the limit allows another one. Allocates nothing if it does at once.
    pub(super) fn permit(&self) -> PermitFuture<'_> {
        PermitFuture {
            transfers: self,
            operation: None,
        }
    }

    fn next_operation(&self) -> u64 {
        self.begun_count.update(|count| count + 1);
        self.begun_count.get()
    }

    /// Ends an operation and passes its place to the one that has waited longest.
    fn end(&self) {
        // A waker may call back, so nothing is borrowed while it runs.
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

    /// Returns the lowest open number of the session, whose next number is `next`. Every request
    /// carries it, and the node discards everything below it.
    pub(super) fn lowest_open(&self, next: u64) -> u64 {
        let open = self.open.borrow();
        let numbers = open.iter().map(|open| open.number);
        numbers.min().unwrap_or(next)
    }

    fn take_abandoned(&self, lowest_open: u64) -> Option<u64> {
        let mut abandoned = self.abandoned.borrow_mut();
        // The next request of any operation tells the node about the numbers below.
        abandoned.retain(|number| *number >= lowest_open);
        abandoned.pop()
    }
}

impl<'a> Future for PermitFuture<'a> {
    type Output = TransferPermit<'a>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<TransferPermit<'a>> {
        let transfers = self.transfers;
        let permit = |operation| {
            Poll::Ready(TransferPermit {
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
            waiting.push_back(WaitingOperation { operation, waker });
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
        // A waker may call back when it is dropped, so nothing is borrowed.
        drop(waiting);
        drop(before);
        Poll::Pending
    }
}

impl Drop for PermitFuture<'_> {
    fn drop(&mut self) {
        let Some(operation) = self.operation else {
            return;
        };
        match self.transfers.place_in_queue(operation) {
            Some(place) => {
                let left = self.transfers.waiting.borrow_mut().remove(place);
                drop(left);
            }
            // Its turn had come, but it has not been polled since.
            None => self.transfers.end(),
        }
    }
}

impl TransferPermit<'_> {
    /// Opens a transfer under this number.
    pub(super) fn open(&self, number: u64) {
        let operation = self.operation;
        let mut open = self.transfers.open.borrow_mut();
        open.push(OpenTransfer { number, operation });
    }

    /// Closes a transfer whose data the node no longer holds.
    pub(super) fn close(&self, number: u64) {
        let mut open = self.transfers.open.borrow_mut();
        let is_it = |open: &OpenTransfer| open.number == number && open.operation == self.operation;
        open.retain(|open| !is_it(open));
    }

    /// Returns a given-up transfer that the lowest open number does not cover, because an older one
    /// is open. Until the node has discarded it, it is open in this operation.
    pub(super) fn take_abandoned(&self, next: u64) -> Option<u64> {
        let lowest_open = self.transfers.lowest_open(next);
        let number = self.transfers.take_abandoned(lowest_open)?;
        self.open(number);
        Some(number)
    }
}

impl Drop for TransferPermit<'_> {
    fn drop(&mut self) {
        {
            let mut open = self.transfers.open.borrow_mut();
            let own = open.extract_if(.., |open| open.operation == self.operation);
            let mut abandoned = self.transfers.abandoned.borrow_mut();
            abandoned.extend(own.map(|open| open.number));
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

    /// Waker that counts its calls.
    #[derive(Default)]
    struct CountingWaker(AtomicU32);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Future of a permit and its waker.
    struct QueuedPermit<'a> {
        beginning: PermitFuture<'a>,
        counting_waker: Arc<CountingWaker>,
    }

    impl<'a> QueuedPermit<'a> {
        fn new(transfers: &'a Transfers) -> Self {
            Self {
                beginning: transfers.permit(),
                counting_waker: Arc::default(),
            }
        }

        fn poll(&mut self) -> Option<TransferPermit<'a>> {
            let waker = Waker::from(Arc::clone(&self.counting_waker));
            let mut context = Context::from_waker(&waker);
            match Pin::new(&mut self.beginning).poll(&mut context) {
                Poll::Ready(permit) => Some(permit),
                Poll::Pending => None,
            }
        }

        fn woken_count(&self) -> u32 {
            self.counting_waker.0.load(Ordering::Relaxed)
        }
    }

    /// Promise: operations beyond the limit wait in order of arrival. Each is woken once, at its
    /// turn, even if it is polled meanwhile; later ones do not overtake it. Below the limit nothing
    /// is allocated.
    #[test]
    fn who_waits_has_its_turn() {
        let transfers = Transfers::default();
        let permit = || QueuedPermit::new(&transfers).poll().expect("there is room");
        let mut permits: Vec<TransferPermit<'_>> =
            (0..OPERATION_COUNT_MAX).map(|_| permit()).collect();
        assert_eq!(transfers.waiting.borrow().capacity(), 0);
        let mut queued_permits: [_; 4] = std::array::from_fn(|_| QueuedPermit::new(&transfers));
        for _ in 0..100 {
            assert!(
                queued_permits
                    .iter_mut()
                    .all(|queued_permit| queued_permit.poll().is_none())
            );
        }
        for turn in 0..4 {
            permits.pop();
            let woken = queued_permits.each_ref().map(QueuedPermit::woken_count);
            assert_eq!(woken, std::array::from_fn(|at| u32::from(at <= turn)));
            assert!(
                QueuedPermit::new(&transfers).poll().is_none(),
                "it came later"
            );
            permits.push(queued_permits[turn].poll().expect("its turn"));
        }
        permits.clear();
        assert_eq!(transfers.operation_count.get(), 0);
    }

    /// Promise: an operation that is dropped while it waits, or at its turn, does not block the
    /// others.
    #[test]
    fn who_goes_leaves_its_turn() {
        let transfers = Transfers::default();
        let permit = || QueuedPermit::new(&transfers).poll().expect("there is room");
        let mut permits: Vec<TransferPermit<'_>> =
            (0..OPERATION_COUNT_MAX).map(|_| permit()).collect();
        let mut queued_permits: Vec<_> = (0..4).map(|_| QueuedPermit::new(&transfers)).collect();
        assert!(
            queued_permits
                .iter_mut()
                .all(|queued_permit| queued_permit.poll().is_none())
        );
        drop(queued_permits.remove(1));
        permits.pop();
        assert_eq!(queued_permits[0].woken_count(), 1);
        drop(queued_permits.remove(0));
        let woken: Vec<u32> = queued_permits
            .iter()
            .map(QueuedPermit::woken_count)
            .collect();
        assert_eq!(woken, [1, 0]);
        permits.push(queued_permits[0].poll().expect("its turn"));
        queued_permits.clear();
        permits.clear();
        assert_eq!(transfers.operation_count.get(), 0);
    }

    /// Promise: the lowest open number is the lowest of any operation, or the next number if none
    /// is open. A given-up transfer is reported separately only if an older one is open.
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
        assert_eq!(next.take_abandoned(4), Some(3), "the load is older");
        assert_eq!(next.take_abandoned(4), None, "once");
        drop(next);
        let next = permit();
        assert_eq!(next.take_abandoned(4), Some(3), "it was not forgotten");
        next.close(3);
        assert_eq!(next.take_abandoned(4), None);
        next.open(4);
        load.close(1);
        assert_eq!(transfers.lowest_open(5), 4);
        drop(next);
        assert_eq!(transfers.lowest_open(5), 5);
        assert_eq!(permit().take_abandoned(5), None, "every request tells");
    }
}
