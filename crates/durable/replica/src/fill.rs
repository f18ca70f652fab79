//! A backup is filled while its primary serves (RP10).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_executor::{backoff, block_on};
use farleaf_fabric::Endpoint;
use farleaf_lsm::Engine;
use farleaf_lsm::engine::Base;
use farleaf_lsm::follow::BaseEnd;
use farleaf_lsm::log::extent::Extents;
use farleaf_lsm::place::LogPosition;

use crate::adopt::offer_base;
use crate::error::{BackupId, Epoch, ReplicaError};
use crate::index_way::{IndexWay, IndexWayError};
use crate::layout::Layout;
use crate::links::Links;
use crate::log_way::{LogWay, WayError};
use crate::member::Member;
use crate::request::{Reply, Request, VERSION};
use crate::ship::{ShipError, ask, call, keep_counted, put, send_tree, unexpected, way_of};

/// The ways to a backup: two sessions, and where its words are.
#[derive(Debug)]
pub struct BackupWays<E> {
    /// For the log. Writes wait for what goes there.
    pub log: E,
    /// For trees, edits, and the base.
    pub index: E,
    /// Where the backup has its words.
    pub layout: Layout,
}

impl<E: Endpoint + Send> Links<E> {
    /// Fills a backup with what the engine has, and has writes wait for it from then on.
    pub(crate) fn fill(
        &self,
        engine: &Engine,
        id: BackupId,
        ways: BackupWays<E>,
    ) -> Result<(), ReplicaError> {
        self.check_leads()?;
        let BackupWays { log, index, layout } = ways;
        let member = Arc::new(Member::new(id, IndexWay::new(index, layout)));
        let filled = self.fill_member(engine, &member, (log, layout));
        if let Err(error) = &filled {
            self.forget(&member);
            tracing::warn!(%error, "a backup was not filled");
        }
        filled
    }

    fn fill_member(
        &self,
        engine: &Engine,
        member: &Arc<Member<E>>,
        (log, layout): (E, Layout),
    ) -> Result<(), ReplicaError> {
        let backup = member.id;
        let not_filled = |how: String| ReplicaError::NotFilled { backup, how };
        let ship_failed = |error| match error {
            ShipError::Own(error) => ReplicaError::Engine(error),
            ShipError::Way(error) => not_filled(error.to_string()),
            ShipError::Mismatch(found) => ReplicaError::Mismatch { backup, found },
        };
        let mut is_new = true;
        // RP10: until it has the log that edits lead to, none is brought to it.
        let mut index_way = way_of(member);
        let base = engine.base(|_| {
            let mut members = self.members();
            is_new = !members.contains_key(&backup);
            if is_new {
                members.insert(backup, Arc::clone(member));
            }
        })?;
        if !is_new {
            let is = "is there already";
            return Err(ReplicaError::WrongBackup { backup, is });
        }
        // RP12: it is the backup's now; if this primary is raised meanwhile, the backup is by what
        // follows.
        let epoch = self.epoch();
        self.send_base(engine, (&mut index_way, member), (&base, epoch))
            .map_err(ship_failed)?;
        let from = base.next_log.start();
        let of = (layout, epoch, self.standing());
        let from = (Arc::clone(&self.log), from);
        let mut way = LogWay::new(log, of, Arc::clone(member), from);
        let own = |error| match error {
            WayError::Own(error) => ReplicaError::Engine(error),
            WayError::Mismatch(found) => ReplicaError::Mismatch { backup, found },
            other => not_filled(other.to_string()),
        };
        // Most of it while writes go on without it.
        loop {
            let end = self.log.end();
            if way.sender.sent_to().number() >= end.number() {
                break;
            }
            self.keep_up(&mut way).map_err(own)?;
            Self::send(&mut way, end).map_err(own)?;
        }
        let mut others = self.ways();
        // Who has the ways is not raised.
        self.keep_up(&mut way).map_err(own)?;
        // What the others have, durable or not, it has, too, before any write waits for it.
        let end = self.log.end();
        Self::send(&mut way, end).map_err(own)?;
        Self::sync(&mut way, end).map_err(own)?;
        others.push(way);
        self.way_count.store(others.len(), Ordering::Release);
        member.note_filled();
        drop(index_way);
        Ok(())
    }

    /// RP12: the backup's epoch is this primary's.
    fn keep_up(&self, way: &mut LogWay<E>) -> Result<(), WayError> {
        let LogWay { endpoint, sender } = way;
        let epoch = self.epoch();
        if sender.epoch() == epoch {
            return Ok(());
        }
        block_on(sender.raise(endpoint, epoch), endpoint.completions())
    }

    fn sync(way: &mut LogWay<E>, end: LogPosition) -> Result<(), WayError> {
        let LogWay { endpoint, sender } = way;
        let synced = async {
            sender.ask_for_sync(endpoint, end).await?;
            let mut attempt = 0;
            while sender.synced_to() < end {
                backoff(attempt).await;
                sender.look(endpoint).await?;
                attempt += 1;
            }
            Ok(())
        };
        block_on(synced, endpoint.completions())
    }

    fn send(way: &mut LogWay<E>, end: LogPosition) -> Result<(), WayError> {
        let LogWay { endpoint, sender } = way;
        let sent = sender.send_to(endpoint, end);
        block_on(sent, endpoint.completions())
    }

    fn send_base(
        &self,
        engine: &Engine,
        (way, member): (&mut IndexWay<E>, &Member<E>),
        (base, epoch): (&Base, Epoch),
    ) -> Result<(), ShipError> {
        let begin = Request::Begin {
            version: VERSION,
            epoch: epoch.0,
            engine: base.engine,
            index: self.index,
        };
        if !way.is_unused()? {
            return Err(IndexWayError::Used.into());
        }
        match ask(way, member, &begin)? {
            Reply::Begun { has_previous: true } => offer_base(engine, (way, member), base)?,
            Reply::Begun { .. } => send_pieces(engine, (way, member), base)?,
            other => return Err(unexpected(other)),
        }
        let end = BaseEnd {
            next_log: base.next_log,
            read_from: base.read_from,
            next_tree: base.next_tree,
            edit_count: base.edit_count,
        };
        call(way, member, &Request::Finish(end))
    }
}

/// Sends all of a base.
fn send_pieces<E: Endpoint>(
    engine: &Engine,
    (way, member): (&mut IndexWay<E>, &Member<E>),
    base: &Base,
) -> Result<(), ShipError> {
    let mut bytes = Vec::new();
    let mut extents = Extents::new(base.engine, base.read_from);
    for (number, end) in &base.log {
        engine.log().read_raw(number.start(), &mut bytes)?;
        let counted_size_bytes = extents.size_of(*number, *end, &bytes);
        keep_counted(&mut bytes, counted_size_bytes);
        let request = Request::LogSegment {
            number: *number,
            end: *end,
            size_bytes: bytes.len() as u32,
        };
        put(way, member, &bytes, &request)?;
    }
    for (level, tree) in &base.trees {
        send_tree(way, member, tree)?;
        let request = Request::Tree {
            level: *level,
            id: tree.id(),
            shape: tree.shape(),
        };
        call(way, member, &request)?;
    }
    Ok(())
}
