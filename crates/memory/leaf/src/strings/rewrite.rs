//! Plans that replace a page by one or two new pages, or merge two neighbors.

use crate::strings::contents::{Contents, PageFence, Prefix, PutPosition, released};
use crate::strings::cut::{Cut, cuts};
use crate::strings::draft::PageDraft;
use crate::strings::error::PageError;
use crate::strings::image::PageImage;
use crate::strings::outside::Outside;
use crate::strings::record::NewRecord;
use crate::strings::words::Reference;

/// Divisor of the page size: a page is repacked, not split, if this share of the new page stays
/// unused.
const REPACK_UNUSED_SHARE: usize = 8;

/// Pages that replace a page.
#[derive(Clone, Debug)]
pub struct Rewrite<'a> {
    /// Page that covers the low end of the old page, or all of it if there is no other.
    pub left: PageDraft<'a>,
    /// Page that covers the rest.
    pub right: Option<PageDraft<'a>>,
    /// Whether the new pages contain the record. If not, it fits into neither half yet, and the
    /// caller puts it again, into the half that covers it.
    pub is_put: bool,
    /// References in the old page, or in the record if it is put, but not in the new pages.
    pub released: Vec<Reference>,
}

/// Page that replaces one page, or two neighbors.
#[derive(Clone, Debug)]
pub struct Merge<'a> {
    /// Page that covers the whole range.
    pub page: PageDraft<'a>,
    /// References in the sources but not in the new page.
    pub released: Vec<Reference>,
}

/// Plans the replacement of a page, with one record inserted or updated. An updated record whose
/// key is outside must have the page's reference to that key. Returns one repacked page if it has
/// enough space left; otherwise two, cut like splits in place.
///
/// # Errors
/// A string must be read first; or the page is corrupted; or no cut makes two pages that fit. The
/// last case has not been observed with values that
/// [`value_size_bytes_max`](crate::strings::PageGeometry::value_size_bytes_max) allows.
pub fn plan_rewrite<'a>(
    image: PageImage<'a>,
    record: Option<&NewRecord<'a>>,
    outside: &Outside,
) -> Result<Rewrite<'a>, PageError> {
    let before = Contents::of(image, outside)?;
    let mut contents = before.clone();
    let put = record.map(|record| contents.put(record)).transpose()?;
    let inserted = put.and_then(PutPosition::inserted);
    let page_size_words = image.geometry().page_size_words();
    let all = whole(&contents);
    let filled_max = page_size_words - page_size_words / REPACK_UNUSED_SHARE;
    let has_free_chunks = all.fits() && all.size_words() <= filled_max;
    let halves = || {
        halves(&contents, inserted)
            .map(|halves| (halves, true))
            .or_else(|| (all.fits()).then(|| ((all.clone(), None), true)))
            .or_else(|| halves_of_old(&before, record))
    };
    let repacked = has_free_chunks.then(|| ((all.clone(), None), true));
    let planned = repacked.or_else(halves);
    let ((left, right), is_put) = planned.ok_or(PageError::NoCut)?;
    let after = [Some(&left), right.as_ref()].into_iter().flatten();
    let mut before = image.references();
    // The record's key may fit into its new page.
    before.extend(
        record
            .filter(|_| is_put)
            .into_iter()
            .flat_map(NewRecord::references),
    );
    let released = released(before, after.flat_map(PageDraft::references));
    Ok(Rewrite {
        left,
        right,
        is_put,
        released,
    })
}

/// Plans the page that replaces one page, or two neighbors (left to right), with a new prefix.
/// Returns `None` if the contents do not fit.
///
/// # Errors
/// A string must be read first; or the pages are corrupted or not neighbors.
pub fn plan_merge<'a>(
    sources: &[PageImage<'a>],
    outside: &Outside,
) -> Result<Option<Merge<'a>>, PageError> {
    let mut merged: Option<Contents<'a>> = None;
    for source in sources {
        let contents = Contents::of(*source, outside)?;
        merged = Some(match merged {
            None => contents,
            Some(left) => joined(left, contents)?,
        });
    }
    let merged = merged.expect("there is a source");
    let page = whole(&merged);
    if !page.fits() {
        return Ok(None);
    }
    let before = sources.iter().flat_map(PageImage::references);
    let released = released(before, page.references());
    Ok(Some(Merge { page, released }))
}

fn joined<'a>(mut left: Contents<'a>, right: Contents<'a>) -> Result<Contents<'a>, PageError> {
    if left.high.fence != right.low.fence {
        return Err(PageError::Disorder);
    }
    let common = left.low.fence.common_prefix_size_bytes(&right.high.fence);
    // Keep the longer of two outside prefixes that still have a common part.
    if left.prefix.size_bytes > common {
        left.prefix = right.prefix;
    }
    left.high = right.high;
    left.records.extend(right.records);
    Ok(left)
}

fn whole<'a>(contents: &Contents<'a>) -> PageDraft<'a> {
    PageDraft::new(
        contents.geometry,
        contents.low.clone(),
        contents.high.clone(),
        contents.prefix,
        contents.records.clone(),
    )
}

type Halves<'a> = (PageDraft<'a>, Option<PageDraft<'a>>);

/// Returns the first cut whose halves both fit.
fn halves<'a>(contents: &Contents<'a>, inserted: Option<usize>) -> Option<Halves<'a>> {
    let cuts = cuts(&contents.pieces(), contents.ends(), inserted);
    cuts.iter().find_map(|cut| {
        let (left, right) = cut_at(contents, cut);
        (left.fits() && right.fits()).then_some((left, Some(right)))
    })
}

/// Returns the halves of the old records; the caller still has to put the new one.
fn halves_of_old<'a>(
    before: &Contents<'a>,
    record: Option<&NewRecord<'a>>,
) -> Option<(Halves<'a>, bool)> {
    halves(before, None).map(|halves| (halves, record.is_none()))
}

fn cut_at<'a>(contents: &Contents<'a>, cut: &Cut) -> (PageDraft<'a>, PageDraft<'a>) {
    let fence = || PageFence {
        fence: cut.fence.clone(),
        block: None,
    };
    let (left, right) = contents.records.split_at(cut.left_count);
    // A value block has one owner: the left half keeps the prefix's block.
    let prefix = contents.prefix;
    let not_kept = Prefix {
        block: None,
        ..prefix
    };
    let draft = |low, high, prefix, records: &[_]| {
        PageDraft::new(contents.geometry, low, high, prefix, records.to_vec())
    };
    // The block of the upper fence has the old page's lower fence as locator. The right half does
    // not cover it, so its fence needs another block.
    let high = PageFence {
        fence: contents.high.fence.clone(),
        block: None,
    };
    (
        draft(contents.low.clone(), fence(), prefix, left),
        draft(fence(), high, not_kept, right),
    )
}
