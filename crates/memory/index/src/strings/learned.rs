//! The learned search layer over strings: models, residuals, and the synonyms that a session has
//! found. For tables whose pages are listed (`rf_tree`), its directory is a cache of the listing
//! and contains fences only.

use std::rc::Rc;
use std::sync::Arc;

use crate::hint::{Announcement, Hint};
use farleaf_base::RemoteAddr;

use crate::strings::directory::{ByteDirectory, KeyLocation};
use crate::strings::partial::{LoadedPart, PartCounts, PartialDirectory};
use crate::strings::rf_tree::ListedPage;
use crate::strings::snapshot::SnapshotParts;
use crate::strings::synonyms::Synonyms;

/// Training result as a session holds it.
#[derive(Debug)]
enum HeldDirectory {
    /// The whole directory, shared by the sessions of the process.
    Whole(Arc<ByteDirectory>),
    /// Part of the directory that fits the session's metadata budget.
    Partial(Box<PartialDirectory>),
}

/// Part of a snapshot that covers the requested key or page.
#[derive(Debug)]
pub(crate) struct NeededPart {
    pub(crate) snapshot: Rc<SnapshotParts>,
    pub(crate) number: usize,
    /// The part, or `None` if it must be read first.
    pub(crate) part: Option<Rc<LoadedPart>>,
}

impl NeededPart {
    fn of(directory: &PartialDirectory, number: usize, part: Option<&Rc<LoadedPart>>) -> Self {
        Self {
            snapshot: Rc::clone(directory.snapshot()),
            number,
            part: part.cloned(),
        }
    }
}

/// Search layer of one session for one table. It only computes over what it holds; every answer is
/// a hint.
#[derive(Debug)]
pub struct LearnedLayer {
    trained: HeldDirectory,
    synonyms: Synonyms,
    /// Number of announcements of each model that were read. Empty until some were read.
    announced: Vec<u32>,
}

impl LearnedLayer {
    /// Creates a layer that holds the whole directory.
    pub fn new(directory: Arc<ByteDirectory>) -> Self {
        Self::of(HeldDirectory::Whole(directory))
    }

    /// Creates a layer under a metadata budget; it holds only what it needs to read parts.
    pub(crate) fn partial(directory: PartialDirectory) -> Self {
        Self::of(HeldDirectory::Partial(Box::new(directory)))
    }

    fn of(trained: HeldDirectory) -> Self {
        Self {
            trained,
            synonyms: Synonyms::default(),
            announced: Vec::new(),
        }
    }

    /// Returns the directory, or `None` if the session has a metadata budget.
    pub fn directory(&self) -> Option<&Arc<ByteDirectory>> {
        match &self.trained {
            HeldDirectory::Whole(directory) => Some(directory),
            HeldDirectory::Partial(_) => None,
        }
    }

    pub(crate) fn as_partial_mut(&mut self) -> Option<&mut PartialDirectory> {
        match &mut self.trained {
            HeldDirectory::Whole(_) => None,
            HeldDirectory::Partial(directory) => Some(directory),
        }
    }

    /// Returns the expected location of a key. Under a budget, returns the part to read instead if
    /// it is not held.
    #[inline]
    pub(crate) fn locate(&self, key: &[u8]) -> Result<KeyLocation, NeededPart> {
        match &self.trained {
            HeldDirectory::Whole(directory) => Ok(self.nearer(key, directory.locate(key))),
            HeldDirectory::Partial(directory) => {
                let (number, part) = directory.part_of_key(key);
                Err(NeededPart::of(directory, number, part))
            }
        }
    }

    /// Returns the expected location of a key according to a part that was read.
    pub(crate) fn locate_in(&self, part: &LoadedPart, key: &[u8]) -> KeyLocation {
        self.nearer(key, part.locate(key))
    }

    /// Replaces the page by a known synonym: where the session has seen a split, it knows more than
    /// the models.
    #[inline]
    fn nearer(&self, key: &[u8], place: KeyLocation) -> KeyLocation {
        let synonym_of = |hint: Hint| {
            let addr = self.synonyms.find(hint.parent, key)?;
            Some(Hint { addr, ..hint })
        };
        if let Some(page) = place.also.and_then(synonym_of) {
            return KeyLocation { page, also: None };
        }
        // A synonym of the left page does not exclude that the key is in the right page.
        let page = synonym_of(place.page).unwrap_or(place.page);
        KeyLocation { page, ..place }
    }

