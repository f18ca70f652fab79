//! Tasks of a caller, and its faults.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::rc::Rc;

use farleaf_fabric::Batch;
use farleaf_fabric::message::{CallError, Caller};

use super::planted::PlantedEndpoint;
use super::setting::CallerFault;
use super::{CallerEnds, ConversationState, filler, request_id};
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::{ClientId, Nanos, TaskId};

type SimCaller<'a> = Caller<'a, PlantedEndpoint, PlantedEndpoint>;

/// Bytes of a request that contain its number and the length of its reply.
pub(super) const REQUEST_HEAD_SIZE_BYTES: usize = 16;
/// Longest time after which a call is dropped.
const DROPPED_AFTER_MAX: Nanos = 100_000;

/// Sequence of calls of one caller, one after the other.
pub(super) struct Lane<'a> {
    pub(super) conversation: &'a ConversationState,
    pub(super) caller: &'a SimCaller<'a>,
    /// Endpoint for the server's memory.
    pub(super) to_server: &'a PlantedEndpoint,
    pub(super) number: usize,
    pub(super) index: usize,
}

impl Lane<'_> {
    pub(super) async fn work(self) {
        let setting = &self.conversation.setting;
        for call in 0..setting.callers[self.number].call_count {
            let most = self.caller.request_size_bytes_max() - REQUEST_HEAD_SIZE_BYTES;
            let (size, reply, announced, dropped_after) = self.conversation.draw(|random| {
                let reply = random.magnitude(setting.reply_size_bytes_max);
                let announced = *random.choose(&[0, reply, reply + 100, reply / 2]);
                let dropped = random.chance(setting.dropped_per_mille);
                let dropped_after = dropped.then(|| random.magnitude(DROPPED_AFTER_MAX));
                (
                    random.magnitude(most as u64),
                    reply,
                    announced,
                    dropped_after,
                )
            });
            let id = request_id(self.number, self.index, call);
            if !self
                .ask(id, size as usize, reply, announced as usize, dropped_after)
                .await
            {
                break;
            }
        }
        let busy_count = &self.conversation.busy_count;
        busy_count.set(busy_count.get() - 1);
    }

    /// Makes a call and judges its result. Returns whether to go on.
    async fn ask(
        &self,
        id: u64,
        size_bytes: usize,
        reply_size_bytes: u64,
        announced_bytes: usize,
        dropped_after: Option<Nanos>,
    ) -> bool {
        let (conversation, fate) = (self.conversation, &self.conversation.callers[self.number]);
        let mut request = id.to_le_bytes().to_vec();
        request.extend(reply_size_bytes.to_le_bytes());
        request.extend(filler(id, size_bytes));
        conversation
            .started_requests
            .borrow_mut()
            .insert(id, (request.len(), 0));
        let (mut batch, mut reply) = (Batch::new(), Vec::new());
        let called = {
            let call = self
                .caller
                .call(&mut batch, &request, announced_bytes, &mut reply, || false);
            within(call, conversation, dropped_after).await
        };
        let Some(called) = called else {
            conversation.dropped_count.update(|count| count + 1);
            return true;
        };
        match called {
            Ok(()) => {
                conversation.answered_count.update(|count| count + 1);
                if !reply
                    .iter()
                    .copied()
                    .eq(filler(!id, reply_size_bytes as usize))
                {
                    let how = format!("call {id:#x} got the reply of another call");
                    conversation.report_violation("bytes", how);
                }
                if conversation.started_requests.borrow()[&id].1 != 1 {
                    conversation.report_violation(
                        "once",
                        format!("call {id:#x} got a reply but was not served exactly once"),
                    );
                }
                true
            }
            Err(CallError::Refused { .. }) if self.may_be_refused() => true,
            Err(CallError::Broken | CallError::Unanswered) if self.to_server.was_cut() => {
                // A call that is cut off in the middle of a request ends with its connection.
                fate.is_lost.set(true);
                false
            }
            Err(CallError::Fabric(_)) if fate.is_lost.get() => false,
            Err(error) => {
                conversation.report_violation("errors", format!("call {id:#x}: {error}"));
                false
            }
        }
    }

    /// Returns whether the replies that may have to be kept at a time can exceed the server's
    /// limit. Calls dropped since the oldest one in flight count, too.
    fn may_be_refused(&self) -> bool {
        let setting = &self.conversation.setting;
        let of = &setting.callers[self.number];
        let kept_count = of.lane_count * of.call_count as usize;
        let most = setting.reply_size_bytes_max as usize * kept_count;
        most > setting.kept_size_bytes_max
    }
}

/// Runs a call; `None` if it was dropped after this time.
async fn within<F: Future>(
    call: F,
    conversation: &ConversationState,
    dropped_after: Option<Nanos>,
) -> Option<F::Output> {
    let Some(dropped_after) = dropped_after else {
        return Some(call.await);
    };
    let mut call = pin!(call);
    let mut over = pin!(sleep(&conversation.world, dropped_after));
    poll_fn(|context| {
        if let Poll::Ready(called) = call.as_mut().poll(context) {
            return Poll::Ready(Some(called));
        }
        over.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Starts the fault of a caller.
pub(super) fn start_fault<'a>(
    tasks: &Rc<Tasks<'a>>,
    conversation: &'a ConversationState,
    number: usize,
    lanes: Vec<TaskId>,
    client: ClientId,
) {
    let Some(mishap) = conversation.setting.callers[number].mishap else {
        return;
    };
    let own = Rc::clone(tasks);
    tasks.spawn(async move {
        let fate = &conversation.callers[number];
        match mishap {
            CallerFault::Break(after) => {
                sleep(&conversation.world, after).await;
                fate.is_lost.set(true);
                conversation.world.break_connection(client);
            }
            CallerFault::Death(after, fenced_after) => {
                sleep(&conversation.world, after).await;
                fate.is_lost.set(true);
                let killed = lanes.iter().filter(|lane| own.kill(**lane));
                let killed_count = killed.count();
                let busy_count = &conversation.busy_count;
                busy_count.set(busy_count.get() - killed_count);
                sleep(&conversation.world, fenced_after).await;
                conversation.world.fence(client);
            }
        }
    });
}

/// Makes one more call per connected caller when all lanes are done, the largest possible one: no
/// ring space was lost.
pub(super) async fn end(
    conversation: &ConversationState,
    ends: &[CallerEnds],
    callers: &[SimCaller<'_>],
) {
    while conversation.busy_count.get() > 0 {
        sleep(&conversation.world, 1_000).await;
    }
    for (number, caller) in callers.iter().enumerate() {
        let to_server = &ends[number].to_server;
        if caller.is_broken() && to_server.was_cut() {
            conversation.callers[number].is_lost.set(true);
        }
        if conversation.callers[number].is_lost.get() {
            continue;
        }
        let lane = Lane {
            conversation,
            caller,
            to_server,
            number,
            index: usize::from(u8::MAX),
        };
        let size_bytes = caller.request_size_bytes_max() - REQUEST_HEAD_SIZE_BYTES;
        let reply_size_bytes = conversation.setting.kept_size_bytes_max.min(5_000);
        lane.ask(
            request_id(number, lane.index, 0),
            size_bytes,
            reply_size_bytes as u64,
            reply_size_bytes,
            None,
        )
        .await;
    }
    conversation.is_over.set(true);
}
