//! Network: machines and their NICs, and the times at which batches reach them.

use farleaf_fabric::{Verb, VerbKind};

use super::costs::Costs;
use super::model::{NetworkModel, THREADS_PER_NODE_MAX};
use super::parts::Parts;
use super::queue::{Picos, Queue, from_nanos, picos, to_nanos};
pub use super::utilisation::Utilisation;
use crate::fabric::ids::{ClientId, Nanos};

/// One NIC.
#[derive(Clone, Debug)]
struct Nic {
    pipeline: Queue,
    transmit: Queue,
    receive: Queue,
    /// Slots of the locking table.
    slots: Vec<Queue>,
}

/// Location of a client.
#[derive(Clone, Copy, Debug)]
enum ClientLocation {
    /// On a compute node: its thread, its machine's NIC, and the NIC at the other end.
    Compute {
        machine: usize,
        processor: usize,
        nic: usize,
        memory_nic: usize,
    },
    /// On a memory node's core for background work. It posts through that node's first NIC, which
    /// returns the verbs without a link.
    Memory { node: usize },
    /// On a memory node, where it answers calls: it has a core, and the time per call is given
    /// (`memory.call_ns`). It posts to this NIC of the node, and into memory of clients through
    /// that NIC of their machines.
    Server {
        node: usize,
        nic: usize,
        compute_nic: usize,
    },
}

/// NICs of a client's machine and of each memory node through which its batches go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicEnds {
    /// Index of the NIC of a memory node, from 0.
    pub memory_nic: usize,
    /// Index of the NIC of the client's machine.
    pub compute_nic: usize,
}

/// Counters of the stages at some moment.
#[derive(Clone, Debug)]
pub struct NetworkMark {
    at: Picos,
    memory: [Vec<Picos>; 4],
    compute: [Vec<Picos>; 3],
    processors: Vec<Picos>,
    cores: Vec<Picos>,
}

/// Data on which models have been trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainedCount {
    /// Number of leaves.
    pub leaf_count: u64,
    /// Number of records in the leaves.
    pub record_count: u64,
}

/// All machines and the switch between them.
#[derive(Clone, Debug)]
pub struct Network {
    costs: Costs,
    /// NICs of the memory nodes, node by node, then those of the compute nodes, unless these are
    /// the same machines.
    nics: Vec<Nic>,
    memory_nic_count: usize,
    memory_node_count: usize,
    compute_nic_count: usize,
    compute_node_count: usize,
    /// Index of the first compute node's first NIC.
    compute_nic_first: usize,
    /// Time parts in which the current batch was served since the last `take_served`; the caller
    /// knows the whole duration.
    served: Parts,
    /// Processor of each thread on which a client was placed.
    processors: Vec<Queue>,
    /// Core of each memory node for background work.
    cores: Vec<Queue>,
    trained: TrainedCount,
    places: Vec<ClientLocation>,
    backoff_turn_ns: (Nanos, Nanos),
}

impl Network {
    /// Creates the machines of a model, idle.
    pub fn new(model: &NetworkModel) -> Self {
        let nic = &model.nic;
        let fresh = Nic {
            pipeline: Queue::default(),
            transmit: Queue::default(),
            receive: Queue::default(),
            slots: vec![Queue::default(); nic.atomic_slot_count.value as usize],
        };
        let memory_nic_count = model.memory.nics_per_node.value as usize;
        let compute_nic_count = model.compute.nics_per_node.value as usize;
        let memory_node_count = model.memory.node_count.value as usize;
        let compute_node_count = model.compute.node_count.value as usize;
        let memory_count = memory_node_count * memory_nic_count;
        let (compute_nic_first, own_count) = match model.shared_machines {
            Some(_) => (0, 0),
            None => (memory_count, compute_node_count * compute_nic_count),
        };
        Self {
            costs: Costs::new(model),
            nics: vec![fresh; memory_count + own_count],
            memory_nic_count,
            memory_node_count,
            compute_nic_count,
            compute_node_count,
            compute_nic_first,
            served: Parts::default(),
            processors: vec![Queue::default()],
            cores: vec![Queue::default(); model.memory.node_count.value as usize],
            trained: TrainedCount::default(),
            places: Vec::new(),
            backoff_turn_ns: (
                model.compute.backoff_turn_ns_min.value as Nanos,
                model.compute.backoff_turn_ns_max.value as Nanos,
            ),
        }
    }

