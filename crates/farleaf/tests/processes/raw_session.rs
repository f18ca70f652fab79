//! Session over tcp that only holds locks, which no handle of the library does for long.

use farleaf::TableOptions;
use farleaf_base::{OwnerWord, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions, TcpEndpoint};
use farleaf_fabric::{Batch, BatchError, Control, Endpoint};
use farleaf_leaf::words::LeafGeometry;

use crate::check::PoolMemory;

/// Session that takes and releases locks, regardless of waiting clients.
pub(crate) struct RawSession {
    pub(crate) client: TcpClient,
    endpoint: TcpEndpoint,
    pub(crate) owner: OwnerWord,
}

impl RawSession {
    pub(crate) fn open(network_address: &str) -> Self {
        let client = TcpClient::connect(network_address, &TcpConnectOptions::default());
        let client = client.expect("the scene serves it");
        let owner = client.register_session().expect("a session");
        let endpoint = client.endpoint(Some(owner)).expect("its connection");
        Self {
            client,
            endpoint,
            owner,
        }
    }

    fn execute(&self, batch: &mut Batch) -> Result<(), BatchError> {
        block_on(self.endpoint.execute(batch), self.endpoint.completions())
    }

    /// Tries to take a lock (LEAF-5); returns its previous value.
    pub(crate) fn take(&self, lock: WordAddr) -> u64 {
        let mut batch = Batch::new();
        let swap = batch.compare_swap(lock, 0, self.owner.word());
        self.execute(&mut batch).expect("a swap");
        batch.previous(swap)
    }

    /// Releases a lock that this session holds.
    pub(crate) fn unlock(&self, lock: WordAddr) -> Result<(), BatchError> {
        self.write(lock, 0)
    }

    pub(crate) fn write(&self, place: WordAddr, word: u64) -> Result<(), BatchError> {
        let mut batch = Batch::new();
        batch.write_word(place, word);
        self.execute(&mut batch)
    }

    /// Returns the address of a word among the slots of a lock's leaf.
    pub(crate) fn find(&self, lock: WordAddr, word: u64) -> WordAddr {
        let leaf_size_words = geometry().leaf_size_words();
        let slots_start = leaf_size_words - 2 * geometry().slot_count();
        let mut batch = Batch::new();
        let read = batch.read(lock, leaf_size_words);
        self.execute(&mut batch).expect("a read");
        let mut slots = batch.words(read)[slots_start..].iter();
        let index = slots.position(|other| *other == word);
        lock.offset((slots_start + index.expect("it is there")) as u64)
    }
}

fn geometry() -> LeafGeometry {
    LeafGeometry::new(TableOptions::default().slots).expect("a geometry")
}

/// Returns the lock of a table's first leaf. The table has the default options and has never been
/// loaded.
pub(crate) fn first_lock(table: &str) -> WordAddr {
    geometry().lock(PoolMemory::open().first_leaf(table))
}
