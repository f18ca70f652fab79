//! Clients: who may still do something (F5, F6), and what was executed for whom (F9).

use std::collections::BTreeSet;

use farleaf_fabric::{Cost, ProtocolPhase, Verb, VerbKind};
use farleaf_types::{NodeId, WORD_SIZE_BYTES};

use super::{ClientId, World};

/// What may become of a client's verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientLife {
    /// They take effect.
    Connected,
    /// Its connection broke: what it posts fails, with nothing done.
    Broken,
    /// F6: no verb of it takes effect any more.
    Fenced,
}

/// How far a client is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Progress {
    /// It is one that somebody else began, who died (R6).
    pub is_adopting: bool,
    /// Its phase.
    pub phase: ProtocolPhase,
}

impl World {
    /// A new client.
    pub fn add_client(&mut self) -> ClientId {
        self.clients.push(ClientLife::Connected);
        self.executed.push(Cost::default());
        self.progress.push(Progress::default());
        ClientId(self.clients.len() as u32 - 1)
    }

    /// What may become of a client's verbs.
    pub fn life(&self, client: ClientId) -> ClientLife {
        self.clients[client.0 as usize]
    }

    /// How far a client is.
    pub fn progress(&self, client: ClientId) -> Progress {
        self.progress[client.0 as usize]
    }

    pub(in crate::fabric) fn enter(&mut self, client: ClientId, phase: ProtocolPhase) {
        let progress = &mut self.progress[client.0 as usize];
        progress.phase = phase;
        match phase {
            ProtocolPhase::Adopt => progress.is_adopting = true,
            ProtocolPhase::Outside => progress.is_adopting = false,
            _ => {}
        }
    }

    /// BL4: a client has searched by a part of an old root.
    pub(in crate::fabric) fn note_stale_part(&mut self, client: ClientId) {
        self.note(|| format!("client {} has searched by a part of an old root", client.0));
        self.stale_parts.push(client);
    }

    /// Clients that have searched by parts of old roots.
    pub fn stale_parts(&self) -> &[ClientId] {
        &self.stale_parts
    }

    /// BV2: a client has met a string that had changed. Who is fenced is waited for no more.
    pub(in crate::fabric) fn note_stale_string(&mut self, client: ClientId) {
        if self.life(client) == ClientLife::Connected {
            self.note(|| format!("client {} has met a string that had changed", client.0));
            self.stale_strings.push(client);
        }
    }

    /// Who has met strings that had changed, as often as they have.
    pub fn stale_strings(&self) -> &[ClientId] {
        &self.stale_strings
    }

    /// What has been executed for a client, counted apart from what its endpoint is told (F9).
    /// Retries and leaves are for the layers above to know. A modelled world counts verbs alone.
    pub fn executed(&self, client: ClientId) -> Cost {
        self.executed[client.0 as usize]
    }

    /// Batches of a client that are not complete, whoever waits for them.
    pub fn in_flight_count(&self, client: ClientId) -> usize {
        let flights = self.flights.values();
        let own = flights.filter(|flight| flight.client == client && !flight.is_complete);
        own.count()
    }

    pub(in crate::fabric) fn count_verbs(&mut self, client: ClientId, verb_count: u64) {
        self.executed[client.0 as usize].verbs += verb_count;
    }

    /// F6: no verb of the client takes effect after this.
    pub fn fence(&mut self, client: ClientId) {
        self.disconnect(client, ClientLife::Fenced);
    }

    /// The client's connection breaks: what is in flight is cut off here and has an unknown
    /// outcome, what it posts later fails.
    pub fn break_connection(&mut self, client: ClientId) {
        self.disconnect(client, ClientLife::Broken);
    }

    /// A node restarts with empty memory: all connections break first.
    pub fn lose_node(&mut self, node: NodeId) {
        for client in 0..self.clients.len() as u32 {
            self.break_connection(ClientId(client));
        }
        self.nodes[usize::from(node.0)].fill(0);
    }

    fn disconnect(&mut self, client: ClientId, life: ClientLife) {
        if self.clients[client.0 as usize] == ClientLife::Fenced {
            return;
        }
        self.clients[client.0 as usize] = life;
        self.release_watchers(client);
        self.locks.forget(client);
        self.note(|| format!("client {} is {life:?}", client.0));
        let flying = self.flights.iter();
        let flying = flying.filter(|(_, flight)| flight.client == client && !flight.is_complete);
        let flying: Vec<u64> = flying.map(|(batch, _)| *batch).collect();
        for batch in flying {
            self.cut(batch);
        }
    }
}

/// F9: what an endpoint counts for a batch of which so many verbs were executed.
pub(in crate::fabric) fn cost_of(verbs: &[Verb], executed_count: usize) -> Cost {
    let nodes: BTreeSet<NodeId> = verbs.iter().map(|verb| verb.addr.node()).collect();
    let mut cost = Cost {
        round_trips: 1,
        doorbells: nodes.len() as u64,
        verbs: verbs.len() as u64,
        ..Cost::default()
    };
    for verb in &verbs[..executed_count] {
        count_effect(&mut cost, verb.kind, verb.word_count as usize);
    }
    cost
}

/// F9: words of a verb have taken effect. An atomic has but one.
pub(super) fn count_effect(executed: &mut Cost, kind: VerbKind, word_count: usize) {
    let bytes = word_count as u64 * WORD_SIZE_BYTES;
    match kind {
        VerbKind::Read => executed.bytes_read += bytes,
        VerbKind::Write => executed.bytes_written += bytes,
        VerbKind::CompareSwap | VerbKind::FetchAdd => executed.atomics += 1,
    }
}
