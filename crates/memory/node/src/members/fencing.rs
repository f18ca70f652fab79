//! V3: fencing, on a thread of its own.
//!
//! A session is fenced when all guests have barred it, and a guest that hangs keeps them waiting
//! until it is lost. The listener, which has everybody's calls to answer, does not wait with them:
//! it says that the fencing is under way, and the caller asks again.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use farleaf_fabric::SessionService;
use farleaf_types::OwnerWord;

use super::PoolHome;
use crate::shm::SharedSessions;

/// The sessions that are being fenced, by their words.
#[derive(Clone, Debug, Default)]
struct UnderWay(Arc<Mutex<BTreeSet<u64>>>);

impl UnderWay {
    fn words(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fences sessions, one after the other; dropped, it ends when all have been.
#[derive(Debug)]
pub(crate) struct FencingThread {
    under_way: UnderWay,
    /// Dropped, it stops the thread.
    owners: Option<Sender<OwnerWord>>,
    thread: Option<JoinHandle<()>>,
}

impl FencingThread {
    pub(crate) fn start(home: Arc<PoolHome>, sessions: SharedSessions) -> io::Result<Self> {
        let (owners, asked) = channel();
        let under_way = UnderWay::default();
        let known = under_way.clone();
        let thread = std::thread::Builder::new().name("farleaf-fencing".to_owned());
        let thread = thread.spawn(move || run(&home, sessions, &asked, &known))?;
        Ok(Self {
            under_way,
            owners: Some(owners),
            thread: Some(thread),
        })
    }

    /// Begins to fence a session behind whose gate nothing is executed here any more.
    pub(crate) fn begin(&self, owner: OwnerWord) {
        self.under_way.words().insert(owner.word());
        if let Some(owners) = &self.owners {
            // It listens until this is dropped, unless it panicked: then the session stays alive,
            // and what it held locked.
            let _ = owners.send(owner);
        }
    }

    /// Whether a session has yet to be fenced.
    pub(crate) fn is_under_way(&self, owner: OwnerWord) -> bool {
        self.under_way.words().contains(&owner.word())
    }
}

fn run(
    home: &PoolHome,
    mut sessions: SharedSessions,
    asked: &Receiver<OwnerWord>,
    under_way: &UnderWay,
) {
    for owner in asked {
        home.fence_everywhere(owner, || sessions.fence(owner));
        // S2: its block says so by now.
        under_way.words().remove(&owner.word());
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
