//! Models and residuals in this process's memory, shared by its sessions.

use core::ops::Range;
use std::sync::Arc;

use farleaf_base::{RemoteAddr, WordAddr};
use farleaf_leaf::words::LeafGeometry;
use farleaf_model::UpperModels;

use crate::hint::{Announcement, Hint, due_split_count};
use crate::synonyms::Replaced;

/// Model: a line that predicts the leaf of a key among adjacent leaves of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Smallest key that is routed to the model; predictions are relative to it.
    pub first_key: u64,
    /// Slope of the line, in leaves per key.
    pub slope: f64,
    /// Prediction at `first_key`, in leaves.
    pub intercept: f32,
    /// Largest prediction error over the trained fences, in leaves; rounded up.
    pub error_max: f32,
    /// Address of the model's first leaf.
    pub base: RemoteAddr,
    /// Number of leaves, at most [`Model::LEAF_COUNT_MAX`].
    pub leaf_count: u32,
    /// Address of the synonym leaf table (the counter, then entries); null if there is none.
    pub synonym_table: RemoteAddr,
    /// Number of entries that the synonym leaf table has space for.
    pub synonym_capacity: u32,
}

impl Model {
    /// Largest number of leaves of a model: an entry of a synonym leaf table names the parent with
    /// 16 bits.
    pub const LEAF_COUNT_MAX: u32 = u16::MAX as u32;
    /// Largest number of leaves that a training gives a `learned` model. Limits how much is
    /// retrained together when one place in it grows.
    pub const TRAINED_LEAF_COUNT_MAX: u32 = 1 << 12;

    /// Returns the predicted position of a key in units of 2^-`shift` leaves, rounded down.
    /// Monotone in the key, and the same on every machine: residuals depend on that.
    #[inline]
    pub fn position(&self, key: u64, shift: u32) -> i64 {
        self.line(shift)
            .position(key.saturating_sub(self.first_key))
    }

    /// Returns the numbers of the first and last leaf of the model that may have a present or
    /// absent key, given the model's error.
    pub fn predicted_range(&self, key: u64, shift: u32) -> (u32, u32) {
        let distance = key.saturating_sub(self.first_key);
        self.line(shift).range(distance, shift, self.error_max)
    }

    fn line(&self, shift: u32) -> ScaledLine {
        let scale = (1_u64 << shift) as f64;
        ScaledLine {
            slope: self.slope * scale,
            intercept: f64::from(self.intercept) * scale + POSITION_BIAS,
            base: self.base,
            first_leaf: 0,
            leaf_count: self.leaf_count,
        }
    }
}

/// Bias of positions while they are floating-point numbers: it makes truncation round down for
/// negative positions too. Predictions err by far less than this many units.
const POSITION_BIAS: f64 = (1_u64 << 32) as f64;

/// Part of a model that every lookup uses: half a cache line.
#[derive(Clone, Copy, Debug)]
struct ScaledLine {
    /// Slope in units of position per key.
    slope: f64,
    /// Position at the first key, in units of position, plus the bias.
    intercept: f64,
    base: RemoteAddr,
    /// Number of the model's first leaf in the directory.
    first_leaf: u32,
    leaf_count: u32,
}

const _: () = assert!(size_of::<ScaledLine>() == 32);

impl ScaledLine {
    /// Returns the numbers of the model's leaves in the directory.
    #[inline]
    fn leaves(&self) -> core::ops::Range<usize> {
        self.first_leaf as usize..(self.first_leaf + self.leaf_count) as usize
    }

    /// Returns the position at a distance from the first key. A multiplication by a positive
    /// number, an addition and a rounding are each monotone, so their sequence is. A fused
    /// multiply-add is not used because it may differ between machines.
    #[inline]
    fn position(&self, distance: u64) -> i64 {
        // `as` saturates, so that a key far beyond the last leaf stays beyond it.
        (self.slope * distance as f64 + self.intercept) as i64 - POSITION_BIAS as i64
    }