    /// Places a client on a compute node, as its thread number `thread`, whose processor it shares
    /// with all clients placed there. Threads are distributed over the NICs at both ends, and node
    /// numbers beyond the last wrap around. A client that was never placed is on the first node.
    ///
    /// # Panics
    /// A compute node cannot have so many threads ([`THREADS_PER_NODE_MAX`]): two of them would
    /// share a processor. Callers that run threads check that before.
    pub fn place(&mut self, client: ClientId, compute_node: usize, thread: usize) {
        assert!(
            thread < THREADS_PER_NODE_MAX,
            "thread {thread} of a compute node that has {THREADS_PER_NODE_MAX} at most"
        );
        let node = compute_node % self.compute_node_count;
        let processor = node * THREADS_PER_NODE_MAX + thread;
        if self.processors.len() <= processor {
            self.processors.resize(processor + 1, Queue::default());
        }
        let place = ClientLocation::Compute {
            machine: node,
            processor,
            nic: self.compute_nic_first
                + node * self.compute_nic_count
                + thread % self.compute_nic_count,
            memory_nic: thread % self.memory_nic_count,
        };
        self.put(client, place);
    }

    /// Places a client on a memory node, where all such clients share one core. It accesses only
    /// that node's memory, through the node's first NIC and over no link.
    ///
    /// # Panics
    /// The memory node does not exist.
    pub fn place_at_memory(&mut self, client: ClientId, memory_node: usize) {
        let node = memory_node;
        assert!(node < self.cores.len(), "memory node {node}");
        self.put(client, ClientLocation::Memory { node });
    }

    /// Places a client on a memory node, where it answers the calls of clients that use the same
    /// NICs at both ends.
    ///
    /// # Panics
    /// The memory node does not exist.
    pub fn place_server(&mut self, client: ClientId, memory_node: usize, ends: NicEnds) {
        assert!(memory_node < self.cores.len(), "memory node {memory_node}");
        let place = ClientLocation::Server {
            node: memory_node,
            nic: ends.memory_nic % self.memory_nic_count,
            compute_nic: ends.compute_nic % self.compute_nic_count,
        };
        self.put(client, place);
    }

    /// Returns the NICs through which a client's batches go.
    pub fn ends_of(&self, client: ClientId) -> NicEnds {
        match self.place_of(client) {
            ClientLocation::Compute {
                nic, memory_nic, ..
            } => NicEnds {
                memory_nic,
                compute_nic: (nic - self.compute_nic_first) % self.compute_nic_count,
            },
            ClientLocation::Memory { .. } => NicEnds::default(),
            ClientLocation::Server {
                nic, compute_nic, ..
            } => NicEnds {
                memory_nic: nic,
                compute_nic,
            },
        }
    }

    fn put(&mut self, client: ClientId, place: ClientLocation) {
        let index = client.0 as usize;
        if self.places.len() <= index {
            let first = self.default_location();
            self.places.resize(index + 1, first);
        }
        self.places[index] = place;
    }

    fn place_of(&self, client: ClientId) -> ClientLocation {
        let place = self.places.get(client.0 as usize);
        place.copied().unwrap_or_else(|| self.default_location())
    }

    /// Returns the location of a client that was never placed.
    fn default_location(&self) -> ClientLocation {
        ClientLocation::Compute {
            machine: 0,
            processor: 0,
            nic: self.compute_nic_first,
            memory_nic: 0,
        }
    }

    /// Returns the compute node of a client.
    pub(crate) fn machine_of(&self, client: ClientId) -> usize {
        match self.place_of(client) {
            ClientLocation::Compute { machine, .. } => machine,
            ClientLocation::Memory { .. } | ClientLocation::Server { .. } => 0,
        }
    }

    /// Returns the shortest and the longest time after which a thread polls a task that backs off
    /// again.
    pub(crate) fn backoff_turn_ns(&self) -> (Nanos, Nanos) {
        self.backoff_turn_ns
    }

    /// Returns the NIC at which a client's verbs to a node take effect.
    fn memory_nic(&self, client: ClientId, node: u8) -> usize {
        let ends = self.ends_of(client);
        if let Some(machine) = usize::from(node).checked_sub(self.memory_node_count) {
            // The compute nodes' memories follow those of the memory nodes (FABRIC-10).
            let first = self.compute_nic_first + machine * self.compute_nic_count;
            return first + ends.compute_nic;
        }
        usize::from(node) * self.memory_nic_count + ends.memory_nic
    }

    /// Returns the NIC to which a client posts.
    fn own_nic(&self, client: ClientId) -> usize {
        match self.place_of(client) {
            ClientLocation::Compute { nic, .. } => nic,
            ClientLocation::Memory { node } => node * self.memory_nic_count,
            ClientLocation::Server { node, nic, .. } => node * self.memory_nic_count + nic,
        }
    }

