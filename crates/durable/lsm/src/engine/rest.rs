//! Merges that met damage: how long they rest, and that they move nothing (LC7).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::EngineOptions;

/// The levels whose last merge into the one below met damage. It is in memory alone.
#[derive(Debug, Default)]
pub(super) struct Rests(BTreeMap<usize, Rest>);

#[derive(Debug)]
struct Rest {
    since: Instant,
    duration: Duration,
}

impl Rests {
    /// A merge of this level met damage just now: it rests, twice as long as after the try before.
    pub(super) fn note_damage(&mut self, level: usize, now: Instant, options: &EngineOptions) {
        let last = self.0.get(&level).map(|rest| rest.duration);
        let duration = last.map_or(options.merge_rest, |it| it.saturating_mul(2));
        let rest = Rest {
            since: now,
            duration: duration.min(options.merge_rest_max),
        };
        self.0.insert(level, rest);
    }

    /// A merge of this level has ended well.
    pub(super) fn note_merged(&mut self, level: usize) {
        self.0.remove(&level);
    }

    /// Whether the last merge of this level met damage: the next one moves nothing.
    pub(super) fn has_met_damage(&self, level: usize) -> bool {
        self.0.contains_key(&level)
    }

    /// Whether this level is not to be merged yet.
    pub(super) fn rests(&self, level: usize, now: Instant) -> bool {
        let rest = self.0.get(&level);
        rest.is_some_and(|it| now.saturating_duration_since(it.since) < it.duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (LC7): a level rests for a second, twice as long after each try that meets damage,
    /// and five minutes at the most; others do not rest, and one that was merged begins anew.
    #[test]
    fn rests_are_doubled_up_to_five_minutes() {
        let options = EngineOptions::new();
        let mut rests = Rests::default();
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            rests.note_damage(2, now, &options);
            assert!(rests.has_met_damage(2) && !rests.has_met_damage(1));
            assert!(!rests.rests(1, now) && !rests.rests(3, now));
            let rest = Duration::from_secs(seconds);
            assert!(rests.rests(2, now));
            assert!(rests.rests(2, now + rest.saturating_sub(Duration::from_nanos(1))));
            now += rest;
            assert!(!rests.rests(2, now), "after {seconds} seconds");
        }
        rests.note_merged(2);
        assert!(!rests.has_met_damage(2));
        rests.note_damage(2, now, &options);
        assert!(!rests.rests(2, now + Duration::from_secs(1)));
    }
}
