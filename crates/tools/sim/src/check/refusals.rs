//! Checks that operations fail only for an actual reason. A failed operation changes nothing, so no
//! other check would notice that it should have succeeded.
//!
//! | error | must have happened before its answer |
//! |---|---|
//! | table dropped | a drop that may have found the table; never for the permanent table (LEAF-7) |
//! | session unknown | the loss of the node |
//! | session broken | a fault of the client (FABRIC-6) |
//! | table not empty | an operation that may have filled the table |
//!
//! "Pool full" is accepted without a check.

use super::Violation;
use crate::history::{Answer, Event, History, MAIN_TABLE, Refusal};

/// Checks all errors of a history. `is_filled`: whether a table had records before the history.
pub fn check(history: &History, is_filled: impl Fn(u32) -> bool) -> Vec<Violation> {
    let refused = history.events.iter().filter_map(|event| {
        let Some(Answer::Nothing(refusal)) = event.answer else {
            return None;
        };
        let why = unfounded(history, event, refusal, &is_filled)?;
        let how = format!(
            "client {} got {refusal:?} from {:x?} on {:?} at {}..{}, but {why}",
            event.client,
            event.operation,
            event.table,
            event.called,
            event.answered_by()
        );
        Some(Violation::new("refusals", how))
    });
    refused.collect()
}

/// Returns why an error has no reason, or `None`.
fn unfounded(
    history: &History,
    event: &Event,
    refusal: Refusal,
    is_filled: &impl Fn(u32) -> bool,
) -> Option<&'static str> {
    let by = event.answered_by();
    let is_before = |moment: Option<u64>| moment.is_some_and(|moment| moment < by);
    match refusal {
        Refusal::TableDropped if event.made_what_was_dropped() => {
            let may_drop = |other: &Event| {
                let is_late = other.answered.is_some_and(|moment| moment < event.called);
                other.called < by && !is_late && other.may_have_dropped()
            };
            (!history.events.iter().any(may_drop)).then_some("no table was dropped in this time")
        }
        Refusal::TableDropped => {
            let Some(table) = event.table else {
                return Some("the operation is on the catalog");
            };
            let may_drop = |other: &Event| may_have_dropped(history, other, table);
            let mut others = history.events.iter();
            (!others.any(|other| other.called < by && may_drop(other)))
                .then_some("the table was not dropped before")
        }
        Refusal::SessionUnknown => {
            (!is_before(history.lost)).then_some("the node had not lost its memory")
        }
        Refusal::SessionBroken => {
            let befallen = history.befallen.get(&event.client).copied();
            (!is_before(befallen)).then_some("the client had no fault before")
        }
        Refusal::TableNotEmpty => {
            let Some(table) = event.table else {
                return Some("the operation is on the catalog");
            };
            let may_fill = |other: &Event| {
                let is_other = !std::ptr::eq(other, event) && other.called < by;
                is_other && other.table == Some(table) && other.operation.on_table().can_fill()
            };
            (!is_filled(table) && !history.events.iter().any(may_fill))
                .then_some("no client had written to the table")
        }
        Refusal::Full => None,
    }
}

