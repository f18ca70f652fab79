//! Reads all mailboxes.

use std::sync::Arc;

use farleaf_fabric::{Batch, BatchError, Endpoint, Windows};
use farleaf_message::{Mailbox, Replies, Request};
use farleaf_region::PoolLayout;

use super::desk::{Desk, Line};
use super::server::TableServer;
use super::to_caller::ToCaller;
use crate::xstore::{Employer, Worker};

/// Requests that one session has read in a turn, at the most: then it is the next one's.
const TURN_COUNT_MAX: u32 = 8;

/// A request, and what is needed to answer it.
#[derive(Debug)]
pub struct Task {
    /// J2: held until the reply is written.
    line: Arc<Line>,
    replies: Arc<Replies>,
    request: Request,
}

impl Task {
    /// How many records the node looks at for it, at the most; 1 if it is no request about any.
    pub fn record_count_max(&self) -> u64 {
        let decoded = farleaf_index::rpc::Request::decode(&self.request.payload);
        decoded.map_or(1, |(_, request)| request.record_count_max().max(1))
    }

    /// Does what is asked, and writes the reply. One batch of two WRITEs.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn answer<E: Endpoint, B: Employer, W: Windows + ?Sized>(
        self,
        (endpoint, layout, windows): (&E, &PoolLayout, &W),
        batch: &mut Batch,
        (server, worker): (&TableServer, &Worker<B>),
    ) -> Result<(), BatchError> {
        let Request { payload, reply } = self.request;
        let way = (endpoint, layout);
        let to_caller = ToCaller {
            near: endpoint,
            windows,
            line: &self.line,
        };
        match server.serve(way, worker, self.line.owner, &payload).await {
            Ok(answer) => self.replies.reply(&to_caller, batch, reply, &answer).await,
            Err(reason) => {
                let refused = self.replies.refuse(&to_caller, batch, reply, &reason);
                refused.await
            }
        }
    }
}

/// One thread's.
#[derive(Debug)]
pub struct Dispatcher {
    desk: Arc<Desk>,
    /// The desk's, when it was looked at last.
    version: Option<u64>,
    boxes: Vec<OpenBox>,
}

#[derive(Debug)]
struct OpenBox {
    line: Arc<Line>,
    mailbox: Mailbox,
    /// E7: of no use any more.
    is_over: bool,
}

impl Dispatcher {
    /// Of these sessions' rings. There may be one only.
    pub fn new(desk: Arc<Desk>) -> Self {
        Self {
            desk,
            version: None,
            boxes: Vec::new(),
        }
    }

    /// Whether there is anything to read.
    pub fn is_idle(&self) -> bool {
        self.boxes.is_empty() && self.version == Some(self.desk.version())
    }

    /// Reads each mailbox, as long as `give` has room for one more request, which it takes.
    /// Returns how many it gave. Whose turn it is when there is none comes first the next time. A
    /// look at one word for each mailbox in which there is nothing. A mailbox that cannot be read
    /// is not looked at any more (E7).
    pub async fn turn<E: Endpoint, W: Windows + ?Sized>(
        &mut self,
        (near, windows): (&E, &W),
        batch: &mut Batch,
        give: &mut impl Give,
    ) -> u64 {
        self.follow();
        let mut count = 0;
        for index in 0..self.boxes.len() {
            let open = &mut self.boxes[index];
            for taken_count in 0..TURN_COUNT_MAX {
                if open.is_over {
                    break;
                }
                if !give.has_room() {
                    let passed_count = index + usize::from(taken_count > 0);
                    self.boxes.rotate_left(passed_count);
                    return count;
                }
                let to_caller = ToCaller {
                    near,
                    windows,
                    line: &open.line,
                };
                match open.mailbox.next(near, &to_caller, batch).await {
                    Ok(None) => break,
                    Ok(Some(request)) => {
                        count += 1;
                        give.give(Task {
                            line: Arc::clone(&open.line),
                            replies: Arc::clone(open.mailbox.replies()),
                            request,
                        });
                    }
                    Err(error) => {
                        let owner = open.line.owner;
                        tracing::warn!(
                            %owner,
                            %error,
                            "calls of this session are not answered any more; end its process"
                        );
                        open.is_over = true;
                        break;
                    }
                }
            }
        }
        count
    }

