//! Leaf table (LT) of ROLEX in far memory: one address of 8 bytes per trained leaf. Only tables
//! that were retrained without moving leaves have one. In others leaves are adjacent, and their
//! addresses are computed.

use std::sync::Arc;

use farleaf_base::{RemoteAddr, crc32c};
use farleaf_leaf::words::LeafGeometry;
use farleaf_pool::PoolLayout;

use crate::directory::Model;

/// Returns the words of a leaf table.
pub(super) fn encode(leaves: &[RemoteAddr]) -> Vec<u64> {
    leaves.iter().map(|leaf| leaf.word()).collect()
}

/// Returns whether an address is a valid place for a leaf: all of the leaf is in chunks, and the
/// pointer has no spare bits or flags set.
pub(crate) fn is_place(layout: &PoolLayout, geometry: LeafGeometry, leaf: RemoteAddr) -> bool {
    let last = leaf.block() + geometry.stride_blocks() - 1;
    leaf == leaf.place()
        && last < RemoteAddr::BLOCK_COUNT_MAX
        && layout.chunk_of(leaf).is_some()
        && layout
            .chunk_of(RemoteAddr::new(leaf.node(), last))
            .is_some()
}

/// Decodes a leaf table whose checksum is in the header. Its leaves must be as many as the models'.
///
/// # Errors
/// A description of the corruption.
pub(super) fn decode(
    words: &[u64],
    checksum: u32,
    layout: &PoolLayout,
    geometry: LeafGeometry,
    models: &[Model],
) -> Result<Arc<[RemoteAddr]>, String> {
    if crc32c(words) != checksum {
        return Err("checksum mismatch in its leaf table".to_owned());
    }
    let leaves: Arc<[RemoteAddr]> = words
        .iter()
        .map(|word| RemoteAddr::from_word(*word))
        .collect();
    if let Some(leaf) = leaves
        .iter()
        .find(|leaf| !is_place(layout, geometry, **leaf))
    {
        return Err(format!("its leaf table names {leaf}, which is not a leaf"));
    }
    let mut first = 0;
    for model in models {
        if leaves.get(first) != Some(&model.base) {
            return Err("its leaf table contradicts its models".to_owned());
        }
        first += model.leaf_count as usize;
    }
    if first != leaves.len() {
        return Err("its leaf table contradicts its models".to_owned());
    }
    Ok(leaves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;
    use farleaf_pool::layout::ChunkIndex;
    use farleaf_pool::{NodeLayout, Superblock};
    use proptest::prelude::*;

    fn layout() -> PoolLayout {
        PoolLayout::from(NodeLayout {
            node: NodeId(0),
            superblock: Superblock::new(3 << 20, 1).expect("large enough"),
        })
    }

    fn geometry() -> LeafGeometry {
        LeafGeometry::new(8).expect("there are such leaves")
    }

    /// Returns five leaves of two models, none adjacent to the next.
    fn table() -> (Vec<RemoteAddr>, Vec<Model>) {
        let start = layout().chunk_start(ChunkIndex(0));
        let leaf = |number: u64| start.offset_blocks(number * geometry().stride_blocks());
        let leaves = [7, 0, 90, 4, 11].map(leaf).to_vec();
        let model = |first: usize, leaf_count| Model {
            first_key: first as u64 * 1000,
            slope: 0.5,
            intercept: 0.0,
            error_max: 1.0,
            base: leaves[first],
            leaf_count,
            synonym_table: RemoteAddr::NULL,
            synonym_capacity: 0,
        };
        let models = vec![model(0, 2), model(2, 3)];
        (leaves, models)
    }

    fn decoded(words: &[u64]) -> Result<Arc<[RemoteAddr]>, String> {
        let checksum = crc32c(words);
        decode(words, checksum, &layout(), geometry(), &table().1)
    }

    /// The words of a leaf table are the leaves' addresses, nothing else.
    #[test]
    fn words_are_golden() {
        let leaves = [3, 1 << 40].map(|block| RemoteAddr::new(NodeId(2), block - 1));
        let words = encode(&leaves);
        assert_eq!(words, leaves.map(RemoteAddr::word));
        let (leaves, _) = table();
        assert_eq!(decoded(&encode(&leaves)).as_deref(), Ok(&leaves[..]));
    }

    /// An address that is not a place for a leaf is rejected even if the checksum matches: outside
    /// of the chunks, across their end, retired, or with spare bits set.
    #[test]
    fn every_address_must_lie_inside_a_chunk() {
        let layout = layout();
        let chunk_count = layout.superblock.chunk_count;
        let last_block = layout.chunk_start(ChunkIndex(chunk_count - 1)).block() + 1023;
        let beyond = RemoteAddr::new(NodeId(0), last_block);
        let inside = table().0[4];
        let bad = [
            RemoteAddr::NULL,
            beyond,
            inside.retired(),
            inside.with_spare(1),
            RemoteAddr::new(NodeId(0), RemoteAddr::BLOCK_COUNT_MAX - 1),
        ];
        for bad in bad {
            let mut leaves = table().0;
            leaves[4] = bad;
            let refused = decoded(&encode(&leaves)).expect_err("it is no place for a leaf");
            assert!(refused.contains("names"), "{refused}");
        }
    }

    /// A table that has more or fewer leaves than the models, or other first leaves, is rejected.
    #[test]
    fn it_must_agree_with_the_models() {
        let leaves = table().0;
        for wrong in [
            &leaves[..4],
            &leaves[1..],
            &[&leaves[..], &leaves[..1]].concat(),
        ] {
            let refused = decoded(&encode(wrong)).expect_err("it is another table");
            assert!(refused.contains("contradicts"), "{refused}");
        }
    }

    proptest! {
        /// Decoding arbitrary words does not panic, and detects corruption.
        #[test]
        fn any_words_are_refused_or_decoded(
            words in proptest::collection::vec(any::<u64>(), 0..9),
            flip in 1_u64.., at in 0_usize..5,
        ) {
            let _ = decoded(&words);
            let sound = encode(&table().0);
            let mut damaged = sound.clone();
            damaged[at] ^= flip;
            let (layout, models) = (layout(), table().1);
            let read = decode(&damaged, crc32c(&sound), &layout, geometry(), &models);
            prop_assert!(read.is_err());
        }
    }
}
