//! Connection of the main node's own agent to a data node.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farleaf_base::locks::lock;
use farleaf_fabric::ControlError;
use farleaf_fabric::tcp::TcpClient;

/// Time until a failed connection is retried.
const RETRY_TIME: Duration = Duration::from_secs(1);

/// Log-in of the agent at a data node, separate from the one by which the main node polls the data
/// node. A data node admits a session once per log-in, and by another log-in only when the session
/// has no verbs in flight there any more.
#[derive(Debug, Default)]
pub(super) struct AgentConnection(Mutex<AgentConnectionState>);

#[derive(Debug, Default)]
enum AgentConnectionState {
    #[default]
    None,
    /// Client of the log-in. While it exists, the data node keeps what the agent has opened through
    /// it.
    LoggedIn { _client: Arc<TcpClient> },
    /// The connection failed at this time, for this reason.
    Failed(Instant, String),
}

impl AgentConnection {
    /// Returns the reason why the connection is not retried yet, if there is one.
    pub(super) fn retry_blocked_by(&self) -> Option<String> {
        match &*lock(&self.0) {
            AgentConnectionState::Failed(since, why) if since.elapsed() < RETRY_TIME => {
                Some(why.clone())
            }
            _ => None,
        }
    }

    /// Returns whether the connection has failed and was not reopened since.
    pub(super) fn has_failed(&self) -> bool {
        matches!(&*lock(&self.0), AgentConnectionState::Failed(..))
    }

    /// Logs in again: endpoints of the last log-in are unusable.
    pub(super) fn open(
        &self,
        log_in: impl FnOnce() -> Result<TcpClient, ControlError>,
    ) -> Result<Arc<TcpClient>, ControlError> {
        // Closes the connection, before the data node is asked to admit the session again.
        drop(mem::take(&mut *lock(&self.0)));
        let client = Arc::new(log_in()?);
        *lock(&self.0) = AgentConnectionState::LoggedIn {
            _client: Arc::clone(&client),
        };
        Ok(client)
    }

    /// Closes a connection that failed although the data node is alive.
    pub(super) fn fail(&self, why: &str) {
        *lock(&self.0) = AgentConnectionState::Failed(Instant::now(), why.to_owned());
    }
}
