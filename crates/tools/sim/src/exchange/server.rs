//! A server that answers in any order.

use std::rc::Rc;
use std::sync::Arc;

use farleaf_fabric::Batch;
use farleaf_message::{Mailbox, Replies, Request};

use super::caller::REQUEST_HEAD_SIZE_BYTES;
use super::planted::PlantedEndpoint;
use super::{Ends, Stage, filler};
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::Nanos;

/// Between two looks at all mailboxes.
const LOOK_INTERVAL: Nanos = 300;

/// Reads all mailboxes until the run is over; each reply is a task of its own.
pub(super) async fn serve<'a>(
    tasks: Rc<Tasks<'a>>,
    stage: &'a Stage,
    (near, ends, mut mailboxes): (&'a PlantedEndpoint, &'a [Ends], Vec<Mailbox>),
) {
    let mut batch = Batch::new();
    let mut is_closed = vec![false; ends.len()];
    while !stage.is_over.get() {
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
                    let answered = answer(stage, (replies, &ends.to_caller), request);
                    let after =
                        stage.draw(|random| random.magnitude(stage.setting.reply_delay_max));
                    tasks.spawn_after(after, answered);
                }
                Err(error) => {
                    is_closed[number] = true;
                    stage.complain("mailbox", format!("caller {number}: {error}"));
                }
            }
        }
        sleep(&stage.world, LOOK_INTERVAL).await;
    }
}

/// Judges a request, and answers it.
async fn answer(
    stage: &Stage,
    (replies, to_caller): (Arc<Replies>, &PlantedEndpoint),
    request: Request,
) {
    let mut batch = Batch::new();
    let payload = judge(stage, &request.payload);
    let replied = replies.reply(to_caller, &mut batch, request.reply, &payload);
    if let Err(error) = replied.await {
        stage.complain("errors", format!("the server cannot reply: {error}"));
    }
}

/// *bytes* and *once*; what is to be replied.
fn judge(stage: &Stage, payload: &[u8]) -> Vec<u8> {
    if payload.len() < REQUEST_HEAD_SIZE_BYTES {
        stage.complain("bytes", format!("a request has {} bytes", payload.len()));
        return Vec::new();
    }
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| payload[at + byte]));
    let (id, reply_size_bytes) = (word(0), word(8));
    let rest = &payload[REQUEST_HEAD_SIZE_BYTES..];
    let is_whole = rest.iter().copied().eq(filler(id, rest.len()));
    let mut begun = stage.begun.borrow_mut();
    match begun.get_mut(&id) {
        Some((size_bytes, count)) if is_whole && *size_bytes == payload.len() => {
            *count += 1;
            if *count > 1 {
                stage.complain("once", format!("request {id:#x} was served twice"));
            }
        }
        _ => {
            let how = format!("request {id:#x} is none that was sent");
            stage.complain("bytes", how);
            return Vec::new();
        }
    }
    filler(!id, reply_size_bytes.min(1 << 20) as usize).collect()
}
