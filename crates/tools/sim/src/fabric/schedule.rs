//! Schedule of the verbs of one batch: a random choice among all schedules that FABRIC-2 and
//! FABRIC-3 permit.

use core::ops::Range;

use farleaf_fabric::{Verb, VerbKind};

use super::ids::Nanos;
use farleaf_base::random::Random;

/// Words of a verb that take effect together.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) at: Nanos,
    pub(super) verb_index: usize,
    /// Range of words of the verb.
    pub(super) words: Range<usize>,
}

/// Degrees of the fabric's freedoms. Each run draws its own (swarm testing): what never happens in
/// a run lets other things happen more often.
#[derive(Clone, Copy, Debug)]
pub struct Freedoms {
    /// Least time from post to node, and from node to client.
    pub latency_min: Nanos,
    /// Greatest addition to this time.
    pub latency_spread: Nanos,
    /// READs of 1000 that are torn.
    pub read_torn_per_mille: u64,
    /// WRITEs of several words, of 1000, that are torn.
    pub write_torn_per_mille: u64,
    /// Greatest time between the first and the last word of a torn verb.
    pub tear_spread: Nanos,
    /// READs and atomics of 1000 that are late enough for later verbs to overtake them.
    pub overtaken_per_mille: u64,
    /// Gaps between two verbs, of 1000, that have a pause.
    pub pause_per_mille: u64,
    /// Pauses of 1000 that are long: a process stops between two stores (FABRIC-2 bounds no delay).
    pub stall_per_mille: u64,
}

/// Length of a long pause: more than any client waits without acting.
const STALL_MAX: Nanos = 3_000_000;

impl Freedoms {
    /// Network without surprises.
    pub const CALM: Self = Self {
        latency_min: 900,
        latency_spread: 100,
        read_torn_per_mille: 0,
        write_torn_per_mille: 0,
        tear_spread: 0,
        overtaken_per_mille: 0,
        pause_per_mille: 0,
        stall_per_mille: 0,
    };

    /// Draws the degrees of a run.
    pub fn draw(random: &mut Random) -> Self {
        let some = |random: &mut Random| *random.choose(&[0, 20, 200, 600, 1000]);
        Self {
            latency_min: random.between(1, 1000),
            latency_spread: *random.choose(&[0, 100, 2_000, 20_000]),
            read_torn_per_mille: some(random),
            write_torn_per_mille: some(random),
            tear_spread: *random.choose(&[50, 1_000, 10_000]),
            overtaken_per_mille: some(random),
            pause_per_mille: some(random),
            stall_per_mille: *random.choose(&[0, 0, 2, 50]),
        }
    }

    /// Draws the time in one direction.
    pub(super) fn latency(&self, random: &mut Random) -> Nanos {
        self.latency_min + random.magnitude(self.latency_spread)
    }
}

/// Moments from which FABRIC-2 counts, for verbs to one node: when all verbs of a kind so far are
/// done.
struct Queue {
    writes: Nanos,
    atomics: Nanos,
    reads: Nanos,
}

/// Draws the pieces of a batch that arrives at its nodes at `arrival`, and the moment when all of
/// them are done.
pub(super) fn draw(
    verbs: &[Verb],
    arrival: Nanos,
    freedoms: &Freedoms,
    random: &mut Random,
) -> (Vec<Piece>, Nanos) {
    let mut pieces = Vec::with_capacity(verbs.len());
    let mut queues: Vec<(u8, Queue)> = Vec::new();
    for (verb_index, verb) in verbs.iter().enumerate() {
        let node = verb.addr.node().0;
        let known = queues.iter().position(|(other, _)| *other == node);
        let known = known.unwrap_or_else(|| {
            let arrival = arrival + random.magnitude(freedoms.latency_spread);
            queues.push((node, Queue::new(arrival)));
            queues.len() - 1
        });
        let queue = &mut queues[known].1;
        let mut start = queue.earliest(verb);
        if random.chance(freedoms.pause_per_mille) {
            let is_stall = random.chance(freedoms.stall_per_mille);
            let longest = if is_stall {
                STALL_MAX
            } else {
                freedoms.tear_spread
            };
            start += random.magnitude(longest);
        }
        if verb.kind != VerbKind::Write && random.chance(freedoms.overtaken_per_mille) {
            start += random.magnitude(freedoms.tear_spread);
        }
        let end = tear(verb, verb_index, start, freedoms, random, &mut pieces);
        queue.note(verb, end);
    }
    let ends = queues.iter().map(|(_, queue)| queue.end());
    (pieces, ends.max().unwrap_or(arrival))
}

impl Queue {
    fn new(arrival: Nanos) -> Self {
        Self {
            writes: arrival,
            atomics: arrival,
            reads: arrival,
        }
    }

    /// Returns the earliest moment of a verb (FABRIC-2). A READ sees all earlier verbs; WRITE, CAS
    /// and FAA come after earlier WRITEs, and if fenced after all earlier verbs.
    fn earliest(&self, verb: &Verb) -> Nanos {
        match verb.kind {
            VerbKind::Read => self.writes.max(self.atomics),
            _ if verb.fence => self.end(),
            _ => self.writes,
        }
    }

    fn note(&mut self, verb: &Verb, end: Nanos) {
        let known = match verb.kind {
            VerbKind::Read => &mut self.reads,
            VerbKind::Write => &mut self.writes,
            VerbKind::CompareSwap | VerbKind::FetchAdd => &mut self.atomics,
        };
        *known = end.max(*known);
    }

    fn end(&self) -> Nanos {
        self.writes.max(self.atomics).max(self.reads)
    }
}

/// Cuts a verb into pieces in any order (FABRIC-3); returns when the last takes effect.
fn tear(
    verb: &Verb,
    verb_index: usize,
    start: Nanos,
    freedoms: &Freedoms,
    random: &mut Random,
    pieces: &mut Vec<Piece>,
) -> Nanos {
    let word_count = verb.word_count as usize;
    let torn_per_mille = match verb.kind {
        VerbKind::Read => freedoms.read_torn_per_mille,
        VerbKind::Write => freedoms.write_torn_per_mille,
        VerbKind::CompareSwap | VerbKind::FetchAdd => 0,
    };
    if word_count < 2 || !random.chance(torn_per_mille) {
        pieces.push(Piece {
            at: start,
            verb_index,
            words: 0..word_count,
        });
        return start;
    }
    // Large READs do not need an event per word.
    let longest = word_count.div_ceil(24) as u64;
    let (mut from, mut end) = (0, start);
    while from < word_count {
        let slack = random.below(3);
        let length = random.between(1, longest + slack) as usize;
        let to = word_count.min(from + length);
        let at = start + random.magnitude(freedoms.tear_spread);
        end = end.max(at);
        pieces.push(Piece {
            at,
            verb_index,
            words: from..to,
        });
        from = to;
    }
    end
}
