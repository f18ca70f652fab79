//! Reads the requests of all sessions from their rings.

use std::sync::Arc;

use farleaf_fabric::message::{Mailbox, Replies, Request};
use farleaf_fabric::{Batch, BatchError, Endpoint, Windows};
use farleaf_pool::PoolLayout;

use super::ring_registry::{RingRegistry, SessionRings};
use super::server::TableServer;
use super::to_caller::ToCaller;
use crate::xstore::{SessionFactory, Worker};

/// Maximum number of requests that are read from one session per turn.
const TURN_COUNT_MAX: u32 = 8;

/// Request, with everything that is needed to answer it.
#[derive(Debug)]
pub struct Task {
    /// Rings of the session, held until the reply is written.
    session_rings: Arc<SessionRings>,
    replies: Arc<Replies>,
    request: Request,
}

impl Task {
    /// Returns the maximum number of records that the node reads for the request; 1 if it is not
    /// about records.
    pub fn record_count_max(&self) -> u64 {
        let decoded = farleaf_index::rpc::WordRequest::decode(&self.request.payload);
        decoded.map_or(1, |(_, request)| request.record_count_max().max(1))
    }

    /// Executes the request and writes the reply, in one batch of two WRITEs.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn answer<E: Endpoint, B: SessionFactory, W: Windows + ?Sized>(
        self,
        endpoint: &E,
        layout: &PoolLayout,
        windows: &W,
        batch: &mut Batch,
        server: &TableServer,
        worker: &Worker<B>,
    ) -> Result<(), BatchError> {
        let Request { payload, reply } = self.request;
        let to_caller = ToCaller {
            near: endpoint,
            windows,
            session_rings: &self.session_rings,
        };
        match server
            .serve(endpoint, layout, worker, self.session_rings.owner, &payload)
            .await
        {
            Ok(answer) => self.replies.reply(&to_caller, batch, reply, &answer).await,
            Err(reason) => {
                let refused = self.replies.refuse(&to_caller, batch, reply, &reason);
                refused.await
            }
        }
    }
}

/// Reader of the mailboxes, owned by one thread.
#[derive(Debug)]
pub struct Dispatcher {
    ring_registry: Arc<RingRegistry>,
    /// Version of the registry when it was read last.
    version: Option<u64>,
    boxes: Vec<OpenBox>,
}

#[derive(Debug)]
struct OpenBox {
    session_rings: Arc<SessionRings>,
    mailbox: Mailbox,
    /// Set when the mailbox has become unreadable.
    is_over: bool,
}

impl Dispatcher {
    /// Creates a dispatcher for the rings in this registry. A registry may have only one
    /// dispatcher.
    pub fn new(ring_registry: Arc<RingRegistry>) -> Self {
        Self {
            ring_registry,
            version: None,
            boxes: Vec::new(),
        }
    }

    /// Returns whether there are no mailboxes to read.
    pub fn is_idle(&self) -> bool {
        self.boxes.is_empty() && self.version == Some(self.ring_registry.version())
    }

    /// Reads each mailbox, as long as `give` accepts one more request; returns the number of
    /// requests passed to it. If `give` is full, the next turn begins with the current session.
    /// Costs a read of one word per empty mailbox. A mailbox that cannot be read is ignored from
    /// then on.
    pub async fn turn<E: Endpoint, W: Windows + ?Sized>(
        &mut self,
        near: &E,
        windows: &W,
        batch: &mut Batch,
        give: &mut impl TaskSink,
    ) -> u64 {
        self.follow();
        let mut count = 0;
        for index in 0..self.boxes.len() {
            let open = &mut self.boxes[index];
            for taken_count in 0..TURN_COUNT_MAX {
                if open.is_over {
                    break;
                }
                if !give.has_space() {
                    let passed_count = index + usize::from(taken_count > 0);
                    self.boxes.rotate_left(passed_count);
                    return count;
                }
                let to_caller = ToCaller {
                    near,
                    windows,
                    session_rings: &open.session_rings,
                };
                match open.mailbox.next(near, &to_caller, batch).await {
                    Ok(None) => break,
                    Ok(Some(request)) => {
                        count += 1;
                        give.give(Task {
                            session_rings: Arc::clone(&open.session_rings),
                            replies: Arc::clone(open.mailbox.replies()),
                            request,
                        });
                    }
                    Err(error) => {
                        let owner = open.session_rings.owner;
                        tracing::warn!(
                            %owner,
                            %error,
                            "stopped answering calls of this session; end its process"
                        );
                        open.is_over = true;
                        break;
                    }
                }
            }
        }
        count
    }

