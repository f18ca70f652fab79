//! Server that answers in any order.

use std::rc::Rc;
use std::sync::Arc;

use farleaf_fabric::Batch;
use farleaf_fabric::message::{Mailbox, Replies, Request};

use super::caller::REQUEST_HEAD_SIZE_BYTES;
use super::planted::PlantedEndpoint;
use super::{CallerEnds, ConversationState, filler};
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::Nanos;

/// Time between two polls of all mailboxes.
const POLL_INTERVAL: Nanos = 300;

/// Polls all mailboxes until the run is over; each reply is a task of its own.
pub(super) async fn serve<'a>(
    tasks: Rc<Tasks<'a>>,
    conversation: &'a ConversationState,
    near: &'a PlantedEndpoint,
    ends: &'a [CallerEnds],
    mut mailboxes: Vec<Mailbox>,
) {
    let mut batch = Batch::new();
    let mut is_closed = vec![false; ends.len()];
    while !conversation.is_over.get() {
        for (number, ends) in ends.iter().enumerate() {
            if is_closed[number] {
                continue;
            }
            let mailbox = &mut mailboxes[number];
            let next = mailbox.next(near, &ends.to_caller, &mut batch);
            match next.await {
                Ok(None) => {}
                Ok(Some(request)) => {
                    let replies = Arc::clone(mailbox.replies());
                    let answered = answer(conversation, replies, &ends.to_caller, request);
                    let after = conversation
                        .draw(|random| random.magnitude(conversation.setting.reply_delay_max));
                    tasks.spawn_after(after, answered);
                }
                Err(error) => {
                    is_closed[number] = true;
                    conversation.report_violation("mailbox", format!("caller {number}: {error}"));
                }
            }
        }
        sleep(&conversation.world, POLL_INTERVAL).await;
    }
}

/// Checks a request and replies to it.
async fn answer(
    conversation: &ConversationState,
    replies: Arc<Replies>,
    to_caller: &PlantedEndpoint,
    request: Request,
) {
    let mut batch = Batch::new();
    let payload = check_request(conversation, &request.payload);
    let replied = replies.reply(to_caller, &mut batch, request.reply, &payload);
    if let Err(error) = replied.await {
        conversation.report_violation("errors", format!("the server cannot reply: {error}"));
    }
}

/// Checks *bytes* and *once*, and returns the reply.
fn check_request(conversation: &ConversationState, payload: &[u8]) -> Vec<u8> {
    if payload.len() < REQUEST_HEAD_SIZE_BYTES {
        conversation.report_violation(
            "bytes",
            format!("a request is too short: {} bytes", payload.len()),
        );
        return Vec::new();
    }
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| payload[at + byte]));
    let (id, reply_size_bytes) = (word(0), word(8));
    let rest = &payload[REQUEST_HEAD_SIZE_BYTES..];
    let is_whole = rest.iter().copied().eq(filler(id, rest.len()));
    let mut started_requests = conversation.started_requests.borrow_mut();
    match started_requests.get_mut(&id) {
        Some((size_bytes, count)) if is_whole && *size_bytes == payload.len() => {
            *count += 1;
            if *count > 1 {
                conversation.report_violation("once", format!("request {id:#x} was served twice"));
            }
        }
        _ => {
            let how = format!("request {id:#x} was never sent");
            conversation.report_violation("bytes", how);
            return Vec::new();
        }
    }
    filler(!id, reply_size_bytes.min(1 << 20) as usize).collect()
}
