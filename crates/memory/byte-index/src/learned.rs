//! The learned search layer over strings: models, residuals, and the synonyms that a session has
//! met. Where pages are listed (`rf_tree`), its directory is a cache of that, and has fences alone.

use std::rc::Rc;
use std::sync::Arc;

use farleaf_index::hint::{Announcement, Hint};
use farleaf_types::RemoteAddr;

use crate::directory::{ByteDirectory, Place};
use crate::partial::{HeldPart, PartCounts, PartialDirectory};
use crate::rf_tree::ListedPage;
use crate::snapshot::SnapshotParts;
use crate::synonyms::Synonyms;

/// What a session knows of a training.
#[derive(Debug)]
enum Trained {
    /// All, as the other sessions of the process do.
    Whole(Arc<ByteDirectory>),
    /// As much as its budget has room for.
    Partial(Box<PartialDirectory>),
}

/// A part of a snapshot that tells what was asked for.
#[derive(Debug)]
pub(crate) struct TellingPart {
    pub(crate) snapshot: Rc<SnapshotParts>,
    pub(crate) number: usize,
    /// `None`: it has to be read.
    pub(crate) part: Option<Rc<HeldPart>>,
}

impl TellingPart {
    fn of(directory: &PartialDirectory, (number, part): (usize, Option<&Rc<HeldPart>>)) -> Self {
        Self {
            snapshot: Rc::clone(directory.snapshot()),
            number,
            part: part.cloned(),
        }
    }
}

/// One session's way to the pages of a table: pure computation over what it holds; every answer is
/// a hint.
#[derive(Debug)]
pub struct LearnedLayer {
    trained: Trained,
    synonyms: Synonyms,
    /// How many announcements of each model were read. Empty until some were.
    announced: Vec<u32>,
}

impl LearnedLayer {
    /// A layer that knows what the training knows.
    pub fn new(directory: Arc<ByteDirectory>) -> Self {
        Self::of(Trained::Whole(directory))
    }

    /// A layer under a budget, which knows nothing yet but where to read.
    pub(crate) fn partial(directory: PartialDirectory) -> Self {
        Self::of(Trained::Partial(Box::new(directory)))
    }

    fn of(trained: Trained) -> Self {
        Self {
            trained,
            synonyms: Synonyms::default(),
            announced: Vec::new(),
        }
    }

    /// What the training knows; `None`: the session has a budget.
    pub fn directory(&self) -> Option<&Arc<ByteDirectory>> {
        match &self.trained {
            Trained::Whole(directory) => Some(directory),
            Trained::Partial(_) => None,
        }
    }

    pub(crate) fn as_partial_mut(&mut self) -> Option<&mut PartialDirectory> {
        match &mut self.trained {
            Trained::Whole(_) => None,
            Trained::Partial(directory) => Some(directory),
        }
    }

    /// Where a key most likely is; or, under a budget, the part that tells.
    #[inline]
    pub(crate) fn locate(&self, key: &[u8]) -> Result<Place, TellingPart> {
        match &self.trained {
            Trained::Whole(directory) => Ok(self.nearer(key, directory.locate(key))),
            Trained::Partial(directory) => {
                let part = directory.part_of_key(key);
                Err(TellingPart::of(directory, part))
            }
        }
    }

    /// Where a key most likely is, as a part that was read tells.
    pub(crate) fn locate_in(&self, part: &HeldPart, key: &[u8]) -> Place {
        self.nearer(key, part.locate(key))
    }

    /// Where the session has met a split, it knows more than the models.
    #[inline]
    fn nearer(&self, key: &[u8], place: Place) -> Place {
        let synonym_of = |hint: Hint| {
            let addr = self.synonyms.find(hint.parent, key)?;
            Some(Hint { addr, ..hint })
        };
        if let Some(page) = place.also.and_then(synonym_of) {
            return Place { page, also: None };
        }
        // One of the left page says nothing of the key's being in the right one.
        let page = synonym_of(place.page).unwrap_or(place.page);
        Place { page, ..place }
    }

