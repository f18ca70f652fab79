//! The conformance suite over `mem` and `shm`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farleaf_fabric::conformance::{Backend, Client, run_all, run_on_threads};
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::shm::{PoolName, ShmClient};

use crate::children::scene;
use crate::node::{Node, Sessions, pool};

/// Backend whose endpoints take turns among several mappings of one memory.
struct Mapped {
    mappings: Vec<Arc<MappedMemory>>,
    endpoint_count: AtomicUsize,
}

impl Mapped {
    fn new(mappings: impl IntoIterator<Item = MappedMemory>) -> Self {
        let mappings = mappings.into_iter().map(Arc::new).collect();
        Self {
            mappings,
            endpoint_count: AtomicUsize::new(0),
        }
    }
}

impl Backend for Mapped {
    type Endpoint = MappedEndpoint;

    fn memory_word_count(&self) -> u64 {
        self.mappings[0].word_count()
    }

    fn run(&self, clients: Vec<Client<'_, MappedEndpoint>>) {
        let make_endpoint = || {
            let turn = self.endpoint_count.fetch_add(1, Ordering::Relaxed);
            MappedEndpoint::new(Arc::clone(&self.mappings[turn % self.mappings.len()]))
        };
        run_on_threads(make_endpoint, clients);
    }
}

/// The `shm` backend as in production: each endpoint has its own connection and mapping.
struct Connected {
    name: PoolName,
    _node: Node,
}

impl Connected {
    fn connect(&self) -> MappedEndpoint {
        let (_client, memory, size_bytes) = ShmClient::connect(&self.name).expect("it is served");
        let memory = MappedMemory::map_shared(memory, size_bytes).expect("a mapping");
        MappedEndpoint::new(Arc::new(memory))
    }
}

impl Backend for Connected {
    type Endpoint = MappedEndpoint;

    fn memory_word_count(&self) -> u64 {
        Node::REGION_SIZE_BYTES / 8
    }

    fn run(&self, clients: Vec<Client<'_, MappedEndpoint>>) {
        run_on_threads(|| self.connect(), clients);
    }
}

#[test]
fn mem_keeps_the_contract() {
    run_all(|| Mapped::new([MappedMemory::anonymous(1).expect("memory")]));
}

#[test]
fn two_mappings_of_one_memory_keep_the_contract() {
    run_all(|| {
        let (memory, size_bytes, _) =
            MappedMemory::create_shared("conformance", 1).expect("memory");
        let map = |_| MappedMemory::map_shared(&memory, size_bytes).expect("a mapping");
        Mapped::new([0, 1].map(map))
    });
}

#[test]
fn shm_through_its_socket_keeps_the_contract() {
    scene(
        "backends::shm_through_its_socket_keeps_the_contract",
        |_| {
            let mut case_count = 0;
            run_all(|| {
                case_count += 1;
                let name = pool(&format!("case-{case_count}"));
                let node = Node::start(&name, Sessions::default()).expect("the name is free");
                Connected { name, _node: node }
            });
        },
    );
}
