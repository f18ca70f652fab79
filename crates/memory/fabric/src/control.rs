//! Sessions: how they come to life, and how it is made sure that they are gone (F6).

use std::io;
use std::time::Duration;

use farleaf_types::OwnerWord;
use thiserror::Error;

/// Whether verbs of a session may still take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionLife {
    /// Its process runs. On hosts without process numbers `pid` is 0.
    Alive {
        /// The process.
        pid: u32,
    },
    /// F6: no verb of it can take effect any more, for ever.
    Fenced,
}

/// The control plane of a pool, as a client sees it. Calls block; none is on the path of a read or
/// a write.
pub trait Control: core::fmt::Debug + Send + Sync {
    /// Brings a session to life.
    ///
    /// # Errors
    /// The node cannot be reached, or has no session left.
    fn register_session(&self) -> Result<OwnerWord, ControlError>;

    /// Says that the session has drained and posts nothing any more: it counts as fenced (F6).
    ///
    /// # Errors
    /// The node cannot be reached; it then fences the session when the process ends.
    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError>;

    /// Whether the session is fenced. A session that never was counts as fenced.
    ///
    /// # Errors
    /// The node cannot be reached.
    fn session_life(&self, owner: OwnerWord) -> Result<SessionLife, ControlError>;

    /// Gives the whole process up: its sessions are fenced as if it had died, and learn it from
    /// what they do next. For a process that can do for its sessions no more what it has to.
    /// Nothing to do where a process cannot lose its way to the memory.
    fn give_up(&self) {}

    /// F6: returns only when no verb of the session can take effect any more. Never gives up:
    /// `unresponsive` is told about once a second what it waits for, so that an operator can decide
    /// to kill the process.
    ///
    /// # Errors
    /// The node cannot be reached, so nobody can tell.
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

/// Why a call to the control plane failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The memory node did not answer.
    #[error("the memory node of {pool} cannot be reached: {source}; is `farleaf serve` running?")]
    Unreachable {
        /// The pool's name as it was given.
        pool: String,
        /// What the system said.
        source: io::Error,
    },
    /// The memory node is there, and did not answer in time. Nothing more can be asked over this
    /// connection.
    #[error(
        "the memory node of {pool} does not answer; is `farleaf serve` stopped, or its host busy?"
    )]
    Silent {
        /// The pool's name as it was given.
        pool: String,
    },
    /// The memory node answered something that is no answer.
    #[error("the memory node of {pool} sent {what}; is it a farleaf of the same version?")]
    Malformed {
        /// The pool's name as it was given.
        pool: String,
        /// What came.
        what: String,
    },
    /// The memory node said no.
    #[error("the memory node of {pool} refused: {reason}")]
    Refused {
        /// The pool's name as it was given.
        pool: String,
        /// Its words.
        reason: String,
    },
}