    /// The page that a key most likely is in, if that is known without reading anything.
    pub(crate) fn expected(&self, key: &[u8]) -> Option<Hint> {
        let place = match self.locate(key) {
            Ok(place) => place,
            Err(telling) => self.locate_in(&*telling.part?, key),
        };
        Some(place.also.unwrap_or(place.page))
    }

    /// The part that tells of the page with this number; `None`: everything is held.
    pub(crate) fn part_of_page(&self, number: u32) -> Option<TellingPart> {
        let directory = self.as_partial()?;
        let part = directory.part_of_page(number);
        Some(TellingPart::of(directory, part))
    }

    /// Whether it searches by this snapshot.
    pub(crate) fn is_of(&self, snapshot: &Rc<SnapshotParts>) -> bool {
        let directory = self.as_partial();
        directory.is_some_and(|directory| Rc::ptr_eq(directory.snapshot(), snapshot))
    }

    fn as_partial(&self) -> Option<&PartialDirectory> {
        match &self.trained {
            Trained::Whole(_) => None,
            Trained::Partial(directory) => Some(directory),
        }
    }

    /// A part was read: keeps it, if there is room and the root is still the same (BL3, BL4).
    pub(crate) fn keep(&mut self, from: &Rc<SnapshotParts>, number: usize, part: &Rc<HeldPart>) {
        if let Trained::Partial(directory) = &mut self.trained {
            directory.keep(from, (number, part), &mut self.synonyms);
        }
    }

    /// The page to try when `failed` turned out to be too far right of a key; `None` when there is
    /// nothing further left.
    pub fn left_of(&self, key: &[u8], failed: Hint) -> Option<Hint> {
        let number = failed.parent.checked_sub(1)?;
        let trained = match &self.trained {
            Trained::Whole(directory) => directory.page(number)?,
            Trained::Partial(directory) => directory.left_of(key, failed.parent),
        };
        let synonym = self.synonyms.find(trained.parent, key);
        Some(synonym.map_or(trained, |addr| Hint { addr, ..trained }))
    }

    /// The first page.
    pub fn first_page(&self) -> Hint {
        self.page(0).expect("there is a first page")
    }

    /// The trained page with this number; `None`: there is none, or what tells of it is not held.
    #[inline]
    pub fn page(&self, number: u32) -> Option<Hint> {
        match &self.trained {
            Trained::Whole(directory) => directory.page(number),
            Trained::Partial(directory) => directory.page(number),
        }
    }

    /// The trained page after `parent`, if it is known.
    pub fn next_trained(&self, parent: u32) -> Option<Hint> {
        self.page(parent + 1)
    }

    /// The trained page with this number, and how many of its model lie side by side from it on, as
    /// far as is known, of `count_max` at the most.
    pub fn run_from(&self, number: u32, count_max: u32) -> Option<(Hint, u32)> {
        match &self.trained {
            Trained::Whole(directory) => directory.run_from(number, count_max),
            Trained::Partial(directory) => directory.run_from(number, count_max),
        }
    }

    /// The same, up to the page with this number, which is among them.
    pub fn run_up_to(&self, number: u32, count_max: u32) -> u32 {
        match &self.trained {
            Trained::Whole(directory) => directory.run_up_to(number, count_max),
            Trained::Partial(directory) => directory.run_up_to(number, count_max),
        }
    }

    /// A page that is not the trained one of its parent was met, which begins at `low`.
    pub fn learn(&mut self, low: &[u8], page: Hint) {
        let trained = self.page(page.parent);
        if trained.is_none_or(|trained| trained.addr == page.addr) {
            return;
        }
        let has_room = match &mut self.trained {
            Trained::Whole(_) => true,
            // Without its part nobody can tell whether it is a trained page of another number.
            Trained::Partial(directory) => {
                let is_held = directory.part_of_page(page.parent).1.is_some();
                is_held && directory.fit((low, page.parent), &mut self.synonyms)
            }
        };
        if has_room {
            self.synonyms.insert(low, page.addr, page.parent);
        }
    }

