//! What of a session's operations on tables that the memory node holds goes in parts (J8, J10).

use std::cell::{Cell, RefCell};

use farleaf_executor::backoff;

/// Operations of one session that are under way at once; more wait. The node gives up what a
/// session has used least lately when it has 128 values and loads in parts (J8), and an operation
/// has two at the most.
const OPERATION_COUNT_MAX: u32 = 48;

/// All of a session.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    operation_count: Cell<u32>,
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

impl Transfers {
    /// An operation begins, when there is room for one more.
    pub(super) async fn permit(&self) -> Permit<'_> {
        for attempt in 0.. {
            if self.operation_count.get() < OPERATION_COUNT_MAX {
                break;
            }
            backoff(attempt).await;
        }
        self.operation_count.update(|count| count + 1);
        self.begun_count.update(|count| count + 1);
        Permit {
            transfers: self,
            operation: self.begun_count.get(),
        }
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
        self.transfers.operation_count.update(|count| count - 1);
        let mut open = self.transfers.open.borrow_mut();
        let own = open.extract_if(.., |open| open.operation == self.operation);
        let mut given_up = self.transfers.given_up.borrow_mut();
        given_up.extend(own.map(|open| open.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_executor::block_on;

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
