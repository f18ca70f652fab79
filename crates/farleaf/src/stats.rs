//! Looking at a whole table.

use farleaf_fabric::OperationKind;
use farleaf_index::operation::{LeafReport, LostRange};
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::layout::CHUNK_SIZE_BYTES;

use crate::host::Host;
use crate::session::SessionCore;
use crate::{Error, Table};

/// Leaves that a walk looks at as one operation: while it is unfinished, memory that retraining has
/// left cannot be reused.
const OPERATION_LEAF_COUNT: u32 = 1024;

/// What a walk over all leaves of a table found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableStats {
    /// Records.
    pub records: u64,
    /// Leaves.
    pub leaves: u64,
    /// Leaves that the training knows; the others were made by splits since.
    pub trained_leaves: u64,
    /// Records that the training saw.
    pub trained_records: u64,
    /// Share of slots that hold records, 0 to 1.
    pub fill: f64,
    /// Models of the directory.
    pub models: u64,
    /// Bytes that this session holds to find leaves.
    pub metadata_bytes: u64,
    /// Bytes of far memory that are the table's.
    pub memory_bytes: u64,
    /// Leaves whose lock was held when they were looked at.
    pub locked_leaves: u64,
    /// Whether the leaves' ranges cover all keys without gap or overlap (D6), but for those that
    /// are lost, and every leaf's records lie between its fences, each once.
    pub sound: bool,
    /// Number of the load that trained the directory; 0 when the table has not been loaded.
    pub generation: u16,
    /// Keys that were on lost nodes, ascending. All else is said of the rest of the table.
    pub lost: Vec<LostRange>,
}

/// What a walk over a table meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    Leaf(LeafReport),
    Lost(LostRange),
}

impl Table {
    /// Walks over all leaves, but those on lost nodes: of these it tells which keys they had. Two
    /// round trips per leaf.
    ///
    /// # Errors
    /// As for [`get`](Self::get), but that a node is lost.
    pub fn stats(&self) -> Result<TableStats, Error> {
        let mut stats = TableStats {
            sound: true,
            ..TableStats::default()
        };
        let mut expected_low = Some(0);
        self.walk(true, |met| {
            let leaf = match met {
                Met::Leaf(leaf) => leaf,
                Met::Lost(range) => {
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
            // What is in far memory is a leaf that nobody uses.
            return Ok(TableStats {
                records: table.session.drive(table.count_remote())?,
                sound: stats.sound && expected_low.is_none(),
                memory_bytes: self.memory_bytes()?,
                ..TableStats::default()
            });
        }
        let slots = stats.leaves * table.info().options.slots;
        // All leaves may be lost.
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

    /// Tells `visit` of each leaf, in order. Two round trips per leaf.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn survey(&self, mut visit: impl FnMut(&LeafReport)) -> Result<(), Error> {
        self.walk(false, |met| {
            if let Met::Leaf(leaf) = met {
                visit(&leaf);
            }
        })
    }

    /// The same; on request, it goes on behind what is lost.
    fn walk(&self, passes_lost: bool, mut visit: impl FnMut(Met)) -> Result<(), Error> {
        let table = self.asynchronous();
        let walk = async {
            // So that no retired leaf is met on the way.
            let begun = table.session.begin_slowly(&table.state).await?;
            table.session.refresh(&table.state).await?;
            drop(begun);
            let mut operation = table.begin().await?;
            let mut survey = operation.index.survey();
            let mut left_count = OPERATION_LEAF_COUNT;
            loop {
                let (index, batch) = (operation.index, &mut operation.batch);
                let next = index.survey_next(batch, &mut survey).await;
                let met = match next {
                    Ok(None) => break,
                    Ok(Some(leaf)) => Ok(Some(Met::Leaf(leaf))),
                    Err(error) => match error.lost_node().filter(|_| passes_lost) {
                        Some(node) => {
                            let past = index.survey_past(batch, &mut survey, node).await;
                            past.map(|range| range.map(Met::Lost))
                        }
                        None => Err(error),
                    },
                };
                match met {
                    Ok(met) => met.into_iter().for_each(&mut visit),
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

    /// Bytes of far memory that are the table's: its chunks, whether full or not.
    ///
    /// # Errors
    /// The fabric failed.
    pub fn memory_bytes(&self) -> Result<u64, Error> {
        let table = self.asynchronous();
        let owned = owned_size_bytes(&table.session, table.info().id);
        table.session.drive(owned)
    }
}

/// Bytes of the chunks that are a table's.
pub(crate) async fn owned_size_bytes<H: Host>(
    session: &SessionCore<H>,
    table: u32,
) -> Result<u64, Error> {
    let allocator = ChunkAllocator::new(&session.endpoint, session.layout(), session.owner);
    let chunks = allocator.entries().await?;
    let own = chunks.iter().filter(|(_, chunk)| chunk.table.0 == table);
    Ok(own.count() as u64 * CHUNK_SIZE_BYTES)
}
