//! Fences and residuals from a segment of the regression.

use crate::directory::Model;

/// Leaf boundaries of one model.
#[derive(Debug, Default)]
pub(crate) struct Boundaries {
    /// Lower fence of each leaf.
    pub(crate) lows: Vec<u64>,
    /// Residual of each leaf.
    pub(crate) residuals: Vec<i8>,
}

/// Gap before a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    /// Last key of the previous leaf.
    pub(crate) last: u64,
    /// First key of the leaf.
    pub(crate) first: u64,
}

/// Fixed lower fence of a leaf, and the gap around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fence {
    /// Lower fence: above the gap's last key, and not above its first.
    pub(crate) low: u64,
    /// Nearest keys on both sides, as far as they are known.
    pub(crate) gap: Gap,
}

impl Fence {
    /// Creates a fence without known keys around it.
    pub(crate) fn alone(low: u64) -> Self {
        let gap = Gap {
            last: low.saturating_sub(1),
            first: low,
        };
        Self { low, gap }
    }
}

impl Gap {
    /// Returns the middle of the gap: a key that could be the leaf's lower fence.
    pub(super) fn middle(&self) -> u64 {
        self.last + (self.first - self.last).div_ceil(2)
    }
}

/// Largest error of a residual in grid points: a threshold is at most one beyond the predicted
/// fence.
const RESIDUAL_ROOM: f64 = i8::MAX as f64 - 1.0;

/// Returns the largest error, in leaves, that a residual byte can hold at a shift; at least half a
/// leaf.
pub(crate) fn epsilon_leaves_max(shift: u32) -> f64 {
    RESIDUAL_ROOM / f64::from(1 << shift)
}

/// Returns the shift of positions: the finest at which a residual byte can still hold errors of
/// `epsilon_leaves`.
pub(crate) fn shift_for(epsilon_leaves: f64) -> u32 {
    let shift = (RESIDUAL_ROOM / epsilon_leaves.max(0.5)).log2().floor();
    shift.clamp(0.0, 8.0) as u32
}

impl Boundaries {
    /// Decides the fences of a model's leaves. `gaps[i]` is before leaf i; the model's first key is
    /// the first leaf's fence.
    ///
    /// If the model predicts different positions for the gap's two keys, a threshold between them
    /// is chosen. The fence is the smallest key whose position reaches it, so the residual is exact
    /// for every key, present or not. Otherwise the fence is the leaf's first key, and keys with
    /// the same position on the wrong side of it cost one more leaf.
    pub(crate) fn decide(model: &Model, gaps: &[Gap], shift: u32) -> Self {
        let mut boundaries = Self {
            lows: vec![model.first_key],
            residuals: vec![i8::MIN],
        };
        let mut threshold_before = i64::MIN;
        for (index, gap) in gaps.iter().enumerate().skip(1) {
            let position = |key| model.position(key, shift);
            let (last, first) = (position(gap.last), position(gap.first));
            let base = (index as i64) << shift;
            let clamp = |threshold: i64| {
                (base + i64::from(residual(threshold, base))).max(threshold_before)
            };
            let middle = clamp(position(gap.middle()).clamp(last + 1, first.max(last + 1)));
            let exact = last < middle && middle <= first;
            let (low, threshold) = if exact {
                (smallest_key(*gap, |key| position(key) >= middle), middle)
            } else {
                (gap.first, clamp(first))
            };
            boundaries.lows.push(low);
            boundaries.residuals.push(residual(threshold, base));
            threshold_before = threshold;
        }
        boundaries
    }
}

/// Returns the residuals of a model's leaves with fixed fences; the first leaf's residual is not
/// used.
///
/// A leaf's threshold is as near to the position of its fence as the keys on both sides allow.
/// Present keys are then predicted correctly, and absent ones as correctly as possible. If both
/// sides have the same position, the left side's keys cost one more leaf.
pub(crate) fn residuals_of(model: &Model, fences: &[Fence], shift: u32) -> Vec<i8> {
    let mut residuals = Vec::with_capacity(fences.len());
    residuals.push(i8::MIN);
    let mut threshold_before = i64::MIN;
    for (index, fence) in fences.iter().enumerate().skip(1) {
        let position = |key| model.position(key, shift);
        let (last, first) = (position(fence.gap.last), position(fence.gap.first));
        let threshold = position(fence.low).max(last + 1).min(first);
        let base = (index as i64) << shift;
        let threshold = (base + i64::from(residual(threshold, base))).max(threshold_before);
        residuals.push(residual(threshold, base));
        threshold_before = threshold;
    }
    residuals
}

