//! First-come, first-served queues in virtual time.

use std::collections::VecDeque;

use crate::fabric::ids::Nanos;

/// Virtual time in picoseconds. A NIC executes a verb in twelve nanoseconds, so rounding to whole
/// nanoseconds would be an error of some percent.
pub(crate) type Picos = u64;

/// Picoseconds in a nanosecond.
const PICOS_PER_NANO: Picos = 1000;

/// Converts a moment or duration to picoseconds.
pub(crate) fn picos(nanos: f64) -> Picos {
    (nanos * PICOS_PER_NANO as f64).round() as Picos
}

/// Converts a moment to picoseconds.
pub(crate) fn from_nanos(at: Nanos) -> Picos {
    at * PICOS_PER_NANO
}

/// Rounds a moment up to whole nanoseconds.
pub(super) fn to_nanos(at: Picos) -> Nanos {
    at.div_ceil(PICOS_PER_NANO)
}

/// Server with a queue before it.
///
/// Services are booked ahead, when their work arrives. A query at any moment must return what has
/// been served until then, not what was booked. The queue therefore keeps the periods that had not
/// ended when it was last used.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    free_at: Picos,
    /// Total duration of all services ever booked.
    booked: Picos,
    /// Periods of one or several services without a gap, in their order.
    periods: VecDeque<(Picos, Picos)>,
}

impl Queue {
    /// Serves work that arrives at `ready`, after all earlier work. Returns when it is done.
    #[inline]
    pub(super) fn serve(&mut self, now: Picos, ready: Picos, service: Picos) -> Picos {
        while self.periods.front().is_some_and(|(_, end)| *end <= now) {
            self.periods.pop_front();
        }
        let start = self.free_at.max(ready);
        self.free_at = start + service;
        self.booked += service;
        match self.periods.back_mut() {
            Some((_, end)) if *end == start => *end = self.free_at,
            _ => self.periods.push_back((start, self.free_at)),
        }
        self.free_at
    }

    /// Returns the service time until a moment that is not before its last use.
    pub(super) fn served_until(&self, now: Picos) -> Picos {
        let to_come = self.periods.iter();
        let to_come = to_come.map(|(start, end)| end.saturating_sub(now.max(*start)));
        self.booked - to_come.sum::<Picos>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: work that arrives at a free server is served at once, other work when the server is
    /// free.
    #[test]
    fn who_comes_later_waits_for_who_came_before() {
        let mut queue = Queue::default();
        assert_eq!(queue.serve(100, 100, 10), 110);
        assert_eq!(queue.serve(100, 100, 10), 120);
        assert_eq!(queue.serve(100, 500, 10), 510);
        assert_eq!(queue.serve(600, 600, 10), 610);
    }

    /// Promise: booked work counts from its service on, not from its booking, so that no server has
    /// served for longer than time has passed.
    #[test]
    fn what_is_booked_is_not_yet_served() {
        let mut queue = Queue::default();
        for _ in 0..10 {
            queue.serve(100, 100, 10);
        }
        queue.serve(100, 500, 20);
        for (now, served) in [
            (100, 0),
            (135, 35),
            (200, 100),
            (300, 100),
            (505, 105),
            (520, 120),
        ] {
            assert_eq!(queue.served_until(now), served, "at {now}");
        }
        queue.serve(700, 700, 5);
        assert_eq!(queue.served_until(702), 122);
        assert_eq!(queue.served_until(9_000), 125);
    }

    /// Promise: times are never rounded down.
    #[test]
    fn moments_round_up() {
        assert_eq!(to_nanos(from_nanos(7)), 7);
        assert_eq!(to_nanos(from_nanos(7) + 1), 8);
        assert_eq!(picos(12.2), 12_200);
    }
}
