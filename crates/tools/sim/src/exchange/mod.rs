//! Calls over one-sided WRITEs (`farleaf_message`, E1 to E9), judged: a server and its callers in
//! virtual time, over a fabric that uses every freedom that the contract leaves.
//!
//! | module | what it holds |
//! |---|---|
//! | `campaign` | many runs on all processors |
//! | `setting` | one run as a value: rings, calls, and what befalls the callers |
//! | `planted` | bugs that can be planted |
//! | `caller` | a caller's tasks, and what may happen to them |
//! | `server` | a server that answers in any order |
//!
//! What must hold, whoever is cut off, dies or loses its connection:
//!
//! - *bytes*: each request is served as it was sent, and each call that ends well has the reply to
//!   its own request, whole.
//! - *once*: no request is served twice, and none that nobody sent.
//! - *mailbox*: a server never meets what is no request: its callers are honest.
//! - *errors*: a call fails only by what befell its caller, or because its reply is longer than the
//!   server keeps.
//! - *progress*: every other call ends; and in the end the largest message that there can be finds
//!   room in both rings.
//! - *kept*: nothing is kept of a reply that nobody waits for, once its caller has made another
//!   call.

mod caller;
mod campaign;
mod planted;
mod server;
mod setting;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_message::{Caller, Lines, Mailbox, Replies, Ring};
use farleaf_types::{NodeId, WordAddr};

use self::caller::{Lane, begin_mishap};
pub use self::campaign::run_message_campaign;
use self::planted::PlantedEndpoint;
pub use self::planted::{MESSAGES_FOUND_WITHIN_RUN_COUNT, MessagePlant};
use self::setting::Setting;
use crate::check::Violation;
use crate::fabric::executor::{Ended, Tasks};
use crate::fabric::world::{Fingerprint, Nanos, SharedWorld, World};
use crate::random::Random;

/// Things that happen in a run at the most.
const STEP_COUNT_MAX: u64 = 20_000_000;
/// Words of each node's memory.
const NODE_SIZE_WORDS: usize = 1 << 16;
/// Between two rings in the server's memory.
const RING_DISTANCE_WORDS: u64 = 1 << 13;

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Of everything that happened.
    pub fingerprint: Fingerprint,
    /// Promises that were broken.
    pub violations: Vec<Violation>,
    /// Calls that ended well.
    pub answered_count: u64,
    /// Calls that were dropped while they were under way.
    pub dropped_count: u64,
    /// Callers that died, whose connection broke, or that were cut off in a request.
    pub lost_count: u64,
    /// How long it took, in virtual time.
    pub duration: Nanos,
}

/// One caller's ends of everything.
struct Ends {
    /// Its way into the server's memory, and its look at its own.
    to_server: PlantedEndpoint,
    near: PlantedEndpoint,
    /// The server's way into the caller's memory.
    to_caller: PlantedEndpoint,
    requests: Ring,
    replies: Ring,
}

/// What the tasks of a run share.
struct Stage {
    world: SharedWorld,
    setting: Setting,
    random: RefCell<Random>,
    /// Lanes that are not done.
    busy_count: Cell<usize>,
    /// The last calls have been made.
    is_over: Cell<bool>,
    callers: Vec<Fate>,
    /// Requests that were begun: how many bytes each has, and how often it was served.
    begun: RefCell<BTreeMap<u64, (usize, u64)>>,
    violations: RefCell<Vec<Violation>>,
    answered_count: Cell<u64>,
    dropped_count: Cell<u64>,
}

/// What has befallen a caller.
#[derive(Debug, Default)]
struct Fate {
    /// It has died, its connection broke, or it was cut off in a request (E8).
    is_lost: Cell<bool>,
}

impl Stage {
    fn complain(&self, promise: &'static str, how: impl Into<String>) {
        self.violations
            .borrow_mut()
            .push(Violation::new(promise, how));
    }

    fn conclude(&self) -> Conversation {
        let lost = self.callers.iter().filter(|caller| caller.is_lost.get());
        let world = self.world.borrow();
        Conversation {
            fingerprint: world.fingerprint(),
            answered_count: self.answered_count.get(),
            dropped_count: self.dropped_count.get(),
            lost_count: lost.count() as u64,
            duration: world.now(),
            violations: self.violations.take(),
        }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.random.borrow_mut())
    }
}

