//! Simulation of calls over one-sided WRITEs (`farleaf_fabric::message`): a server and its callers
//! in virtual time, over a fabric that uses every freedom of the contract.
//!
//! | module | content |
//! |---|---|
//! | `campaign` | many runs on all processors |
//! | `setting` | one run as a value: rings, calls, and faults of the callers |
//! | `planted` | bugs that can be planted |
//! | `caller` | tasks of a caller, and its faults |
//! | `server` | a server that answers in any order |
//!
//! Promises, even if callers die, are cut off, or lose their connections:
//!
//! - *bytes*: each request arrives as sent, and each successful call has the complete reply
//!   to its own request.
//! - *once*: no request is executed twice, and none that was not sent.
//! - *mailbox*: a server never finds an invalid request, since its callers are honest.
//! - *errors*: a call fails only because of a fault of its caller, or because its reply is longer
//!   than the server keeps.
//! - *progress*: every other call ends, and at the end the largest possible message fits both
//!   rings.
//! - *kept*: once a caller has made another call, nothing is kept of a reply for which no task
//!   waits.

mod caller;
mod campaign;
mod planted;
mod server;
mod setting;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_base::{NodeId, WordAddr};
use farleaf_fabric::message::{Caller, CallerRings, Mailbox, Replies, Ring};

use self::caller::{Lane, start_fault};
pub use self::campaign::run_message_campaign;
use self::planted::PlantedEndpoint;
pub use self::planted::{MESSAGES_FOUND_WITHIN_RUN_COUNT, MessagePlant};
use self::setting::Setting;
use crate::check::Violation;
use crate::fabric::SharedWorld;
use crate::fabric::executor::{ExecutorOutcome, Tasks};
use crate::fabric::world::{Fingerprint, Nanos};
use farleaf_base::random::Random;

/// Maximal number of steps of a run.
const STEP_COUNT_MAX: u64 = 20_000_000;
/// Words of each node's memory.
const NODE_SIZE_WORDS: usize = 1 << 16;
/// Words between two rings in the server's memory.
const RING_DISTANCE_WORDS: u64 = 1 << 13;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Fingerprint of all events.
    pub fingerprint: Fingerprint,
    /// Broken promises.
    pub violations: Vec<Violation>,
    /// Calls that succeeded.
    pub answered_count: u64,
    /// Calls that were dropped in flight.
    pub dropped_count: u64,
    /// Callers that died, lost their connection, or were cut off in a request.
    pub lost_count: u64,
    /// Duration in virtual time.
    pub duration: Nanos,
}

/// Endpoints and rings of one caller.
struct CallerEnds {
    /// Caller's endpoint for the server's memory, which also reads the caller's own.
    to_server: PlantedEndpoint,
    near: PlantedEndpoint,
    /// Server's endpoint for the caller's memory.
    to_caller: PlantedEndpoint,
    requests: Ring,
    replies: Ring,
}

/// State that the tasks of a run share.
struct ConversationState {
    world: SharedWorld,
    setting: Setting,
    random: RefCell<Random>,
    /// Lanes that are not done.
    busy_count: Cell<usize>,
    /// Whether the last calls have been made.
    is_over: Cell<bool>,
    callers: Vec<CallerFaultState>,
    /// Requests that were started: the size of each in bytes, and how often the server received it.
    started_requests: RefCell<BTreeMap<u64, (usize, u64)>>,
    violations: RefCell<Vec<Violation>>,
    answered_count: Cell<u64>,
    dropped_count: Cell<u64>,
}

/// Fault state of a caller.
#[derive(Debug, Default)]
struct CallerFaultState {
    /// Whether the caller has died, lost its connection, or was cut off in a request.
    is_lost: Cell<bool>,
}

