//! The TCP connection beside a queue pair, over which a node says that the pair is over.

use std::io;

use rustix::event::PollFd;

use crate::network::Loss;
use crate::tcp::greeter::MessageInbox;
use crate::tcp::greeting::Reply;
use crate::tcp::stream::Stream;

/// The client's end of it.
#[derive(Debug)]
pub(crate) struct Lifeline {
    stream: Stream,
    inbox: MessageInbox,
}

impl Lifeline {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            inbox: MessageInbox::default(),
        }
    }

    /// Why the queue pair is over, if it is.
    #[cold]
    pub(crate) fn check(&mut self) -> Option<Loss> {
        let broken = |reason: &str| Some(Loss::Broken(reason.to_owned()));
        match self.inbox.receive(&mut self.stream) {
            Ok(None) => None,
            Ok(Some(frame)) => match Reply::decode(&frame) {
                Ok(Reply::Fenced) => Some(Loss::Fenced),
                _ => broken("the memory node has sent something that nobody asked for"),
            },
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                broken("the memory node has closed the connection: it has stopped")
            }
            Err(error) => Some(Loss::Broken(format!(
                "the connection to the memory node broke: {error}"
            ))),
        }
    }

    /// Ready when [`check`](Self::check) may have something to tell.
    pub(crate) fn awaited(&self) -> PollFd<'_> {
        self.stream.awaited(false)
    }
}
