//! Pages of models that are due: walked, linked to one another, and made fewer (BR2, BR6, BR7).

use core::ops::Range;

use farleaf_fabric::{Batch, Endpoint};
use farleaf_types::RemoteAddr;

use super::{Looked, Retrained};
use crate::error::ByteIndexError;
use crate::operation::{ByteIndex, Merged, Walked};

impl<E: Endpoint> Looked<'_, E> {
    /// BR2: the pages of models side by side, in order.
    pub(super) async fn walk(
        &self,
        index: &ByteIndex<'_, E>,
        batch: &mut Batch,
        range: &Range<usize>,
    ) -> Result<Walked, ByteIndexError> {
        let start = match range.start.checked_sub(1) {
            None => self.entry.record.first_leaf.place(),
            Some(before) => {
                let run = &self.contents.runs[before];
                run.page(run.page_count - 1, self.access.geometry)
            }
        };
        let (from, end) = self.covered(range);
        index
            .pages_between(batch, start, (&from, end.as_deref()))
            .await
    }

    /// BR7.
    pub(super) async fn relink(
        &self,
        index: &ByteIndex<'_, E>,
        batch: &mut Batch,
        walked: &mut Walked,
        retrained: &mut Retrained,
    ) -> Result<(), ByteIndexError> {
        let first = self.entry.record.first_leaf.place();
        let mut left = walked.left;
        for page in &mut walked.pages {
            let retired = core::mem::take(&mut page.retired);
            let begins_at_first = retired.first() == Some(&first);
            match (left, retired.first()) {
                _ if begins_at_first => index.relink_first(batch, first, page.addr).await?,
                (Some(left), Some(first)) => {
                    index.relink(batch, left, (*first, page.addr)).await?;
                }
                // What leads to it is not known.
                (None, Some(_)) => {
                    left = Some(page.addr);
                    continue;
                }
                (_, None) => {}
            }
            retrained
                .retired
                .extend(retired.into_iter().filter(|it| *it != first));
            left = Some(page.addr);
        }
        Ok(())
    }

    /// BR6: from right to left.
    pub(super) async fn merge(
        &self,
        index: &ByteIndex<'_, E>,
        batch: &mut Batch,
        (walked, may_go_on): (&mut Walked, impl Fn() -> bool),
        retrained: &mut Retrained,
    ) -> Result<(), ByteIndexError> {
        let mut right = walked.pages.len();
        while right > 1 {
            right -= 1;
            let (left, pages) = (right - 1, &mut walked.pages);
            // What leads to the first one has to be known.
            let is_reached = left > 0 || walked.left.is_some() || pages[left].begins_table();
            if !is_reached || !index.is_pair(&pages[left], &pages[right]) {
                continue;
            }
            if !may_go_on() {
                return Ok(());
            }
            let after = pages.get(right + 1).map_or(RemoteAddr::NULL, |it| it.addr);
            let after = if right + 1 == pages.len() {
                walked.after
            } else {
                after
            };
            let pair = (&pages[left], &pages[right], after);
            let made = match index.merge_pair(batch, self.entry, pair).await? {
                Merged::Done(made) => *made,
                Merged::TooFull => {
                    pages[right].is_too_full = true;
                    continue;
                }
                Merged::Hindered => continue,
                Merged::NoRoom(error) => {
                    retrained.no_room = error;
                    return Ok(());
                }
            };
            let (place, was) = (made.addr, pages[left].addr);
            let first = self.entry.record.first_leaf.place();
            let retired = [pages[left].addr, pages[right].addr];
            pages.splice(left..=right, [made]);
            match left
                .checked_sub(1)
                .map(|before| walked.pages[before].addr)
                .or(walked.left)
            {
                Some(before) => index.relink(batch, before, (was, place)).await?,
                None => index.relink_first(batch, first, place).await?,
            }
            retrained.made_count += 1;
            retrained
                .retired
                .extend(retired.into_iter().filter(|it| *it != first));
            right = left;
        }
        Ok(())
    }
}
