//! Checks lists of tables: a list contains every table that existed throughout the call, and none
//! that existed at no moment of it.
//!
//! A list is one READ of the whole catalog, whose words are loaded at arbitrary moments (FABRIC-3).
//! A list may show a table that was dropped meanwhile beside the next of its name, or neither.

use std::collections::BTreeSet;

use super::Violation;
use crate::history::{Answer, Event, History, MAIN_TABLE, Operation};
use crate::node::TABLE_NAME;
use crate::session::OTHER_NAME;

/// Checks every list of a history.
pub fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    for event in &history.events {
        let Some(Answer::Listed(tables)) = &event.answer else {
            continue;
        };
        let wrong = wrong_names(tables)
            .into_iter()
            .chain(wrong_tables(history, event, tables));
        violations.extend(wrong.map(|how| {
            let (called, answered) = (event.called, event.answered_by());
            let how = format!("{called}..{answered} listed {tables:?}: {how}");
            Violation::new("lists", how)
        }));
    }
    violations
}

fn wrong_names(tables: &[(String, u32)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let ids: BTreeSet<u32> = tables.iter().map(|(_, id)| *id).collect();
    if ids.len() != tables.len() {
        wrong.push("a table is listed twice".to_owned());
    }
    if !ids.contains(&MAIN_TABLE) {
        wrong.push("the permanent table is not listed".to_owned());
    }
    for (name, id) in tables {
        let expected = if *id == MAIN_TABLE {
            TABLE_NAME
        } else {
            OTHER_NAME
        };
        if name != expected {
            wrong.push(format!("the name of table {id} is {expected:?}"));
        }
    }
    wrong
}

fn wrong_tables(history: &History, list: &Event, tables: &[(String, u32)]) -> Vec<String> {
    let answered = list.answered_by();
    let listed = |id: u32| tables.iter().any(|(_, listed)| *listed == id);
    let mut wrong = Vec::new();
    for (_, id) in tables.iter().filter(|(_, id)| *id != MAIN_TABLE) {
        let mut events = history.events.iter();
        if !events.any(|event| event.called < answered && event.may_have_made(*id)) {
            wrong.push(format!("table {id} was never created"));
        }
        if is_gone_by(history, *id, list.called) {
            wrong.push(format!("table {id} was dropped before the listing"));
        }
    }
    for event in &history.events {
        let Some(Answer::Created(id)) = event.answer else {
            continue;
        };
        let was_there = event.answered.is_some_and(|moment| moment < list.called);
        let may_be_gone = history.events.iter().any(|other| {
            other.may_have_dropped() && other.called < answered && ended(other) > event.called
        });
        if was_there && !may_be_gone && !listed(id) {
            wrong.push(format!("table {id} existed throughout but is not listed"));
        }
    }
    wrong
}

/// Returns the moment after which an operation cannot take effect anymore.
fn ended(event: &Event) -> u64 {
    if event.is_unknown() {
        u64::MAX
    } else {
        event.answered_by()
    }
}

/// Returns whether a table was certainly dropped before a moment. That is so if, after a client has
/// learned that the table exists, a drop of "the" table has ended, or a client finds no table or
/// another one of its name.
fn is_gone_by(history: &History, id: u32, moment: u64) -> bool {
    let known_since = history.events.iter().filter(|event| {
        matches!(event.answer, Some(Answer::Created(known) | Answer::Opened(known)) if known == id)
    });
    let Some(known_since) = known_since.filter_map(|event| event.answered).min() else {
        return false;
    };
    history.events.iter().any(|event| {
        let tells = match event.answer {
            Some(Answer::Dropped) => event.operation == Operation::Drop,
            Some(Answer::Absent) => true,
            Some(Answer::Created(other) | Answer::Opened(other)) => other != id,
            _ => false,
        };
        let is_between = event.called > known_since && ended(event) < moment;
        tells && is_between && event.table.is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::TableShape;
    use farleaf_index::LayerKind;

    const CREATE: Operation = Operation::Create(TableShape {
        layer: LayerKind::Learned,
        slots: 8,
        fill_percent: 75,
        pages: None,
    });

    fn is_believed(events: &[(Operation, Option<Answer>)]) -> bool {
        let mut history = History::default();
        for (operation, answer) in events {
            let call = history.call(0, operation.clone(), None, None);
            if let Some(answer) = answer {
                history.answer(call, answer.clone());
            }
        }
        check(&history).is_empty()
    }

    fn listed(ids: &[u32]) -> (Operation, Option<Answer>) {
        let name = |id: u32| if id == 1 { TABLE_NAME } else { OTHER_NAME };
        let tables = ids.iter().map(|id| (name(*id).to_owned(), *id));
        (Operation::List, Some(Answer::Listed(tables.collect())))
    }

    /// Promise: a list contains all tables that exist, and no others.
    #[test]
    fn lists_tell_what_is_there() {
        let created = |id| (CREATE, Some(Answer::Created(id)));
        let dropped = || (Operation::Drop, Some(Answer::Dropped));
        let absent = || (Operation::Open, Some(Answer::Absent));
        assert!(is_believed(&[listed(&[1]), created(2), listed(&[1, 2])]));
        assert!(is_believed(&[created(2), dropped(), listed(&[1])]));
        assert!(is_believed(&[
            (CREATE, None),
            listed(&[1, 2]),
            listed(&[1])
        ]));
        let unknown_drop = (Operation::Drop, Some(Answer::Unknown(String::new())));
        assert!(is_believed(&[
            created(2),
            unknown_drop.clone(),
            listed(&[1])
        ]));
        assert!(is_believed(&[created(2), unknown_drop, listed(&[1, 2])]));
        assert!(!is_believed(&[listed(&[])]), "the main table is missing");
        assert!(!is_believed(&[created(2), listed(&[1])]), "2 is missing");
        assert!(
            !is_believed(&[listed(&[1, 2]), created(2)]),
            "2 is not yet there"
        );
        let back = [created(2), dropped(), listed(&[1, 2])];
        assert!(!is_believed(&back), "2 was dropped");
        let gone = [
            created(2),
            (Operation::Drop, None),
            absent(),
            listed(&[1, 2]),
        ];
        assert!(!is_believed(&gone), "2 was seen to be gone");
        let next = [
            created(2),
            (Operation::Drop, None),
            created(3),
            listed(&[1, 2, 3]),
        ];
        assert!(!is_believed(&next), "3 has its name");
        assert!(!is_believed(&[listed(&[1, 1])]), "twice");
    }

    /// Promise: tables that may be created or dropped during the call may be listed or not.
    #[test]
    fn what_changes_meanwhile_may_be_listed_or_not() {
        for ids in [&[1][..], &[1, 2], &[1, 2, 3], &[1, 3]] {
            let mut history = History::default();
            let create = history.call(0, CREATE, None, None);
            history.answer(create, Answer::Created(2));
            let list = history.call(1, Operation::List, None, None);
            let dropping = history.call(0, Operation::Drop, None, None);
            history.answer(dropping, Answer::Dropped);
            let create = history.call(0, CREATE, None, None);
            history.answer(create, Answer::Created(3));
            history.answer(list, listed(ids).1.expect("an answer"));
            assert_eq!(check(&history), [], "{ids:?}");
        }
    }
}
