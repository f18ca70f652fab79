//! The node's side of a session that has a queue pair: the connection beside it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::tcp::greeter::{MessageInbox, send};
use crate::tcp::greeting::{Reply, Request};
use crate::tcp::permit::Permit;
use crate::tcp::secret::Rights;
use crate::tcp::stream::Stream;
use crate::verbs::{NodeQueue, QueueParameters, ServedQueue, VerbsNode};

/// The node posts nothing to its clients, so it does not wait for them either.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// A queue pair, and what its client is told of it; or why there is none.
type Made = Result<(ServedQueue, NodeQueue), String>;

/// How far the making of a queue pair has come.
#[derive(Debug)]
enum Progress {
    UnderWay,
    Made(Box<Made>),
    /// Nobody wants it any more: whoever makes it ends it.
    GivenUp,
}

/// A queue pair in the making, by a thread of its own: a device may take a second to find out that
/// nobody is at an address, and longer to register the region for the first reader, and everybody
/// else is answered meanwhile.
#[derive(Debug)]
struct Opening {
    /// Readable when it is over.
    over: Arc<OwnedFd>,
    progress: Arc<Mutex<Progress>>,
}

impl Opening {
    fn start(node: &Arc<VerbsNode>, peer: QueueParameters, rights: Rights) -> io::Result<Self> {
        let over = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let progress = Arc::new(Mutex::new(Progress::UnderWay));
        let (node, told, shared) = (Arc::clone(node), Arc::clone(&over), Arc::clone(&progress));
        let thread = std::thread::Builder::new().name("farleaf-queue".to_owned());
        thread.spawn(move || {
            let made = node.accept(&peer, rights > Rights::Read, ANSWER_TIME_MAX);
            finish(&shared, made.map_err(|error| error.to_string()));
            // Nobody else writes to it, so there is room for one.
            let _ = rustix::io::write(&told, &1_u64.to_ne_bytes());
        })?;
        Ok(Self { over, progress })
    }

    fn take(&self) -> Option<Made> {
        let mut progress = lock(&self.progress);
        match std::mem::replace(&mut *progress, Progress::GivenUp) {
            Progress::Made(made) => Some(*made),
            other => {
                *progress = other;
                None
            }
        }
    }

    /// F6: ends what is there; what comes later ends before its client has heard of it, and so
    /// before that can post anything.
    fn give_up(&self) {
        let before = std::mem::replace(&mut *lock(&self.progress), Progress::GivenUp);
        if let Progress::Made(made) = before
            && let Ok((queue, _)) = *made
        {
            queue.end();
        }
    }
}

fn finish(shared: &Mutex<Progress>, made: Made) {
    let mut progress = lock(shared);
    match (&*progress, made) {
        (Progress::GivenUp, Ok((queue, _))) => queue.end(),
        (Progress::GivenUp, Err(_)) => {}
        (_, made) => *progress = Progress::Made(Box::new(made)),
    }
}

fn lock(progress: &Mutex<Progress>) -> std::sync::MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection on which the two ends of a queue pair are exchanged, and its end is told.
#[derive(Debug)]
pub(super) struct QueueLine {
    stream: Stream,
    inbox: MessageInbox,
    /// Between the client's telling its end and the node's.
    opening: Option<Opening>,
    /// After that.
    queue: Option<ServedQueue>,
    _permit: Permit,
}

impl QueueLine {
    pub(super) fn new(stream: Stream, permit: Permit) -> Self {
        Self {
            stream,
            inbox: MessageInbox::default(),
            opening: None,
            queue: None,
            _permit: permit,
        }
    }

    /// Readable when there is something to [`hear`](Self::hear).
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.opening {
            Some(opening) => opening.over.as_fd(),
            None => self.stream.as_fd(),
        }
    }

    /// Takes the client's end of the queue pair, and answers with the node's when that is made.
    ///
    /// # Errors
    /// The connection has ended, or ends with this: the queue pair has to be ended, too.
    pub(super) fn hear(&mut self, node: Option<&Arc<VerbsNode>>, rights: Rights) -> io::Result<()> {
        let refused = match &self.opening {
            Some(opening) => {
                let Some(made) = opening.take() else {
                    return Ok(());
                };
                self.opening = None;
                match made {
                    Ok((queue, node)) => {
                        self.queue = Some(queue);
                        return send(&mut self.stream, &Reply::Queue(node));
                    }
                    Err(reason) => reason,
                }
            }
            None => match self.begin(node, rights)? {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            },
        };
        send(&mut self.stream, &Reply::Refused(refused))?;
        Err(io::ErrorKind::InvalidData.into())
    }

    /// Begins to make what is asked for; inside, why not.
    fn begin(
        &mut self,
        node: Option<&Arc<VerbsNode>>,
        rights: Rights,
    ) -> io::Result<Result<(), String>> {
        let Some(frame) = self.inbox.receive(&mut self.stream)? else {
            return Ok(Ok(()));
        };
        Ok(match (Request::decode(&frame), node) {
            (Ok(Request::Queue(peer)), Some(node)) if self.queue.is_none() => {
                self.opening = Some(Opening::start(node, peer, rights)?);
                Ok(())
            }
            (Err(malformed), _) => Err(format!("this node was sent {}", malformed.0)),
            _ => Err("this is no time for that request".to_owned()),
        })
    }

    /// F6: returns when nothing comes over the queue pair any more, and tells the client so.
    pub(super) fn end(mut self) {
        if let Some(opening) = self.opening.take() {
            opening.give_up();
        }
        if let Some(queue) = self.queue.take() {
            queue.end();
        }
        // Who does not listen to it has hung up.
        let _ = send(&mut self.stream, &Reply::Fenced);
        self.stream.shut_down();
    }
}