    /// Returns the page that most likely covers a key, if that is known without reading anything.
    pub(crate) fn expected(&self, key: &[u8]) -> Option<Hint> {
        let place = match self.locate(key) {
            Ok(place) => place,
            Err(telling) => self.locate_in(&*telling.part?, key),
        };
        Some(place.also.unwrap_or(place.page))
    }

    /// Returns the part that covers the page with this number; `None` if the whole directory is
    /// held.
    pub(crate) fn part_of_page(&self, number: u32) -> Option<NeededPart> {
        let directory = self.as_partial()?;
        let (number, part) = directory.part_of_page(number);
        Some(NeededPart::of(directory, number, part))
    }

    /// Returns whether the layer searches by this snapshot.
    pub(crate) fn is_of(&self, snapshot: &Rc<SnapshotParts>) -> bool {
        let directory = self.as_partial();
        directory.is_some_and(|directory| Rc::ptr_eq(directory.snapshot(), snapshot))
    }

    fn as_partial(&self) -> Option<&PartialDirectory> {
        match &self.trained {
            HeldDirectory::Whole(_) => None,
            HeldDirectory::Partial(directory) => Some(directory),
        }
    }

    /// Keeps a part that was read, if it fits the budget and the root has not changed since.
    pub(crate) fn keep(&mut self, from: &Rc<SnapshotParts>, number: usize, part: &Rc<LoadedPart>) {
        if let HeldDirectory::Partial(directory) = &mut self.trained {
            directory.keep(from, number, part, &mut self.synonyms);
        }
    }

    /// Returns the page to try after `failed` proved to be too far right of a key; `None` if there
    /// is nothing further left.
    pub fn left_of(&self, key: &[u8], failed: Hint) -> Option<Hint> {
        let number = failed.parent.checked_sub(1)?;
        let trained = match &self.trained {
            HeldDirectory::Whole(directory) => directory.page(number)?,
            HeldDirectory::Partial(directory) => directory.left_of(key, failed.parent),
        };
        let synonym = self.synonyms.find(trained.parent, key);
        Some(synonym.map_or(trained, |addr| Hint { addr, ..trained }))
    }

    /// Returns the first page.
    pub fn first_page(&self) -> Hint {
        self.page(0).expect("there is a first page")
    }

    /// Returns the trained page with this number; `None` if there is none, or if its part is not
    /// held.
    #[inline]
    pub fn page(&self, number: u32) -> Option<Hint> {
        match &self.trained {
            HeldDirectory::Whole(directory) => directory.page(number),
            HeldDirectory::Partial(directory) => directory.page(number),
        }
    }

    /// Returns the trained page after `parent`, if it is known.
    pub fn next_trained(&self, parent: u32) -> Option<Hint> {
        self.page(parent + 1)
    }

    /// Returns the trained page with this number, and how many pages of its model lie adjacent from
    /// it on, as far as known (at most `count_max`).
    pub fn run_from(&self, number: u32, count_max: u32) -> Option<(Hint, u32)> {
        match &self.trained {
            HeldDirectory::Whole(directory) => directory.run_from(number, count_max),
            HeldDirectory::Partial(directory) => directory.run_from(number, count_max),
        }
    }

    /// Returns the trained page with this number, and how many pages of its model lie adjacent up
    /// to and including it, as far as known (at most `count_max`).
    pub fn run_up_to(&self, number: u32, count_max: u32) -> u32 {
        match &self.trained {
            HeldDirectory::Whole(directory) => directory.run_up_to(number, count_max),
            HeldDirectory::Partial(directory) => directory.run_up_to(number, count_max),
        }
    }

    /// Records a page that begins at `low` and is not the trained page of its parent.
    pub fn learn(&mut self, low: &[u8], page: Hint) {
        let trained = self.page(page.parent);
        if trained.is_none_or(|trained| trained.addr == page.addr) {
            return;
        }
        let has_space = match &mut self.trained {
            HeldDirectory::Whole(_) => true,
            // Without its part, it is unknown whether the page is a trained page with another
            // number.
            HeldDirectory::Partial(directory) => {
                let is_held = directory.part_of_page(page.parent).1.is_some();
                is_held && directory.fit(low, page.parent, &mut self.synonyms)
            }
        };
        if has_space {
            self.synonyms.insert(low, page.addr, page.parent);
        }
    }