    /// Adds the mailboxes of new sessions, and removes those of fenced ones.
    fn follow(&mut self) {
        let version = self.ring_registry.version();
        if self.version == Some(version) {
            return;
        }
        let open = self.ring_registry.open();
        let is_open = |session_rings: &Arc<SessionRings>| {
            open.iter().any(|other| Arc::ptr_eq(other, session_rings))
        };
        self.boxes.retain(|open| is_open(&open.session_rings));
        for session_rings in &open {
            if self
                .boxes
                .iter()
                .any(|open| Arc::ptr_eq(&open.session_rings, session_rings))
            {
                continue;
            }
            self.boxes.push(OpenBox {
                session_rings: Arc::clone(session_rings),
                mailbox: session_rings.mailbox(),
                is_over: false,
            });
        }
        self.version = Some(version);
    }
}

/// Receiver of requests.
pub trait TaskSink {
    /// Returns whether another request can be accepted.
    fn has_space(&self) -> bool;
    /// Accepts a request.
    fn give(&mut self, task: Task);
}

/// Limited list of requests, to be answered later.
#[derive(Debug)]
pub struct TaskBatch {
    /// Accepted requests.
    pub tasks: Vec<Task>,
    /// Maximum number of requests.
    pub count_max: usize,
}

impl TaskSink for TaskBatch {
    fn has_space(&self) -> bool {
        self.tasks.len() < self.count_max
    }

    fn give(&mut self, task: Task) {
        self.tasks.push(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::{Incarnation, OwnerWord, SessionId};
    use farleaf_executor::{TaskSet, block_on};
    use farleaf_fabric::WindowRegistry;
    use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
    use farleaf_fabric::message::{Caller, CallerRings};
    use farleaf_pool::layout::ChunkIndex;
    use farleaf_pool::session::ReplyPlace;

    use crate::calls::ring_registry::rings_of;
    use crate::sessions::format_memory;

    /// Promise: when there is space for one request at a time, sessions take turns, however many
    /// requests each has.
    #[test]
    fn sessions_take_turns_for_little_space() {
        let memory = Arc::new(MappedMemory::anonymous(4 << 20).expect("memory"));
        let layout = PoolLayout::from(format_memory(&memory).expect("large enough"));
        let endpoint = MappedEndpoint::new(Arc::clone(&memory));
        let ring_registry = Arc::<RingRegistry>::default();
        let owners = [1, 2, 3].map(|number| {
            OwnerWord::new(SessionId::new(number).expect("one"), Incarnation::new(1))
        });
        let rings_at = |chunk| rings_of(&layout, ChunkIndex(chunk), ReplyPlace::InNodeMemory);
        let rings = [0, 1, 2].map(|chunk| {
            let (requests, replies) = rings_at(chunk);
            CallerRings::new(requests, replies)
        });
        for (owner, chunk) in owners.into_iter().zip(0..) {
            let session_rings =
                SessionRings::new(&layout, owner, ReplyPlace::InNodeMemory, ChunkIndex(chunk));
            ring_registry.places().open.push(Arc::new(session_rings));
        }
        ring_registry.note_change();
        let mut buffers: Vec<_> = (0..12).map(|_| (Batch::new(), Vec::new())).collect();
        let mut calls = TaskSet::with_capacity(12);
        for (number, (batch, reply)) in buffers.iter_mut().enumerate() {
            let rings = &rings[number % 3];
            let endpoint = &endpoint;
            let call = async move {
                let caller = Caller::new(endpoint, endpoint, rings);
                caller.call(batch, b"any", 8, reply, || false).await
            };
            assert!(matches!(calls.spawn(call), Ok(None)), "nobody has answered");
        }
        let mut dispatcher = Dispatcher::new(ring_registry);
        let (mut batch, mut served) = (Batch::new(), Vec::new());
        for _ in 0..6 {
            let mut pile = TaskBatch {
                tasks: Vec::new(),
                count_max: 1,
            };
            let windows = WindowRegistry::default();
            let turned = dispatcher.turn(&endpoint, &windows, &mut batch, &mut pile);
            assert_eq!(block_on(turned, || 0), 1);
            served.push(pile.tasks[0].session_rings.owner);
        }
        assert_eq!(served, [owners, owners].concat());
    }
}
