//! Clients: which are connected or fenced (FABRIC-5, FABRIC-6), and what was executed for each
//! (FABRIC-9).

use farleaf_fabric::{Cost, ProtocolPhase};

use super::{ClientId, World};

/// State of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientLife {
    /// Verbs take effect.
    Connected,
    /// The connection broke: batches fail without an effect.
    Broken,
    /// The client is fenced: none of its verbs takes effect anymore (FABRIC-6).
    Fenced,
}

/// Progress of a client in a protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Progress {
    /// Whether the client continues a protocol run that a dead client began.
    pub is_adopting: bool,
    /// Phase of the protocol.
    pub phase: ProtocolPhase,
}

impl World {
    /// Creates a client.
    pub fn add_client(&mut self) -> ClientId {
        self.clients.push(ClientLife::Connected);
        self.executed.push(Cost::default());
        self.progress.push(Progress::default());
        ClientId(self.clients.len() as u32 - 1)
    }

    /// Returns the state of a client's connection.
    pub fn life(&self, client: ClientId) -> ClientLife {
        self.clients[client.0 as usize]
    }

    /// Returns the progress of a client.
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

    /// Records that a client has searched with a part of an old root.
    pub(in crate::fabric) fn note_stale_part(&mut self, client: ClientId) {
        self.note(|| format!("client {} searched with a part of an old root", client.0));
        self.stale_parts.push(client);
    }

    /// Returns the clients that have searched with parts of old roots.
    pub fn stale_parts(&self) -> &[ClientId] {
        &self.stale_parts
    }

    /// Records that a client has read a string that had been overwritten. Fenced clients do not
    /// count: reuse does not wait for them.
    pub(in crate::fabric) fn note_stale_string(&mut self, client: ClientId) {
        if self.life(client) == ClientLife::Connected {
            self.note(|| {
                format!(
                    "client {} read a string that had been overwritten",
                    client.0
                )
            });
            self.stale_strings.push(client);
        }
    }

    /// Returns the clients that have read overwritten strings, once per time.
    pub fn stale_strings(&self) -> &[ClientId] {
        &self.stale_strings
    }

    /// Returns what has been executed for a client, counted separately from what its endpoint
    /// reports (FABRIC-9). Only the layers above know retries and leaves. A modeled world counts
    /// only verbs.
    pub fn executed(&self, client: ClientId) -> Cost {
        self.executed[client.0 as usize]
    }

    pub(in crate::fabric) fn count_verbs(&mut self, client: ClientId, verb_count: u64) {
        self.executed[client.0 as usize].verbs += verb_count;
    }

    /// Returns the number of clients so far.
    pub(in crate::fabric) fn client_count(&self) -> u32 {
        self.clients.len() as u32
    }

    /// Changes the state of a client's connection, unless the client is fenced; returns whether its
    /// batches in flight are to be cut.
    pub(in crate::fabric) fn disconnect(&mut self, client: ClientId, life: ClientLife) -> bool {
        if self.clients[client.0 as usize] == ClientLife::Fenced {
            return false;
        }
        self.clients[client.0 as usize] = life;
        self.release_watchers(client);
        self.locks.forget(client);
        self.note(|| format!("client {} is {life:?}", client.0));
        true
    }
}