impl ConversationState {
    fn report_violation(&self, promise: &'static str, how: impl Into<String>) {
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

/// Runs a seed, with or without a planted bug, and judges it.
pub fn run_conversation(seed: u64, plant: Option<MessagePlant>) -> Conversation {
    let mut random = Random::new(seed);
    let setting = Setting::draw(&mut random);
    let caller_count = setting.callers.len();
    let sizes = vec![NODE_SIZE_WORDS; 1 + caller_count];
    let world = SharedWorld::new(&sizes, setting.freedoms, Random::new(random.bits()));
    let ends: Vec<CallerEnds> = (0..caller_count)
        .map(|number| ends_of(&world, &setting, number, plant))
        .collect();
    let caller_rings = ends.iter().map(CallerEnds::caller_rings);
    let caller_rings: Vec<CallerRings> = caller_rings.collect();
    let callers: Vec<Caller<'_, _, _>> = ends
        .iter()
        .zip(&caller_rings)
        .map(|(ends, caller_rings)| Caller::new(&ends.to_server, &ends.near, caller_rings))
        .collect();
    let mailboxes = ends
        .iter()
        .map(|ends| Mailbox::new(ends.requests, ends.replies, setting.kept_size_bytes_max));
    let mailboxes: Vec<Mailbox> = mailboxes.collect();
    let replies = mailboxes
        .iter()
        .map(|mailbox| Arc::clone(mailbox.replies()));
    let replies: Vec<Arc<Replies>> = replies.collect();
    let near_server = PlantedEndpoint::new(&world, plant);
    let lane_count = setting.callers.iter().map(|caller| caller.lane_count);
    let conversation = ConversationState {
        world: SharedWorld::clone(&world),
        busy_count: Cell::new(lane_count.sum()),
        is_over: Cell::new(false),
        callers: (0..caller_count)
            .map(|_| CallerFaultState::default())
            .collect(),
        started_requests: RefCell::default(),
        violations: RefCell::default(),
        answered_count: Cell::default(),
        dropped_count: Cell::default(),
        random: RefCell::new(random),
        setting,
    };
    let tasks = Tasks::new(&world);
    for (number, caller) in callers.iter().enumerate() {
        let lanes = (0..conversation.setting.callers[number].lane_count).map(|index| {
            let lane = Lane {
                conversation: &conversation,
                caller,
                to_server: &ends[number].to_server,
                number,
                index,
            };
            tasks.spawn(lane.work())
        });
        let lanes: Vec<_> = lanes.collect();
        let client = ends[number].to_server.client();
        start_fault(&tasks, &conversation, number, lanes, client);
    }
    let crew = Rc::clone(&tasks);
    tasks.spawn(server::serve(
        crew,
        &conversation,
        &near_server,
        &ends,
        mailboxes,
    ));
    tasks.spawn(caller::end(&conversation, &ends, &callers));
    let ended = tasks.run(STEP_COUNT_MAX);
    if ended != ExecutorOutcome::Done {
        conversation.report_violation("progress", format!("a task waits forever: {ended:?}"));
    }
    tasks.abandon();
    if ended == ExecutorOutcome::Done {
        check_retained(&conversation, &replies);
    }
    conversation.conclude()
}

impl CallerEnds {
    fn caller_rings(&self) -> CallerRings {
        CallerRings::new(self.requests, self.replies)
    }
}

fn ends_of(
    world: &SharedWorld,
    setting: &Setting,
    number: usize,
    plant: Option<MessagePlant>,
) -> CallerEnds {
    let endpoint = || PlantedEndpoint::new(world, plant);
    let own = NodeId(1 + number as u8);
    let start = (1 + number as u64) * RING_DISTANCE_WORDS;
    CallerEnds {
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

/// Checks, after the last calls, that no reply is kept.
fn check_retained(conversation: &ConversationState, replies: &[Arc<Replies>]) {
    for (number, replies) in replies.iter().enumerate() {
        let retained = replies.kept_size_bytes();
        if retained > 0 && !conversation.callers[number].is_lost.get() {
            let how =
                format!("{retained} bytes are kept for caller {number}, which waits for no reply");
            conversation.report_violation("kept", how);
        }
    }
}

/// Returns the number of a request in the run, from its caller, its lane and its index in the lane.
fn request_id(caller: usize, lane: usize, number: u64) -> u64 {
    (caller as u64) << 40 | (lane as u64) << 32 | number
}

/// Returns the bytes of a request or of its reply.
fn filler(seed: u64, size_bytes: usize) -> impl Iterator<Item = u8> {
    let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..size_bytes as u64)
        .map(move |index| (seed.rotate_left(index as u32 % 64) >> 7) as u8 ^ index as u8)
}
