//! What a thread does while none of its tasks can go on.

use std::hint;
use std::thread;
use std::time::Duration;

use crate::completions::Wait;

/// How a thread waits for completions: it spins, then gives up its time slice, then sleeps.
///
/// Counts are turns of the loop, each of which asks for completions once. They start over when
/// anything happens. A sleep ends early when a task is woken by another thread (the thread is
/// parked, so a sleep may also use up an [`unpark`](std::thread::Thread::unpark) that was meant for
/// something else; code that parks must check its condition anyway).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// Turns with a pause instruction between them.
    pub spin_count: u32,
    /// Turns after those, each of which lets another thread run.
    pub yield_count: u32,
    /// The first sleep after that; each is twice as long as the one before.
    pub sleep_min: Duration,
    /// The longest sleep; a completion that nobody announces may wait that long.
    pub sleep_max: Duration,
}

impl Default for IdlePolicy {
    /// Spins for about one round trip of a NIC, then yields for about a millisecond on an otherwise
    /// idle machine, then sleeps 10 to 100 us.
    fn default() -> Self {
        Self {
            spin_count: 100,
            yield_count: 1000,
            sleep_min: Duration::from_micros(10),
            sleep_max: Duration::from_micros(100),
        }
    }
}

impl IdlePolicy {
    /// Never yields and never sleeps: for a thread that has a core to itself.
    #[must_use]
    pub fn spin_only() -> Self {
        Self {
            spin_count: u32::MAX,
            ..Self::default()
        }
    }
}

/// For how long a thread sleeps at once where the fabric wakes it. A task that another thread wakes
/// may wait that long while others are in flight.
const COMPLETION_WAIT_MAX: Duration = Duration::from_millis(1);

/// No policy lets a thread sleep for longer while one of its tasks backs off: nobody will wake it.
pub(crate) const REST_SLEEP_MAX: Duration = Duration::from_micros(100);

/// The least that a thread should do in an idle turn, whatever its policy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Policy,
    Yield,
    Sleep(Duration),
}

impl Rest {
    /// The lesser of what two resting futures ask for.
    pub(crate) fn least(self, other: Self) -> Self {
        match (self, other) {
            (Self::Sleep(one), Self::Sleep(other)) => Self::Sleep(one.min(other)),
            _ => Self::Yield,
        }
    }
}

/// Counts the idle turns since something last happened.
pub(crate) struct Idle {
    policy: IdlePolicy,
    turn_count: u32,
}

/// What an idle turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    Awake,
    Slept,
}

impl Idle {
    pub(crate) fn new(policy: IdlePolicy) -> Self {
        Self {
            policy,
            turn_count: 0,
        }
    }

    /// Something happened.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.turn_count = 0;
    }

    /// Nothing happened: waits a little, longer at each call; or lets `sleep` wait, which wakes
    /// when something comes, if it can.
    pub(crate) fn wait(&mut self, rest: Rest, sleep: impl FnOnce(Duration) -> Wait) -> Waited {
        let at_most = match rest {
            Rest::Policy => COMPLETION_WAIT_MAX,
            Rest::Yield => REST_SLEEP_MAX,
            Rest::Sleep(duration) => duration,
        };
        match sleep(at_most) {
            Wait::Unable => {}
            Wait::Awake => return Waited::Awake,
            Wait::Slept => return Waited::Slept,
        }
        let turn = self.turn_count;
        self.turn_count = turn.saturating_add(1);
        let awake_count = self
            .policy
            .spin_count
            .saturating_add(self.policy.yield_count);
        if let Rest::Sleep(duration) = rest {
            thread::park_timeout(duration);
            return Waited::Slept;
        }
        if turn < self.policy.spin_count {
            if rest == Rest::Yield {
                thread::yield_now();
            } else {
                hint::spin_loop();
            }
        } else if turn < awake_count {
            thread::yield_now();
        } else {
            let policy = self.sleep_duration(turn - awake_count);
            let is_resting = rest == Rest::Yield;
            thread::park_timeout(if is_resting {
                policy.min(REST_SLEEP_MAX)
            } else {
                policy
            });
            return Waited::Slept;
        }
        Waited::Awake
    }

    fn sleep_duration(&self, sleep_index: u32) -> Duration {
        let factor = 1 << sleep_index.min(16);
        self.policy
            .sleep_min
            .saturating_mul(factor)
            .min(self.policy.sleep_max)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waiting_goes_from_spinning_by_yielding_to_sleeping_and_starts_over() {
        let policy = IdlePolicy {
            spin_count: 2,
            yield_count: 3,
            ..IdlePolicy::default()
        };
        let mut idle = Idle::new(policy);
        for _ in 0..2 {
            for _ in 0..5 {
                assert_eq!(idle.wait(Rest::Policy, |_| Wait::Unable), Waited::Awake);
            }
            assert_eq!(idle.wait(Rest::Policy, |_| Wait::Unable), Waited::Slept);
            idle.reset();
        }
        assert_eq!(idle.wait(Rest::Yield, |_| Wait::Unable), Waited::Awake);
        assert_eq!(
            idle.wait(Rest::Sleep(Duration::from_micros(1)), |_| Wait::Unable),
            Waited::Slept
        );
    }

    #[test]
    fn sleeps_double_up_to_their_maximum() {
        let idle = Idle::new(IdlePolicy::default());
        let sleeps_us: Vec<u128> = [0, 1, 3, 4, u32::MAX]
            .map(|index| idle.sleep_duration(index).as_micros())
            .to_vec();
        assert_eq!(sleeps_us, [10, 20, 80, 100, 100]);
    }

    /// Promise: where the fabric wakes a thread, the thread neither spins nor sleeps by itself, and
    /// a task that rests is not kept for longer than it asked.
    #[test]
    fn a_fabric_that_can_wait_waits() {
        let mut idle = Idle::new(IdlePolicy::default());
        let millisecond = Duration::from_millis(1);
        let few = Duration::from_micros(3);
        for (rest, expected) in [
            (Rest::Policy, millisecond),
            (Rest::Yield, REST_SLEEP_MAX),
            (Rest::Sleep(few), few),
        ] {
            let mut asked = None;
            let waited = idle.wait(rest, |at_most| {
                asked = Some(at_most);
                Wait::Slept
            });
            assert_eq!((waited, asked), (Waited::Slept, Some(expected)));
        }
        assert_eq!(idle.wait(Rest::Policy, |_| Wait::Awake), Waited::Awake);
        assert_eq!(idle.turn_count, 0);
    }
}
