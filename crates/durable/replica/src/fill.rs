//! Filling a backup while its primary serves (REPLICATION-10).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_executor::{backoff, block_on};
use farleaf_fabric::Endpoint;
use farleaf_lsm::Engine;
use farleaf_lsm::engine::EngineBase;
use farleaf_lsm::follow::BaseManifest;
use farleaf_lsm::log::extent::Extents;
use farleaf_lsm::place::LogPosition;

use crate::adopt::offer_base;
use crate::backup_entry::BackupEntry;
use crate::error::{BackupId, Epoch, ReplicaError};
use crate::index_connection::{IndexConnection, IndexConnectionError};
use crate::layout::Layout;
use crate::links::BackupLinks;
use crate::log_connection::{LogConnection, LogConnectionError};
use crate::request::{ReplicationReply, ReplicationRequest, VERSION};
use crate::ship::{
    ShipError, ask, call, keep_counted, lock_index_connection, put, send_tree, unexpected,
};

/// Connections to a backup: two sessions, and the layout of its words.
#[derive(Debug)]
pub struct BackupConnections<E> {
    /// Session for the log. Writes wait for it.
    pub log: E,
    /// Session for trees, edits and the base.
    pub index: E,
    /// Layout of the backup's words.
    pub layout: Layout,
}

impl<E: Endpoint + Send> BackupLinks<E> {
    /// Fills a backup with the engine's data, and makes writes wait for it from then on.
    pub(crate) fn fill(
        &self,
        engine: &Engine,
        id: BackupId,
        connections: BackupConnections<E>,
    ) -> Result<(), ReplicaError> {
        self.check_leads()?;
        let BackupConnections { log, index, layout } = connections;
        let backup_entry = Arc::new(BackupEntry::new(id, IndexConnection::new(index, layout)));
        let filled = self.fill_member(engine, &backup_entry, log, layout);
        if let Err(error) = &filled {
            self.forget(&backup_entry);
            tracing::warn!(%error, "a backup could not catch up");
        }
        filled
    }

    fn fill_member(
        &self,
        engine: &Engine,
        backup_entry: &Arc<BackupEntry<E>>,
        log: E,
        layout: Layout,
    ) -> Result<(), ReplicaError> {
        let backup = backup_entry.id;
        let not_filled = |how: String| ReplicaError::NotFilled { backup, how };
        let ship_failed = |error| match error {
            ShipError::Own(error) => ReplicaError::Engine(error),
            ShipError::Way(error) => not_filled(error.to_string()),
            ShipError::Mismatch(found) => ReplicaError::Mismatch { backup, found },
        };
        let mut is_new = true;
        // Edits wait until the backup has the log that they refer to (REPLICATION-10).
        let mut index_connection = lock_index_connection(backup_entry);
        let base = engine.base(|_| {
            let mut backup_entries = self.backup_entries();
            is_new = !backup_entries.contains_key(&backup);
            if is_new {
                backup_entries.insert(backup, Arc::clone(backup_entry));
            }
        })?;
        if !is_new {
            let is = "exists already";
            return Err(ReplicaError::WrongBackup { backup, is });
        }
        // From now on this is the backup's epoch. If the primary is raised meanwhile, the next
        // steps raise the backup (REPLICATION-12).
        let epoch = self.epoch();
        self.send_base(engine, &mut index_connection, backup_entry, &base, epoch)
            .map_err(ship_failed)?;
        let mut connection = LogConnection::new(
            log,
            layout,
            epoch,
            self.epoch_state(),
            Arc::clone(backup_entry),
            Arc::clone(&self.log),
            base.next_log.start(),
        );
        let own = |error| match error {
            LogConnectionError::Own(error) => ReplicaError::Engine(error),
            LogConnectionError::Mismatch(found) => ReplicaError::Mismatch { backup, found },
            other => not_filled(other.to_string()),
        };
        // Sends most of the log while writes do not wait for the backup.
        loop {
            let end = self.log.end();
            if connection.sender.sent_to().number() >= end.number() {
                break;
            }
            self.keep_up(&mut connection).map_err(own)?;
            Self::send(&mut connection, end).map_err(own)?;
        }
        let mut others = self.connections();
        // No raise happens while this thread holds the connections.
        self.keep_up(&mut connection).map_err(own)?;
        // Before any write waits for the backup, it gets everything that the others have, durable
        // or not.
        let end = self.log.end();
        Self::send(&mut connection, end).map_err(own)?;
        Self::sync(&mut connection, end).map_err(own)?;
        others.push(connection);
        self.connection_count.store(others.len(), Ordering::Release);
        backup_entry.note_filled();
        drop(index_connection);
        Ok(())
    }

