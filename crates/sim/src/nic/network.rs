//! Machines and their NICs: when a batch is where.

use farleaf_fabric::{Verb, VerbKind};

use super::model::{NetworkModel, THREADS_PER_NODE_MAX};
use super::queue::{Picos, Queue, from_nanos, picos, to_nanos};
pub use super::utilisation::Utilisation;
use crate::fabric::world::{ClientId, Nanos};

/// What an atomic's request carries beside the headers: 28 bytes of `AtomicETH` in the place of 16
/// of RETH (InfiniBand Architecture Specification).
const ATOMIC_REQUEST_EXTRA_BYTES: u64 = 12;
/// What an atomic's reply carries beside the headers: the word that was there.
const ATOMIC_RESPONSE_EXTRA_BYTES: u64 = 8;

/// The model's numbers as the queues need them.
#[derive(Clone, Debug)]
struct Costs {
    verb: Picos,
    atomic: Picos,
    same_slot: Picos,
    doorbell: Picos,
    one_way: Picos,
    loopback: Picos,
    byte: f64,
    processor: ProcessorCosts,
    retrained_key_ns: f64,
    mtu_bytes: u64,
    request_header_bytes: u64,
    response_header_bytes: u64,
}

/// What batches take of a client thread's processor.
#[derive(Clone, Copy, Debug)]
struct ProcessorCosts {
    doorbell: Picos,
    verb: Picos,
    completion: Picos,
    byte_read: f64,
}

/// One NIC.
#[derive(Clone, Debug)]
struct Nic {
    pipeline: Queue,
    transmit: Queue,
    receive: Queue,
    /// The slots of the locking table.
    slots: Vec<Queue>,
}

/// Where a client is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// On a compute node: its thread, its machine's NIC, and which one of the other end's.
    Compute {
        processor: usize,
        nic: usize,
        memory_nic: usize,
    },
    /// On a memory node's core for background work. What it posts goes through that node's first
    /// NIC, from which it comes back without having been on a link.
    Memory { node: usize },
}

/// Where a client is that was put nowhere.
const FIRST: Place = Place::Compute {
    processor: 0,
    nic: 0,
    memory_nic: 0,
};

/// What stages had done at some moment.
#[derive(Clone, Debug)]
pub struct NetworkMark {
    at: Picos,
    memory: [Vec<Picos>; 4],
    compute: [Vec<Picos>; 3],
    processors: Vec<Picos>,
    cores: Vec<Picos>,
}

/// What models have been trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainedCount {
    /// Leaves.
    pub leaf_count: u64,
    /// Records in them.
    pub record_count: u64,
}

/// All machines and the switch between them.
#[derive(Clone, Debug)]
pub struct Network {
    costs: Costs,
    /// NICs of each memory node, side by side.
    memory: Vec<Nic>,
    memory_nic_count: usize,
    compute: Vec<Nic>,
    compute_nic_count: usize,
    /// Of each thread that a client was put onto.
    processors: Vec<Queue>,
    /// The core of each memory node for background work.
    cores: Vec<Queue>,
    trained: TrainedCount,
    places: Vec<Place>,
    backoff_turn_ns: (Nanos, Nanos),
}

