//! What a snapshot holds: the result of a training.

use crate::hint::SYNONYM_TABLE_HEADER_SIZE_WORDS;
use farleaf_base::{BLOCK_SIZE_WORDS, TableId};
use farleaf_leaf::strings::PageGeometry;
use farleaf_model::strings::{Residuals, StringSegment};

use super::header::SnapshotShape;
use crate::strings::directory::{ByteDirectory, Run};

/// Result of a training.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Table that the snapshot belongs to.
    pub table: TableId,
    /// Generation of the load that created it.
    pub generation: u16,
    /// Number of records that the models were trained on.
    pub record_count: u64,
    /// Models, in order.
    pub segments: Vec<StringSegment>,
    /// Pages of each model.
    pub runs: Vec<Run>,
    /// Corrections of the predictions.
    pub residuals: Residuals,
}

impl Contents {
    pub(super) fn shape(&self) -> SnapshotShape {
        let (residual_kind, shift) = match &self.residuals {
            Residuals::None => (0, 0),
            Residuals::Bytes { shift, .. } => (1, *shift as u8),
            Residuals::Packed { .. } => (2, 0),
        };
        SnapshotShape {
            table: self.table,
            generation: self.generation,
            residual_kind,
            shift,
        }
    }

    /// Builds the directory that the snapshot describes.
    ///
    /// # Errors
    /// Describes the contradiction in the snapshot.
    pub fn into_directory(self, geometry: PageGeometry) -> Result<ByteDirectory, String> {
        let built = ByteDirectory::build(
            geometry,
            self.generation,
            self.record_count,
            &self.segments,
            self.residuals,
            self.runs,
        );
        built.map_err(|error| error.to_string())
    }
}

/// Returns the words of a synonym leaf table of this capacity: whole blocks.
pub(super) fn table_size_words(capacity: u32) -> usize {
    let words = SYNONYM_TABLE_HEADER_SIZE_WORDS as usize + capacity as usize;
    words.next_multiple_of(BLOCK_SIZE_WORDS as usize)
}
