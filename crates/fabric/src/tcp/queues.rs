//! The node's side of a session that has a queue pair: the connection beside it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::tcp::greeter::{MessageInbox, send};
use crate::tcp::greeting::{Reply, Request};
use crate::tcp::permit::Permit;
use crate::tcp::secret::Rights;
use crate::tcp::stream::Stream;
use crate::verbs::{ServedQueue, VerbsNode};

/// The node posts nothing to its clients, so it does not wait for them either.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// A connection on which the two ends of a queue pair are exchanged, and its end is told.
#[derive(Debug)]
pub(super) struct QueueLine {
    stream: Stream,
    inbox: MessageInbox,
    /// Once the client has told its end.
    queue: Option<ServedQueue>,
    _permit: Permit,
}

impl QueueLine {
    pub(super) fn new(stream: Stream, permit: Permit) -> Self {
        Self {
            stream,
            inbox: MessageInbox::default(),
            queue: None,
            _permit: permit,
        }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Takes the client's end of the queue pair, and answers with the node's.
    ///
    /// # Errors
    /// The connection has ended, or ends with this: the queue pair has to be ended, too.
    pub(super) fn hear(&mut self, node: Option<&VerbsNode>, rights: Rights) -> io::Result<()> {
        let Some(frame) = self.inbox.receive(&mut self.stream)? else {
            return Ok(());
        };
        let answer = match (Request::decode(&frame), node) {
            (Ok(Request::Queue(peer)), Some(node)) if self.queue.is_none() => {
                let accepted = node.accept(&peer, rights > Rights::Read, ANSWER_TIME_MAX);
                accepted.map_err(|error| error.to_string())
            }
            (Err(malformed), _) => Err(format!("this node was sent {}", malformed.0)),
            _ => Err("this is no time for that request".to_owned()),
        };
        match answer {
            Ok((queue, node)) => {
                self.queue = Some(queue);
                send(&mut self.stream, &Reply::Queue(node))
            }
            Err(reason) => {
                send(&mut self.stream, &Reply::Refused(reason))?;
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }

    /// F6: returns when nothing comes over the queue pair any more, and tells the client so.
    pub(super) fn end(mut self) {
        if let Some(queue) = self.queue.take() {
            queue.end();
        }
        // Who does not listen to it has hung up.
        let _ = send(&mut self.stream, &Reply::Fenced);
        self.stream.shut_down();
    }
}
