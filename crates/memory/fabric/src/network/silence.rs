//! Measures how long a node that must reply has been silent.

use std::time::{Duration, Instant};

/// Number of futile polls between two reads of the clock.
const CLOCK_POLL_COUNT: u32 = 256;

/// Timer of silence. It counts futile polls, because reading the clock costs more than a poll.
#[derive(Debug)]
pub(crate) struct Silence {
    answer_time_max: Duration,
    last_input_at: Instant,
    idle_poll_count: u32,
}

impl Silence {
    /// Returns a timer; a node may take `answer_time_max` for a reply.
    pub(crate) fn new(answer_time_max: Duration) -> Self {
        Self {
            answer_time_max,
            last_input_at: Instant::now(),
            idle_poll_count: 0,
        }
    }

    /// Resets the timer: something has arrived, or only now something is expected.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.idle_poll_count = 0;
    }

    /// Counts a futile poll. Returns true now and then: the caller then checks
    /// [`is_too_long`](Self::is_too_long).
    #[inline]
    pub(crate) fn note_idle_poll(&mut self) -> bool {
        self.idle_poll_count += 1;
        if self.idle_poll_count == 1 {
            self.last_input_at = Instant::now();
        }
        self.idle_poll_count.is_multiple_of(CLOCK_POLL_COUNT)
    }

    /// Makes the next futile poll return true.
    pub(crate) fn check_soon(&mut self) {
        if self.idle_poll_count == 0 {
            self.last_input_at = Instant::now();
        }
        self.idle_poll_count = CLOCK_POLL_COUNT - 1;
    }

    /// Returns true if a peer that owes no reply has been idle for `time`, so that it is to be
    /// checked too; then not again before as much time has passed.
    pub(crate) fn was_idle_for(&mut self, time: Duration) -> bool {
        let now = Instant::now();
        let was_idle = now.duration_since(self.last_input_at) > time;
        if was_idle {
            self.last_input_at = now;
        }
        was_idle
    }

    /// Returns true if the node has exceeded the time for a reply.
    #[cold]
    pub(crate) fn is_too_long(&self) -> bool {
        self.last_input_at.elapsed() > self.answer_time_max
    }

    /// Returns the error text for such a node.
    #[cold]
    pub(crate) fn reason(&self) -> String {
        let seconds = self.answer_time_max.as_secs_f64();
        format!("no reply from the memory node for {seconds} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the time counts from the first futile poll, is checked only now and then, and
    /// restarts when something arrives.
    #[test]
    fn silence_is_measured_from_the_first_poll_in_vain() {
        let time_max = Duration::from_millis(20);
        let mut silence = Silence::new(time_max);
        std::thread::sleep(2 * time_max);
        let clock_read_count = |silence: &mut Silence, count: u32| {
            let clock_reads = (0..count).filter(|_| silence.note_idle_poll());
            clock_reads.count()
        };
        assert_eq!(clock_read_count(&mut silence, 3 * CLOCK_POLL_COUNT), 3);
        assert!(!silence.is_too_long(), "nothing was owed before");
        std::thread::sleep(2 * time_max);
        assert!(silence.is_too_long(), "{}", silence.reason());
        silence.end();
        silence.check_soon();
        assert_eq!(clock_read_count(&mut silence, 1), 1);
        assert!(!silence.is_too_long(), "of the silence that has ended");
        assert!(!silence.was_idle_for(time_max));
    }
}