/// Runs what a seed says, with a bug or without, and judges it.
pub fn converse(seed: u64, plant: Option<MessagePlant>) -> Conversation {
    let mut random = Random::new(seed);
    let setting = Setting::draw(&mut random);
    let caller_count = setting.callers.len();
    let sizes = vec![NODE_SIZE_WORDS; 1 + caller_count];
    let world = World::new(&sizes, setting.freedoms, Random::new(random.bits()));
    let ends: Vec<Ends> = (0..caller_count)
        .map(|number| ends_of(&world, &setting, number, plant))
        .collect();
    let lines = ends.iter().map(Ends::lines);
    let lines: Vec<Lines> = lines.collect();
    let callers: Vec<Caller<'_, _, _>> = ends
        .iter()
        .zip(&lines)
        .map(|(ends, lines)| Caller::new(&ends.to_server, &ends.near, lines))
        .collect();
    let mailboxes = ends.iter().map(|ends| {
        let rings = (ends.requests, ends.replies);
        Mailbox::new(rings, setting.kept_size_bytes_max)
    });
    let mailboxes: Vec<Mailbox> = mailboxes.collect();
    let replies = mailboxes
        .iter()
        .map(|mailbox| Arc::clone(mailbox.replies()));
    let replies: Vec<Arc<Replies>> = replies.collect();
    let near_server = PlantedEndpoint::new(&world, plant);
    let lane_count = setting.callers.iter().map(|caller| caller.lane_count);
    let stage = Stage {
        world: SharedWorld::clone(&world),
        busy_count: Cell::new(lane_count.sum()),
        is_over: Cell::new(false),
        callers: (0..caller_count).map(|_| Fate::default()).collect(),
        begun: RefCell::default(),
        violations: RefCell::default(),
        answered_count: Cell::default(),
        dropped_count: Cell::default(),
        random: RefCell::new(random),
        setting,
    };
    let tasks = Tasks::new(&world);
    for (number, caller) in callers.iter().enumerate() {
        let lanes = (0..stage.setting.callers[number].lane_count).map(|index| {
            let lane = Lane {
                stage: &stage,
                caller,
                to_server: &ends[number].to_server,
                number,
                index,
            };
            tasks.spawn(lane.work())
        });
        let lanes: Vec<_> = lanes.collect();
        begin_mishap(
            &tasks,
            &stage,
            (number, lanes),
            ends[number].to_server.client(),
        );
    }
    let served = (&near_server, &ends[..], mailboxes);
    tasks.spawn(server::serve(Rc::clone(&tasks), &stage, served));
    tasks.spawn(caller::end(&stage, &ends, &callers));
    let ended = tasks.run(STEP_COUNT_MAX);
    if ended != Ended::Done {
        stage.complain("progress", format!("somebody waits for ever: {ended:?}"));
    }
    tasks.abandon();
    if ended == Ended::Done {
        judge_kept(&stage, &replies);
    }
    stage.conclude()
}

impl Ends {
    fn lines(&self) -> Lines {
        Lines::new((self.requests, self.replies))
    }
}

fn ends_of(
    world: &SharedWorld,
    setting: &Setting,
    number: usize,
    plant: Option<MessagePlant>,
) -> Ends {
    let endpoint = || PlantedEndpoint::new(world, plant);
    let own = NodeId(1 + number as u8);
    let start = (1 + number as u64) * RING_DISTANCE_WORDS;
    Ends {
        to_server: endpoint(),
        near: endpoint(),
        to_caller: endpoint(),
        requests: Ring::new(
            WordAddr::new(NodeId(0), start),
            setting.request_segment_count,
        ),
        replies: Ring::new(WordAddr::new(own, 128), setting.reply_segment_count),
    }
}

/// Of callers that have made their last call.
fn judge_kept(stage: &Stage, replies: &[Arc<Replies>]) {
    for (number, replies) in replies.iter().enumerate() {
        let kept = replies.kept_size_bytes();
        if kept > 0 && !stage.callers[number].is_lost.get() {
            let how = format!("{kept} bytes are kept for caller {number}, who waits for nothing");
            stage.complain("kept", how);
        }
    }
}

/// A request's number in the run: its caller, its lane, and which of that it is.
fn request_id(caller: usize, lane: usize, number: u64) -> u64 {
    (caller as u64) << 40 | (lane as u64) << 32 | number
}

/// The bytes that belong to a request, or to its reply.
fn filler(seed: u64, size_bytes: usize) -> impl Iterator<Item = u8> {
    let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..size_bytes as u64)
        .map(move |index| (seed.rotate_left(index as u32 % 64) >> 7) as u8 ^ index as u8)
}