impl Network {
    /// The machines of a model, idle.
    pub fn new(model: &NetworkModel) -> Self {
        let nic = &model.nic;
        let period = |rate_per_s: f64| picos(1e9 / rate_per_s);
        let fresh = Nic {
            pipeline: Queue::default(),
            transmit: Queue::default(),
            receive: Queue::default(),
            slots: vec![Queue::default(); nic.atomic_slot_count.value as usize],
        };
        let memory_nic_count = model.memory.nics_per_node.value as usize;
        let compute_nic_count = model.compute.nics_per_node.value as usize;
        let memory_count = model.memory.node_count.value as usize * memory_nic_count;
        let compute_count = model.compute.node_count.value as usize * compute_nic_count;
        Self {
            costs: Costs {
                verb: period(nic.verb_rate_per_s.value),
                atomic: period(nic.atomic_rate_per_s.value),
                same_slot: picos(nic.atomic_same_slot_ns.value),
                doorbell: picos(nic.doorbell_ns.value),
                one_way: picos(nic.one_way_ns.value),
                loopback: picos(model.memory.loopback_ns.value),
                // Bits per nanosecond are Gbit/s.
                byte: 8000.0 / nic.bandwidth_gbit_per_s.value,
                processor: ProcessorCosts {
                    doorbell: picos(model.compute.doorbell_ns.value),
                    verb: picos(model.compute.verb_ns.value),
                    completion: picos(model.compute.completion_ns.value),
                    byte_read: model.compute.checksum_ns_per_kib.value * 1000.0 / 1024.0,
                },
                retrained_key_ns: model.memory.retrain_ns_per_key.value,
                mtu_bytes: nic.mtu_bytes.value as u64,
                request_header_bytes: nic.request_header_bytes.value as u64,
                response_header_bytes: nic.response_header_bytes.value as u64,
            },
            memory: vec![fresh.clone(); memory_count],
            memory_nic_count,
            compute: vec![fresh; compute_count],
            compute_nic_count,
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

    /// Puts a client onto a compute node, as its `thread`-th thread, which has a processor that all
    /// clients share that were put there. Threads are spread over the NICs at both ends, and nodes
    /// beyond the last are the first ones again. A client that was put nowhere is on the first.
    ///
    /// # Panics
    /// No compute node has so many threads ([`THREADS_PER_NODE_MAX`]): two of them would share a
    /// processor. What runs threads refuses that before.
    pub fn place(&mut self, client: ClientId, compute_node: usize, thread: usize) {
        assert!(
            thread < THREADS_PER_NODE_MAX,
            "thread {thread} of a compute node that has {THREADS_PER_NODE_MAX} at most"
        );
        let node = compute_node % (self.compute.len() / self.compute_nic_count);
        let processor = node * THREADS_PER_NODE_MAX + thread;
        if self.processors.len() <= processor {
            self.processors.resize(processor + 1, Queue::default());
        }
        let place = Place::Compute {
            processor,
            nic: node * self.compute_nic_count + thread % self.compute_nic_count,
            memory_nic: thread % self.memory_nic_count,
        };
        self.put(client, place);
    }

    /// Puts a client onto a memory node, where all such clients share one core. It works on that
    /// node's memory only, through the node's first NIC and over no link.
    ///
    /// # Panics
    /// There is no such memory node.
    pub fn place_at_memory(&mut self, client: ClientId, memory_node: usize) {
        let node = memory_node;
        assert!(node < self.cores.len(), "memory node {node}");
        self.put(client, Place::Memory { node });
    }

    fn put(&mut self, client: ClientId, place: Place) {
        let index = client.0 as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, FIRST);
        }
        self.places[index] = place;
    }

    fn place_of(&self, client: ClientId) -> Place {
        let place = self.places.get(client.0 as usize);
        place.copied().unwrap_or(FIRST)
    }

    /// The least and the most after which a thread polls a task that backs off again.
    pub(crate) fn backoff_turn_ns(&self) -> (Nanos, Nanos) {
        self.backoff_turn_ns
    }

    /// The NIC at which a client's verbs to a node take effect.
    fn memory_nic(&self, client: ClientId, node: u8) -> usize {
        let nic = match self.place_of(client) {
            Place::Compute { memory_nic, .. } => memory_nic,
            Place::Memory { .. } => 0,
        };
        usize::from(node) * self.memory_nic_count + nic
    }

    fn is_loopback(&self, client: ClientId) -> bool {
        matches!(self.place_of(client), Place::Memory { .. })
    }

