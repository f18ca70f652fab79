//! Corruption that all copies of a region have, as far as is known. No replica gives up because of
//! it, since the next one would have the same corruption.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use farleaf_lsm::LsmError;
use farleaf_lsm::place::LogNumber;
use farleaf_replica::BackupId;

use crate::sync::lock;

/// Log segments that are damaged in all copies. The list is only in memory: a reopened replica
/// gives up once more, if there is another one, until the last one has the list again.
#[derive(Debug, Default)]
pub(crate) struct SharedDamage {
    known: Mutex<KnownDamage>,
}

#[derive(Debug, Default)]
struct KnownDamage {
    lists: DamageLists,
    /// Damaged segments that were collected since, so that they are no longer reported. A read that
    /// began before may still hit them, which is no reason to give up.
    collected: BTreeSet<LogNumber>,
}

/// Damaged segments of each other copy. On a primary, those of each backup's copy; on a backup,
/// under `None`, those of its primary's copy when it was filled.
type DamageLists = BTreeMap<Option<BackupId>, BTreeSet<LogNumber>>;

impl KnownDamage {
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
    /// Notes the damaged segments of a backup's copy.
    pub(crate) fn note(&self, backup: BackupId, segments: &BTreeSet<LogNumber>) {
        let lists = &mut lock(&self.known).lists;
        lists.remove(&None);
        lists.insert(Some(backup), segments.clone());
    }

    /// Removes the list of a backup that is gone.
    pub(crate) fn forget(&self, backup: BackupId) {
        lock(&self.known).lists.remove(&Some(backup));
    }

    /// Replaces the list that a backup's primary has sent.
    pub(crate) fn replace(&self, segments: impl IntoIterator<Item = LogNumber>) {
        *lock(&self.known) = KnownDamage {
            lists: [(None, segments.into_iter().collect())].into(),
            collected: BTreeSet::new(),
        };
    }

    /// Returns the segments that are damaged in all other known copies and still exist.
    pub(crate) fn all(&self) -> BTreeSet<LogNumber> {
        let known = lock(&self.known);
        let everywhere = known.everywhere();
        everywhere.difference(&known.collected).copied().collect()
    }

    /// Notes which damaged segments the log no longer has. Costs little if nothing is damaged.
    pub(crate) fn note_collected(&self, has: impl Fn(LogNumber) -> bool) {
        let known = &mut *lock(&self.known);
        let collected_now = known.everywhere().into_iter().filter(|it| !has(*it));
        known.collected.extend(collected_now);
    }

    /// Returns whether a segment that was damaged in all copies was collected since.
    pub(crate) fn is_collected(&self, segment: Option<LogNumber>) -> bool {
        let known = lock(&self.known);
        segment.is_some_and(|it| known.collected.contains(&it) && known.everywhere().contains(&it))
    }

    /// Returns whether all copies have this damage.
    pub(crate) fn has(&self, error: &LsmError) -> bool {
        self.has_segment(segment_of(error))
    }

    /// Returns whether all copies have the damage of a failure that was noted.
    pub(crate) fn has_segment(&self, segment: Option<LogNumber>) -> bool {
        segment.is_some_and(|segment| lock(&self.known).everywhere().contains(&segment))
    }

    /// Describes the damage, if there is any.
    pub(crate) fn text(&self) -> Option<String> {
        let segments = self.all();
        let numbers: Vec<_> = segments.iter().map(|it| it.0.to_string()).collect();
        let plural = if numbers.len() == 1 { "" } else { "s" };
        (!numbers.is_empty()).then(|| {
            format!(
                "the log is corrupted in segment{plural} {}: it was copied from a replica with the \
                 same corruption when no other complete replica existed",
                numbers.join(", ")
            )
        })
    }
}

/// Returns the damaged log segment, if the error is damage of the log.
pub(crate) fn segment_of(error: &LsmError) -> Option<LogNumber> {
    match error {
        LsmError::CorruptLog { position, .. } => Some(position.number()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use farleaf_lsm::place::{LogPosition, SEGMENT_SIZE_BYTES, TreeId};

    use super::*;

    /// Damage of all copies is identified by its log segment; damage of trees never counts as such.
    #[test]
    fn damage_is_known_by_its_segment() {
        let shared = SharedDamage::default();
        let at = |position| LsmError::CorruptLog {
            position: LogPosition(position),
            how: String::new(),
        };
        assert!(!shared.has(&at(7)) && shared.text().is_none());
        shared.replace([LogNumber(0)]);
        assert!(shared.has(&at(7)) && shared.has(&at(SEGMENT_SIZE_BYTES - 1)));
        assert!(!shared.has(&at(SEGMENT_SIZE_BYTES)));
        let tree = LsmError::CorruptTree {
            tree: TreeId(1),
            block: 0,
            how: String::new(),
        };
        assert!(!shared.has(&tree) && !shared.has_segment(None));
        let text = shared.text().expect("there is some");
        assert!(text.starts_with("the log is corrupted in segment 0: "));
        shared.replace([]);
        assert!(!shared.has(&at(7)));
    }

    /// A segment that one backup has intact does not count as damaged in all copies, in any order
    /// of filling; it does when that backup is gone.
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

    /// Collected segments are no longer reported, and a late read that hits them is no reason to
    /// give up. When the list is replaced, they do not count any more.
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
        assert!(text.contains("in segment 2: "), "{text}");
        assert!(shared.is_collected(Some(first)) && shared.has_segment(Some(first)));
        assert!(!shared.is_collected(Some(second)) && !shared.is_collected(None));
        shared.note_collected(|_| false);
        assert!(shared.text().is_none());
        shared.replace([second]);
        assert!(!shared.has_segment(Some(first)) && !shared.is_collected(Some(second)));
    }
}
