//! A caller's tasks, and what may happen to them.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::rc::Rc;

use farleaf_fabric::Batch;
use farleaf_message::{CallError, Caller};

use super::planted::PlantedEndpoint;
use super::setting::CallerMishap;
use super::{Ends, Stage, filler, request_id};
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::{ClientId, Nanos, TaskId};

type SimCaller<'a> = Caller<'a, PlantedEndpoint, PlantedEndpoint>;

/// Bytes of a request that say which it is, and how long its reply is to be.
pub(super) const REQUEST_HEAD_SIZE_BYTES: usize = 16;
/// Longest time after which a call is dropped.
const DROPPED_AFTER_MAX: Nanos = 100_000;

/// Calls of one caller, one after the other.
pub(super) struct Lane<'a> {
    pub(super) stage: &'a Stage,
    pub(super) caller: &'a SimCaller<'a>,
    /// Its way into the server's memory.
    pub(super) to_server: &'a PlantedEndpoint,
    pub(super) number: usize,
    pub(super) index: usize,
}

impl Lane<'_> {
    pub(super) async fn work(self) {
        let setting = &self.stage.setting;
        for call in 0..setting.callers[self.number].call_count {
            let most = self.caller.request_size_bytes_max() - REQUEST_HEAD_SIZE_BYTES;
            let (size, reply, announced, dropped_after) = self.stage.draw(|random| {
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
            let sizes = (size as usize, reply, announced as usize);
            if !self.ask(id, sizes, dropped_after).await {
                break;
            }
        }
        let busy_count = &self.stage.busy_count;
        busy_count.set(busy_count.get() - 1);
    }

    /// Makes a call, and judges what comes of it. Whether to go on.
    async fn ask(
        &self,
        id: u64,
        (size_bytes, reply_size_bytes, announced_bytes): (usize, u64, usize),
        dropped_after: Option<Nanos>,
    ) -> bool {
        let (stage, fate) = (self.stage, &self.stage.callers[self.number]);
        let mut request = id.to_le_bytes().to_vec();
        request.extend(reply_size_bytes.to_le_bytes());
        request.extend(filler(id, size_bytes));
        stage.begun.borrow_mut().insert(id, (request.len(), 0));
        let (mut batch, mut reply) = (Batch::new(), Vec::new());
        let called = {
            let announced = (announced_bytes, &mut reply);
            let call = self.caller.call(&mut batch, &request, announced, || false);
            within(call, stage, dropped_after).await
        };
        let Some(called) = called else {
            stage.dropped_count.update(|count| count + 1);
            return true;
        };
        match called {
            Ok(()) => {
                stage.answered_count.update(|count| count + 1);
                if !reply
                    .iter()
                    .copied()
                    .eq(filler(!id, reply_size_bytes as usize))
                {
                    let how = format!("call {id:#x} got a reply that is not its own");
                    stage.complain("bytes", how);
                }
                if stage.begun.borrow()[&id].1 != 1 {
                    stage.complain("once", format!("call {id:#x} was answered and not served"));
                }
                true
            }
            Err(CallError::Refused { .. }) if self.may_be_refused() => true,
            Err(CallError::Broken | CallError::Unanswered) if self.to_server.was_cut() => {
                // What is cut off in the middle of a request is for its connection to end.
                fate.is_lost.set(true);
                false
            }
            Err(CallError::Fabric(_)) if fate.is_lost.get() => false,
            Err(error) => {
                stage.complain("errors", format!("call {id:#x}: {error}"));
                false
            }
        }
    }

    /// Whether all that may be kept at a time may be more than the server keeps: also of calls that
    /// were dropped since the oldest one that goes on.
    fn may_be_refused(&self) -> bool {
        let setting = &self.stage.setting;
        let of = &setting.callers[self.number];
        let kept_count = of.lane_count * of.call_count as usize;
        let most = setting.reply_size_bytes_max as usize * kept_count;
        most > setting.kept_size_bytes_max
    }
}

/// Runs a call; `None`: it was dropped after so long.
async fn within<F: Future>(
    call: F,
    stage: &Stage,
    dropped_after: Option<Nanos>,
) -> Option<F::Output> {
    let Some(dropped_after) = dropped_after else {
        return Some(call.await);
    };
    let mut call = pin!(call);
    let mut over = pin!(sleep(&stage.world, dropped_after));
    poll_fn(|context| {
        if let Poll::Ready(called) = call.as_mut().poll(context) {
            return Poll::Ready(Some(called));
        }
        over.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Lets happen to a caller what is to.
pub(super) fn begin_mishap<'a>(
    tasks: &Rc<Tasks<'a>>,
    stage: &'a Stage,
    (number, lanes): (usize, Vec<TaskId>),
    client: ClientId,
) {
    let Some(mishap) = stage.setting.callers[number].mishap else {
        return;
    };
    let own = Rc::clone(tasks);
    tasks.spawn(async move {
        let fate = &stage.callers[number];
        match mishap {
            CallerMishap::Break(after) => {
                sleep(&stage.world, after).await;
                fate.is_lost.set(true);
                stage.world.borrow_mut().break_connection(client);
            }
            CallerMishap::Death(after, fenced_after) => {
                sleep(&stage.world, after).await;
                fate.is_lost.set(true);
                let killed = lanes.iter().filter(|lane| own.kill(**lane));
                let killed_count = killed.count();
                let busy_count = &stage.busy_count;
                busy_count.set(busy_count.get() - killed_count);
                sleep(&stage.world, fenced_after).await;
                stage.world.borrow_mut().fence(client);
            }
        }
    });
}

/// When all lanes are done, each caller that can makes one more call, the largest that there can
/// be: nothing has been lost of its rings.
pub(super) async fn end(stage: &Stage, ends: &[Ends], callers: &[SimCaller<'_>]) {
    while stage.busy_count.get() > 0 {
        sleep(&stage.world, 1_000).await;
    }
    for (number, caller) in callers.iter().enumerate() {
        let to_server = &ends[number].to_server;
        if caller.is_broken() && to_server.was_cut() {
            stage.callers[number].is_lost.set(true);
        }
        if stage.callers[number].is_lost.get() {
            continue;
        }
        let lane = Lane {
            stage,
            caller,
            to_server,
            number,
            index: usize::from(u8::MAX),
        };
        let size_bytes = caller.request_size_bytes_max() - REQUEST_HEAD_SIZE_BYTES;
        let reply_size_bytes = stage.setting.kept_size_bytes_max.min(5_000);
        let sizes = (size_bytes, reply_size_bytes as u64, reply_size_bytes);
        lane.ask(request_id(number, lane.index, 0), sizes, None)
            .await;
    }
    stage.is_over.set(true);
}