    /// Returns the numbers of the first and last leaf that a key at this distance may be in.
    fn range(&self, distance: u64, shift: u32, error_max: f32) -> (u32, u32) {
        let scale = (1_u64 << shift) as f64;
        let position = (self.slope * distance as f64 + (self.intercept - POSITION_BIAS)) / scale;
        let error = f64::from(error_max);
        let last = f64::from(self.leaf_count) - 1.0;
        // A key of leaf i lies between fences i and i + 1, each predicted within `error`.
        let from = (position - 1.0 - error).ceil().clamp(0.0, last);
        let to = (position + error).floor().clamp(from, last);
        (from as u32, to as u32)
    }
}

/// Prediction of a model for a key, before residuals are used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prediction {
    model: u32,
    /// Number in the model of the leaf that the line points to.
    pointed: u32,
    position: i64,
}

/// Part of a model that splits and ROLEX lookups use.
#[derive(Clone, Copy, Debug)]
struct Margin {
    synonym_table: RemoteAddr,
    synonym_capacity: u32,
    error_max: f32,
}

/// Numbers of the models that a newer training has replaced, and of their replacements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedModels {
    /// Numbers of the replaced models in the older directory.
    pub before: Range<usize>,
    /// Numbers of the new models in the newer directory; starts where `before` does.
    pub after: Range<usize>,
}

/// Result of a training, as a process holds it: immutable, and replaced as a whole.
#[derive(Debug)]
pub struct Directory {
    geometry: LeafGeometry,
    generation: u16,
    record_count: u64,
    /// Scale of positions: their unit is 2^-shift leaves.
    shift: u32,
    upper: UpperModels,
    lines: Vec<ScaledLine>,
    margins: Vec<Margin>,
    /// Residual per leaf: for leaf i of a model, the smallest predicted position of keys in this
    /// leaf or later ones (the threshold), minus i.
    residuals: Vec<i8>,
    /// Address of each leaf, if leaves of a model are not adjacent. Lookups by residuals do not use
    /// it: they require a directory without a leaf table.
    leaf_table: Option<Arc<[RemoteAddr]>>,
}

impl Directory {
    /// Creates a directory. `models` must cover all keys in order, with one residual per leaf.
    ///
    /// # Panics
    /// If they do not: readers of snapshots check this first.
    pub fn new(
        geometry: LeafGeometry,
        generation: u16,
        record_count: u64,
        shift: u32,
        models: &[Model],
        residuals: Vec<i8>,
    ) -> Self {
        let mut first_leaf = 0;
        let mut lines = Vec::with_capacity(models.len());
        for model in models {
            lines.push(ScaledLine {
                first_leaf,
                ..model.line(shift)
            });
            first_leaf += model.leaf_count;
        }
        assert_eq!(
            first_leaf as usize,
            residuals.len(),
            "one residual per leaf"
        );
        let margins = models.iter().map(|model| Margin {
            synonym_table: model.synonym_table,
            synonym_capacity: model.synonym_capacity,
            error_max: model.error_max,
        });
        let margins = margins.collect();
        let upper = UpperModels::build(models.iter().map(|model| model.first_key).collect());
        Self {
            geometry,
            generation,
            record_count,
            shift,
            upper,
            lines,
            margins,
            residuals,
            leaf_table: None,
        }
    }

    /// Returns the leaves and models that a newer directory has replaced. Models are compared by
    /// their leaves and synonym leaf tables; a model that has lost its tail counts as replaced.
    pub fn replaced_by(&self, newer: &Self) -> (Replaced, ReplacedModels) {
        let piece = |directory: &Self, model: usize| {
            let line = &directory.lines[model];
            let first_key = directory.upper.first_keys()[model];
            let table = directory.margins[model].synonym_table;
            (first_key, line.base, line.leaf_count, table)
        };
        let (old_count, new_count) = (self.lines.len(), newer.lines.len());
        let common = old_count.min(new_count);
        let left = (0..common).take_while(|model| piece(self, *model) == piece(newer, *model));
        let left = left.count();
        let right = (1..=common - left)
            .take_while(|back| piece(self, old_count - back) == piece(newer, new_count - back));
        let right = right.count();
        let models = ReplacedModels {
            before: left..old_count - right,
            after: left..new_count - right,
        };
        let number = |directory: &Self, model: usize| {
            let line = directory.lines.get(model);
            line.map_or(directory.leaf_count(), |line| line.first_leaf)
        };
        let first_keys = newer.upper.first_keys();
        let replaced = Replaced {
            before: number(self, models.before.start)..number(self, models.before.end),
            after: number(newer, models.after.start)..number(newer, models.after.end),
            low: match left {
                0 => 0,
                _ => first_keys.get(left).copied().unwrap_or(u64::MAX),
            },
            end: first_keys.get(models.after.end).copied(),
        };
        (replaced, models)
    }

