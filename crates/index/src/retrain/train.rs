//! Models over leaves whose fences are given.

use farleaf_leaf::LeafGeometry;
use farleaf_model::{Segment, SegmentBuilder};
use farleaf_types::RemoteAddr;

use super::mover::Made;
use crate::directory::Model;
use crate::layer::LayerKind;
use crate::load::{Boundaries, Gap, error_max, leaf_count_max, synonym_capacity};

/// Models and residuals of leaves side by side.
#[derive(Debug, Default)]
pub(super) struct Trained {
    pub(super) models: Vec<Model>,
    pub(super) residuals: Vec<i8>,
}

/// Trains on the lower fences of new leaves, left to right.
pub(super) fn train(
    leaves: &[Made],
    geometry: LeafGeometry,
    epsilon_leaves: f64,
    shift: u32,
) -> Trained {
    let mut regression = SegmentBuilder::new(epsilon_leaves, leaf_count_max(LayerKind::Learned));
    let mut trained = Trained::default();
    let mut begun = 0;
    for (index, leaf) in leaves.iter().enumerate() {
        if let Some(segment) = regression.push(leaf.low) {
            trained.add(&segment, &leaves[begun..index], geometry, shift);
            begun = index;
        }
    }
    if let Some(segment) = regression.finish() {
        trained.add(&segment, &leaves[begun..], geometry, shift);
    }
    trained
}

impl Trained {
    fn add(&mut self, segment: &Segment, leaves: &[Made], geometry: LeafGeometry, shift: u32) {
        let is_one_run = leaves.iter().enumerate().all(|(index, leaf)| {
            let blocks = index as u64 * geometry.stride_blocks();
            leaves[0].addr.offset_blocks(blocks) == leaf.addr
        });
        assert!(is_one_run, "R2: new leaves lie side by side");
        let leaf_count = leaves.len() as u32;
        let mut model = Model {
            first_key: segment.first_x,
            slope: segment.slope,
            intercept: segment.intercept as f32,
            error_max: 0.0,
            base: leaves[0].addr,
            leaf_count,
            synonym_table: RemoteAddr::NULL,
            synonym_capacity: synonym_capacity(LayerKind::Learned, leaf_count),
        };
        // The fence is between two keys side by side, the only place that is left for it.
        let gaps: Vec<Gap> = leaves.iter().map(|leaf| Gap::at(leaf.low)).collect();
        let boundaries = Boundaries::decide(&model, &gaps, shift);
        let lows: Vec<u64> = leaves.iter().map(|leaf| leaf.low).collect();
        model.error_max = error_max(&model, &lows);
        self.models.push(model);
        self.residuals.extend(boundaries.residuals);
    }
}
