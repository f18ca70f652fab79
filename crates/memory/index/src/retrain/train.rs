//! Training models over leaves whose fences are fixed.

use farleaf_base::RemoteAddr;
use farleaf_leaf::words::LeafGeometry;
use farleaf_model::{Segment, SegmentBuilder};

use crate::directory::Model;
use crate::layer::LayerKind;
use crate::load::{Fence, error_max, leaf_count_max, residuals_of, synonym_capacity};

/// Models and residuals of leaves, left to right.
#[derive(Debug, Default)]
pub(super) struct TrainedModels {
    pub(super) models: Vec<Model>,
    pub(super) residuals: Vec<i8>,
}

/// Trains on leaves, left to right, given by address and lower fence. The label of a leaf is its
/// number in its model. For [`LayerKind::Learned`] leaves must be adjacent.
pub(super) fn train(
    leaves: &[(RemoteAddr, Fence)],
    kind: LayerKind,
    geometry: LeafGeometry,
    epsilon_leaves: f64,
    shift: u32,
) -> TrainedModels {
    let mut regression = SegmentBuilder::new(epsilon_leaves, leaf_count_max(LayerKind::Learned));
    let mut trained = TrainedModels::default();
    let mut segment_start = 0;
    for (index, leaf) in leaves.iter().enumerate() {
        if let Some(segment) = regression.push(leaf.1.low) {
            trained.add(
                &segment,
                &leaves[segment_start..index],
                kind,
                geometry,
                shift,
            );
            segment_start = index;
        }
    }
    if let Some(segment) = regression.finish() {
        trained.add(&segment, &leaves[segment_start..], kind, geometry, shift);
    }
    trained
}

impl TrainedModels {
    fn add(
        &mut self,
        segment: &Segment,
        leaves: &[(RemoteAddr, Fence)],
        kind: LayerKind,
        geometry: LeafGeometry,
        shift: u32,
    ) {
        let (base, stride) = (leaves[0].0, geometry.stride_blocks());
        let mut numbered = (0..).zip(leaves);
        let is_one_run = numbered.all(|(index, leaf)| base.offset_blocks(index * stride) == leaf.0);
        assert!(
            kind == LayerKind::Rolex || is_one_run,
            "R2: new leaves lie side by side"
        );
        let leaf_count = leaves.len() as u32;
        let mut model = Model {
            first_key: segment.first_x,
            slope: segment.slope,
            intercept: segment.intercept as f32,
            error_max: 0.0,
            base,
            leaf_count,
            synonym_table: RemoteAddr::NULL,
            synonym_capacity: synonym_capacity(kind, leaf_count),
        };
        let fences: Vec<Fence> = leaves.iter().map(|leaf| leaf.1).collect();
        let lows: Vec<u64> = fences.iter().map(|fence| fence.low).collect();
        model.error_max = error_max(&model, &lows);
        self.residuals.extend(residuals_of(&model, &fences, shift));
        self.models.push(model);
    }
}
