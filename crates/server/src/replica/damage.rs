//! Damage that all copies of a region have, as far as is known (RS8): no replica gives up because
//! of it, as the next one would meet the same.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farleaf_lsm::LsmError;
use farleaf_lsm::place::LogNumber;

/// Which segments of the log are damaged wherever the region is. In memory alone: a replica that is
/// opened again gives up once more, if there is another one, and the last one knows it then.
#[derive(Debug, Default)]
pub(crate) struct SharedDamage {
    /// And whether it was collected since: then nothing is damaged any more, which is what is told
    /// of it; a read that began before may still meet it, and is no reason to give up.
    segments: Mutex<BTreeMap<LogNumber, bool>>,
}

impl SharedDamage {
    fn segments(&self) -> MutexGuard<'_, BTreeMap<LogNumber, bool>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These, and no others.
    pub(crate) fn replace(&self, segments: impl IntoIterator<Item = LogNumber>) {
        *self.segments() = segments.into_iter().map(|it| (it, false)).collect();
    }

    /// All of them that are there still, as far as is known.
    pub(crate) fn all(&self) -> Vec<LogNumber> {
        let segments = self.segments();
        let there = segments.iter().filter(|(_, is_collected)| !**is_collected);
        there.map(|(number, _)| *number).collect()
    }

    /// Looks which of them the log has still. Costs nothing where nothing is damaged.
    pub(crate) fn note_collected(&self, has: impl Fn(LogNumber) -> bool) {
        for (number, is_collected) in &mut *self.segments() {
            *is_collected = *is_collected || !has(*number);
        }
    }

    /// Whether what was damaged there, everywhere, was collected since.
    pub(crate) fn is_collected(&self, segment: Option<LogNumber>) -> bool {
        segment.is_some_and(|segment| self.segments().get(&segment) == Some(&true))
    }

    /// Whether what is damaged there is so everywhere.
    pub(crate) fn has(&self, error: &LsmError) -> bool {
        segment_of(error).is_some_and(|segment| self.segments().contains_key(&segment))
    }

    /// The same, of a failure that was noted.
    pub(crate) fn has_segment(&self, segment: Option<LogNumber>) -> bool {
        segment.is_some_and(|segment| self.segments().contains_key(&segment))
    }

    /// In words, if there is any.
    pub(crate) fn text(&self) -> Option<String> {
        let segments = self.all();
        let numbers: Vec<_> = segments.iter().map(|it| it.0.to_string()).collect();
        let plural = if numbers.len() == 1 { "" } else { "s" };
        (!numbers.is_empty()).then(|| {
            format!(
                "the log is damaged in segment{plural} {} of it, as the one was that it was filled \
                 from, when no other replica had everything",
                numbers.join(", ")
            )
        })
    }
}

/// The segment of the log that is damaged, if it is the log's damage.
pub(crate) fn segment_of(error: &LsmError) -> Option<LogNumber> {
    match error {
        LsmError::DamagedLog { position, .. } => Some(position.number()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use farleaf_lsm::place::{LogPosition, SEGMENT_SIZE_BYTES, TreeId};

    use super::*;

    /// Promise: damage is known to be everywhere by its segment of the log; that of trees never is.
    #[test]
    fn damage_is_known_by_its_segment() {
        let shared = SharedDamage::default();
        let at = |position| LsmError::DamagedLog {
            position: LogPosition(position),
            how: String::new(),
        };
        assert!(!shared.has(&at(7)) && shared.text().is_none());
        shared.replace([LogNumber(0)]);
        assert!(shared.has(&at(7)) && shared.has(&at(SEGMENT_SIZE_BYTES - 1)));
        assert!(!shared.has(&at(SEGMENT_SIZE_BYTES)));
        let tree = LsmError::DamagedTree {
            tree: TreeId(1),
            block: 0,
            how: String::new(),
        };
        assert!(!shared.has(&tree) && !shared.has_segment(None));
        let text = shared.text().expect("there is some");
        assert!(text.starts_with("the log is damaged in segment 0 of it"));
        shared.replace([]);
        assert!(!shared.has(&at(7)));
    }

    /// Promise: of a segment that was collected nothing is told any more, and what a late read met
    /// in it is still no reason to give up; when segments are found anew, it counts for nothing.
    #[test]
    fn what_was_collected_is_not_told() {
        let shared = SharedDamage::default();
        let (first, second) = (LogNumber(1), LogNumber(2));
        shared.replace([first, second]);
        shared.note_collected(|_| true);
        assert_eq!(shared.all(), [first, second]);
        shared.note_collected(|number| number == second);
        assert_eq!(shared.all(), [second]);
        let text = shared.text().expect("there is some");
        assert!(text.contains("in segment 2 of it"), "{text}");
        assert!(shared.is_collected(Some(first)) && shared.has_segment(Some(first)));
        assert!(!shared.is_collected(Some(second)) && !shared.is_collected(None));
        shared.note_collected(|_| false);
        assert!(shared.text().is_none());
        shared.replace([second]);
        assert!(!shared.has_segment(Some(first)) && !shared.is_collected(Some(second)));
    }
}
