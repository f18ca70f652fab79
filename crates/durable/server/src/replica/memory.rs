//! The memory of one backup, which only its primary may write, over a listener of its own. When the
//! listener is closed, its sessions are fenced (FABRIC-6): none of their verbs takes effect any
//! more.

use core::ops::Range;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_base::{Incarnation, NodeId, OwnerWord, SessionId, WordAddr};
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::tcp::{Grant, TcpListenOptions, TcpListener, TcpService};
use farleaf_fabric::{SessionService, StopSignal};
use farleaf_net::secret::{Rights, Secret};
use farleaf_replica::Layout;

use crate::options::ServerOptions;

/// Largest number of connections. A primary has two sessions, each with a connection, and one for
/// control; it may reconnect before the old ones are gone.
const CONNECTION_COUNT_MAX: usize = 16;
/// Idle time after which a connection is closed: ten years, in effect never. The primary of an idle
/// region sends nothing. The control plane decides whether it is alive, and then this memory is
/// closed.
const SILENCE_MAX: Duration = Duration::from_hours(10 * 365 * 24);

/// Memory that a primary writes, as long as this exists.
pub(super) struct BackupMemory {
    region: Arc<MappedMemory>,
    pub(super) layout: Layout,
    pub(super) port: u16,
    stop: StopSignal,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Returns the layout of a backup's words, from the start of its memory.
pub(super) fn layout(slot_count: u64) -> Option<Layout> {
    Layout::new(WordAddr::new(NodeId(0), 0), slot_count)
}

impl BackupMemory {
    /// Maps zeroed memory, and listens on a free port of this host, for clients with this secret.
    pub(super) fn open(
        host: IpAddr,
        server: &ServerOptions,
        secret: Secret,
    ) -> Result<Self, String> {
        let slot_count = server.slot_count;
        let layout =
            layout(slot_count).ok_or_else(|| format!("invalid buffer count {slot_count}"))?;
        let mapped = MappedMemory::anonymous(layout.word_count() * 8);
        let mapped = mapped.map_err(|error| format!("cannot allocate buffers: {error}"))?;
        let region = Arc::new(mapped);
        let mut options = TcpListenOptions::at(SocketAddr::new(host, 0));
        options.secret = Some(secret);
        options.tls = server.tls.as_ref().map(|it| it.own.clone());
        options.nic_thread_count = 1;
        options.connection_count_max = CONNECTION_COUNT_MAX;
        options.silence_max = SILENCE_MAX;
        let listener = TcpListener::bind(&region, &options).map_err(|error| error.to_string())?;
        let port = listener.address().port();
        let stop = StopSignal::new().map_err(|error| error.to_string())?;
        let heard = stop.clone();
        let thread = std::thread::Builder::new().name("backup-memory".to_owned());
        let thread = thread
            .spawn(move || listener.run(&mut Sessions::default(), &heard))
            .map_err(|error| format!("cannot start a listener thread: {error}"))?;
        Ok(Self {
            region,
            layout,
            port,
            stop,
            thread: Some(thread),
        })
    }

    /// Returns an endpoint of this process to the memory.
    pub(super) fn near(&self) -> MappedEndpoint {
        MappedEndpoint::new(Arc::clone(&self.region))
    }

    /// Fences the primary: none of its verbs takes effect any more when this returns (FABRIC-6).
    pub(super) fn fence(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the memory listener of a backup failed"),
                Err(_) => tracing::error!("the memory listener of a backup panicked"),
            }
        }
    }
}

impl Drop for BackupMemory {
    fn drop(&mut self) {
        self.fence();
    }
}

/// Sessions of a primary.
#[derive(Default)]
struct Sessions {
    alive: BTreeSet<u64>,
    count: u64,
}

/// Number of session numbers; they are reused with another incarnation.
const SESSION_NUMBER_COUNT: u64 = 1000;

impl SessionService for Sessions {
    fn register(&mut self, _pid: u32) -> Result<OwnerWord, String> {
        let number = (self.count % SESSION_NUMBER_COUNT) as u16 + 1;
        let incarnation = self.count / SESSION_NUMBER_COUNT + 1;
        let session = SessionId::new(number).ok_or("no free session")?;
        self.count += 1;
        let owner = OwnerWord::new(session, Incarnation::new(incarnation));
        self.alive.insert(owner.word());
        Ok(owner)
    }

    fn fence(&mut self, owner: OwnerWord) {
        self.alive.remove(&owner.word());
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        self.alive.contains(&owner.word()).then_some(0)
    }
}

impl TcpService for Sessions {
    /// All of the memory is for its primary, which alone knows the secret.
    fn grant(&self, rights: Rights) -> Grant {
        match rights {
            Rights::Read => Grant::nothing(),
            Rights::Write | Rights::Admin => Grant::everything(),
        }
    }

    fn own_words(&self, _owner: OwnerWord) -> Range<u64> {
        0..0
    }
}