    /// Returns the directory with the same models over leaves at the addresses of a leaf table. The
    /// result does not support [`locate`](Self::locate) and its parts.
    #[must_use]
    pub fn with_leaf_table(self, leaf_table: Arc<[RemoteAddr]>) -> Self {
        assert_eq!(leaf_table.len(), self.residuals.len(), "one place per leaf");
        Self {
            leaf_table: Some(leaf_table),
            ..self
        }
    }

    /// Returns whether the directory has an explicit leaf table.
    pub fn has_leaf_table(&self) -> bool {
        self.leaf_table.is_some()
    }

    /// Returns the addresses of all trained leaves in order: the leaf table, or a computed one.
    pub fn leaf_table(&self) -> Arc<[RemoteAddr]> {
        if let Some(leaf_table) = &self.leaf_table {
            return Arc::clone(leaf_table);
        }
        let leaves = |line: &ScaledLine| {
            let (base, stride) = (line.base, self.geometry.stride_blocks());
            (0..u64::from(line.leaf_count)).map(move |leaf| base.offset_blocks(leaf * stride))
        };
        self.lines.iter().flat_map(leaves).collect()
    }

    /// Returns the generation of the load that created it.
    pub fn generation(&self) -> u16 {
        self.generation
    }

    /// Returns the number of records that the training saw.
    pub fn record_count(&self) -> u64 {
        self.record_count
    }

    /// Returns the number of trained leaves.
    pub fn leaf_count(&self) -> u32 {
        self.residuals.len() as u32
    }

    /// Returns the number of models.
    pub fn model_count(&self) -> usize {
        self.lines.len()
    }

    /// Returns the bytes of upper models, models and residuals that lookups by residuals use.
    pub fn lookup_bytes(&self) -> u64 {
        self.model_bytes() + self.residuals.len() as u64
    }

    /// Returns the bytes of upper models and models.
    pub fn model_bytes(&self) -> u64 {
        let lines = size_of_val(&*self.lines) + size_of_val(&*self.margins);
        (self.upper.size_bytes() + lines) as u64
    }

    /// Returns the leaf of a key according to the training.
    #[inline]
    pub fn locate(&self, key: u64) -> Hint {
        self.resolve(self.predict(key))
    }

    /// First half of [`locate`](Self::locate): uses upper models and one model.
    #[expect(clippy::inline_always, reason = "a call costs a tenth of a lookup")]
    #[inline(always)]
    pub fn predict(&self, key: u64) -> Prediction {
        let model = self.upper.find(key);
        let distance = key.saturating_sub(self.upper.first_keys()[model]);
        let line = &self.lines[model];
        let position = line.position(distance);
        let last = i64::from(line.leaf_count) - 1;
        let pointed = (position >> self.shift).clamp(0, last);
        Prediction {
            model: model as u32,
            pointed: pointed as u32,
            position,
        }
    }

    /// Returns a leaf near the one that a prediction will be resolved to, mostly in the same page
    /// of memory.
    #[inline]
    pub fn near(&self, prediction: Prediction) -> RemoteAddr {
        self.leaf_at(
            &self.lines[prediction.model as usize],
            u64::from(prediction.pointed),
        )
    }

    /// Corrects the leaves that predictions point to by one residual each. These loads do not wait
    /// for each other, and bring what [`resolve`](Self::resolve) needs into the processor's cache.
    pub fn refine(&self, predictions: &mut [Prediction]) {
        for prediction in predictions {
            let range = self.lines[prediction.model as usize].leaves();
            let residual = self.residuals[range.start + prediction.pointed as usize];
            let corrected = prediction.position.saturating_sub(i64::from(residual));
            let last = range.len() as i64 - 1;
            prediction.pointed = (corrected >> self.shift).clamp(0, last) as u32;
        }
    }

