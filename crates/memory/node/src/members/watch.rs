//! Threads by which the main node admits nodes and detects their loss.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use farleaf_base::NodeId;
use farleaf_fabric::ControlError;
use farleaf_fabric::tcp::TcpClient;

use super::PoolMainNode;
use super::agent_connection::AgentConnection;

/// Interval of polls of each data node, and of attempts to admit waiting nodes.
const TICK: Duration = Duration::from_millis(100);

/// The main node's connection to a data node, and the answers received over it.
#[derive(Debug)]
pub(super) struct DataNodeLink {
    pub(super) client: Arc<TcpClient>,
    /// Separate connection of the main node's agent.
    pub(super) agent: AgentConnection,
    answered_count: AtomicU64,
    /// Whether a poll is in progress.
    is_asked: AtomicBool,
}

impl DataNodeLink {
    pub(super) fn new(client: TcpClient) -> Self {
        Self {
            client: Arc::new(client),
            agent: AgentConnection::default(),
            answered_count: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
        }
    }

    /// Returns the number of polls that the data node has answered.
    pub(super) fn answered_count(&self) -> u64 {
        self.answered_count.load(Ordering::Acquire)
    }

    /// Polls the data node, and waits for the answer until the time limit.
    pub(super) fn ask(&self, node: NodeId) -> Result<(), ControlError> {
        self.client.member(node)?;
        self.answered_count.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Polls the data node, and declares it lost if it does not answer.
    fn ask_for(self: &Arc<Self>, node: NodeId, main_node: &Weak<PoolMainNode>) {
        if let Err(error) = self.ask(node)
            && let Some(main_node) = main_node.upgrade()
        {
            main_node.declare_link_lost(node, self, &error.to_string());
        }
        self.is_asked.store(false, Ordering::Release);
    }
}

/// Polls all data nodes whose last poll has ended. Each poll has its own thread: a data node that
/// does not answer must not delay the detection of other losses.
fn ask_all(main_node: &Arc<PoolMainNode>) {
    for (node, link) in main_node.linked() {
        if link.is_asked.swap(true, Ordering::AcqRel) {
            continue;
        }
        // The thread waits only for the data node, and does not keep the main node alive.
        let (asked, main_node) = (Arc::clone(&link), Arc::downgrade(main_node));
        let thread = Builder::new().name("farleaf-ask".to_owned());
        if let Err(error) = thread.spawn(move || asked.ask_for(node, &main_node)) {
            tracing::error!(node = node.0, %error, "cannot poll a node; retrying");
            link.is_asked.store(false, Ordering::Release);
        }
    }
}

/// Threads that admit and poll nodes; they end when this is dropped.
#[derive(Debug)]
pub(crate) struct MemberThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl MemberThreads {
    pub(crate) fn start(main_node: &Arc<PoolMainNode>) -> io::Result<Self> {
        let mut started = Self {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        // A joining node may not answer either, so it has its own thread.
        started.repeat("farleaf-joining", main_node, |main_node| {
            main_node.admit_waiting();
        })?;
        started.repeat("farleaf-members", main_node, ask_all)?;
        Ok(started)
    }

    fn repeat(
        &mut self,
        name: &str,
        main_node: &Arc<PoolMainNode>,
        work: impl Fn(&Arc<PoolMainNode>) + Send + 'static,
    ) -> io::Result<()> {
        let (main_node, stop_requested) = (Arc::clone(main_node), Arc::clone(&self.stop));
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            while !stop_requested.load(Ordering::Relaxed) {
                work(&main_node);
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
                tracing::error!("a thread that manages the other nodes panicked");
            }
        }
    }
}
