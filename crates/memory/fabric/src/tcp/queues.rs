//! The node's side of a session with a queue pair: the connection beside the pair.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farleaf_base::locks::lock;
use rustix::event::{EventfdFlags, eventfd};

use crate::tcp::inbox::{MessageInbox, send};
use crate::tcp::messages::{ControlReply, ControlRequest};
use crate::verbs::{NodeQueue, QueueParameters, ServedQueue, VerbsNode};
use farleaf_net::permit::Permit;
use farleaf_net::secret::Rights;
use farleaf_net::stream::Stream;

/// Time limit of the node's queue pairs. The node posts nothing to clients, so it never waits for
/// them.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// A queue pair with its description for the client, or the reason why there is none.
type CreationResult = Result<(ServedQueue, NodeQueue), String>;

/// State of the creation of a queue pair.
#[derive(Debug)]
enum Progress {
    UnderWay,
    CreationResult(Box<CreationResult>),
    /// No longer wanted: the creating thread ends the pair.
    GivenUp,
}

/// A queue pair that a separate thread creates. A device may take a second to find out that an
/// address has no host, and longer to register the memory for the first reader; the listener serves
/// others meanwhile.
#[derive(Debug)]
struct PendingQueuePair {
    /// Descriptor that is readable once creation has ended.
    over: Arc<OwnedFd>,
    progress: Arc<Mutex<Progress>>,
}

impl PendingQueuePair {
    fn start(node: &Arc<VerbsNode>, peer: QueueParameters, rights: Rights) -> io::Result<Self> {
        let over = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let progress = Arc::new(Mutex::new(Progress::UnderWay));
        let (node, done_event, shared) =
            (Arc::clone(node), Arc::clone(&over), Arc::clone(&progress));
        let thread = std::thread::Builder::new().name("farleaf-queue".to_owned());
        thread.spawn(move || {
            let made = node.accept(&peer, rights > Rights::Read, ANSWER_TIME_MAX);
            finish(&shared, made.map_err(|error| error.to_string()));
            // No other thread writes to it, so the write cannot overflow the counter.
            let _ = rustix::io::write(&done_event, &1_u64.to_ne_bytes());
        })?;
        Ok(Self { over, progress })
    }

    fn take(&self) -> Option<CreationResult> {
        let mut progress = lock(&self.progress);
        match std::mem::replace(&mut *progress, Progress::GivenUp) {
            Progress::CreationResult(made) => Some(*made),
            other => {
                *progress = other;
                None
            }
        }
    }

    /// Gives up (FABRIC-6): ends an existing pair. A pair created later is ended before its client
    /// learns of it, and so before the client can post anything.
    fn give_up(&self) {
        let before = std::mem::replace(&mut *lock(&self.progress), Progress::GivenUp);
        if let Progress::CreationResult(made) = before
            && let Ok((queue, _)) = *made
        {
            queue.end();
        }
    }
}

fn finish(shared: &Mutex<Progress>, made: CreationResult) {
    let mut progress = lock(shared);
    match (&*progress, made) {
        (Progress::GivenUp, Ok((queue, _))) => queue.end(),
        (Progress::GivenUp, Err(_)) => {}
        (_, made) => *progress = Progress::CreationResult(Box::new(made)),
    }
}

/// A connection that exchanges the two ends of a queue pair and reports the pair's end.
#[derive(Debug)]
pub(super) struct QueueControl {
    stream: Stream,
    inbox: MessageInbox,
    /// Set from the arrival of the client's end until the node's end is sent.
    pending: Option<PendingQueuePair>,
    /// Set after the node's end is sent.
    queue: Option<ServedQueue>,
    _permit: Permit,
}

impl QueueControl {
    pub(super) fn new(stream: Stream, permit: Permit) -> Self {
        Self {
            stream,
            inbox: MessageInbox::default(),
            pending: None,
            queue: None,
            _permit: permit,
        }
    }

    /// Returns a descriptor that is readable when [`on_input`](Self::on_input) has work.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.pending {
            Some(pending) => pending.over.as_fd(),
            None => self.stream.as_fd(),
        }
    }

    /// Receives the client's end of the queue pair, and replies with the node's end when it is
    /// created.
    ///
    /// # Errors
    /// The connection has ended or must end, and the queue pair with it.
    pub(super) fn on_input(
        &mut self,
        node: Option<&Arc<VerbsNode>>,
        rights: Rights,
    ) -> io::Result<()> {
        let refused = match &self.pending {
            Some(pending) => {
                let Some(made) = pending.take() else {
                    return Ok(());
                };
                self.pending = None;
                match made {
                    Ok((queue, node)) => {
                        self.queue = Some(queue);
                        return send(&mut self.stream, &ControlReply::Queue(node));
                    }
                    Err(reason) => reason,
                }
            }
            None => match self.begin(node, rights)? {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            },
        };
        send(&mut self.stream, &ControlReply::Refused(refused))?;
        Err(io::ErrorKind::InvalidData.into())
    }

    /// Starts creating the queue pair; the inner error is a reason to refuse.
    fn begin(
        &mut self,
        node: Option<&Arc<VerbsNode>>,
        rights: Rights,
    ) -> io::Result<Result<(), String>> {
        let Some(frame) = self.inbox.receive(&mut self.stream)? else {
            return Ok(Ok(()));
        };
        Ok(match (ControlRequest::decode(&frame), node) {
            (Ok(ControlRequest::Queue(peer)), Some(node)) if self.queue.is_none() => {
                self.pending = Some(PendingQueuePair::start(node, peer, rights)?);
                Ok(())
            }
            (Err(malformed), _) => Err(format!("this node received {}", malformed.0)),
            _ => Err("this node received a request out of order".to_owned()),
        })
    }

    /// Ends the queue pair, returns when nothing arrives over it any more (FABRIC-6), and notifies
    /// the client.
    pub(super) fn end(mut self) {
        if let Some(pending) = self.pending.take() {
            pending.give_up();
        }
        if let Some(queue) = self.queue.take() {
            queue.end();
        }
        // If sending fails, the client has disconnected.
        let _ = send(&mut self.stream, &ControlReply::Fenced);
        self.stream.shut_down();
    }
}