/// Returns whether a drop may have dropped this table. No client creates the permanent table. A
/// table whose creation has no answer may have been created by any such operation.
fn may_have_dropped(history: &History, event: &Event, table: u32) -> bool {
    if !event.may_have_dropped() {
        return false;
    }
    let by = match event.answer {
        Some(Answer::Dropped) => event.answered_by(),
        _ => u64::MAX,
    };
    history
        .events
        .iter()
        .any(|maker| maker.may_have_made(table) && maker.called < by && table != MAIN_TABLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Operation, TableShape};
    use farleaf_index::LayerKind;

    const CREATE: Operation = Operation::Create(TableShape {
        layer: LayerKind::Learned,
        slots: 8,
        fill_percent: 75,
        pages: None,
    });

    type EventFields = (u32, Operation, Option<u32>, Option<Answer>);

    fn record(history: &mut History, events: &[EventFields]) {
        for (client, operation, table, answer) in events {
            let call = history.call(*client, operation.clone(), *table, None);
            if let Some(answer) = answer {
                history.answer(call, answer.clone());
            }
        }
    }

    fn is_believed(history: &History) -> bool {
        check(history, |_| false).is_empty()
    }

    fn get(table: u32, refusal: Refusal) -> EventFields {
        let other = Operation::Other(Box::new(Operation::Get(1)));
        (0, other, Some(table), Some(Answer::Nothing(refusal)))
    }

    /// Promise: a table is reported as dropped only after a drop that may have been its own.
    #[test]
    fn a_drop_must_have_been_called() {
        let dropped = || Some(Answer::Dropped);
        let created = |id| (1, CREATE, None, Some(Answer::Created(id)));
        let drop_told = |answer| (1, Operation::Drop, None, answer);
        let refusal = get(2, Refusal::TableDropped);
        let of = |events: &[EventFields]| {
            let mut history = History::default();
            record(&mut history, events);
            is_believed(&history)
        };
        assert!(of(&[created(2), drop_told(dropped()), refusal.clone()]));
        assert!(of(&[created(2), drop_told(None), refusal.clone()]));
        let unknown = (1, CREATE, None, None);
        assert!(of(&[unknown, drop_told(dropped()), refusal.clone()]));
        assert!(!of(&[created(2), refusal.clone()]), "nobody dropped it");
        let late = [created(2), refusal.clone(), drop_told(dropped())];
        assert!(!of(&late), "it was dropped later");
        let absent = drop_told(Some(Answer::Absent));
        assert!(!of(&[created(2), absent, refusal.clone()]), "it found none");
        let before = [created(3), drop_told(dropped()), created(2), refusal];
        assert!(!of(&before), "it was of another table");
        let main = get(MAIN_TABLE, Refusal::TableDropped);
        let all = [created(2), drop_told(dropped()), main];
        assert!(!of(&all), "the main table stays");
    }

    /// Promise: a created table is reported as dropped only if a drop overlapped or followed its
    /// creation.
    #[test]
    fn a_creation_meets_a_drop() {
        let of = |events: &[EventFields]| {
            let mut history = History::default();
            record(&mut history, events);
            is_believed(&history)
        };
        let completed = (
            0,
            CREATE,
            None,
            Some(Answer::Nothing(Refusal::TableDropped)),
        );
        assert!(
            !of(std::slice::from_ref(&completed)),
            "nobody dropped anything"
        );
        let drop_told = |answer| (1, Operation::Drop, None, answer);
        assert!(
            !of(&[drop_told(Some(Answer::Dropped)), completed.clone()]),
            "it was over"
        );
        assert!(of(&[drop_told(None), completed]), "it may go on");
    }

    /// Promise: a session is unknown only after the node has lost its memory, and broken only after
    /// a fault of its client.
    #[test]
    fn sessions_end_for_a_reason() {
        let refusals = [Refusal::SessionUnknown, Refusal::SessionBroken];
        for refusal in refusals {
            let mut history = History::default();
            record(&mut history, &[get(1, refusal)]);
            assert!(!is_believed(&history), "{refusal:?}");
            history.record_fault(0);
            history.lose_node();
            assert!(!is_believed(&history), "{refusal:?}: later");
            history.events.clear();
            record(&mut history, &[get(1, refusal)]);
            assert!(is_believed(&history), "{refusal:?}");
        }
        let mut history = History::default();
        history.record_fault(1);
        record(&mut history, &[get(1, Refusal::SessionBroken)]);
        assert!(!is_believed(&history), "it befell another");
    }

    /// Promise: a table is reported as not empty only if an operation may have filled the same
    /// table before.
    #[test]
    fn what_is_not_empty_was_filled() {
        let load = || Operation::Load(vec![(1, 1)]);
        let refused = (
            0,
            load(),
            Some(1),
            Some(Answer::Nothing(Refusal::TableNotEmpty)),
        );
        let of = |operation: Operation, table| {
            let mut history = History::default();
            let events = [(1, operation, Some(table), None), refused.clone()];
            record(&mut history, &events);
            history
        };
        assert!(is_believed(&of(Operation::Put(1, 1), 1)));
        assert!(is_believed(&of(load(), 1)));
        assert!(!is_believed(&of(Operation::Put(1, 1), 2)), "another table");
        assert!(
            !is_believed(&of(Operation::Delete(1), 1)),
            "that fills nothing"
        );
        let empty = of(Operation::Get(1), 1);
        assert!(!is_believed(&empty));
        assert!(
            check(&empty, |table| table == 1).is_empty(),
            "it was full before"
        );
    }
}