    /// Returns whether a client's verbs to a node return to the NIC to which they were posted:
    /// those of a memory node, and those of a thread whose machine is that node.
    fn is_loopback(&self, client: ClientId, node: u8) -> bool {
        self.own_nic(client) == self.memory_nic(client, node)
    }

    /// Takes the time parts served since the last call.
    pub(crate) fn take_served(&mut self) -> Parts {
        core::mem::take(&mut self.served)
    }

    /// Computes on a client's thread for this time, after all its earlier work. Returns when it is
    /// done.
    pub(crate) fn compute(&mut self, now: Nanos, client: ClientId, duration_ns: f64) -> Nanos {
        let work = picos(duration_ns);
        self.process(now, client, work)
    }

    /// Charges a client's core with the training of models; its next work waits.
    pub(crate) fn train(&mut self, now: Nanos, client: ClientId, leaves: u64, records: u64) {
        self.trained.leaf_count += leaves;
        self.trained.record_count += records;
        self.compute(now, client, records as f64 * self.costs.retrained_key_ns);
    }

    /// Returns the data on which models have been trained so far.
    pub fn trained(&self) -> TrainedCount {
        self.trained
    }

    fn process(&mut self, now: Nanos, client: ClientId, work: Picos) -> Nanos {
        let queue = match self.place_of(client) {
            ClientLocation::Compute { processor, .. } => &mut self.processors[processor],
            ClientLocation::Memory { node } => &mut self.cores[node],
            ClientLocation::Server { .. } => return now,
        };
        let now = from_nanos(now);
        to_nanos(queue.serve(now, now, work))
    }

    /// Writes a client's verbs to one node and rings the doorbell. Returns when it has rung.
    pub(crate) fn ring(&mut self, now: Nanos, client: ClientId, verb_count: usize) -> Nanos {
        let costs = self.costs.processor;
        let work = costs.doorbell + costs.verb * verb_count as Picos;
        self.served.processor += work;
        self.process(now, client, work)
    }

