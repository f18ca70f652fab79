//! One run as a value: rings, calls, and what befalls the callers.

use crate::fabric::Freedoms;
use crate::fabric::world::Nanos;
use crate::random::Random;

/// Callers of a run at the most.
const CALLER_COUNT_MAX: u64 = 3;

/// One run.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) freedoms: Freedoms,
    /// Segments of each caller's rings.
    pub(super) request_segment_count: u32,
    pub(super) reply_segment_count: u32,
    /// What the server keeps for each caller (E6).
    pub(super) kept_size_bytes_max: usize,
    /// Bytes of a reply at the most.
    pub(super) reply_size_bytes_max: u64,
    /// How often, of 1000, a call is dropped while it is under way.
    pub(super) dropped_per_mille: u64,
    /// Replies that the server holds back at the most, each so long.
    pub(super) reply_delay_max: Nanos,
    pub(super) callers: Vec<CallerSetting>,
}

/// One caller.
#[derive(Clone, Debug)]
pub(super) struct CallerSetting {
    /// Calls at a time.
    pub(super) lane_count: usize,
    /// Calls of each lane, one after the other.
    pub(super) call_count: u64,
    pub(super) mishap: Option<CallerMishap>,
}

/// What befalls a caller.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallerMishap {
    /// It stops for ever after so long, and is fenced so long after that.
    Death(Nanos, Nanos),
    /// Its connection breaks after so long.
    Break(Nanos),
}

impl Setting {
    pub(super) fn draw(random: &mut Random) -> Self {
        let is_calm = random.chance(200);
        let freedoms = if is_calm {
            Freedoms::CALM
        } else {
            Freedoms::draw(random)
        };
        let caller_count = random.between(1, CALLER_COUNT_MAX);
        Self {
            freedoms,
            request_segment_count: *random.choose(&[1, 2, 3, 5, 8, 40]),
            reply_segment_count: *random.choose(&[1, 2, 3, 7, 16, 60]),
            kept_size_bytes_max: *random.choose(&[1 << 20, 1 << 20, 2_000]),
            reply_size_bytes_max: *random.choose(&[50, 300, 3_000]),
            dropped_per_mille: *random.choose(&[0, 0, 50, 400]),
            reply_delay_max: *random.choose(&[0, 2_000, 50_000]),
            callers: (0..caller_count)
                .map(|_| CallerSetting::draw(random))
                .collect(),
        }
    }
}

impl CallerSetting {
    fn draw(random: &mut Random) -> Self {
        let mishap = match random.below(6) {
            0 => Some(CallerMishap::Death(
                random.magnitude(300_000),
                random.magnitude(100_000),
            )),
            1 => Some(CallerMishap::Break(random.magnitude(300_000))),
            _ => None,
        };
        Self {
            lane_count: random.between(1, 4) as usize,
            call_count: random.between(1, 12),
            mishap,
        }
    }
}
