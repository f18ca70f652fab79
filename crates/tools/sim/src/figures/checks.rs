//! Checks of a file of experiments; each error names the key and the permitted values.

use crate::display;

/// Refuses a number that is not in `from` to `to`.
pub(super) fn within(key: &str, value: f64, from: f64, to: f64) -> Result<(), String> {
    if (from..=to).contains(&value) {
        return Ok(());
    }
    let value = display::number(value);
    Err(format!("{key} = {value}: must be from {from} to {to}"))
}

/// Refuses a value without a source.
pub(super) fn sourced(key: &str, source: &str) -> Result<(), String> {
    if (1..=1000).contains(&source.trim().chars().count()) {
        return Ok(());
    }
    Err(format!(
        "{key}: its source must have 1 to 1000 characters; state where the number comes from or \
         how it was estimated"
    ))
}

/// Refuses a list with duplicates.
pub(super) fn distinct<T: std::fmt::Debug>(key: &str, list: &[T]) -> Result<(), String> {
    let texts: Vec<String> = list.iter().map(|it| format!("{it:?}")).collect();
    distinct_texts(key, &texts)
}

/// Refuses a list whose entries, as texts for debugging, have duplicates.
pub(super) fn distinct_texts(key: &str, list: &[String]) -> Result<(), String> {
    let mut entries = list.iter().enumerate();
    match entries.find(|(index, it)| list[..*index].contains(it)) {
        None => Ok(()),
        Some((_, it)) => {
            let it = display::text(it.trim_matches('"'));
            Err(format!("{key}: {it} is listed twice; remove one"))
        }
    }
}

/// Refuses numbers of slots that leaves cannot have.
pub(super) fn slots(key: &str, value: u64) -> Result<(), String> {
    match value {
        8 | 12 | 16 => Ok(()),
        _ => Err(format!("{key} = {value}: must be 8, 12 or 16")),
    }
}
