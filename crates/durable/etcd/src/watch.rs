//! Watch as a task and a queue.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use etcd_client::{
    Client, Error as EtcdError, EventType, WatchOptions, WatchResponse, WatchStream,
};
use farleaf_cluster::coordinator::{CoordinatorError, Event, Revision, Watch};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::keys::Namespace;

/// Message of the watch's task.
type WatchMessage = Result<Vec<Event>, CoordinatorError>;

/// Opens a watch for the changes after a revision.
pub(crate) async fn open(
    client: &Client,
    namespace: &Namespace,
    prefix: &str,
    after: Revision,
) -> Result<WatchStream, EtcdError> {
    let options = WatchOptions::new()
        .with_range(namespace.end_of(prefix))
        .with_start_revision(after.0 as i64 + 1);
    let mut client = client.watch_client().max_decoding_message_size(usize::MAX);
    client.watch(namespace.key(prefix), Some(options)).await
}

/// Watch that is open or broken.
#[derive(Debug)]
pub(crate) struct EtcdWatch {
    receiver: Receiver<WatchMessage>,
    task: JoinHandle<()>,
    name: String,
}

impl Drop for EtcdWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EtcdWatch {
    pub(crate) fn start(
        handle: &Handle,
        stream: WatchStream,
        namespace: Namespace,
        name: String,
    ) -> Self {
        let (sender, receiver) = channel();
        let task = handle.spawn(follow(stream, namespace, name.clone(), sender));
        Self {
            receiver,
            task,
            name,
        }
    }
}

async fn follow(
    mut stream: WatchStream,
    namespace: Namespace,
    name: String,
    sender: Sender<WatchMessage>,
) {
    loop {
        let batch = match stream.message().await {
            Ok(Some(response)) => read(&response, &namespace, &name),
            Ok(None) => Err(broken(&name, "the watch has ended".to_owned())),
            Err(error) => Err(broken(&name, error.to_string())),
        };
        if batch.as_ref().is_ok_and(Vec::is_empty) {
            continue; // A confirmation that the watch exists, or a progress notification.
        }
        let is_over = batch.is_err();
        if sender.send(batch).is_err() || is_over {
            return;
        }
    }
}

fn broken(name: &str, how: String) -> CoordinatorError {
    CoordinatorError::Unavailable {
        name: name.to_owned(),
        how,
    }
}

fn read(response: &WatchResponse, namespace: &Namespace, name: &str) -> WatchMessage {
    if response.compact_revision() > 0 {
        return Err(CoordinatorError::Compacted {
            oldest: Revision(response.compact_revision() as u64),
        });
    }
    if response.canceled() {
        return Err(broken(name, response.cancel_reason().to_owned()));
    }
    let mut events = Vec::new();
    for event in response.events() {
        let Some(pair) = event.kv() else {
            return Err(broken(name, "received a change without a key".to_owned()));
        };
        events.extend(match event.event_type() {
            EventType::Put => namespace.entry(pair).map(Event::Put),
            EventType::Delete => {
                let revision = Revision(pair.mod_revision() as u64);
                let key = namespace.own_key(pair.key());
                key.map(|key| Event::Delete(key, revision))
            }
        });
    }
    Ok(events)
}

impl Watch for EtcdWatch {
    fn next(&mut self, timeout: Duration) -> WatchMessage {
        let mut events = match self.receiver.recv_timeout(timeout) {
            Ok(batch) => batch?,
            Err(RecvTimeoutError::Timeout) => return Ok(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(broken(&self.name, "the watch has ended".to_owned()));
            }
        };
        // Collects all messages that are there; the next call returns an error among them.
        while let Ok(batch) = self.receiver.try_recv() {
            match batch {
                Ok(more) => events.extend(more),
                Err(error) => {
                    if events.is_empty() {
                        return Err(error);
                    }
                    self.task.abort();
                    break;
                }
            }
        }
        Ok(events)
    }
}
