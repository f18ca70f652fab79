//! A memory node that has only sessions, served by a thread.

use std::collections::BTreeMap;
use std::io;
use std::thread::JoinHandle;

use farleaf_base::{Incarnation, OwnerWord, SessionId};
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::shm::{ListenError, PoolName, ShmListener};
use farleaf_fabric::{SessionService, StopSignal};

/// Sessions in a map; no number is ever reused.
pub(crate) struct Sessions {
    alive: BTreeMap<u64, u32>,
    registered_count: u16,
    count_max: u16,
}

impl Default for Sessions {
    fn default() -> Self {
        Self::at_most(u16::MAX - 1)
    }
}

impl Sessions {
    pub(crate) fn at_most(count_max: u16) -> Self {
        Self {
            alive: BTreeMap::new(),
            registered_count: 0,
            count_max,
        }
    }
}

impl SessionService for Sessions {
    fn register(&mut self, pid: u32) -> Result<OwnerWord, String> {
        if self.registered_count == self.count_max {
            return Err("no session is left".to_owned());
        }
        self.registered_count += 1;
        let session = SessionId::new(self.registered_count).expect("counted from 1");
        let owner = OwnerWord::new(session, Incarnation::new(7));
        self.alive.insert(owner.word(), pid);
        Ok(owner)
    }

    fn fence(&mut self, owner: OwnerWord) {
        let fenced = self.alive.remove(&owner.word());
        assert!(fenced.is_some(), "{owner} was fenced twice, or never was");
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        self.alive.get(&owner.word()).copied()
    }
}

/// A node served by a thread of this process until it is dropped.
pub(crate) struct Node {
    stop: StopSignal,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Node {
    /// Size of the nodes' memory in bytes.
    pub(crate) const REGION_SIZE_BYTES: u64 = 2 << 20;

    pub(crate) fn start(name: &PoolName, mut sessions: Sessions) -> Result<Self, ListenError> {
        let (memory, size_bytes, _) =
            MappedMemory::create_shared(name.as_str(), Self::REGION_SIZE_BYTES).expect("memory");
        let listener = ShmListener::bind(name, memory, size_bytes)?;
        let stop = StopSignal::new().expect("a descriptor");
        let signal = stop.clone();
        let thread = std::thread::spawn(move || listener.run(&mut sessions, &signal));
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.stop();
        let served = self.thread.take().expect("dropped once").join();
        if !std::thread::panicking() {
            served
                .expect("the node's thread panicked")
                .expect("the node could not go on");
        }
    }
}

/// Returns a valid pool name.
pub(crate) fn pool(name: &str) -> PoolName {
    PoolName::new(name).expect("a good name")
}
