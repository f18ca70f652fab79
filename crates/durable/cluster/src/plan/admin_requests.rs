//! What administrators want: begun, or refused with the reason.

use super::{Action, Planner, Step, load};
use crate::coordinator::{Compare, Transaction};
use crate::ids::ServerId;
use crate::record::region::{Key, REPLICA_COUNT_MAX};
use crate::record::room::low_below_bytes;
use crate::record::server::{FAILURE_SIZE_BYTES_MAX, cut};
use crate::record::{Phase, Record, RegionRecord, Room, Wish, WishAnswer, WishKind, wish_key};
use crate::view::Seen;

/// So many answers are kept for those who asked.
const ANSWER_COUNT_MAX: usize = 64;

/// What a wish comes to: a record to write with more beside it, or why not.
type Begun = Result<(Action, RegionRecord, Transaction), String>;

impl Planner<'_> {
    /// Looks at all wishes that have no answer.
    pub(super) fn wishes(&mut self) {
        for (number, wish) in &self.view.wishes {
            if wish.record.answer.is_none() {
                self.wish(*number, wish);
            }
        }
        self.forget_answers();
    }

    /// Answers that nobody reads go, the oldest first.
    fn forget_answers(&mut self) {
        let wishes = self.view.wishes.iter();
        let mut answered: Vec<_> = wishes
            .filter(|(_, it)| it.record.answer.is_some())
            .collect();
        answered.sort_by_key(|(_, wish)| wish.modified);
        let surplus = answered.len().saturating_sub(ANSWER_COUNT_MAX);
        for (number, wish) in answered.into_iter().take(surplus) {
            let (table, region) = wish.record.kind.region();
            let key = wish_key(*number);
            self.plan.steps.push(Step {
                action: Action::ForgetAnswer,
                table,
                region: Some(region),
                transaction: Transaction::new()
                    .when(Compare::Modified(key.clone(), wish.modified))
                    .delete(key),
            });
        }
    }

    fn wish(&mut self, number: u64, wish: &Seen<Wish>) {
        let (table, region) = wish.record.kind.region();
        if self.busy.contains(&region) {
            return; // The next plan looks at it.
        }
        let seen = self.view.regions.get(&region);
        let Some(seen) = seen.filter(|it| it.record.table == table) else {
            return self.refuse(number, wish, format!("there is no {region} in {table}"));
        };
        let is_dropping = (self.view.tables.get(&table)).is_some_and(|table| table.record.dropping);
        if is_dropping {
            return self.refuse(number, wish, format!("{table} is being dropped"));
        }
        match self.begin(&wish.record.kind, &seen.record) {
            Err(why) => self.refuse(number, wish, why),
            Ok((action, record, more)) => {
                let answered = answer(number, wish, WishAnswer::Begun, more);
                self.step_with(action, seen, &record, answered);
            }
        }
    }

    fn refuse(&mut self, number: u64, wish: &Seen<Wish>, why: String) {
        let why = cut(why, FAILURE_SIZE_BYTES_MAX);
        let (table, region) = wish.record.kind.region();
        let refused = WishAnswer::Refused(why.clone());
        let transaction = answer(number, wish, refused, Transaction::new());
        self.plan.steps.push(Step {
            action: Action::Refuse(why),
            table,
            region: Some(region),
            transaction,
        });
    }

    fn begin(&mut self, kind: &WishKind, record: &RegionRecord) -> Begun {
        if let WishKind::GiveUp { servers, .. } = kind {
            let record = self.given_up(record, servers)?;
            return Ok((Action::GiveUp, record, Transaction::new()));
        }
        if record.phase != Phase::Steady {
            return Err(format!("something is being done already: {}", record.phase));
        }
        if self.primary_report(record).is_none() {
            return Err("nobody serves the region now".to_owned());
        }
        let opened = RegionRecord {
            is_new: false,
            ..record.clone()
        };
        match kind {
            WishKind::Split { at, .. } => self.begin_split(opened, at),
            WishKind::Move { from, to, .. } => self.begin_move(opened, *from, *to),
            WishKind::GiveUp { .. } => unreachable!("it is done above"),
        }
    }

    fn begin_split(&self, mut record: RegionRecord, at: &Key) -> Begun {
        if *at <= record.from || !record.covers(&at.0) {
            return Err(format!(
                "{at} is not within the region, behind its first key"
            ));
        }
        let (child, more) = self.draw_region()?;
        record.phase = Phase::Splitting {
            at: at.clone(),
            child,
        };
        Ok((Action::BeginSplit, record, more))
    }

    fn begin_move(&mut self, mut record: RegionRecord, from: ServerId, to: ServerId) -> Begun {
        let leaving = record
            .replica_on(from)
            .ok_or_else(|| format!("{from} has no replica of the region"))?;
        if let Some(there) = record.replica_on(to) {
            let is_primary = record.primary == Some(leaving);
            let in_sync = record.backup(there.number).is_some_and(|it| it.in_sync);
            if !is_primary || !in_sync {
                return Err(format!("{to} has a replica of the region already"));
            }
            if !self.is_usable(&record, there) {
                return Err(format!("{to} is lost, and cannot take the region over"));
            }
            if self.view.room_of(to) == Room::Full {
                return Err(self.no_room(to));
            }
            record.phase = Phase::HandingOver {
                to: there.number,
                old_leaves: false,
            };
            return Ok((Action::BeginHandOver, record, Transaction::new()));
        }
        if self.view.drains.contains(&to) || !self.view.servers.contains_key(&to) {
            return Err(format!("{to} is not there, or is being drained"));
        }
        if record.replicas().count() >= REPLICA_COUNT_MAX {
            return Err("the region has as many replicas as there can be".to_owned());
        }
        if !self
            .loads
            .has_room(to, load::size_bytes(self.view, &record))
        {
            return Err(self.no_room(to));
        }
        let arriving = self.add_backup_on(&mut record, to);
        let arriving = arriving.ok_or_else(|| format!("{to} is not there"))?;
        record.phase = Phase::Moving {
            leaving: leaving.number,
            arriving: arriving.number,
        };
        let size_bytes = load::size_bytes(self.view, &record);
        tracing::debug!(
            size_bytes,
            "{} is to move from {from} to {to}",
            record.region
        );
        Ok((Action::BeginMove(to), record, Transaction::new()))
    }
}

impl Planner<'_> {
    /// CP22: why a server gets nothing.
    fn no_room(&self, server: ServerId) -> String {
        let report = self.view.server_report(server);
        let capacity = report.map_or(0, |report| report.capacity_bytes);
        let free = report.and_then(|report| report.free_bytes).unwrap_or(0);
        format!(
            "{server} has no room for it: {free} of {capacity} bytes are free, and {} are to be \
             then, too; make room on its disk, or enlarge it",
            low_below_bytes(capacity)
        )
    }
}

/// A transaction that answers a wish, too, if nobody has.
fn answer(number: u64, wish: &Seen<Wish>, answer: WishAnswer, more: Transaction) -> Transaction {
    let answered = Wish {
        answer: Some(answer),
        ..wish.record.clone()
    };
    more.when(Compare::Modified(wish_key(number), wish.modified))
        .put(wish_key(number), answered.encode())
}
