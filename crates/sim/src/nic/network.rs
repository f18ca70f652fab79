//! Machines and their NICs: when a batch is where.

use farleaf_fabric::{Verb, VerbKind};
use serde::Serialize;

use super::model::{NetworkModel, THREADS_PER_NODE_MAX};
use super::queue::{Picos, Queue, from_nanos, picos, to_nanos};
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
    byte: f64,
    processor: ProcessorCosts,
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

/// Where a client is: its machine's NIC, and the one at the other end.
#[derive(Clone, Copy, Debug)]
struct Place {
    processor: usize,
    compute_nic: usize,
    memory_nic: usize,
}

/// How busy stages were, as shares of the time between two looks: of each kind the busiest one.
/// None is ever above 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Utilisation {
    /// The memory nodes' pipelines.
    pub memory_pipeline: f64,
    /// The memory nodes' way out: what READs bring.
    pub memory_transmit: f64,
    /// The memory nodes' way in: requests, and what WRITEs bring.
    pub memory_receive: f64,
    /// The slots of the memory nodes' locking tables.
    pub memory_slot: f64,
    /// The compute nodes' pipelines.
    pub compute_pipeline: f64,
    /// The compute nodes' way out: requests, and what WRITEs bring.
    pub compute_transmit: f64,
    /// The compute nodes' way in: what READs bring.
    pub compute_receive: f64,
    /// The client threads' processors.
    pub processor: f64,
}

impl Utilisation {
    /// Each kind of stage: its name in files, its name for people, and its share.
    pub fn stages(&self) -> [(&'static str, &'static str, f64); 8] {
        [
            (
                "memory_pipeline_use",
                "memory node's pipeline",
                self.memory_pipeline,
            ),
            (
                "memory_transmit_use",
                "memory node's link out",
                self.memory_transmit,
            ),
            (
                "memory_receive_use",
                "memory node's link in",
                self.memory_receive,
            ),
            (
                "memory_slot_use",
                "one slot of a memory node's locking table",
                self.memory_slot,
            ),
            (
                "compute_pipeline_use",
                "compute node's pipeline",
                self.compute_pipeline,
            ),
            (
                "compute_transmit_use",
                "compute node's link out",
                self.compute_transmit,
            ),
            (
                "compute_receive_use",
                "compute node's link in",
                self.compute_receive,
            ),
            ("processor_use", "client thread's processor", self.processor),
        ]
    }
}

/// What stages had done at some moment.
#[derive(Clone, Debug)]
pub struct NetworkMark {
    at: Picos,
    memory: [Vec<Picos>; 4],
    compute: [Vec<Picos>; 3],
    processors: Vec<Picos>,
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
                // Bits per nanosecond are Gbit/s.
                byte: 8000.0 / nic.bandwidth_gbit_per_s.value,
                processor: ProcessorCosts {
                    doorbell: picos(model.compute.doorbell_ns.value),
                    verb: picos(model.compute.verb_ns.value),
                    completion: picos(model.compute.completion_ns.value),
                    byte_read: model.compute.checksum_ns_per_kib.value * 1000.0 / 1024.0,
                },
                mtu_bytes: nic.mtu_bytes.value as u64,
                request_header_bytes: nic.request_header_bytes.value as u64,
                response_header_bytes: nic.response_header_bytes.value as u64,
            },
            memory: vec![fresh.clone(); memory_count],
            memory_nic_count,
            compute: vec![fresh; compute_count],
            compute_nic_count,
            processors: vec![Queue::default()],
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
        let index = client.0 as usize;
        let first = Place {
            processor: 0,
            compute_nic: 0,
            memory_nic: 0,
        };
        if self.places.len() <= index {
            self.places.resize(index + 1, first);
        }
        let node = compute_node % (self.compute.len() / self.compute_nic_count);
        let processor = node * THREADS_PER_NODE_MAX + thread;
        if self.processors.len() <= processor {
            self.processors.resize(processor + 1, Queue::default());
        }
        self.places[index] = Place {
            processor,
            compute_nic: node * self.compute_nic_count + thread % self.compute_nic_count,
            memory_nic: thread % self.memory_nic_count,
        };
    }

    /// The least and the most after which a thread polls a task that backs off again.
    pub(crate) fn backoff_turn_ns(&self) -> (Nanos, Nanos) {
        self.backoff_turn_ns
    }

    fn memory_nic(&self, client: ClientId, node: u8) -> usize {
        let place = self.places.get(client.0 as usize);
        let nic = place.map_or(0, |place| place.memory_nic);
        usize::from(node) * self.memory_nic_count + nic
    }

    fn compute_nic(&self, client: ClientId) -> usize {
        let place = self.places.get(client.0 as usize);
        place.map_or(0, |place| place.compute_nic)
    }

    /// A client's thread computes for so long, after all that it has been given before: when it is
    /// done.
    pub(crate) fn compute(&mut self, now: Nanos, client: ClientId, duration_ns: f64) -> Nanos {
        let work = picos(duration_ns);
        self.process(now, client, work)
    }

    fn process(&mut self, now: Nanos, client: ClientId, work: Picos) -> Nanos {
        let place = self.places.get(client.0 as usize);
        let processor = place.map_or(0, |place| place.processor);
        let now = from_nanos(now);
        to_nanos(self.processors[processor].serve(now, now, work))
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
        let index = self.compute_nic(client);
        let (nic, costs) = (&mut self.compute[index], &self.costs);
        let now = from_nanos(now);
        let posted = nic.pipeline.serve(now, now, costs.doorbell);
        let mut sent = posted;
        for verb in verbs {
            let issued = nic.pipeline.serve(now, posted, costs.verb);
            sent = nic
                .transmit
                .serve(now, issued, costs.wire(costs.request_bytes(verb)));
        }
        to_nanos(sent + costs.one_way)
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
        let (nic, costs) = (&mut self.memory[index], &self.costs);
        let now = from_nanos(now);
        let mut previous = 0;
        for verb in verbs {
            let bytes = costs.request_bytes(verb);
            let received = nic.receive.serve(now, now, costs.wire(bytes));
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
        let costs = &self.costs;
        let bytes = verbs.map(|verb| costs.response_bytes(verb)).sum();
        let sent =
            self.memory[index]
                .transmit
                .serve(from_nanos(now), from_nanos(now), costs.wire(bytes));
        to_nanos(sent + costs.one_way)
    }

    /// The reply has reached the compute node now: when it is complete there.
    pub(crate) fn receive<'a>(
        &mut self,
        now: Nanos,
        client: ClientId,
        verbs: impl Iterator<Item = &'a Verb>,
    ) -> Nanos {
        let index = self.compute_nic(client);
        let costs = &self.costs;
        let bytes = verbs.map(|verb| costs.response_bytes(verb)).sum();
        let receive = &mut self.compute[index].receive;
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
        let processors = self.processors.iter();
        NetworkMark {
            at,
            memory: [pipeline, transmit, receive, slots],
            compute: parts(&self.compute),
            processors: processors.map(|it| it.served_until(at)).collect(),
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
        }
    }
}

impl Costs {
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
