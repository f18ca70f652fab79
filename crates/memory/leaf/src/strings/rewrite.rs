//! Pages that are written anew, as one or as two (BP6), and neighbours that become one: as plans.

use crate::contents::{Bound, Contents, Prefix, Put, released};
use crate::cut::{Cut, cuts};
use crate::draft::PageDraft;
use crate::error::PageError;
use crate::image::PageImage;
use crate::outside::Outside;
use crate::record::NewRecord;
use crate::words::Reference;

/// A page is repacked, not split, if this share of the new one stays unused.
const REPACK_UNUSED_SHARE: usize = 8;

/// What takes a page's place.
#[derive(Clone, Debug)]
pub struct Rewrite<'a> {
    /// The page that covers its low end; all of it, if there is no other.
    pub left: PageDraft<'a>,
    /// The page that covers the rest.
    pub right: Option<PageDraft<'a>>,
    /// Whether the record is among theirs. If not, it has no room in either half yet, and is put
    /// again, into the half that covers it.
    pub is_put: bool,
    /// References that the page names, or the record if it is put, and these do not.
    pub released: Vec<Reference>,
}

/// What takes the place of one page, or of two neighbours.
#[derive(Clone, Debug)]
pub struct Merge<'a> {
    /// The page that covers all of it.
    pub page: PageDraft<'a>,
    /// References that the sources name and it does not.
    pub released: Vec<Reference>,
}

/// BP6: plans what takes a page's place, with one record more or one changed (whose key lies where
/// the page says if it is outside). One page, if that has
/// a good deal of room then (repacked); else two, cut as splits in place are.
///
/// # Errors
/// A string has to be read first; or the page is damaged; or no cut makes two pages that have room,
/// which values that [`value_size_bytes_max`](crate::PageGeometry::value_size_bytes_max) allows
/// have not been seen to do.
pub fn plan_rewrite<'a>(
    image: PageImage<'a>,
    record: Option<&NewRecord<'a>>,
    outside: &Outside,
) -> Result<Rewrite<'a>, PageError> {
    let before = Contents::of(image, outside)?;
    let mut contents = before.clone();
    let put = record.map(|record| contents.put(record)).transpose()?;
    let inserted = put.and_then(Put::inserted);
    let page_size_words = image.geometry().page_size_words();
    let all = whole(&contents);
    let filled_max = page_size_words - page_size_words / REPACK_UNUSED_SHARE;
    let is_roomy = all.fits() && all.size_words() <= filled_max;
    let halves = || {
        halves(&contents, inserted)
            .map(|halves| (halves, true))
            .or_else(|| (all.fits()).then(|| ((all.clone(), None), true)))
            .or_else(|| halves_of_old(&before, record))
    };
    let repacked = is_roomy.then(|| ((all.clone(), None), true));
    let planned = repacked.or_else(halves);
    let ((left, right), is_put) = planned.ok_or(PageError::NoCut)?;
    let after = [Some(&left), right.as_ref()].into_iter().flatten();
    let mut before = image.references();
    // The record's key may have room in its new page.
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

/// Plans the page that takes the place of one page, or of two neighbours, left to right, with a
/// prefix of its own. `None`: it would have no room for all of it.
///
/// # Errors
/// A string has to be read first; or the pages are damaged, or are no neighbours.
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
    // The longer one of the two that are outside, of which some is common still.
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
        (contents.low.clone(), contents.high.clone()),
        contents.prefix,
        contents.records.clone(),
    )
}

type Halves<'a> = (PageDraft<'a>, Option<PageDraft<'a>>);

/// The first cut of which both halves have room.
fn halves<'a>(contents: &Contents<'a>, inserted: Option<usize>) -> Option<Halves<'a>> {
    let cuts = cuts(&contents.pieces(), contents.ends(), inserted);
    cuts.iter().find_map(|cut| {
        let (left, right) = cut_at(contents, cut);
        (left.fits() && right.fits()).then_some((left, Some(right)))
    })
}

/// The records as they were; the one that is to be put is still to be.
fn halves_of_old<'a>(
    before: &Contents<'a>,
    record: Option<&NewRecord<'a>>,
) -> Option<(Halves<'a>, bool)> {
    halves(before, None).map(|halves| (halves, record.is_none()))
}

fn cut_at<'a>(contents: &Contents<'a>, cut: &Cut) -> (PageDraft<'a>, PageDraft<'a>) {
    let fence = || Bound {
        fence: cut.fence.clone(),
        block: None,
    };
    let (left, right) = contents.records.split_at(cut.left_count);
    // A value block has one owner: the left half keeps the prefix's.
    let kept = contents.prefix;
    let not_kept = Prefix {
        block: None,
        ..kept
    };
    let draft = |fences, kept, records: &[_]| {
        PageDraft::new(contents.geometry, fences, kept, records.to_vec())
    };
    // BV5: the block of the upper fence is found by the old page's lower one, which the right half
    // does not cover, so that one gets another.
    let high = Bound {
        fence: contents.high.fence.clone(),
        block: None,
    };
    (
        draft((contents.low.clone(), fence()), kept, left),
        draft((fence(), high), not_kept, right),
    )
}
