//! Replaces old models by new ones.

use core::ops::Range;

use farleaf_fabric::Endpoint;
use farleaf_leaf::strings::format::PageAccess;
use farleaf_leaf::words::Contradiction;
use farleaf_model::strings::{
    Boundary, PackedBlock, Residuals, StringSegment, StringSegmentBuilder,
};

use super::listing::ListedShare;
use super::renewal::RenewedModel;
use crate::strings::directory::Run;
use crate::strings::error::ByteIndexError;
use crate::strings::load::synonym_capacity;
use crate::strings::operation::WalkedPage;
use crate::strings::snapshot::Contents;

/// Maximum pages of a model, which are retrained together when one place in it grows.
const PAGE_COUNT_MAX: u32 = 1 << 12;
/// Range of a residual of one byte, in units of positions.
const RESIDUAL_ROOM: f64 = 126.0;

/// Old and new models, in order.
pub(super) struct SplicedModels<'a> {
    old: &'a Contents,
    /// Number of old models taken or replaced so far, and of their residuals or blocks.
    passed: (usize, usize),
    pub(super) segments: Vec<StringSegment>,
    pub(super) runs: Vec<Run>,
    pub(super) residuals: Residuals,
    pub(super) page_count: u64,
    record_count: u64,
    pub(super) model_count: u64,
    /// New models in which pairs of pages could be merged, and the number of pairs.
    pub(super) pairs: Vec<(usize, u64)>,
    /// New models that do not list all of their pages, and the number of unlisted ones.
    pub(super) unlisted: Vec<(usize, u64)>,
    /// Kept models that get another synonym leaf table.
    pub(super) renewed: Vec<RenewedModel>,
}

impl<'a> SplicedModels<'a> {
    pub(super) fn new(old: &'a Contents) -> Self {
        Self {
            old,
            passed: (0, 0),
            segments: Vec::new(),
            runs: Vec::new(),
            residuals: old.residuals.emptied(),
            page_count: 0,
            record_count: 0,
            model_count: 0,
            pairs: Vec::new(),
            unlisted: Vec::new(),
            renewed: Vec::new(),
        }
    }

    /// Skips old models up to one; takes them over if they are kept.
    fn pass(&mut self, until: usize, is_kept: bool) {
        let (model, residual) = self.passed;
        let (segments, runs) = (
            &self.old.segments[model..until],
            &self.old.runs[model..until],
        );
        let counts = segments.iter().map(|it| self.residuals.count_of(it));
        let residual_end = residual + counts.sum::<usize>();
        if is_kept {
            self.segments.extend_from_slice(segments);
            self.runs.extend_from_slice(runs);
            let retained = residual..residual_end;
            self.residuals.extend_from(&self.old.residuals, retained);
        }
        self.passed = (until, residual_end);
    }

    pub(super) fn keep_until(&mut self, model: usize) {
        self.pass(model, true);
    }

    /// Trains models over the listed pages, in place of old models.
    pub(super) fn train<E: Endpoint>(
        &mut self,
        pages: &[WalkedPage],
        access: &PageAccess<'_, E>,
        range: Range<usize>,
        is_pair: impl Fn(&WalkedPage, &WalkedPage) -> bool,
        listing: &ListedShare,
    ) -> Result<(), ByteIndexError> {
        let is_ascending = pages.is_sorted_by(|one, next| one.fence < next.fence);
        assert!(!pages.is_empty(), "a walk begins with a page");
        if !is_ascending {
            let what = Contradiction::LinkToTheLeft;
            return Err(access.contradiction(pages[0].addr, what).into());
        }
        let epsilon = match &self.residuals {
            Residuals::Bytes { shift, .. } => RESIDUAL_ROOM / f64::from(1 << shift),
            Residuals::Packed { .. } | Residuals::None => PackedBlock::EPSILON_MAX,
        };
        let mut builder = StringSegmentBuilder::new(epsilon, PAGE_COUNT_MAX);
        let mut segments = Vec::new();
        let listed = listing.listed(access, pages);
        for number in &listed {
            segments.extend(builder.push(&pages[*number].fence));
        }
        segments.extend(builder.finish());
        let mut rest = &listed[..];
        for segment in segments {
            let (own, after) = rest.split_at(segment.leaf_count() as usize);
            let end = after.first().copied().unwrap_or(pages.len());
            let covered = &pages[own[0]..end];
            let pair_count = pair_count(covered, &is_pair);
            if pair_count > 0 {
                self.pairs.push((self.runs.len(), pair_count));
            }
            let unlisted_count = covered.len() - own.len();
            if unlisted_count > 0 {
                self.unlisted.push((self.runs.len(), unlisted_count as u64));
            }
            self.record_count += covered.iter().map(|page| page.record_count).sum::<u64>();
            let own: Vec<_> = own.iter().map(|number| &pages[*number]).collect();
            self.add(segment, &own);
            rest = after;
        }
        self.pass(range.end, false);
        Ok(())
    }

    fn add(&mut self, segment: StringSegment, pages: &[&WalkedPage]) {
        let boundaries = pages.iter().map(|page| Boundary {
            last: page.last_before.as_deref(),
            fence: &page.fence,
            first: page.first.as_deref().unwrap_or(&page.fence),
        });
        self.residuals.push(&segment, boundaries);
        let page_count = pages.len() as u32;
        self.page_count += u64::from(page_count);
        self.model_count += 1;
        self.segments.push(segment);
        self.runs.push(Run::listed(
            pages.iter().map(|page| page.addr).collect(),
            synonym_capacity(page_count),
        ));
    }
}

/// Returns the number of disjoint pairs of neighbors.
fn pair_count(pages: &[WalkedPage], is_pair: impl Fn(&WalkedPage, &WalkedPage) -> bool) -> u64 {
    let (mut count, mut right) = (0, 1);
    while right < pages.len() {
        if is_pair(&pages[right - 1], &pages[right]) {
            count += 1;
            right += 1;
        }
        right += 1;
    }
    count
}

impl SplicedModels<'_> {
    /// Returns the approximate number of records; pages that were not walked count as before.
    pub(super) fn record_count(&self) -> u64 {
        let pages =
            |runs: &[Run]| -> u64 { runs.iter().map(|run| u64::from(run.page_count)).sum() };
        let retained_page_count = pages(&self.runs) - self.page_count;
        let mean = self.old.record_count as f64 / pages(&self.old.runs) as f64;
        self.record_count + (mean * retained_page_count as f64) as u64
    }
}