    /// Takes up a complete batch. Returns when the client's thread has polled the completions and
    /// checked the data.
    pub(crate) fn take_up<'a>(
        &mut self,
        now: Nanos,
        client: ClientId,
        doorbell_count: u64,
        verbs: impl Iterator<Item = &'a Verb>,
    ) -> Nanos {
        let reads = verbs.filter(|verb| verb.kind == VerbKind::Read);
        let bytes: u64 = reads.map(|verb| u64::from(verb.word_count) * 8).sum();
        let costs = self.costs.processor;
        let checks = (bytes as f64 * costs.byte_read) as Picos;
        let work = costs.completion * doorbell_count + checks;
        self.served.processor += work - checks;
        self.served.checksum += checks;
        self.process(now, client, work)
    }

    /// Hands verbs to one node to the NIC. Returns when the last of them reaches the other NIC.
    pub(crate) fn depart<'a>(
        &mut self,
        now: Nanos,
        client: ClientId,
        node: u8,
        verbs: impl Iterator<Item = &'a Verb>,
    ) -> Nanos {
        let is_loopback = self.is_loopback(client, node);
        let index = self.own_nic(client);
        let (nic, costs, served) = (&mut self.nics[index], &self.costs, &mut self.served);
        let now = from_nanos(now);
        let posted = nic.pipeline.serve(now, now, costs.doorbell);
        served.nic += costs.doorbell;
        let mut sent = posted;
        for verb in verbs {
            sent = nic.pipeline.serve(now, posted, costs.verb);
            served.nic += costs.verb;
            if !is_loopback {
                let wire = costs.wire(costs.request_bytes(verb));
                sent = nic.transmit.serve(now, sent, wire);
                served.nic += wire;
            }
        }
        served.wire += costs.transit(is_loopback);
        to_nanos(sent + costs.transit(is_loopback))
    }

    /// Serves verbs that have reached a node. Returns when each takes effect, in their order.
    pub(crate) fn arrive<'a>(
        &mut self,
        now: Nanos,
        client: ClientId,
        node: u8,
        verbs: impl Iterator<Item = &'a Verb>,
        mut effect_at: impl FnMut(Nanos),
    ) {
        let index = self.memory_nic(client, node);
        let is_loopback = self.is_loopback(client, node);
        let (nic, costs, served) = (&mut self.nics[index], &self.costs, &mut self.served);
        let now = from_nanos(now);
        let mut previous = 0;
        for verb in verbs {
            let received = if is_loopback {
                now
            } else {
                let wire = costs.wire(costs.request_bytes(verb));
                served.nic += wire;
                nic.receive.serve(now, now, wire)
            };
            let is_atomic = !matches!(verb.kind, VerbKind::Read | VerbKind::Write);
            let service = if is_atomic { costs.atomic } else { costs.verb };
            served.nic += service;
            let mut done = nic.pipeline.serve(now, received, service).max(previous);
            if is_atomic {
                let slot_count = nic.slots.len() as u64;
                let slot = &mut nic.slots[(verb.addr.index() % slot_count) as usize];
                // The verb takes effect when it gets the slot, which it occupies for a while.
                done = slot.serve(now, done, costs.same_slot) - costs.same_slot;
            }
            previous = done;
            effect_at(to_nanos(done));
        }
    }

    /// Sends the reply after all verbs have taken effect. Returns when it reaches the compute node.
    pub(crate) fn reply<'a>(
        &mut self,
        now: Nanos,
        client: ClientId,
        node: u8,
        verbs: impl Iterator<Item = &'a Verb>,
    ) -> Nanos {
        let index = self.memory_nic(client, node);
        let is_loopback = self.is_loopback(client, node);
        let (costs, served) = (&self.costs, &mut self.served);
        let now = from_nanos(now);
        let mut sent = now;
        if !is_loopback {
            let bytes = verbs.map(|verb| costs.response_bytes(verb)).sum();
            let wire = costs.wire(bytes);
            served.nic += wire;
            sent = self.nics[index].transmit.serve(now, now, wire);
        }
        served.wire += costs.transit(is_loopback);
        to_nanos(sent + costs.transit(is_loopback))
    }

    /// Receives the reply at the compute node. Returns when it is complete there.
    pub(crate) fn receive<'a>(
        &mut self,
        now: Nanos,
        client: ClientId,
        node: u8,
        verbs: impl Iterator<Item = &'a Verb>,
    ) -> Nanos {
        if self.is_loopback(client, node) {
            return now;
        }
        let index = self.own_nic(client);
        let costs = &self.costs;
        let bytes = verbs.map(|verb| costs.response_bytes(verb)).sum();
        let wire = costs.wire(bytes);
        self.served.nic += wire;
        let now = from_nanos(now);
        to_nanos(self.nics[index].receive.serve(now, now, wire))
    }

    /// Returns the current counters, for a later comparison.
    pub fn mark(&self, now: Nanos) -> NetworkMark {
        let at = from_nanos(now);
        let of = |nics: &[Nic], part: fn(&Nic) -> &Queue| {
            let served = nics.iter().map(|nic| part(nic).served_until(at));
            served.collect()
        };
        let memory_count = self.memory_node_count * self.memory_nic_count;
        let (memory, compute) = (
            &self.nics[..memory_count],
            &self.nics[self.compute_nic_first..],
        );
        let slots = memory.iter().flat_map(|nic| &nic.slots);
        let parts = |nics: &[Nic]| -> [Vec<Picos>; 3] {
            [
                of(nics, |nic| &nic.pipeline),
                of(nics, |nic| &nic.transmit),
                of(nics, |nic| &nic.receive),
            ]
        };
        let [pipeline, transmit, receive] = parts(memory);
        let slots = slots.map(|slot| slot.served_until(at)).collect();
        let served = |queues: &[Queue]| queues.iter().map(|it| it.served_until(at)).collect();
        NetworkMark {
            at,
            memory: [pipeline, transmit, receive, slots],
            compute: parts(compute),
            processors: served(&self.processors),
            cores: served(&self.cores),
        }
    }

    /// Returns the utilization of the busiest stages since a mark.
    pub fn utilisation_since(&self, mark: &NetworkMark, now: Nanos) -> Utilisation {
        let later = self.mark(now);
        let duration = (later.at.saturating_sub(mark.at)).max(1) as f64;
        let busiest = |now: &[Picos], then: &[Picos]| {
            let served = now.iter().zip(then).map(|(now, then)| now - then);
            served.max().unwrap_or(0) as f64 / duration
        };
        let memory = |part: usize| busiest(&later.memory[part], &mark.memory[part]);
        let compute = |part: usize| busiest(&later.compute[part], &mark.compute[part]);
        Utilisation {
            memory_pipeline: memory(0),
            memory_transmit: memory(1),
            memory_receive: memory(2),
            memory_slot: memory(3),
            compute_pipeline: compute(0),
            compute_transmit: compute(1),
            compute_receive: compute(2),
            processor: busiest(&later.processors, &mark.processors),
            memory_core: busiest(&later.cores, &mark.cores),
        }
    }
}
