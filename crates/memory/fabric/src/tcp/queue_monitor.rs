//! The TCP connection beside a queue pair, over which the node reports that the pair has ended.

use std::io;

use rustix::event::PollFd;

use crate::network::Loss;
use crate::tcp::inbox::MessageInbox;
use crate::tcp::messages::ControlReply;
use farleaf_net::stream::Stream;

/// The client's end of the connection beside a queue pair.
#[derive(Debug)]
pub(crate) struct QueueMonitor {
    stream: Stream,
    inbox: MessageInbox,
}

impl QueueMonitor {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            inbox: MessageInbox::default(),
        }
    }

    /// Returns the reason why the queue pair has ended, if it has.
    #[cold]
    pub(crate) fn check(&mut self) -> Option<Loss> {
        let broken = |reason: &str| Some(Loss::Broken(reason.to_owned()));
        match self.inbox.receive(&mut self.stream) {
            Ok(None) => None,
            Ok(Some(frame)) => match ControlReply::decode(&frame) {
                Ok(ControlReply::Fenced) => Some(Loss::Fenced),
                _ => broken("the memory node has sent an unexpected message"),
            },
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                broken("the memory node has closed the connection: it has stopped")
            }
            Err(error) => Some(Loss::Broken(format!(
                "the connection to the memory node broke: {error}"
            ))),
        }
    }

    /// Returns the descriptor, which is ready when [`check`](Self::check) may have a result.
    pub(crate) fn awaited(&self) -> PollFd<'_> {
        self.stream.awaited(false)
    }
}