    /// Returns all known synonyms of a trained page, in order.
    pub fn synonyms_of(&self, parent: u32) -> impl Iterator<Item = RemoteAddr> + '_ {
        self.synonyms.of(parent)
    }

    /// Returns known synonyms of a trained page that begin after a key, in order.
    pub fn synonyms_behind(
        &self,
        parent: u32,
        key: &[u8],
    ) -> impl Iterator<Item = RemoteAddr> + '_ {
        self.synonyms.behind(parent, key)
    }

    /// Returns known synonyms of a trained page that begin before a key, or all, in order.
    pub fn synonyms_before(
        &self,
        parent: u32,
        key: Option<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = RemoteAddr> + '_ {
        self.synonyms.before(parent, key)
    }

    /// Switches to a newer directory, in which the known synonyms belong to other parents. Keeps
    /// all of them, and returns those that the directory does not contain.
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
        self.trained = HeldDirectory::Whole(directory);
        missing
    }

    /// Returns the number of known pages that the directory does not contain.
    pub fn met_count(&self) -> usize {
        self.synonyms.count()
    }

    /// Returns where a split of a page of this parent is announced.
    pub fn announcement(&self, parent: u32) -> Option<Announcement> {
        match &self.trained {
            HeldDirectory::Whole(directory) => directory.announcement(parent),
            HeldDirectory::Partial(directory) => directory.announcement(parent),
        }
    }

    /// Returns whether the whole directory is held, which means no metadata budget.
    pub fn is_whole(&self) -> bool {
        matches!(self.trained, HeldDirectory::Whole(_))
    }

    /// Returns how many announcements of a model this session has read.
    pub fn announced_seen(&self, model: u32) -> u32 {
        self.announced.get(model as usize).copied().unwrap_or(0)
    }

    /// Records that the first `seen` announcements of a model have been read.
    pub fn note_announced(&mut self, model: u32, seen: u32) {
        if self.announced.is_empty() {
            self.announced = vec![0; self.model_count()];
        }
        self.announced[model as usize] = seen;
    }

    /// Returns the generation of the load that the training belongs to.
    pub fn generation(&self) -> u16 {
        match &self.trained {
            HeldDirectory::Whole(directory) => directory.generation(),
            HeldDirectory::Partial(directory) => directory.header().shape.generation,
        }
    }

    /// Returns the number of records that the models were trained on.
    pub fn record_count(&self) -> u64 {
        match &self.trained {
            HeldDirectory::Whole(directory) => directory.record_count(),
            HeldDirectory::Partial(directory) => directory.header().record_count,
        }
    }

    /// Returns the number of trained pages.
    pub fn page_count(&self) -> u32 {
        match &self.trained {
            HeldDirectory::Whole(directory) => directory.page_count(),
            HeldDirectory::Partial(directory) => directory.header().page_count,
        }
    }

    /// Returns the number of models.
    pub fn model_count(&self) -> usize {
        match &self.trained {
            HeldDirectory::Whole(directory) => directory.model_count(),
            HeldDirectory::Partial(directory) => directory.header().model_count as usize,
        }
    }

    /// Returns the number of front-coded models among those held.
    pub fn front_coded_count(&self) -> usize {
        match &self.trained {
            HeldDirectory::Whole(directory) => directory.front_coded_count(),
            HeldDirectory::Partial(directory) => directory.front_coded_count(),
        }
    }

    /// Returns how often parts were read and evicted; `None` without a metadata budget.
    pub fn part_counts(&self) -> Option<PartCounts> {
        match &self.trained {
            HeldDirectory::Whole(_) => None,
            HeldDirectory::Partial(directory) => Some(directory.counts()),
        }
    }

    /// Returns the bytes that the session needs for the measured performance. Data that the process
    /// shares counts in full.
    pub fn metadata_bytes(&self) -> u64 {
        let announced = size_of_val(&*self.announced) as u64;
        let trained = match &self.trained {
            HeldDirectory::Whole(directory) => directory.size_bytes(),
            HeldDirectory::Partial(directory) => directory.size_bytes() + directory.pinned_bytes(),
        };
        trained + self.synonyms.size_bytes() + announced
    }
}
