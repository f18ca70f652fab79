//! Snapshot that is read page by page: at first only its page heads.

use farleaf_base::{RemoteAddr, TableId, WordAddr};
use farleaf_fabric::Endpoint;
use farleaf_leaf::words::LeafGeometry;
use farleaf_pool::PoolLayout;

use crate::IndexError;
use crate::directory::Model;
use crate::snapshot::format::SnapshotHeader;
use crate::snapshot::page::{HEAD_SIZE_WORDS, PageHead, WordRange, decode_residual_page};
use crate::snapshot::transfer::{damage, decode_models, read_header, read_words};
use crate::snapshot::{PAGE_LEAF_COUNT, PAGE_MODEL_COUNT};

/// Header and page heads of the snapshot behind one root. Pages belong to that root: a session that
/// takes another root drops them.
///
/// If there are too many heads, it keeps every 2nd, 4th, 8th... head, and reads as many adjacent
/// pages as one.
#[derive(Debug)]
pub struct PagedSnapshot {
    root: RemoteAddr,
    geometry: LeafGeometry,
    header: SnapshotHeader,
    heads: Box<[PageHead]>,
    /// Number of model pages from one head to the next.
    step: u32,
}

/// Place in far memory of one page to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRead {
    /// Number of the page among the pages of the same kind.
    pub page: u32,
    /// Address of the first word.
    pub from: WordAddr,
    /// Number of words.
    pub word_count: usize,
}

/// Reads the header and the page heads of the snapshot that a root names. Keeps as many heads as
/// fit in `head_bytes_max`, at least one. Costs two round trips, and 32 bytes for every 32 models.
///
/// # Errors
/// [`IndexError::SnapshotDamaged`], or the fabric failed.
pub async fn read_paged<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
    geometry: LeafGeometry,
    table: TableId,
    root: RemoteAddr,
    head_bytes_max: u64,
) -> Result<PagedSnapshot, IndexError> {
    let place = root.place();
    let header = read_header(endpoint, table, root).await?;
    if header.leaf_table_checksum.is_some() {
        let what = "it has a leaf table, which a table read by pages cannot have".to_owned();
        return Err(damage(place, table, what));
    }
    let piece = header.heads();
    let from = place.word_at(piece.start as u64);
    let words = read_words(endpoint, from, piece.word_count).await?;
    let heads = (0..).zip(words.chunks_exact(HEAD_SIZE_WORDS));
    let heads: Vec<PageHead> = heads
        .map(|(page, words)| PageHead::decode(words, header.generation, page))
        .collect::<Result<_, _>>()
        .map_err(|what| damage(place, table, what))?;
    let ascending = heads.windows(2).all(|pair| {
        pair[0].first_key < pair[1].first_key && pair[0].first_leaf < pair[1].first_leaf
    });
    let last = heads.last().map_or(0, |head| head.first_leaf);
    let inside = heads
        .iter()
        .all(|head| layout.chunk_of(head.base).is_some());
    if heads[0].first_leaf != 0 || last >= header.leaf_count || !ascending || !inside {
        let what = "its page heads contradict each other".to_owned();
        return Err(damage(place, table, what));
    }
    let kept_count_max = (head_bytes_max / size_of::<PageHead>() as u64).max(1);
    let step = (heads.len() as u64).div_ceil(kept_count_max);
    let step = step.next_power_of_two() as usize;
    Ok(PagedSnapshot {
        root,
        geometry,
        header,
        heads: heads.into_iter().step_by(step).collect(),
        step: step as u32,
    })
}

impl PagedSnapshot {
    /// Returns the header.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// Returns the geometry of the leaves.
    pub fn geometry(&self) -> LeafGeometry {
        self.geometry
    }

    /// Returns the heads that it keeps, in order; at least one.
    pub fn heads(&self) -> &[PageHead] {
        &self.heads
    }

    /// Returns the largest number of models of a page.
    pub fn page_model_count(&self) -> usize {
        let wanted = self.step as usize * PAGE_MODEL_COUNT;
        wanted.min(self.header.model_count as usize)
    }

    /// Returns the bytes of the heads.
    pub fn head_bytes(&self) -> u64 {
        size_of_val(&*self.heads) as u64
    }

    /// Returns the model page that a key is routed to.
    pub fn page_of_key(&self, key: u64) -> u32 {
        let behind = self.heads.partition_point(|head| head.first_key <= key);
        behind.saturating_sub(1) as u32
    }

    /// Returns the model page that a trained leaf belongs to; `None` if there is no such leaf.
    pub fn page_of_leaf(&self, leaf: u32) -> Option<u32> {
        let behind = self.heads.partition_point(|head| head.first_leaf <= leaf);
        (leaf < self.header.leaf_count).then_some(behind as u32 - 1)
    }

    /// Returns the place of a model page.
    pub fn model_page(&self, page: u32) -> PageRead {
        let piece = self.header.model_pages(page * self.step, self.step);
        self.read_of(page, piece)
    }

    /// Returns the place of a residual page.
    pub fn residual_page(&self, page: u32) -> PageRead {
        self.read_of(page, self.header.residual_page(page))
    }

    fn read_of(&self, page: u32, piece: WordRange) -> PageRead {
        PageRead {
            page,
            from: self.root.place().word_at(piece.start as u64),
            word_count: piece.word_count,
        }
    }

    /// Decodes and verifies the models of a page that was read: each must be intact, and together
    /// they must agree with the heads.
    ///
    /// # Errors
    /// [`IndexError::SnapshotDamaged`].
    pub fn decode_models(
        &self,
        layout: &PoolLayout,
        page: u32,
        words: &[u64],
    ) -> Result<Vec<Model>, IndexError> {
        let damaged = |what| damage(self.root.place(), self.header.table, what);
        let models = decode_models(words, self.header.generation, layout, self.geometry, false);
        let models = models.map_err(damaged)?;
        let head = self.heads[page as usize];
        let next = self.heads.get(page as usize + 1);
        let leaf_count: u64 = models.iter().map(|model| u64::from(model.leaf_count)).sum();
        let last_leaf = next.map_or(self.header.leaf_count, |next| next.first_leaf);
        let last_key = models.last().map(|model| model.first_key);
        let as_promised = models[0].first_key == head.first_key
            && models[0].base == head.base
            && u64::from(head.first_leaf) + leaf_count == u64::from(last_leaf)
            && next.is_none_or(|next| last_key < Some(next.first_key));
        if as_promised {
            Ok(models)
        } else {
            Err(damaged(format!("model page {page} contradicts its head")))
        }
    }

    /// Decodes and verifies the residuals of a page that was read.
    ///
    /// # Errors
    /// [`IndexError::SnapshotDamaged`].
    pub fn decode_residuals(
        &self,
        page: u32,
        words: &[u64],
    ) -> Result<Box<[i8; PAGE_LEAF_COUNT]>, IndexError> {
        let residuals = decode_residual_page(words, self.header.generation, page)
            .map_err(|what| damage(self.root.place(), self.header.table, what))?;
        let mut held = Box::new([0; PAGE_LEAF_COUNT]);
        for (slot, residual) in held.iter_mut().zip(residuals) {
            *slot = residual;
        }
        Ok(held)
    }
}