    /// A client's thread computes for so long, after all that it has been given before: when it is
    /// done.
    pub(crate) fn compute(&mut self, now: Nanos, client: ClientId, duration_ns: f64) -> Nanos {
        let work = picos(duration_ns);
        self.process(now, client, work)
    }

    /// A client has trained models, which takes its core so long: what it does next waits.
    pub(crate) fn train(&mut self, now: Nanos, client: ClientId, leaves: u64, records: u64) {
        self.trained.leaf_count += leaves;
        self.trained.record_count += records;
        self.compute(now, client, records as f64 * self.costs.retrained_key_ns);
    }

    /// What models have been trained on until now.
    pub fn trained(&self) -> TrainedCount {
        self.trained
    }

    fn process(&mut self, now: Nanos, client: ClientId, work: Picos) -> Nanos {
        let queue = match self.place_of(client) {
            Place::Compute { processor, .. } => &mut self.processors[processor],
            Place::Memory { node } => &mut self.cores[node],
        };
        let now = from_nanos(now);
        to_nanos(queue.serve(now, now, work))
    }

    /// A client's thread writes verbs to one node, and rings the doorbell: when it has rung.
    pub(crate) fn ring(&mut self, now: Nanos, client: ClientId, verb_count: usize) -> Nanos {
        let costs = self.costs.processor;
        let work = costs.doorbell + costs.verb * verb_count as Picos;
        self.process(now, client, work)
    }

    /// All of a batch is back: when a client's thread has polled the completions and checked what
    /// was read.
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
        self.process(now, client, work)
    }

    /// Verbs to one node are handed to the NIC now: when the last of them reaches the other NIC.
    pub(crate) fn depart<'a>(
        &mut self,
        now: Nanos,
        client: ClientId,
        verbs: impl Iterator<Item = &'a Verb>,
    ) -> Nanos {
        let (nic, is_loopback) = match self.place_of(client) {
            Place::Compute { nic, .. } => (&mut self.compute[nic], false),
            Place::Memory { node } => (&mut self.memory[node * self.memory_nic_count], true),
        };
        let costs = &self.costs;
        let now = from_nanos(now);
        let posted = nic.pipeline.serve(now, now, costs.doorbell);
        let mut sent = posted;
        for verb in verbs {
            sent = nic.pipeline.serve(now, posted, costs.verb);
            if !is_loopback {
                let bytes = costs.request_bytes(verb);
                sent = nic.transmit.serve(now, sent, costs.wire(bytes));
            }
        }
        to_nanos(sent + costs.way(is_loopback))
    }

    /// Verbs have reached a node now: when each takes effect, in their order.
    pub(crate) fn arrive<'a>(
        &mut self,
        now: Nanos,
        client: ClientId,
        node: u8,
        verbs: impl Iterator<Item = &'a Verb>,
        mut effect_at: impl FnMut(Nanos),
    ) {
        let index = self.memory_nic(client, node);
        let is_loopback = self.is_loopback(client);
        let (nic, costs) = (&mut self.memory[index], &self.costs);
        let now = from_nanos(now);
        let mut previous = 0;
        for verb in verbs {
            let bytes = costs.request_bytes(verb);
            let received = if is_loopback {
                now
            } else {
                nic.receive.serve(now, now, costs.wire(bytes))
            };
            let mut done;
            if verb.kind == VerbKind::Read || verb.kind == VerbKind::Write {
                done = nic.pipeline.serve(now, received, costs.verb).max(previous);
            } else {
                done = nic
                    .pipeline
                    .serve(now, received, costs.atomic)
                    .max(previous);
                let slot_count = nic.slots.len() as u64;
                let slot = &mut nic.slots[(verb.addr.index() % slot_count) as usize];
                // It takes effect when the slot is its own, which it keeps for a while.
                done = slot.serve(now, done, costs.same_slot) - costs.same_slot;
            }
            previous = done;
            effect_at(to_nanos(done));
        }
    }

    /// All verbs have taken effect now: when the reply reaches the compute node.
    pub(crate) fn reply<'a>(
        &mut self,
        now: Nanos,
        client: ClientId,
        node: u8,
        verbs: impl Iterator<Item = &'a Verb>,
    ) -> Nanos {
        let index = self.memory_nic(client, node);
        let is_loopback = self.is_loopback(client);
        let costs = &self.costs;
        let now = from_nanos(now);
        let mut sent = now;
        if !is_loopback {
            let bytes = verbs.map(|verb| costs.response_bytes(verb)).sum();
            let transmit = &mut self.memory[index].transmit;
            sent = transmit.serve(now, now, costs.wire(bytes));
        }
        to_nanos(sent + costs.way(is_loopback))
    }

    /// The reply has reached the compute node now: when it is complete there.
    pub(crate) fn receive<'a>(
        &mut self,
        now: Nanos,
        client: ClientId,
        verbs: impl Iterator<Item = &'a Verb>,
    ) -> Nanos {
        let Place::Compute { nic, .. } = self.place_of(client) else {
            return now;
        };
        let costs = &self.costs;
        let bytes = verbs.map(|verb| costs.response_bytes(verb)).sum();
        let receive = &mut self.compute[nic].receive;
        let now = from_nanos(now);
        to_nanos(receive.serve(now, now, costs.wire(bytes)))
    }

    /// What has been done until now, to be compared with later.
    pub fn mark(&self, now: Nanos) -> NetworkMark {
        let at = from_nanos(now);
        let of = |nics: &[Nic], part: fn(&Nic) -> &Queue| {
            let served = nics.iter().map(|nic| part(nic).served_until(at));
            served.collect()
        };
        let slots = self.memory.iter().flat_map(|nic| &nic.slots);
        let parts = |nics: &[Nic]| -> [Vec<Picos>; 3] {
            [
                of(nics, |nic| &nic.pipeline),
                of(nics, |nic| &nic.transmit),
                of(nics, |nic| &nic.receive),
            ]
        };
        let [pipeline, transmit, receive] = parts(&self.memory);
        let slots = slots.map(|slot| slot.served_until(at)).collect();
        let served = |queues: &[Queue]| queues.iter().map(|it| it.served_until(at)).collect();
        NetworkMark {
            at,
            memory: [pipeline, transmit, receive, slots],
            compute: parts(&self.compute),
            processors: served(&self.processors),
            cores: served(&self.cores),
        }
    }

    /// How busy the busiest stages were since a mark.
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

