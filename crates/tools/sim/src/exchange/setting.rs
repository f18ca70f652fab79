//! Settings of one run: rings, calls, and faults of the callers.

use crate::fabric::Freedoms;
use crate::fabric::world::Nanos;
use farleaf_base::random::Random;

/// Maximal number of callers of a run.
const CALLER_COUNT_MAX: u64 = 3;

/// Settings of one run.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) freedoms: Freedoms,
    /// Segments of each caller's rings.
    pub(super) request_segment_count: u32,
    pub(super) reply_segment_count: u32,
    /// Bytes of replies that the server keeps for each caller.
    pub(super) kept_size_bytes_max: usize,
    /// Maximal size of a reply.
    pub(super) reply_size_bytes_max: u64,
    /// Calls of 1000 that are dropped in flight.
    pub(super) dropped_per_mille: u64,
    /// Longest time for which the server delays a reply.
    pub(super) reply_delay_max: Nanos,
    pub(super) callers: Vec<CallerSetting>,
}

/// Settings of one caller.
#[derive(Clone, Debug)]
pub(super) struct CallerSetting {
    /// Number of concurrent lanes.
    pub(super) lane_count: usize,
    /// Calls of each lane, one after the other.
    pub(super) call_count: u64,
    pub(super) mishap: Option<CallerFault>,
}

/// Fault of a caller.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallerFault {
    /// The caller dies after the first time, and is fenced after the second time more.
    Death(Nanos, Nanos),
    /// The connection breaks after this time.
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
            0 => Some(CallerFault::Death(
                random.magnitude(300_000),
                random.magnitude(100_000),
            )),
            1 => Some(CallerFault::Break(random.magnitude(300_000))),
            _ => None,
        };
        Self {
            lane_count: random.between(1, 4) as usize,
            call_count: random.between(1, 12),
            mishap,
        }
    }
}
