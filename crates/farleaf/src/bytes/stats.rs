//! Statistics of a table of byte strings, collected by reading all its pages.

use farleaf_fabric::OperationKind;
use farleaf_index::strings::operation::{PageReport, PageSurvey};
use farleaf_leaf::strings::Fence;

use super::{AsyncByteTable, ByteTable};
use crate::Error;
use crate::host::SessionHost;
use crate::stats::owned_size_bytes;

/// Pages that a walk reads as one operation. Until the operation ends, memory that retraining has
/// retired cannot be reused.
const OPERATION_PAGE_COUNT: usize = 1024;

/// Results of a walk over all pages of a table of byte strings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByteTableStats {
    /// Number of records.
    pub records: u64,
    /// Number of pages.
    pub pages: u64,
    /// Pages that existed when the models were trained; splits have created the others since.
    pub trained_pages: u64,
    /// Records that existed when the models were trained.
    pub trained_records: u64,
    /// Used share of the pages' bytes, including headers and slots, 0 to 1.
    pub fill: f64,
    /// Strings in value blocks: values, and keys, fence keys and prefixes that are too long for a
    /// page.
    pub value_blocks: u64,
    /// Number of models in the directory.
    pub models: u64,
    /// Number of front-coded models, which have their pages' fence keys instead of a line.
    pub front_coded_models: u64,
    /// Bytes of metadata that this session holds to find pages.
    pub metadata_bytes: u64,
    /// Bytes of far memory that the table owns, including value blocks.
    pub memory_bytes: u64,
    /// Pages whose lock was held when they were read.
    pub locked_pages: u64,
    /// Whether the pages' fence keys cover all keys without gap or overlap (LEAF-6), and each
    /// page's records lie between its fence keys, each key once.
    pub sound: bool,
    /// Number of the load that trained the directory; 0 if the table has never been loaded.
    pub generation: u16,
}

/// Counts of a walk in progress.
struct PageCounts {
    stats: ByteTableStats,
    used_size_bytes: u64,
    /// Expected low fence key of the next page; `None` behind the last one.
    expected_low: Option<Fence>,
}

impl PageCounts {
    fn new() -> Self {
        let sound = true;
        Self {
            stats: ByteTableStats {
                sound,
                ..ByteTableStats::default()
            },
            used_size_bytes: 0,
            expected_low: Some(Fence::Before(Vec::new())),
        }
    }

    fn add(&mut self, page: PageReport) {
        let stats = &mut self.stats;
        stats.pages += 1;
        stats.records += page.record_count as u64;
        stats.trained_pages += u64::from(page.is_trained);
        stats.value_blocks += page.block_count as u64;
        stats.locked_pages += u64::from(page.lock != 0);
        stats.sound &= page.is_sound && self.expected_low.as_ref() == Some(&page.low);
        self.used_size_bytes += page.used_size_bytes as u64;
        self.expected_low = Some(page.high).filter(|high| *high != Fence::End);
    }
}

impl ByteTable {
    /// Reads all pages and returns statistics. Costs two round trips per page, and one for each
    /// key, fence key or prefix in a value block. Values in value blocks are not read. A table that
    /// the memory node stores has no pages; one call counts its records.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub fn stats(&self) -> Result<ByteTableStats, Error> {
        let table = self.asynchronous();
        table.session.drive(table.stats())
    }
}

impl<H: SessionHost> AsyncByteTable<H> {
    /// Reads all pages and returns statistics; see [`ByteTable::stats`].
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn stats(&self) -> Result<ByteTableStats, Error> {
        // Refreshes first, so that the walk does not start at a retired page.
        let guard = self.session.begin_bytes(&self.state).await?;
        self.session.refresh_bytes(&self.state).await?;
        drop(guard);
        let mut tally = PageCounts::new();
        let mut survey = PageSurvey::default();
        while self.tally_on(&mut survey, &mut tally).await? {}
        let PageCounts {
            mut stats,
            used_size_bytes,
            expected_low,
        } = tally;
        if self.is_remote() {
            // Far memory has only one page of such a table, and it is unused.
            return Ok(ByteTableStats {
                records: self.count_remote().await?,
                sound: stats.sound && expected_low.is_none(),
                memory_bytes: owned_size_bytes(&self.session, self.info().id).await?,
                ..ByteTableStats::default()
            });
        }
        let page_size_bytes = self.state.geometry.page_size_bytes() as u64;
        stats.fill = used_size_bytes as f64 / (stats.pages * page_size_bytes).max(1) as f64;
        stats.sound &= expected_low.is_none();
        let (generation, trained_records, _, models) = self.state.index.training();
        stats.generation = generation;
        stats.trained_records = trained_records;
        stats.models = models;
        stats.front_coded_models = self.state.index.front_coded_model_count();
        stats.metadata_bytes = self.metadata_bytes();
        stats.memory_bytes = owned_size_bytes(&self.session, self.info().id).await?;
        if let Some(listing) = &self.state.listing {
            let id = listing.info.id;
            stats.memory_bytes += owned_size_bytes(&self.session, id).await?;
        }
        Ok(stats)
    }

    /// Counts the pages of one operation, and returns whether there are more.
    async fn tally_on(
        &self,
        survey: &mut PageSurvey,
        tally: &mut PageCounts,
    ) -> Result<bool, Error> {
        self.operate(OperationKind::Control, async |index, batch| {
            for _ in 0..OPERATION_PAGE_COUNT {
                match index.survey_next(batch, survey).await? {
                    Some(page) => tally.add(page),
                    None => return Ok(false),
                }
            }
            Ok(true)
        })
        .await
    }
}
