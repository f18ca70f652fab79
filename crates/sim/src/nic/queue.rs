//! First-come, first-served queues in virtual time.

use crate::fabric::world::Nanos;

/// Virtual time in picoseconds: a NIC does a verb in twelve nanoseconds, so that rounding each to
/// whole ones would be an error of some percent.
pub(super) type Picos = u64;

/// Picoseconds in a nanosecond.
const PICOS_PER_NANO: Picos = 1000;

/// A moment or duration in picoseconds.
pub(super) fn picos(nanos: f64) -> Picos {
    (nanos * PICOS_PER_NANO as f64).round() as Picos
}

/// The moment in picoseconds.
pub(super) fn from_nanos(at: Nanos) -> Picos {
    at * PICOS_PER_NANO
}

/// The first whole nanosecond that is not before the moment.
pub(super) fn to_nanos(at: Picos) -> Nanos {
    at.div_ceil(PICOS_PER_NANO)
}

/// One server with a queue before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    free_at: Picos,
    busy: Picos,
}

impl Queue {
    /// Serves what is there from `ready` on, after all that came before; says when it is done.
    #[inline]
    pub(super) fn serve(&mut self, ready: Picos, service: Picos) -> Picos {
        self.free_at = self.free_at.max(ready) + service;
        self.busy += service;
        self.free_at
    }

    /// How long it has served in all.
    pub(super) fn busy(&self) -> Picos {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: whoever comes to a free server is served at once, others when it is free, and the
    /// time served is the sum of the services.
    #[test]
    fn who_comes_later_waits_for_who_came_before() {
        let mut queue = Queue::default();
        assert_eq!(queue.serve(100, 10), 110);
        assert_eq!(queue.serve(100, 10), 120);
        assert_eq!(queue.serve(500, 10), 510);
        assert_eq!(queue.busy(), 30);
    }

    /// Promise: times are never rounded to before they are.
    #[test]
    fn moments_round_up() {
        assert_eq!(to_nanos(from_nanos(7)), 7);
        assert_eq!(to_nanos(from_nanos(7) + 1), 8);
        assert_eq!(picos(12.2), 12_200);
    }
}