    /// Raises the backup to the primary's epoch (REPLICATION-12).
    fn keep_up(&self, connection: &mut LogConnection<E>) -> Result<(), LogConnectionError> {
        let LogConnection { endpoint, sender } = connection;
        let epoch = self.epoch();
        if sender.epoch() == epoch {
            return Ok(());
        }
        block_on(sender.raise(endpoint, epoch), endpoint.completions())
    }

    fn sync(connection: &mut LogConnection<E>, end: LogPosition) -> Result<(), LogConnectionError> {
        let LogConnection { endpoint, sender } = connection;
        let synced = async {
            sender.ask_for_sync(endpoint, end).await?;
            let mut attempt = 0;
            while sender.synced_to() < end {
                backoff(attempt).await;
                sender.poll(endpoint).await?;
                attempt += 1;
            }
            Ok(())
        };
        block_on(synced, endpoint.completions())
    }

    fn send(connection: &mut LogConnection<E>, end: LogPosition) -> Result<(), LogConnectionError> {
        let LogConnection { endpoint, sender } = connection;
        let sent = sender.send_to(endpoint, end);
        block_on(sent, endpoint.completions())
    }

    fn send_base(
        &self,
        engine: &Engine,
        connection: &mut IndexConnection<E>,
        backup_entry: &BackupEntry<E>,
        base: &EngineBase,
        epoch: Epoch,
    ) -> Result<(), ShipError> {
        let begin = ReplicationRequest::Begin {
            version: VERSION,
            epoch: epoch.0,
            engine: base.engine,
            index: self.index,
        };
        if !connection.is_unused()? {
            return Err(IndexConnectionError::Used.into());
        }
        match ask(connection, backup_entry, &begin)? {
            ReplicationReply::Begun { has_previous: true } => {
                offer_base(engine, connection, backup_entry, base)?;
            }
            ReplicationReply::Begun { .. } => {
                send_pieces(engine, connection, backup_entry, base)?;
            }
            other => return Err(unexpected(other)),
        }
        let end = BaseManifest {
            next_log: base.next_log,
            read_from: base.read_from,
            next_tree: base.next_tree,
            edit_count: base.edit_count,
        };
        call(connection, backup_entry, &ReplicationRequest::Finish(end))
    }
}

/// Sends all pieces of a base.
fn send_pieces<E: Endpoint>(
    engine: &Engine,
    connection: &mut IndexConnection<E>,
    backup_entry: &BackupEntry<E>,
    base: &EngineBase,
) -> Result<(), ShipError> {
    let mut bytes = Vec::new();
    let mut extents = Extents::new(base.engine, base.read_from);
    for (number, end) in &base.log {
        engine.log().read_raw(number.start(), &mut bytes)?;
        let counted_size_bytes = extents.size_of(*number, *end, &bytes);
        keep_counted(&mut bytes, counted_size_bytes);
        let request = ReplicationRequest::LogSegment {
            number: *number,
            end: *end,
            size_bytes: bytes.len() as u32,
        };
        put(connection, backup_entry, &bytes, &request)?;
    }
    for (level, tree) in &base.trees {
        send_tree(connection, backup_entry, tree)?;
        let request = ReplicationRequest::Tree {
            level: *level,
            id: tree.id(),
            shape: tree.shape(),
        };
        call(connection, backup_entry, &request)?;
    }
    Ok(())
}
