//! Encodes and decodes a whole snapshot: header, part table and parts.

use std::collections::BTreeSet;

use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr, WORD_SIZE_BYTES};
use farleaf_leaf::strings::PageGeometry;
use farleaf_pool::PoolLayout;
use farleaf_pool::layout::{CHUNK_SIZE_BYTES, ChunkIndex};

use super::contents::{Contents, table_size_words};
use super::header::{CHECKSUM_WORD, HEADER_SIZE_WORDS, Header, MAGIC, checksum};
use super::heads::{Heads, encode_heads};
use super::part::{Part, encode_part, halves, spans_of};

impl Contents {
    /// Encodes the snapshot without its synonym leaf tables.
    pub(super) fn encode(&self, geometry: PageGeometry) -> Vec<u64> {
        let spans = spans_of(self);
        let parts = spans.iter().map(|span| encode_part(self, span, geometry));
        let parts: Vec<Vec<u64>> = parts.collect();
        let (table, fence_size_bytes) = encode_heads(self, &spans, &parts, geometry);
        let page_count = self.runs.iter().map(|run| run.page_count).sum();
        let parts_size_words: usize = parts.iter().map(Vec::len).sum();
        let mut words = vec![
            MAGIC,
            self.shape().word(),
            self.record_count,
            halves(self.runs.len() as u32, page_count),
            halves(parts.len() as u32, fence_size_bytes),
            0,
            parts_size_words as u64,
        ];
        words.extend(table);
        words[CHECKSUM_WORD] = checksum(&words);
        words.extend(parts.concat());
        words
    }

    /// Decodes a snapshot: header, part table and parts. All addresses in it are checked to lie in
    /// chunks of the pool.
    ///
    /// # Errors
    /// Describes what is wrong with the words.
    pub(super) fn decode(
        words: &[u64],
        layout: &PoolLayout,
        geometry: PageGeometry,
    ) -> Result<Self, String> {
        let header = Header::decode(words)?;
        if words.len() as u64 != header.size_words() {
            return Err("its sizes are invalid".to_owned());
        }
        let (header_and_table, parts) = words.split_at(HEADER_SIZE_WORDS + header.table_size_words);
        let heads = Heads::decode(&header, header_and_table, layout, geometry)?;
        let mut whole = None::<Part>;
        for number in 0..heads.count() {
            let words = &parts[heads.words_of(number)];
            let part = heads.decode_part(number, words, layout, geometry)?;
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.append(part, geometry)?,
            }
        }
        let whole = whole.expect("there is one part at least");
        if whole.runs.len() != header.model_count as usize {
            return Err("its models contradict its header".to_owned());
        }
        Ok(Self {
            table: header.shape.table,
            generation: header.shape.generation,
            record_count: header.record_count,
            segments: whole.segments,
            runs: whole.runs,
            residuals: whole.residuals,
        })
    }

    /// Returns the chunks that the snapshot behind `root` names: those of runs, synonym leaf
    /// tables, and the snapshot itself.
    pub fn named_chunks(
        &self,
        layout: &PoolLayout,
        geometry: PageGeometry,
        root: RemoteAddr,
    ) -> BTreeSet<ChunkIndex> {
        let blocks = |words: usize| (words as u64).div_ceil(BLOCK_SIZE_WORDS);
        let stride = geometry.stride_blocks();
        let runs = self.runs.iter().filter(|run| !run.is_listed());
        let runs = runs.map(|run| (run.base, u64::from(run.page_count) * stride));
        let listed = self.runs.iter().flat_map(|run| run.listed.iter());
        let listed = listed.map(|page| (*page, stride));
        let placed = self.runs.iter().filter(|run| !run.synonym_table.is_null());
        let tables = placed.map(|run| {
            let words = table_size_words(run.synonym_capacity);
            (run.synonym_table, blocks(words))
        });
        let own = (root.place(), blocks(self.encode(geometry).len()));
        let pieces = runs.chain(listed).chain(tables).chain([own]);
        pieces
            .flat_map(|(start, block_count)| {
                let last = start.offset_blocks(block_count.max(1) - 1);
                let chunks = layout.chunk_of(start).zip(layout.chunk_of(last));
                let chunks = chunks.into_iter();
                chunks.flat_map(|(from, to)| (from.0..=to.0).map(ChunkIndex))
            })
            .collect()
    }

    /// Returns the chunks that a snapshot takes if it lists `listed_page_count` pages of the same
    /// kind individually, with synonym leaf tables for all models.
    pub fn chunk_count_listed(&self, geometry: PageGeometry, listed_page_count: u64) -> u64 {
        let unlisted = self.runs.iter().filter(|run| !run.is_listed());
        let unlisted: usize = unlisted.map(|run| run.page_count as usize).sum();
        let tables = self.runs.iter();
        let tables = tables.map(|run| table_size_words(run.synonym_capacity));
        let size_words = self.encode(geometry).len() + unlisted + tables.sum::<usize>();
        let page_counts = self.runs.iter().map(|run| u64::from(run.page_count));
        let page_count = page_counts.sum::<u64>().max(1);
        let size_words = u128::from(listed_page_count) * size_words as u128;
        let size_words = size_words.div_ceil(page_count.into());
        let size_bytes = u64::try_from(size_words).unwrap_or(u64::MAX / WORD_SIZE_BYTES);
        let size_bytes = size_bytes.saturating_mul(WORD_SIZE_BYTES);
        size_bytes.div_ceil(CHUNK_SIZE_BYTES)
    }
}
