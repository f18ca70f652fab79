//! Checks that the name of the table that is created and dropped behaves like one register, whose
//! value is the number of the table.

use std::collections::BTreeSet;

use super::Violation;
use super::linearizability::{Attempt, Effect, KeyEvent, is_linearizable};
use crate::history::{Answer, Event, History, Operation};

/// Above the number of tables of any run: numbers from here on stand for tables that no client saw.
const UNSEEN_TABLE_NUMBER: u64 = 1 << 40;

/// Checks the operations on the catalog.
pub fn check(history: &History) -> Option<Violation> {
    let on_catalog: Vec<&Event> = history
        .events
        .iter()
        .filter(|event| event.table.is_none())
        .collect();
    let created = ids(&on_catalog, |answer| match answer {
        Answer::Created(id) => Some(*id),
        _ => None,
    });
    let opened = ids(&on_catalog, |answer| match answer {
        Answer::Opened(id) => Some(*id),
        _ => None,
    });
    let unclaimed: Vec<u64> = opened.difference(&created).copied().collect();
    let unanswered = on_catalog
        .iter()
        .filter(|event| matches!(event.operation, Operation::Create(_)) && is_unknown(event));
    let mut makers = vec![None; unanswered.count()];
    if unclaimed.len() <= makers.len() && fits(&on_catalog, &unclaimed, &mut makers) {
        return None;
    }
    let lines = on_catalog.iter().map(|event| {
        let (operation, answer) = (&event.operation, &event.answer);
        let (called, answered) = (event.called, event.answered_by());
        format!("\n      {called}..{answered} {operation:?} -> {answer:?}")
    });
    let lines: String = lines.collect();
    let how = format!("the operations on the catalog are not linearizable:{lines}");
    Some(Violation::new("catalog", how))
}

fn ids(events: &[&Event], id: impl Fn(&Answer) -> Option<u32>) -> BTreeSet<u64> {
    let answers = events.iter().filter_map(|event| event.answer.as_ref());
    answers.filter_map(id).map(u64::from).collect()
}

fn is_unknown(event: &Event) -> bool {
    event.is_unknown() || event.made_what_was_dropped()
}

/// Returns whether unanswered creations can have made the opened tables that no answered creation
/// made, one each. `makers`: the table that each of those creations made.
fn fits(events: &[&Event], unclaimed: &[u64], makers: &mut [Option<u64>]) -> bool {
    let Some((id, rest)) = unclaimed.split_first() else {
        return is_linearizable(&key_events(events, makers), None);
    };
    for maker in 0..makers.len() {
        if makers[maker].is_some() {
            continue;
        }
        makers[maker] = Some(*id);
        if fits(events, rest, makers) {
            return true;
        }
        makers[maker] = None;
    }
    false
}

fn key_events(events: &[&Event], makers: &[Option<u64>]) -> Vec<KeyEvent> {
    let mut unanswered = 0;
    let key_event = |event: &&Event| {
        let attempt = match event.operation {
            Operation::Create(_) => {
                let unseen = UNSEEN_TABLE_NUMBER + unanswered as u64;
                let maker = makers.get(unanswered).copied().flatten();
                unanswered += usize::from(is_unknown(event));
                Some(Attempt::Insert(maker.unwrap_or(unseen)))
            }
            Operation::Drop => Some(Attempt::Delete),
            _ => None,
        };
        let effect = match event.answer.as_ref() {
            Some(Answer::Created(id)) => Effect::Change {
                from: None,
                to: Some((*id).into()),
            },
            Some(Answer::Exists) => Effect::Found,
            Some(Answer::Opened(id)) => Effect::Read(Some((*id).into())),
            Some(Answer::Absent) => Effect::Read(None),
            Some(Answer::Dropped) => Effect::Removed,
            _ if is_unknown(event) => Effect::Perhaps(attempt?),
            // The answer says that nothing has changed.
            _ => return None,
        };
        let answered = match effect {
            Effect::Perhaps(_) if !event.made_what_was_dropped() => u64::MAX,
            _ => event.answered_by(),
        };
        Some(KeyEvent {
            called: event.called,
            answered,
            effect,
        })
    };
    events.iter().filter_map(key_event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::TableShape;
    use farleaf_index::LayerKind;

    fn create() -> Operation {
        Operation::Create(TableShape {
            layer: LayerKind::Learned,
            slots: 8,
            fill_percent: 75,
            pages: None,
        })
    }

    fn is_refused(operations: &[(Operation, Option<Answer>)]) -> bool {
        let mut history = History::default();
        for (operation, answer) in operations {
            let call = history.call(0, operation.clone(), None, None);
            if let Some(answer) = answer {
                history.answer(call, answer.clone());
            }
        }
        check(&history).is_some()
    }

    /// Promise: answers that no order explains are found: a name with two tables, a lost table, a
    /// table that comes back.
    #[test]
    fn answers_that_contradict_each_other_are_found() {
        use Operation::{Drop, Open};
        let created = |id| (create(), Some(Answer::Created(id)));
        let opened = |id| (Open, Some(Answer::Opened(id)));
        let dropped = (Drop, Some(Answer::Dropped));
        let absent = (Open, Some(Answer::Absent));
        assert!(!is_refused(&[
            created(2),
            opened(2),
            dropped.clone(),
            absent.clone()
        ]));
        assert!(!is_refused(&[
            absent.clone(),
            created(2),
            (create(), Some(Answer::Exists))
        ]));
        assert!(is_refused(&[created(2), created(3)]), "two at once");
        assert!(is_refused(&[created(2), absent.clone()]), "lost");
        assert!(
            is_refused(&[created(2), dropped.clone(), opened(2)]),
            "back again"
        );
        assert!(
            is_refused(&[(create(), Some(Answer::Exists))]),
            "never made"
        );
        assert!(is_refused(&[opened(2)]), "from nowhere");
        assert!(is_refused(&[created(2), dropped.clone(), dropped]), "twice");
    }

    /// Promise: a creation without an answer may have made one table that others open.
    #[test]
    fn a_creation_without_answer_explains_one_table() {
        use Operation::{Drop, Open};
        let unknown = (create(), Some(Answer::Unknown(String::new())));
        let opened = |id| (Open, Some(Answer::Opened(id)));
        let dropped = (Drop, Some(Answer::Dropped));
        assert!(!is_refused(&[unknown.clone(), opened(2), dropped.clone()]));
        assert!(!is_refused(&[
            (create(), None),
            (Open, Some(Answer::Absent))
        ]));
        let twice = [unknown.clone(), opened(2), dropped, opened(3)];
        assert!(is_refused(&twice));
        let mut two = vec![unknown];
        two.extend(twice);
        assert!(!is_refused(&two));
    }
}
