//! Sessions: registration, and the proof that they have ended (FABRIC-6).

use std::io;
use std::time::Duration;

use farleaf_base::OwnerWord;
use thiserror::Error;

/// Liveness of a session: whether its verbs can still take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionLife {
    /// The session's process runs. On backends without process numbers `pid` is 0.
    Alive {
        /// Process number.
        pid: u32,
    },
    /// No verb of the session can ever take effect again (FABRIC-6).
    Fenced,
}

/// A client's access to the control plane of a pool. Calls block; reads and writes never need one.
pub trait Control: core::fmt::Debug + Send + Sync {
    /// Registers a new session.
    ///
    /// # Errors
    /// The node cannot be reached, or has no free session.
    fn register_session(&self) -> Result<OwnerWord, ControlError>;

    /// Reports that the session has drained and posts nothing more: it counts as fenced (FABRIC-6).
    ///
    /// # Errors
    /// The node cannot be reached; it then fences the session when the process ends.
    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError>;

    /// Returns whether the session is fenced. A session that never existed counts as fenced.
    ///
    /// # Errors
    /// The node cannot be reached.
    fn session_life(&self, owner: OwnerWord) -> Result<SessionLife, ControlError>;

    /// Gives up the whole process: its sessions are fenced as if it had died, and their next
    /// operations fail. For a process that can no longer fulfill its duties for its sessions. Does
    /// nothing on backends where a process cannot lose its access to the memory.
    fn give_up(&self) {}

    /// Returns only when no verb of the session can take effect any more (FABRIC-6).
    ///
    /// The method never gives up. About once a second it calls `unresponsive` with what it waits
    /// for, so that an operator can decide to kill the process.
    ///
    /// # Errors
    /// The node cannot be reached, so the state of the session is unknown.
    fn fence_session(
        &self,
        owner: OwnerWord,
        unresponsive: &mut dyn FnMut(SessionLife),
    ) -> Result<(), ControlError> {
        const POLL_INTERVAL: Duration = Duration::from_millis(1);
        for poll in 1_u64.. {
            let life = self.session_life(owner)?;
            if life == SessionLife::Fenced {
                break;
            }
            if poll % 1000 == 0 {
                unresponsive(life);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

/// Error of a call to the control plane.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The memory node cannot be reached.
    #[error("the memory node of {pool} cannot be reached: {source}; is `farleaf serve` running?")]
    Unreachable {
        /// Name of the pool as given by the caller.
        pool: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The connection to the memory node cannot be encrypted.
    #[error("cannot encrypt the connection to the memory node of {pool}: {how}")]
    Tls {
        /// Name of the pool as given by the caller.
        pool: String,
        /// Cause of the failure.
        how: String,
    },
    /// The memory node accepted the connection, but did not reply in time. The connection is
    /// unusable from now on.
    #[error(
        "the memory node of {pool} did not reply in time; check that `farleaf serve` is running \
         and its host is not overloaded"
    )]
    Silent {
        /// Name of the pool as given by the caller.
        pool: String,
    },
    /// The memory node sent an invalid reply.
    #[error(
        "the memory node of {pool} sent {what}; check that it runs the same version of farleaf"
    )]
    Malformed {
        /// Name of the pool as given by the caller.
        pool: String,
        /// Description of the reply.
        what: String,
    },
    /// A server of a cluster listens at the address, not a memory node.
    #[error(
        "{pool} is a server of a cluster, not a memory node of a pool; use --cluster with the \
         coordinator's address, for example --cluster {pool}"
    )]
    OfCluster {
        /// Name of the pool as given by the caller.
        pool: String,
    },
    /// The memory node refused the request.
    #[error("the memory node of {pool} refused the request: {reason}")]
    Refused {
        /// Name of the pool as given by the caller.
        pool: String,
        /// Reason that the node gave.
        reason: String,
    },
}
