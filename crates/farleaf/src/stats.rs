//! Statistics of a table, collected by reading all its leaves.

use farleaf_fabric::OperationKind;
use farleaf_index::operation::{LeafReport, LostRange};
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::layout::CHUNK_SIZE_BYTES;

use crate::host::SessionHost;
use crate::session::SessionCore;
use crate::{Error, Table};

/// Leaves that a walk reads as one operation. Until the operation ends, memory that retraining has
/// retired cannot be reused.
const OPERATION_LEAF_COUNT: u32 = 1024;

/// Results of a walk over all leaves of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableStats {
    /// Number of records.
    pub records: u64,
    /// Number of leaves.
    pub leaves: u64,
    /// Leaves that existed when the models were trained; splits have created the others since.
    pub trained_leaves: u64,
    /// Records that existed when the models were trained.
    pub trained_records: u64,
    /// Share of slots that hold records, 0 to 1.
    pub fill: f64,
    /// Number of models in the directory.
    pub models: u64,
    /// Bytes of metadata that this session holds to find leaves.
    pub metadata_bytes: u64,
    /// Bytes of far memory that the table owns.
    pub memory_bytes: u64,
    /// Leaves whose lock was held when they were read.
    pub locked_leaves: u64,
    /// Whether the leaves that are not lost cover all keys without gap or overlap (LEAF-6), and
    /// each leaf's records lie between its fence keys, each key once.
    pub sound: bool,
    /// Number of the load that trained the directory; 0 if the table has never been loaded.
    pub generation: u16,
    /// Key ranges on lost nodes, ascending. The other fields describe the rest of the table.
    pub lost: Vec<LostRange>,
}

/// Result of one step of a walk over a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkItem {
    Leaf(LeafReport),
    Lost(LostRange),
}

impl Table {
    /// Reads all leaves and returns statistics. Skips leaves on lost nodes and reports their key
    /// ranges. Costs two round trips per leaf.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get), except that a lost node is not an error.
    pub fn stats(&self) -> Result<TableStats, Error> {
        let mut stats = TableStats {
            sound: true,
            ..TableStats::default()
        };
        let mut expected_low = Some(0);
        self.walk(true, |item| {
            let leaf = match item {
                WalkItem::Leaf(leaf) => leaf,
                WalkItem::Lost(range) => {
                    stats.sound &= Some(range.low) == expected_low;
                    expected_low = range.high.checked_add(1);
                    stats.lost.push(range);
                    return;
                }
            };
            stats.leaves += 1;
            stats.records += leaf.record_count as u64;
            stats.trained_leaves += u64::from(leaf.is_trained);
            stats.locked_leaves += u64::from(leaf.lock != 0);
            stats.sound &= leaf.is_sound && Some(leaf.low) == expected_low;
            expected_low = leaf.high.checked_add(1);
        })?;
        let table = self.asynchronous();
        if table.is_remote() {
            // Far memory has only one leaf of such a table, and it is unused.
            return Ok(TableStats {
                records: table.session.drive(table.count_remote())?,
                sound: stats.sound && expected_low.is_none(),
                memory_bytes: self.memory_bytes()?,
                ..TableStats::default()
            });
        }
        let slots = stats.leaves * table.info().options.slots;
        // The divisor is at least 1, because all leaves may be lost.
        stats.fill = stats.records as f64 / slots.max(1) as f64;
        stats.sound &= expected_low.is_none();
        let (generation, trained_records, _, models) = table.state.index.training();
        stats.generation = generation;
        stats.trained_records = trained_records;
        stats.models = models;
        stats.metadata_bytes = table.metadata_bytes();
        stats.memory_bytes = self.memory_bytes()?;
        Ok(stats)
    }

    /// Calls `visit` for each leaf, in key order. Costs two round trips per leaf.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub fn survey(&self, mut visit: impl FnMut(&LeafReport)) -> Result<(), Error> {
        self.walk(false, |item| {
            if let WalkItem::Leaf(leaf) = item {
                visit(&leaf);
            }
        })
    }

    /// Calls `visit` for each leaf, in key order; with `passes_lost`, continues behind lost ranges.
    fn walk(&self, passes_lost: bool, mut visit: impl FnMut(WalkItem)) -> Result<(), Error> {
        let table = self.asynchronous();
        let walk = async {
            // Refreshes first, so that the walk does not start at a retired leaf.
            let guard = table.session.begin_on_slow_path(&table.state).await?;
            table.session.refresh(&table.state).await?;
            drop(guard);
            let mut operation = table.begin().await?;
            let mut survey = operation.index.survey();
            let mut left_count = OPERATION_LEAF_COUNT;
            loop {
                let (index, batch) = (operation.index, &mut operation.batch);
                let next = index.survey_next(batch, &mut survey).await;
                let item = match next {
                    Ok(None) => break,
                    Ok(Some(leaf)) => Ok(Some(WalkItem::Leaf(leaf))),
                    Err(error) => match error.lost_node().filter(|_| passes_lost) {
                        Some(node) => {
                            let past = index.survey_past(batch, &mut survey, node).await;
                            past.map(|range| range.map(WalkItem::Lost))
                        }
                        None => Err(error),
                    },
                };
                match item {
                    Ok(item) => item.into_iter().for_each(&mut visit),
                    Err(error) => {
                        let ended = operation.finish(OperationKind::Control, Err(error));
                        if let Err::<(), _>(error) = ended {
                            table.refresh_after(error).await?;
                        }
                        operation = table.begin().await?;
                        left_count = OPERATION_LEAF_COUNT;
                    }
                }
                left_count -= 1;
                if left_count == 0 {
                    let ended = operation.finish(OperationKind::Control, Ok(()));
                    ended.map_err(Error::from)?;
                    operation = table.begin().await?;
                    left_count = OPERATION_LEAF_COUNT;
                }
            }
            let walked = operation.finish(OperationKind::Control, Ok(()));
            walked.map_err(|error| Error::from(error).of_table(&table.info().name))
        };
        table.session.drive(walk)
    }

    /// Returns the bytes of far memory that the table owns: all its chunks, used or not.
    ///
    /// # Errors
    /// The fabric failed.
    pub fn memory_bytes(&self) -> Result<u64, Error> {
        let table = self.asynchronous();
        let owned = owned_size_bytes(&table.session, table.info().id);
        table.session.drive(owned)
    }
}

/// Returns the bytes of all chunks that a table owns.
pub(crate) async fn owned_size_bytes<H: SessionHost>(
    session: &SessionCore<H>,
    table: u32,
) -> Result<u64, Error> {
    let allocator = ChunkAllocator::new(&session.endpoint, session.layout(), session.owner);
    let chunks = allocator.entries().await?;
    let own = chunks.iter().filter(|(_, chunk)| chunk.table.0 == table);
    Ok(own.count() as u64 * CHUNK_SIZE_BYTES)
}