/// Returns a threshold as a residual byte. The threshold may be out of range because it must not be
/// below the previous one; then predictions of the leaf are wrong, and its fences show it.
fn residual(threshold: i64, base: i64) -> i8 {
    (threshold - base).clamp(i8::MIN.into(), i8::MAX.into()) as i8
}

/// Returns the smallest key of a gap, after its last key, for which the condition holds. The
/// condition must be monotone and hold for the gap's first key.
fn smallest_key(gap: Gap, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut below, mut reaches) = (gap.last, gap.first);
    while reaches - below > 1 {
        let middle = below + (reaches - below) / 2;
        if holds(middle) {
            reaches = middle;
        } else {
            below = middle;
        }
    }
    reaches
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::RemoteAddr;

    fn model(first_key: u64, slope: f64, leaf_count: u32) -> Model {
        Model {
            first_key,
            slope,
            intercept: 0.0,
            error_max: 1.0,
            base: RemoteAddr::NULL,
            leaf_count,
            synonym_table: RemoteAddr::NULL,
            synonym_capacity: 0,
        }
    }

    #[test]
    fn fences_are_where_predictions_reach_their_thresholds() {
        let shift = 5;
        let model = model(1 << 62, 1e-3, 4);
        let gaps: Vec<Gap> = (0..4)
            .map(|leaf| (1 << 62) + leaf * 1000)
            .map(|fence| Gap {
                last: fence - 90,
                first: fence + 70,
            })
            .collect();
        let boundaries = Boundaries::decide(&model, &gaps, shift);
        for (leaf, gap) in gaps.iter().enumerate().skip(1) {
            let threshold = ((leaf as i64) << shift) + i64::from(boundaries.residuals[leaf]);
            let low = boundaries.lows[leaf];
            assert!(gap.last < low && low <= gap.first);
            assert!(model.position(low, shift) >= threshold);
            assert!(model.position(low - 1, shift) < threshold);
        }
    }

    #[test]
    fn keys_too_close_for_the_grid_begin_their_leaf_themselves() {
        let gaps = [
            Gap { last: 0, first: 0 },
            Gap { last: 7, first: 8 },
            Gap {
                last: 11,
                first: 12,
            },
        ];
        let boundaries = Boundaries::decide(&model(0, 1e-9, 3), &gaps, 5);
        assert_eq!(boundaries.lows, [0, 8, 12]);
    }

    /// Checks that, with fixed fences, the keys on both sides of each are predicted correctly if
    /// the grid has a point between them, wherever the fence is. Absent keys are predicted wrong
    /// only between the fence and the nearest present key.
    #[test]
    fn residuals_of_given_fences_part_the_keys_on_both_sides() {
        let (shift, unit) = (5, 1000 / 32);
        let model = model(0, 1e-3, 4);
        let position = |key| model.position(key, shift);
        for fence_in_gap in [1, unit - 1, unit, 2 * unit, 90] {
            let fences: Vec<Fence> = (0..4)
                .map(|leaf| {
                    let gap = Gap {
                        last: (leaf * 1000).max(60) - 60,
                        first: (leaf * 1000).max(60) + 30,
                    };
                    let low = gap.last + fence_in_gap;
                    Fence { low, gap }
                })
                .collect();
            let residuals = residuals_of(&model, &fences, shift);
            for (leaf, fence) in fences.iter().enumerate().skip(1) {
                let threshold = ((leaf as i64) << shift) + i64::from(residuals[leaf]);
                assert!(position(fence.gap.last) < threshold);
                assert!(position(fence.gap.first) >= threshold);
                assert!((position(fence.low) - threshold).abs() <= 1);
            }
        }
    }

    /// Checks that, if no grid point is in the gap, the leaf's own keys are predicted correctly.
    #[test]
    fn a_gap_that_is_too_narrow_costs_the_left_side() {
        let model = model(0, 1e-3, 2);
        let gap = Gap {
            last: 1002,
            first: 1004,
        };
        let fences = [Fence::alone(0), Fence { low: 1003, gap }];
        let residuals = residuals_of(&model, &fences, 5);
        assert_eq!(32 + i64::from(residuals[1]), model.position(1004, 5));
    }

    #[test]
    fn the_grid_is_as_fine_as_a_byte_allows() {
        assert_eq!(shift_for(2.67), 5);
        assert_eq!(shift_for(4.0), 4);
        assert_eq!(shift_for(1.33), 6);
        assert_eq!(
            shift_for(1e9),
            0,
            "then residuals saturate, and leaves are predicted wrong"
        );
    }
}
