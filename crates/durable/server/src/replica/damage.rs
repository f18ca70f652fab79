//! Damage that all copies of a region have, as far as is known (RS8): no replica gives up because
//! of it, as the next one would meet the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farleaf_lsm::LsmError;
use farleaf_lsm::place::LogNumber;
use farleaf_replica::BackupId;

/// Which segments of the log are damaged wherever the region is. In memory alone: a replica that is
/// opened again gives up once more, if there is another one, and the last one knows it then.
#[derive(Debug, Default)]
pub(crate) struct SharedDamage {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    lists: Lists,
    /// What was collected since: nothing is damaged there any more, which is what is told of it; a
    /// read that began before may still meet it, and is no reason to give up.
    collected: BTreeSet<LogNumber>,
}

/// What is damaged in each other copy: of a primary, in that of each backup; of a backup, under no
/// number, in its primary's when it was filled.
type Lists = BTreeMap<Option<BackupId>, BTreeSet<LogNumber>>;

impl Known {
    fn everywhere(&self) -> BTreeSet<LogNumber> {
        let mut lists = self.lists.values();
        let mut all = lists.next().cloned().unwrap_or_default();
        for list in lists {
            all.retain(|segment| list.contains(segment));
        }
        all
    }
}

impl SharedDamage {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a backup's copy has of it, as far as its primary knows.
    pub(crate) fn note(&self, backup: BackupId, segments: &BTreeSet<LogNumber>) {
        let lists = &mut self.known().lists;
        lists.remove(&None);
        lists.insert(Some(backup), segments.clone());
    }

    /// A backup is there no more.
    pub(crate) fn forget(&self, backup: BackupId) {
        self.known().lists.remove(&Some(backup));
    }

    /// What its primary has told to a backup of what it has.
    pub(crate) fn replace(&self, segments: impl IntoIterator<Item = LogNumber>) {
        *self.known() = Known {
            lists: [(None, segments.into_iter().collect())].into(),
            collected: BTreeSet::new(),
        };
    }

    /// What is damaged in all other copies that are known, and is there still.
    pub(crate) fn all(&self) -> BTreeSet<LogNumber> {
        let known = self.known();
        let everywhere = known.everywhere();
        everywhere.difference(&known.collected).copied().collect()
    }

    /// Looks which of them the log has still. Costs little where nothing is damaged.
    pub(crate) fn note_collected(&self, has: impl Fn(LogNumber) -> bool) {
        let known = &mut *self.known();
        let gone = known.everywhere().into_iter().filter(|it| !has(*it));
        known.collected.extend(gone);
    }

    /// Whether what was damaged there, everywhere, was collected since.
    pub(crate) fn is_collected(&self, segment: Option<LogNumber>) -> bool {
        let known = self.known();
        segment.is_some_and(|it| known.collected.contains(&it) && known.everywhere().contains(&it))
    }

    /// Whether what is damaged there is so everywhere.
    pub(crate) fn has(&self, error: &LsmError) -> bool {
        self.has_segment(segment_of(error))
    }

    /// The same, of a failure that was noted.
    pub(crate) fn has_segment(&self, segment: Option<LogNumber>) -> bool {
        segment.is_some_and(|segment| self.known().everywhere().contains(&segment))
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

    /// Promise: what one backup has whole is not damaged everywhere, in whatever order backups are
    /// filled; when that one has gone, it is.
    #[test]
    fn what_one_copy_has_whole_is_not_damaged_everywhere() {
        let [whole, damaged] = [BackupId(1), BackupId(2)];
        let seven: BTreeSet<_> = [LogNumber(7)].into();
        let shared = SharedDamage::default();
        shared.replace([LogNumber(7), LogNumber(8)]);
        shared.note(damaged, &seven);
        assert_eq!(shared.all(), seven);
        shared.note(whole, &BTreeSet::new());
        assert!(shared.all().is_empty() && !shared.has_segment(Some(LogNumber(7))));
        shared.note(damaged, &seven);
        assert!(shared.all().is_empty());
        shared.forget(whole);
        assert!(shared.has_segment(Some(LogNumber(7))));
        shared.forget(damaged);
        assert!(shared.all().is_empty());
    }

    /// Promise: of a segment that was collected nothing is told any more, and what a late read met
    /// in it is still no reason to give up; when segments are found anew, it counts for nothing.
    #[test]
    fn what_was_collected_is_not_told() {
        let shared = SharedDamage::default();
        let (first, second) = (LogNumber(1), LogNumber(2));
        shared.replace([first, second]);
        shared.note_collected(|_| true);
        assert_eq!(shared.all(), [first, second].into());
        shared.note_collected(|number| number == second);
        assert_eq!(shared.all(), [second].into());
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
