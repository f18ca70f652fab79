//! Walks, relinks and merges the pages of models that are due.

use core::ops::Range;

use farleaf_fabric::{Batch, Endpoint};

use super::{ByteTableView, RetrainRanges, RetrainResult};
use crate::strings::error::ByteIndexError;
use crate::strings::operation::{ByteIndex, MergeResult, PageWalk, WalkedPage};

impl<E: Endpoint> ByteTableView<'_, E> {
    /// Walks the pages of adjacent models, in order.
    pub(super) async fn walk(
        &self,
        index: &ByteIndex<'_, E>,
        batch: &mut Batch,
        range: &Range<usize>,
    ) -> Result<PageWalk, ByteIndexError> {
        let start = match range.start.checked_sub(1) {
            None => self.entry.record.first_leaf.place(),
            Some(before) => {
                let run = &self.contents.runs[before];
                run.page(run.page_count - 1, self.access.geometry)
            }
        };
        let (from, end) = self.covered(range);
        index
            .pages_between(batch, start, &from, end.as_deref())
            .await
    }

    /// Links pages past retired ones.
    pub(super) async fn relink(
        &self,
        index: &ByteIndex<'_, E>,
        batch: &mut Batch,
        walked: &mut PageWalk,
        retrained: &mut RetrainResult,
    ) -> Result<(), ByteIndexError> {
        let first = self.entry.record.first_leaf.place();
        let mut left = walked.left;
        for (number, page) in walked.pages.iter_mut().enumerate() {
            let retired = core::mem::take(&mut page.retired);
            let is_relinked = match (left, retired.first()) {
                (_, Some(it)) if *it == first => {
                    index.relink_first(batch, first, page.addr).await?;
                    true
                }
                (Some(left), Some(it)) => index.relink(batch, left, *it, page.addr).await?,
                // The page that links to it is not known.
                (None, Some(_)) => false,
                (_, None) => true,
            };
            if is_relinked {
                let met = retired.into_iter().filter(|it| *it != first);
                retrained.retired.extend(met);
            } else if number == 0 {
                walked.left = None;
            }
            left = Some(page.addr);
        }
        Ok(())
    }

    /// Merges pages from right to left. Calls `may_go_on` before each step.
    pub(super) async fn merge(
        &self,
        index: &ByteIndex<'_, E>,
        batch: &mut Batch,
        walked: &mut PageWalk,
        stretches: &RetrainRanges,
        may_go_on: impl Fn(&RetrainResult) -> bool,
        retrained: &mut RetrainResult,
    ) -> Result<(), ByteIndexError> {
        let (mut right, mut full_node) = (walked.pages.len(), None);
        while right > 1 {
            right -= 1;
            let (left, pages) = (right - 1, &mut walked.pages);
            // The page that links to the first one must be known.
            let is_reached = left > 0 || walked.left.is_some() || pages[left].begins_table();
            let is_full = full_node == Some(pages[left].addr.node());
            if !is_reached || is_full || !index.is_pair(&pages[left], &pages[right]) {
                continue;
            }
            if !may_go_on(retrained) {
                return Ok(());
            }
            let after = pages.get(right + 1).map_or(walked.after, |it| it.addr);
            let merged = index.merge_pair(batch, self.entry, &pages[left], &pages[right], after);
            match merged.await? {
                MergeResult::Done(made) => {
                    self.take_over(index, batch, walked, left, *made, retrained)
                        .await?;
                    right = left;
                    stretches.leave_space(true);
                }
                MergeResult::Not => pages[right].stays = true,
                MergeResult::Hindered => {}
                // The first page may take the space: after it, more is free the next time.
                MergeResult::NoSpace(_)
                    if retrained.made_count == 0 && stretches.leaves_space() =>
                {
                    stretches.leave_space(false);
                    right += 1;
                }
                // Other nodes may have free space; the pairs left here are counted, and due again.
                MergeResult::NoSpace(error) => {
                    retrained.no_space = Some(error);
                    full_node = Some(walked.pages[left].addr.node());
                }
            }
        }
        Ok(())
    }

    /// Replaces this page and the next in the list by the merged page, and links the left neighbor
    /// to it.
    async fn take_over(
        &self,
        index: &ByteIndex<'_, E>,
        batch: &mut Batch,
        walked: &mut PageWalk,
        left: usize,
        made: WalkedPage,
        retrained: &mut RetrainResult,
    ) -> Result<(), ByteIndexError> {
        let first = self.entry.record.first_leaf.place();
        let place = made.addr;
        let [was, right] = [left, left + 1].map(|number| walked.pages[number].addr);
        walked.pages.splice(left..=left + 1, [made]);
        let before = left.checked_sub(1);
        let before = before.map(|before| walked.pages[before].addr);
        let is_relinked = if let Some(before) = before.or(walked.left) {
            index.relink(batch, before, was, place).await?
        } else {
            index.relink_first(batch, first, place).await?;
            true
        };
        retrained.made_count += 1;
        let retired = [is_relinked.then_some(was), Some(right)];
        let retired = retired.into_iter().flatten().filter(|it| *it != first);
        retrained.retired.extend(retired);
        Ok(())
    }
}
