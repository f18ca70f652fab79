//! Waiting strategy of a thread whose tasks are all blocked.

use std::hint;
use std::thread;
use std::time::Duration;

use crate::completions::Wait;

/// Waiting policy of a thread: it spins, then yields its time slice, then sleeps.
///
/// Counts are turns of the loop; each turn polls for completions once. They restart at every event.
/// A sleep ends early when another thread wakes a task. The thread sleeps by parking, so a sleep
/// may consume an [`unpark`](std::thread::Thread::unpark) that was meant for other code; code that
/// parks must check its condition anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// Number of turns with a pause instruction between them.
    pub spin_count: u32,
    /// Number of turns after the spinning, each of which yields to other threads.
    pub yield_count: u32,
    /// Duration of the first sleep after that; each sleep is twice as long as the previous one.
    pub sleep_min: Duration,
    /// Longest sleep; a completion without a notification may wait that long.
    pub sleep_max: Duration,
}

impl Default for IdlePolicy {
    /// Returns a policy that spins for about one round trip of a NIC, yields for about a
    /// millisecond on an otherwise idle machine, then sleeps 10 to 100 us.
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
    /// Returns a policy that never yields and never sleeps, for a thread with a core of its own.
    #[must_use]
    pub fn spin_only() -> Self {
        Self {
            spin_count: u32::MAX,
            ..Self::default()
        }
    }
}

/// Longest single sleep of a thread that the fabric wakes. While operations are in flight, a task
/// woken by another thread may wait that long.
const COMPLETION_WAIT_MAX: Duration = Duration::from_millis(1);

/// Longest sleep of a thread, under any policy, while one of its tasks backs off: no wake ends it.
pub(crate) const REST_SLEEP_MAX: Duration = Duration::from_micros(100);

/// Minimal idleness that a resting future requests for an idle turn, whatever the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestRequest {
    Policy,
    Yield,
    Sleep(Duration),
}

impl RestRequest {
    /// Returns the lesser of two requests.
    pub(crate) fn least(self, other: Self) -> Self {
        match (self, other) {
            (Self::Sleep(one), Self::Sleep(other)) => Self::Sleep(one.min(other)),
            _ => Self::Yield,
        }
    }
}

/// Counter of idle turns since the last event.
pub(crate) struct Idle {
    policy: IdlePolicy,
    turn_count: u32,
}

/// Action of a thread in an idle turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleAction {
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

    /// Restarts the count after an event.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.turn_count = 0;
    }

    /// Waits after an idle turn, longer at each call. Calls `sleep` instead if it can wait for a
    /// completion.
    pub(crate) fn wait(
        &mut self,
        rest: RestRequest,
        sleep: impl FnOnce(Duration) -> Wait,
    ) -> IdleAction {
        let at_most = match rest {
            RestRequest::Policy => COMPLETION_WAIT_MAX,
            RestRequest::Yield => REST_SLEEP_MAX,
            RestRequest::Sleep(duration) => duration,
        };
        match sleep(at_most) {
            Wait::Unable => {}
            Wait::Awake => return IdleAction::Awake,
            Wait::Slept => return IdleAction::Slept,
        }
        let turn = self.turn_count;
        self.turn_count = turn.saturating_add(1);
        let awake_count = self
            .policy
            .spin_count
            .saturating_add(self.policy.yield_count);
        if let RestRequest::Sleep(duration) = rest {
            thread::park_timeout(duration);
            return IdleAction::Slept;
        }
        if turn < self.policy.spin_count {
            if rest == RestRequest::Yield {
                thread::yield_now();
            } else {
                hint::spin_loop();
            }
        } else if turn < awake_count {
            thread::yield_now();
        } else {
            let policy = self.sleep_duration(turn - awake_count);
            let is_resting = rest == RestRequest::Yield;
            thread::park_timeout(if is_resting {
                policy.min(REST_SLEEP_MAX)
            } else {
                policy
            });
            return IdleAction::Slept;
        }
        IdleAction::Awake
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
                assert_eq!(
                    idle.wait(RestRequest::Policy, |_| Wait::Unable),
                    IdleAction::Awake
                );
            }
            assert_eq!(
                idle.wait(RestRequest::Policy, |_| Wait::Unable),
                IdleAction::Slept
            );
            idle.reset();
        }
        assert_eq!(
            idle.wait(RestRequest::Yield, |_| Wait::Unable),
            IdleAction::Awake
        );
        assert_eq!(
            idle.wait(RestRequest::Sleep(Duration::from_micros(1)), |_| {
                Wait::Unable
            }),
            IdleAction::Slept
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

    /// Promise: if the fabric can wake the thread, the thread neither spins nor sleeps by itself,
    /// and a resting task waits no longer than it requested.
    #[test]
    fn a_fabric_that_can_wait_waits() {
        let mut idle = Idle::new(IdlePolicy::default());
        let millisecond = Duration::from_millis(1);
        let few = Duration::from_micros(3);
        for (rest, expected) in [
            (RestRequest::Policy, millisecond),
            (RestRequest::Yield, REST_SLEEP_MAX),
            (RestRequest::Sleep(few), few),
        ] {
            let mut asked = None;
            let waited = idle.wait(rest, |at_most| {
                asked = Some(at_most);
                Wait::Slept
            });
            assert_eq!((waited, asked), (IdleAction::Slept, Some(expected)));
        }
        assert_eq!(
            idle.wait(RestRequest::Policy, |_| Wait::Awake),
            IdleAction::Awake
        );
        assert_eq!(idle.turn_count, 0);
    }
}