    /// What has come to the desk, and what has gone.
    fn follow(&mut self) {
        let version = self.desk.version();
        if self.version == Some(version) {
            return;
        }
        let open = self.desk.open();
        let is_open = |line: &Arc<Line>| open.iter().any(|other| Arc::ptr_eq(other, line));
        self.boxes.retain(|open| is_open(&open.line));
        for line in &open {
            if self.boxes.iter().any(|open| Arc::ptr_eq(&open.line, line)) {
                continue;
            }
            self.boxes.push(OpenBox {
                line: Arc::clone(line),
                mailbox: line.mailbox(),
                is_over: false,
            });
        }
        self.version = Some(version);
    }
}

/// Takes requests.
pub trait Give {
    /// Whether it can take another one (J3).
    fn has_room(&self) -> bool;
    /// Takes one.
    fn give(&mut self, task: Task);
}

/// So many at a time, for who answers them afterwards.
#[derive(Debug)]
pub struct Pile {
    /// Those that were taken.
    pub tasks: Vec<Task>,
    /// The most at a time.
    pub count_max: usize,
}

impl Give for Pile {
    fn has_room(&self) -> bool {
        self.tasks.len() < self.count_max
    }

    fn give(&mut self, task: Task) {
        self.tasks.push(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_executor::{TaskSet, block_on};
    use farleaf_fabric::Doors;
    use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
    use farleaf_message::{Caller, Lines};
    use farleaf_region::layout::ChunkIndex;
    use farleaf_region::session::Wish;
    use farleaf_types::{Incarnation, OwnerWord, SessionId};

    use crate::calls::desk::rings_of;
    use crate::sessions::format_region;

    /// Promise (J3): where there is room for one request at a time, sessions take turns, however
    /// many requests each has.
    #[test]
    fn sessions_take_turns_for_little_room() {
        let region = Arc::new(MappedRegion::anonymous(4 << 20).expect("memory"));
        let layout = PoolLayout::from(format_region(&region).expect("large enough"));
        let endpoint = MappedEndpoint::new(Arc::clone(&region));
        let desk = Arc::<Desk>::default();
        let owners = [1, 2, 3].map(|number| {
            OwnerWord::new(SessionId::new(number).expect("one"), Incarnation::new(1))
        });
        let rings = |chunk| rings_of(&layout, ChunkIndex(chunk), Wish::InRegion);
        let lines = [0, 1, 2].map(|chunk| Lines::new(rings(chunk)));
        for (owner, chunk) in owners.into_iter().zip(0..) {
            let line = Line::new(&layout, (owner, Wish::InRegion), ChunkIndex(chunk));
            desk.places().open.push(Arc::new(line));
        }
        desk.note_change();
        let mut room: Vec<_> = (0..12).map(|_| (Batch::new(), Vec::new())).collect();
        let mut calls = TaskSet::with_capacity(12);
        for (number, (batch, reply)) in room.iter_mut().enumerate() {
            let lines = &lines[number % 3];
            let endpoint = &endpoint;
            let call = async move {
                let caller = Caller::new(endpoint, endpoint, lines);
                caller.call(batch, b"any", (8, reply), || false).await
            };
            assert!(matches!(calls.spawn(call), Ok(None)), "nobody has answered");
        }
        let mut dispatcher = Dispatcher::new(desk);
        let (mut batch, mut served) = (Batch::new(), Vec::new());
        for _ in 0..6 {
            let mut pile = Pile {
                tasks: Vec::new(),
                count_max: 1,
            };
            let way = (&endpoint, &Doors::default());
            let turned = dispatcher.turn(way, &mut batch, &mut pile);
            assert_eq!(block_on(turned, || 0), 1);
            served.push(pile.tasks[0].line.owner);
        }
        assert_eq!(served, [owners, owners].concat());
    }
}
