//! The learned search layer over strings: models, residuals, and the synonyms that a session has
//! met. Where pages are listed (`rf_tree`), its directory is a cache of that, and has fences alone.

use std::sync::Arc;

use farleaf_index::hint::{Announcement, Hint};
use farleaf_types::RemoteAddr;

use crate::directory::{ByteDirectory, Place};
use crate::rf_tree::ListedPage;
use crate::synonyms::Synonyms;

/// One session's way to the pages of a table: pure computation over what it holds; every answer is
/// a hint.
#[derive(Debug)]
pub struct LearnedLayer {
    directory: Arc<ByteDirectory>,
    synonyms: Synonyms,
    /// How many announcements of each model were read. Empty until some were.
    announced: Vec<u32>,
}

impl LearnedLayer {
    /// A layer that knows what the training knows.
    pub fn new(directory: Arc<ByteDirectory>) -> Self {
        Self {
            directory,
            synonyms: Synonyms::default(),
            announced: Vec::new(),
        }
    }

    /// What the training knows.
    pub fn directory(&self) -> &Arc<ByteDirectory> {
        &self.directory
    }

    /// Where a key most likely is.
    #[inline]
    pub fn locate(&self, key: &[u8]) -> Place {
        let place = self.directory.locate(key);
        // Where the session has met a split, it knows more than the models.
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

    /// The page to try when `failed` turned out to be too far right of a key; `None` when there is
    /// nothing further left.
    pub fn left_of(&self, key: &[u8], failed: Hint) -> Option<Hint> {
        let trained = self.directory.page(failed.parent.checked_sub(1)?)?;
        let synonym = self.synonyms.find(trained.parent, key);
        Some(synonym.map_or(trained, |addr| Hint { addr, ..trained }))
    }

    /// The trained page after `parent`.
    pub fn next_trained(&self, parent: u32) -> Option<Hint> {
        self.directory.page(parent + 1)
    }

    /// A page that is not the trained one of its parent was met, which begins at `low`.
    pub fn learn(&mut self, low: &[u8], page: Hint) {
        let trained = self.directory.page(page.parent);
        if trained.is_some_and(|trained| trained.addr != page.addr) {
            self.synonyms.insert(low, page.addr, page.parent);
        }
    }

    /// All known synonyms of a trained page, in order.
    pub fn synonyms_of(&self, parent: u32) -> impl Iterator<Item = RemoteAddr> + '_ {
        self.synonyms.of(parent)
    }

    /// Searches in a newer directory from now on, in which the same pages are parts of other
    /// ranges,
    /// and returns those that were met and that it does not have. None of these are forgotten.
    pub fn renew(&mut self, directory: Arc<ByteDirectory>) -> Vec<ListedPage> {
        let met = core::mem::take(&mut self.synonyms);
        self.directory = directory;
        self.announced.clear();
        let mut missing = Vec::new();
        for (low, addr) in met.iter() {
            let found = self.directory.locate(low).page;
            if found.addr != addr {
                self.synonyms.insert(low, addr, found.parent);
                let low = low.to_vec();
                missing.push(ListedPage { low, addr });
            }
        }
        missing
    }

    /// How many pages were met that the directory does not have.
    pub fn met_count(&self) -> usize {
        self.synonyms.count()
    }

    /// Where a split of a page of this parent is announced.
    pub fn announcement(&self, parent: u32) -> Option<Announcement> {
        self.directory.announcement(parent)
    }

    /// How many announcements of a model this session has read.
    pub fn announced_seen(&self, model: u32) -> u32 {
        self.announced.get(model as usize).copied().unwrap_or(0)
    }

    /// The first announcements of a model have been read.
    pub fn note_announced(&mut self, model: u32, seen: u32) {
        if self.announced.is_empty() {
            self.announced = vec![0; self.directory.model_count()];
        }
        self.announced[model as usize] = seen;
    }

    /// Bytes that the session must hold to work as measured. What the process shares is counted
    /// whole.
    pub fn metadata_bytes(&self) -> u64 {
        let announced = size_of_val(&*self.announced) as u64;
        self.directory.size_bytes() + self.synonyms.size_bytes() + announced
    }
}
