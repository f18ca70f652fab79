//! Fencing of sessions, on a thread of its own.
//!
//! A session is fenced when all data nodes have barred it. A data node that hangs delays that until
//! the main node counts it as lost. The listener must answer other requests, so it does not wait.
//! It replies that the fencing is in progress, and the caller asks again.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use farleaf_base::OwnerWord;
use farleaf_base::locks::lock;
use farleaf_fabric::SessionService;

use super::PoolMainNode;
use crate::sessions::SharedSessions;

/// Sessions that are being fenced, as owner words.
type PendingFencings = Arc<Mutex<BTreeSet<u64>>>;

/// Thread that fences sessions one after the other. When dropped, it finishes all of them first.
#[derive(Debug)]
pub(crate) struct FencingThread {
    under_way: PendingFencings,
    /// Queue of the thread. Dropping it stops the thread.
    owners: Option<Sender<OwnerWord>>,
    thread: Option<JoinHandle<()>>,
}

impl FencingThread {
    pub(crate) fn start(
        main_node: Arc<PoolMainNode>,
        sessions: SharedSessions,
    ) -> io::Result<Self> {
        let (owners, asked) = channel();
        let under_way = PendingFencings::default();
        let known = under_way.clone();
        let thread = std::thread::Builder::new().name("farleaf-fencing".to_owned());
        let thread = thread.spawn(move || run(&main_node, sessions, &asked, &known))?;
        Ok(Self {
            under_way,
            owners: Some(owners),
            thread: Some(thread),
        })
    }

    /// Starts to fence a session. The session's gate on this node must already be closed.
    pub(crate) fn begin(&self, owner: OwnerWord) {
        lock(&self.under_way).insert(owner.word());
        if let Some(owners) = &self.owners {
            // The thread receives until this is dropped, unless it panicked; then the session stays
            // alive, and its locks stay held.
            let _ = owners.send(owner);
        }
    }

    /// Returns whether the fencing of a session is in progress.
    pub(crate) fn is_under_way(&self, owner: OwnerWord) -> bool {
        lock(&self.under_way).contains(&owner.word())
    }
}

fn run(
    main_node: &PoolMainNode,
    mut sessions: SharedSessions,
    asked: &Receiver<OwnerWord>,
    under_way: &PendingFencings,
) {
    for owner in asked {
        main_node.fence_everywhere(owner, || sessions.fence(owner));
        // Its block says "fenced" by now.
        lock(under_way).remove(&owner.word());
    }
}

impl Drop for FencingThread {
    fn drop(&mut self) {
        self.owners.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that fences sessions panicked");
        }
    }
}