    /// Second half of [`locate`](Self::locate): uses residuals.
    #[inline]
    pub fn resolve(&self, prediction: Prediction) -> Hint {
        let Prediction {
            model,
            pointed,
            position,
        } = prediction;
        let line = &self.lines[model as usize];
        let residuals = &self.residuals[line.leaves()];
        let last = residuals.len() as i64 - 1;
        let threshold = |leaf: i64| (leaf << self.shift) + i64::from(residuals[leaf as usize]);
        // The residual of the leaf that the line points to shows how far the line is off near it.
        let corrected = position.saturating_sub(i64::from(residuals[pointed as usize]));
        let mut leaf = (corrected >> self.shift).clamp(0, last);
        while leaf > 0 && position < threshold(leaf) {
            leaf -= 1;
        }
        while leaf < last && position >= threshold(leaf + 1) {
            leaf += 1;
        }
        Hint {
            addr: self.leaf_at(line, leaf as u64),
            parent: line.first_leaf + leaf as u32,
        }
    }

    /// Returns the paper's predicted range: the numbers of the first and last leaf that may have a
    /// key given the model's error.
    pub fn predicted_range(&self, key: u64) -> (u32, u32) {
        let model = self.upper.find(key);
        let line = &self.lines[model];
        let distance = key.saturating_sub(self.upper.first_keys()[model]);
        let (from, to) = line.range(distance, self.shift, self.margins[model].error_max);
        (line.first_leaf + from, line.first_leaf + to)
    }

    /// Returns the trained leaf with this number.
    #[inline]
    pub fn leaf(&self, number: u32) -> Option<Hint> {
        if number >= self.leaf_count() {
            return None;
        }
        let addr = if let Some(leaf_table) = &self.leaf_table {
            leaf_table[number as usize]
        } else {
            let line = &self.lines[self.model_of(number)];
            self.leaf_at(line, u64::from(number - line.first_leaf))
        };
        Some(Hint {
            addr,
            parent: number,
        })
    }

    /// Returns the trained leaf with this number, and how many leaves of its model are adjacent
    /// from it on, at most `count_max`.
    pub fn run_from(&self, number: u32, count_max: u32) -> Option<(Hint, u32)> {
        if number >= self.leaf_count() {
            return None;
        }
        let line = &self.lines[self.model_of(number)];
        let index = number - line.first_leaf;
        let count_max = count_max.clamp(1, line.leaf_count - index);
        let (addr, count) = match &self.leaf_table {
            Some(leaf_table) => {
                let leaves = &leaf_table[number as usize..(number + count_max) as usize];
                let stride = self.geometry.stride_blocks();
                let beside = leaves.windows(2);
                let beside = beside.take_while(|pair| pair[0].offset_blocks(stride) == pair[1]);
                (leaves[0], 1 + beside.count() as u32)
            }
            None => (self.leaf_at(line, u64::from(index)), count_max),
        };
        let hint = Hint {
            addr,
            parent: number,
        };
        Some((hint, count))
    }

    /// Returns the number of the model that a trained leaf belongs to.
    #[inline]
    pub fn model_of(&self, leaf: u32) -> usize {
        self.lines.partition_point(|line| line.first_leaf <= leaf) - 1
    }

    /// Returns where a split of a leaf of this parent is announced.
    pub fn announcement(&self, parent: u32) -> Option<Announcement> {
        let model = self.model_of(parent);
        let margin = self.margins[model];
        let parent_in_model = (parent - self.lines[model].first_leaf) as u16;
        (!margin.synonym_table.is_null()).then(|| Announcement {
            counter: self.synonym_counter(model),
            capacity: margin.synonym_capacity,
            model: model as u32,
            parent_in_model,
            due_split_count: due_split_count(self.lines[model].leaf_count),
        })
    }

    /// Returns the address of the word that counts a model's synonym leaves.
    pub fn synonym_counter(&self, model: usize) -> WordAddr {
        self.margins[model].synonym_table.word_at(0)
    }

    /// Returns the number of entries that a model's synonym leaf table has space for.
    pub fn synonym_capacity(&self, model: usize) -> u32 {
        self.margins[model].synonym_capacity
    }

    /// Returns the number of a model's first leaf.
    pub fn first_leaf_of(&self, model: usize) -> u32 {
        self.lines[model].first_leaf
    }

    #[inline]
    fn leaf_at(&self, line: &ScaledLine, index: u64) -> RemoteAddr {
        line.base
            .offset_blocks(index * self.geometry.stride_blocks())
    }
}