impl Costs {
    /// From NIC to NIC, or back to where it came from.
    fn way(&self, is_loopback: bool) -> Picos {
        if is_loopback {
            self.loopback
        } else {
            self.one_way
        }
    }

    #[inline]
    fn wire(&self, bytes: u64) -> Picos {
        (bytes as f64 * self.byte) as Picos
    }

    fn packets(&self, payload_bytes: u64) -> u64 {
        payload_bytes.div_ceil(self.mtu_bytes).max(1)
    }

    fn request_bytes(&self, verb: &Verb) -> u64 {
        let payload = u64::from(verb.word_count) * 8;
        match verb.kind {
            VerbKind::Read => self.request_header_bytes,
            VerbKind::Write => payload + self.packets(payload) * self.request_header_bytes,
            VerbKind::CompareSwap | VerbKind::FetchAdd => {
                self.request_header_bytes + ATOMIC_REQUEST_EXTRA_BYTES
            }
        }
    }

    fn response_bytes(&self, verb: &Verb) -> u64 {
        let payload = u64::from(verb.word_count) * 8;
        match verb.kind {
            VerbKind::Read => payload + self.packets(payload) * self.response_header_bytes,
            VerbKind::Write => self.response_header_bytes,
            VerbKind::CompareSwap | VerbKind::FetchAdd => {
                self.response_header_bytes + ATOMIC_RESPONSE_EXTRA_BYTES
            }
        }
    }
}
