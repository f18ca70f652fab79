//! Merges that hit corruption: they pause before a retry, and retries move no records.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::EngineOptions;

/// Levels whose last merge into the next level hit corruption. This state is in memory only.
#[derive(Debug, Default)]
pub(super) struct MergePauses(BTreeMap<usize, MergePause>);

#[derive(Debug)]
struct MergePause {
    since: Instant,
    duration: Duration,
}

impl MergePauses {
    /// Records that a merge of this level hit corruption now. The pause before the next try doubles
    /// each time, up to a limit.
    pub(super) fn note_corruption(&mut self, level: usize, now: Instant, options: &EngineOptions) {
        let last = self.0.get(&level).map(|rest| rest.duration);
        let duration = last.map_or(options.merge_pause, |it| it.saturating_mul(2));
        let rest = MergePause {
            since: now,
            duration: duration.min(options.merge_pause_max),
        };
        self.0.insert(level, rest);
    }

    /// Records that a merge of this level succeeded.
    pub(super) fn note_merged(&mut self, level: usize) {
        self.0.remove(&level);
    }

    /// Returns true if the last merge of this level hit corruption, so that the next one moves
    /// nothing.
    pub(super) fn has_hit_corruption(&self, level: usize) -> bool {
        self.0.contains_key(&level)
    }

    /// Returns true if merges of this level are paused.
    pub(super) fn pauses(&self, level: usize, now: Instant) -> bool {
        let rest = self.0.get(&level);
        rest.is_some_and(|it| now.saturating_duration_since(it.since) < it.duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a level pauses for a second, doubling after each retry that hits corruption, up to
    /// five minutes. Other levels do not pause, and a successful merge resets the pause.
    #[test]
    fn rests_are_doubled_up_to_five_minutes() {
        let options = EngineOptions::new();
        let mut pauses = MergePauses::default();
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            pauses.note_corruption(2, now, &options);
            assert!(pauses.has_hit_corruption(2) && !pauses.has_hit_corruption(1));
            assert!(!pauses.pauses(1, now) && !pauses.pauses(3, now));
            let rest = Duration::from_secs(seconds);
            assert!(pauses.pauses(2, now));
            assert!(pauses.pauses(2, now + rest.saturating_sub(Duration::from_nanos(1))));
            now += rest;
            assert!(!pauses.pauses(2, now), "after {seconds} seconds");
        }
        pauses.note_merged(2);
        assert!(!pauses.has_hit_corruption(2));
        pauses.note_corruption(2, now, &options);
        assert!(!pauses.pauses(2, now + Duration::from_secs(1)));
    }
}
