//! For how long a node that owes an answer has said nothing.

use std::time::{Duration, Instant};

/// In vain polls between two looks at the clock.
const CLOCK_POLL_COUNT: u32 = 256;

/// Counts polls in vain, as a look at the clock costs more than one.
#[derive(Debug)]
pub(crate) struct Silence {
    answer_time_max: Duration,
    heard_at: Instant,
    idle_poll_count: u32,
}

impl Silence {
    /// A node may take `answer_time_max` for an answer.
    pub(crate) fn new(answer_time_max: Duration) -> Self {
        Self {
            answer_time_max,
            heard_at: Instant::now(),
            idle_poll_count: 0,
        }
    }

    /// Something has come, or only now something is expected.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.idle_poll_count = 0;
    }

    /// A poll was in vain. True now and then: it is time to look whether that is
    /// [too long](Self::is_too_long).
    #[inline]
    pub(crate) fn note_idle_poll(&mut self) -> bool {
        self.idle_poll_count += 1;
        if self.idle_poll_count == 1 {
            self.heard_at = Instant::now();
        }
        self.idle_poll_count.is_multiple_of(CLOCK_POLL_COUNT)
    }

    /// The next poll in vain is to look.
    pub(crate) fn look_soon(&mut self) {
        if self.idle_poll_count == 0 {
            self.heard_at = Instant::now();
        }
        self.idle_poll_count = CLOCK_POLL_COUNT - 1;
    }

    /// Whether somebody who has owed nothing for so long is to be looked at, too; not again before
    /// as much time has passed.
    pub(crate) fn was_idle_for(&mut self, time: Duration) -> bool {
        let now = Instant::now();
        let was_idle = now.duration_since(self.heard_at) > time;
        if was_idle {
            self.heard_at = now;
        }
        was_idle
    }

    /// Whether the node has had all the time that it may take.
    #[cold]
    pub(crate) fn is_too_long(&self) -> bool {
        self.heard_at.elapsed() > self.answer_time_max
    }

    /// What is said of such a node.
    #[cold]
    pub(crate) fn reason(&self) -> String {
        let seconds = self.answer_time_max.as_secs_f64();
        format!("the memory node has not answered for {seconds} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the time counts from the first poll in vain, is looked at now and then only, and
    /// anew after something has come.
    #[test]
    fn silence_is_measured_from_the_first_poll_in_vain() {
        let time_max = Duration::from_millis(20);
        let mut silence = Silence::new(time_max);
        std::thread::sleep(2 * time_max);
        let looks = |silence: &mut Silence, count: u32| {
            let looks = (0..count).filter(|_| silence.note_idle_poll());
            looks.count()
        };
        assert_eq!(looks(&mut silence, 3 * CLOCK_POLL_COUNT), 3);
        assert!(!silence.is_too_long(), "nothing was owed before");
        std::thread::sleep(2 * time_max);
        assert!(silence.is_too_long(), "{}", silence.reason());
        silence.end();
        silence.look_soon();
        assert_eq!(looks(&mut silence, 1), 1);
        assert!(!silence.is_too_long(), "of the silence that has ended");
        assert!(!silence.was_idle_for(time_max));
    }
}