    /// All known synonyms of a trained page, in order.
    pub fn synonyms_of(&self, parent: u32) -> impl Iterator<Item = RemoteAddr> + '_ {
        self.synonyms.of(parent)
    }

    /// Known synonyms of a trained page that begin behind a key, in order.
    pub fn synonyms_behind(
        &self,
        parent: u32,
        key: &[u8],
    ) -> impl Iterator<Item = RemoteAddr> + '_ {
        self.synonyms.behind(parent, key)
    }

    /// Known synonyms of a trained page that begin before a key, or all, in order.
    pub fn synonyms_before(
        &self,
        parent: u32,
        key: Option<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = RemoteAddr> + '_ {
        self.synonyms.before(parent, key)
    }

    /// Searches in a newer directory from now on, in which the same pages are parts of other
    /// ranges, and returns those that were met and that it does not have. None of these are
    /// forgotten.
    pub fn renew(&mut self, directory: Arc<ByteDirectory>) -> Vec<ListedPage> {
        let met = core::mem::take(&mut self.synonyms);
        self.announced.clear();
        let mut missing = Vec::new();
        for (low, addr) in met.iter() {
            let found = directory.locate(low).page;
            if found.addr != addr {
                self.synonyms.insert(low, addr, found.parent);
                let low = low.to_vec();
                missing.push(ListedPage { low, addr });
            }
        }
        self.trained = Trained::Whole(directory);
        missing
    }

    /// How many pages were met that the directory does not have.
    pub fn met_count(&self) -> usize {
        self.synonyms.count()
    }

    /// Where a split of a page of this parent is announced.
    pub fn announcement(&self, parent: u32) -> Option<Announcement> {
        match &self.trained {
            Trained::Whole(directory) => directory.announcement(parent),
            Trained::Partial(directory) => directory.announcement(parent),
        }
    }

    /// Whether all of the training is held: not under a budget.
    pub fn is_whole(&self) -> bool {
        matches!(self.trained, Trained::Whole(_))
    }

    /// How many announcements of a model this session has read.
    pub fn announced_seen(&self, model: u32) -> u32 {
        self.announced.get(model as usize).copied().unwrap_or(0)
    }

    /// The first announcements of a model have been read.
    pub fn note_announced(&mut self, model: u32, seen: u32) {
        if self.announced.is_empty() {
            self.announced = vec![0; self.model_count()];
        }
        self.announced[model as usize] = seen;
    }

    /// Which load the training is of.
    pub fn generation(&self) -> u16 {
        match &self.trained {
            Trained::Whole(directory) => directory.generation(),
            Trained::Partial(directory) => directory.header().shape.generation,
        }
    }

    /// How many records it was of.
    pub fn record_count(&self) -> u64 {
        match &self.trained {
            Trained::Whole(directory) => directory.record_count(),
            Trained::Partial(directory) => directory.header().record_count,
        }
    }

    /// How many trained pages there are.
    pub fn page_count(&self) -> u32 {
        match &self.trained {
            Trained::Whole(directory) => directory.page_count(),
            Trained::Partial(directory) => directory.header().page_count,
        }
    }

    /// How many models there are.
    pub fn model_count(&self) -> usize {
        match &self.trained {
            Trained::Whole(directory) => directory.model_count(),
            Trained::Partial(directory) => directory.header().model_count as usize,
        }
    }

    /// How many of the models at hand are front-coded.
    pub fn front_coded_count(&self) -> usize {
        match &self.trained {
            Trained::Whole(directory) => directory.front_coded_count(),
            Trained::Partial(directory) => directory.front_coded_count(),
        }
    }

    /// How often parts were read and forgotten; `None` without a budget.
    pub fn part_counts(&self) -> Option<PartCounts> {
        match &self.trained {
            Trained::Whole(_) => None,
            Trained::Partial(directory) => Some(directory.counts()),
        }
    }

    /// Bytes that the session must hold to work as measured. What the process shares is counted
    /// whole.
    pub fn metadata_bytes(&self) -> u64 {
        let announced = size_of_val(&*self.announced) as u64;
        let trained = match &self.trained {
            Trained::Whole(directory) => directory.size_bytes(),
            Trained::Partial(directory) => directory.size_bytes() + directory.in_hand_bytes(),
        };
        trained + self.synonyms.size_bytes() + announced
    }
}
