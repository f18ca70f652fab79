//! V6: how the home's own agent reaches a guest.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farleaf_fabric::ControlError;
use farleaf_fabric::tcp::TcpClient;

/// Time until a way that failed is tried again.
const RETRY_TIME: Duration = Duration::from_secs(1);

/// The agent's log-in at a guest, apart from the one that the home asks by: a guest lets a session
/// in once for each, and lets it in by another one only when nothing of it is under way any more.
#[derive(Debug, Default)]
pub(super) struct AgentWay(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    None,
    /// As long as this is kept, the guest keeps what the agent has opened by it.
    LoggedIn { _client: Arc<TcpClient> },
    /// It failed at this time, for this reason.
    Failed(Instant, String),
}

impl AgentWay {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it is not tried just now, if it is not.
    pub(super) fn failed_lately(&self) -> Option<String> {
        match &*self.state() {
            State::Failed(since, why) if since.elapsed() < RETRY_TIME => Some(why.clone()),
            _ => None,
        }
    }

    /// Whether it has not been opened since it failed.
    pub(super) fn has_failed(&self) -> bool {
        matches!(&*self.state(), State::Failed(..))
    }

    /// Logs in anew: what the last log-in let in is of no use any more, or never was.
    pub(super) fn open(
        &self,
        log_in: impl FnOnce() -> Result<TcpClient, ControlError>,
    ) -> Result<Arc<TcpClient>, ControlError> {
        // Hangs up, before the guest is asked to let the session in again.
        drop(mem::take(&mut *self.state()));
        let client = Arc::new(log_in()?);
        *self.state() = State::LoggedIn {
            _client: Arc::clone(&client),
        };
        Ok(client)
    }

    /// It is of no use any more, though the guest goes on: it hangs up.
    pub(super) fn fail(&self, why: &str) {
        *self.state() = State::Failed(Instant::now(), why.to_owned());
    }
}
