//! V2: the threads by which the home takes nodes in and notices that they are gone.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use farleaf_fabric::ControlError;
use farleaf_fabric::tcp::TcpClient;
use farleaf_types::NodeId;

use super::PoolHome;
use super::agent_way::AgentWay;

/// Time between two questions to a guest, and to who waits to be taken in.
const TICK: Duration = Duration::from_millis(100);

/// The home's way to a guest, and what it has heard over it.
#[derive(Debug)]
pub(super) struct GuestLink {
    pub(super) client: Arc<TcpClient>,
    /// V6.
    pub(super) agent: AgentWay,
    answered_count: AtomicU64,
    /// Whether a question is under way.
    is_asked: AtomicBool,
}

impl GuestLink {
    pub(super) fn new(client: TcpClient) -> Self {
        Self {
            client: Arc::new(client),
            agent: AgentWay::default(),
            answered_count: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
        }
    }

    /// How many questions the guest has answered.
    pub(super) fn answered_count(&self) -> u64 {
        self.answered_count.load(Ordering::Acquire)
    }

    /// Asks, and waits for the answer as long as it may take.
    pub(super) fn ask(&self, node: NodeId) -> Result<(), ControlError> {
        self.client.member(node)?;
        self.answered_count.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// V2.
    fn ask_for(self: &Arc<Self>, node: NodeId, home: &Weak<PoolHome>) {
        if let Err(error) = self.ask(node)
            && let Some(home) = home.upgrade()
        {
            home.lose_link(node, self, &error.to_string());
        }
        self.is_asked.store(false, Ordering::Release);
    }
}

/// V2: asks all guests that have answered the last time. Each on a thread of its own: one that does
/// not answer must not keep the others from being missed.
fn ask_all(home: &Arc<PoolHome>) {
    for (node, link) in home.linked() {
        if link.is_asked.swap(true, Ordering::AcqRel) {
            continue;
        }
        // It waits for nobody but the guest, and keeps nothing of the home alive meanwhile.
        let (asked, home) = (Arc::clone(&link), Arc::downgrade(home));
        let thread = Builder::new().name("farleaf-ask".to_owned());
        if let Err(error) = thread.spawn(move || asked.ask_for(node, &home)) {
            tracing::error!(node = node.0, %error, "cannot ask a node how it is; trying again");
            link.is_asked.store(false, Ordering::Release);
        }
    }
}

/// The threads that take nodes in and ask them; they end when this is dropped.
#[derive(Debug)]
pub(crate) struct MemberThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl MemberThreads {
    pub(crate) fn start(home: &Arc<PoolHome>) -> io::Result<Self> {
        let mut started = Self {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        // Who is taken in may not answer, either.
        started.repeat("farleaf-joining", home, |home| home.take_in())?;
        started.repeat("farleaf-members", home, ask_all)?;
        Ok(started)
    }

    fn repeat(
        &mut self,
        name: &str,
        home: &Arc<PoolHome>,
        work: impl Fn(&Arc<PoolHome>) + Send + 'static,
    ) -> io::Result<()> {
        let (home, told) = (Arc::clone(home), Arc::clone(&self.stop));
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            while !told.load(Ordering::Relaxed) {
                work(&home);
                std::thread::sleep(TICK);
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for MemberThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that looks after the other nodes panicked");
            }
        }
    }
}
