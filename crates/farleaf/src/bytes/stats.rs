//! Looking at a whole table of byte strings.

use farleaf_byte_index::operation::{PageReport, PageSurvey};
use farleaf_fabric::OperationKind;
use farleaf_page::Fence;

use super::{AsyncByteTable, ByteTable};
use crate::Error;
use crate::host::Host;
use crate::stats::owned_size_bytes;

/// Pages that a walk looks at as one operation: while it is unfinished, memory that retraining has
/// left cannot be reused.
const OPERATION_PAGE_COUNT: usize = 1024;

/// What a walk over all pages of a table of byte strings found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByteTableStats {
    /// Records.
    pub records: u64,
    /// Pages.
    pub pages: u64,
    /// Pages that the training knows; the others were made by splits since.
    pub trained_pages: u64,
    /// Records that the training saw.
    pub trained_records: u64,
    /// Share of the pages' bytes that are used, by headers and slots as by records, 0 to 1.
    pub fill: f64,
    /// Strings that lie in value blocks: values, and keys, fences and prefixes that are too long
    /// for a page.
    pub value_blocks: u64,
    /// Models of the directory.
    pub models: u64,
    /// How many of them are front-coded: have their pages' fences instead of a line.
    pub front_coded_models: u64,
    /// Bytes that this session holds to find pages.
    pub metadata_bytes: u64,
    /// Bytes of far memory that are the table's, value blocks included.
    pub memory_bytes: u64,
    /// Pages whose lock was held when they were looked at.
    pub locked_pages: u64,
    /// Whether the pages' fences cover all keys without gap or overlap (D6), and every page's
    /// records lie between its fences, each once.
    pub sound: bool,
    /// Number of the load that trained the directory; 0 when the table has not been loaded.
    pub generation: u16,
}

/// What is counted on the way.
struct Tally {
    stats: ByteTableStats,
    used_size_bytes: u64,
    /// Where the next page has to begin; `None` behind the last one.
    expected_low: Option<Fence>,
}

impl Tally {
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
    /// Walks over all pages: two round trips each, and one for each string of it that an order of
    /// keys depends on and that lies in a value block. Values in value blocks are not read. A table
    /// that the memory node holds has no pages to tell of; its records are counted by one call.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn stats(&self) -> Result<ByteTableStats, Error> {
        let table = self.asynchronous();
        table.session.drive(table.stats())
    }
}

impl<H: Host> AsyncByteTable<H> {
    /// See [`ByteTable::stats`].
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn stats(&self) -> Result<ByteTableStats, Error> {
        // So that no retired page is met on the way.
        let begun = self.session.begin_bytes(&self.state).await?;
        self.session.refresh_bytes(&self.state).await?;
        drop(begun);
        let mut tally = Tally::new();
        let mut survey = PageSurvey::default();
        while self.tally_on(&mut survey, &mut tally).await? {}
        let Tally {
            mut stats,
            used_size_bytes,
            expected_low,
        } = tally;
        if self.is_remote() {
            // What is in far memory is a page that nobody uses.
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

    /// One operation's pages; whether there are more.
    async fn tally_on(&self, survey: &mut PageSurvey, tally: &mut Tally) -> Result<bool, Error> {
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
