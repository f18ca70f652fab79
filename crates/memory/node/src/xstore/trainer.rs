//! Trains sub-models, and all models of a table.

use core::cell::Cell;
use core::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_index::IndexError;
use farleaf_index::xstore::record::RECORD_SIZE_WORDS;
use farleaf_index::xstore::{Generation, ModelHead, SubModelRecord};
use farleaf_model::recursive::{SubModel, TopModel, pieces_of};
use farleaf_pool::PoolError;

use super::area::{self, PlaceKind};
use super::served::{BuiltTree, LeafTable, Models, TrainedSubModel};
use super::tables::DueTraining;
use super::worker::{SessionFactory, Worker, WorkerSession};

/// Approximate words written per batch.
const BATCH_SIZE_WORDS: usize = 1 << 15;

/// Trainer, owned by one thread.
#[derive(Debug)]
pub struct Trainer<B: SessionFactory> {
    worker: Worker<B>,
    sub_model_count: Cell<u64>,
    point_count: Cell<u64>,
}

/// Leaves that overlap with the span of a sub-model, and their lower fences.
struct SpanLeaves<'a> {
    span: &'a RangeInclusive<u64>,
    lows: &'a [u64],
    leaves: &'a [RemoteAddr],
}

impl<B: SessionFactory> Trainer<B> {
    /// Creates a trainer with its own worker.
    pub fn new(worker: Worker<B>) -> Self {
        Self {
            worker,
            sub_model_count: Cell::new(0),
            point_count: Cell::new(0),
        }
    }

    /// Returns the number of sub-models trained.
    pub fn sub_model_count(&self) -> u64 {
        self.sub_model_count.get()
    }

    /// Returns the number of points that sub-models were fitted to, one for each leaf of each.
    pub fn point_count(&self) -> u64 {
        self.point_count.get()
    }

    /// Returns the worker.
    pub fn worker(&self) -> &Worker<B> {
        &self.worker
    }

    /// Runs the oldest due training. Returns false if there is none, or if there is no free
    /// session. Training that has begun is no longer due, whatever its outcome: a client that
    /// misses a key makes it due again.
    ///
    /// # Errors
    /// There is no free space for models, or the fabric failed.
    pub async fn train_next(&self) -> Result<bool, IndexError> {
        let Some((due, training)) = self.worker.tables().pop() else {
            return Ok(false);
        };
        let Ok(worker_session) = self.worker.worker_session() else {
            drop(training);
            self.worker.tables().push(due);
            return Ok(false);
        };
        let trained = self.train(&worker_session, due).await;
        if let Err(error) = &trained {
            worker_session.note_failure(error);
        }
        drop(training);
        trained.map(|()| true)
    }

    async fn train(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        due: DueTraining,
    ) -> Result<(), IndexError> {
        let DueTraining { table, sub_model } = due;
        if sub_model.is_none() {
            // Before the tree is read: another tree makes all models due again.
            table.begin_all();
        }
        let built = table.built();
        let models = built.as_ref().and_then(|built| built.models());
        let one = sub_model.and_then(|(generation, number)| {
            let models = models.filter(|models| models.head.generation == generation)?;
            models.begin(number);
            Some((models, number))
        });
        self.worker.follow().await?;
        let Some(built) = &built else {
            return Ok(());
        };
        if !worker_session.is_live(self.worker.layout(), &table).await? {
            self.worker.tables().forget(table.id());
            return Ok(());
        }
        match (sub_model, one) {
            (None, _) => self.train_all(worker_session, &table, built).await,
            (_, Some((models, number))) => {
                self.train_one(worker_session, &table, built, &models, number)
                    .await
            }
            _ => Ok(()),
        }
    }

    /// Trains one sub-model.
    async fn train_one(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        table: &Arc<LeafTable>,
        built: &BuiltTree,
        models: &Arc<Models>,
        number: u32,
    ) -> Result<(), IndexError> {
        let Some(span) = models.top.span(number) else {
            return Ok(());
        };
        let (lows, leaves) = built.tree.overlapping(*span.start(), *span.end());
        let overlapping = SpanLeaves {
            span: &span,
            lows: &lows,
            leaves: &leaves,
        };
        let (generation, version) = (models.head.generation, models.next_version(number));
        let trained = self.fit(worker_session, table, generation, version, overlapping);
        let trained = trained.await?;
        let mut batch = Batch::new();
        post(&mut batch, models.head.record(number), table, &trained);
        if let Err(error) = worker_session.endpoint.execute(&mut batch).await {
            // What was written there is an outdated hint. It may overwrite the record of the newest
            // known version and lead nowhere, so the sub-model is trained again.
            give_table(table, &trained);
            if !worker_session
                .endpoint
                .skips_check(ProtocolCheck::FailedTrainingIsDue)
            {
                table.make_due(self.worker.tables(), models, number);
            }
            return Err(error.into());
        }
        let before = models.replace(number, trained);
        give_table(table, &before);
        Ok(())
    }

    /// Trains all models of a table.
    async fn train_all(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        table: &Arc<LeafTable>,
        built: &BuiltTree,
    ) -> Result<(), IndexError> {
        let leaf_count_before = built.tree.leaf_count();
        let (lows, leaves) = built.tree.overlapping(0, u64::MAX);
        let per_sub_model = self.worker.tables().leaves_per_sub_model();
        let per_sub_model = usize::try_from(per_sub_model).unwrap_or(usize::MAX);
        let top = TopModel::fit(&lows, per_sub_model);
        // The top model is fitted to all of them.
        let low_count = lows.len() as u64;
        worker_session.endpoint.note_training(low_count, low_count);
        let mut head = ModelHead {
            generation: table.next_generation(),
            sub_model_count: top.sub_model_count(),
            // The top model has no more lines than sub-models.
            line_count: top.lines().len() as u32,
            records: RemoteAddr::NULL,
            leaf_count: lows.len() as u64,
            record_count: built.record_count.load(Ordering::Relaxed),
        };
        let word_count = size_words(&head);
        let records = self.place(worker_session, table, PlaceKind::Records, word_count);
        head.records = records.await?;
        let newest = Generation { head, top };
        let mut all = Vec::with_capacity(head.sub_model_count as usize);
        let written = self.write_all(worker_session, table, &newest, &lows, &leaves, &mut all);
        let written = written.await;
        let models = Arc::new(Models::new(table.id(), newest, all));
        if let Err(error) = written {
            give_models(table, &models);
            return Err(error);
        }
        if let Some(before) = built.set_models(Arc::clone(&models)) {
            give_models(table, &before);
        }
        // Leaves added in the meantime have made sub-models of the old generation due.
        if built.tree.leaf_count() != leaf_count_before {
            self.make_changed_due(table, built, &models);
        }
        Ok(())
    }

    /// Writes the top model, then trains and writes the sub-models; adds them to `all`, as far as
    /// it gets.
    async fn write_all(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        table: &LeafTable,
        newest: &Generation,
        lows: &[u64],
        leaves: &[RemoteAddr],
        all: &mut Vec<TrainedSubModel>,
    ) -> Result<(), IndexError> {
        let Generation { head, top } = newest;
        let mut batch = Batch::new();
        let lines = head.encode_lines(top, table.id());
        for (part, index) in lines.chunks(BATCH_SIZE_WORDS).zip(0..) {
            let place = head.records.word_at(index * BATCH_SIZE_WORDS as u64);
            batch.write(place, part);
            worker_session.endpoint.execute(&mut batch).await?;
            batch.clear();
        }
        let mut word_count = 0;
        for number in 0..head.sub_model_count {
            let Some(span) = top.span(number) else {
                // No key is assigned to it.
                all.push(nothing(head, lows, leaves));
                continue;
            };
            let pieces = pieces_of(lows, &span);
            let overlapping = SpanLeaves {
                span: &span,
                lows: &lows[pieces.clone()],
                leaves: &leaves[pieces],
            };
            let trained = self.fit(worker_session, table, head.generation, 1, overlapping);
            let trained = trained.await?;
            word_count += trained.table.len() + RECORD_SIZE_WORDS;
            post(&mut batch, head.record(number), table, &trained);
            all.push(trained);
            if word_count >= BATCH_SIZE_WORDS {
                worker_session.endpoint.execute(&mut batch).await?;
                batch.clear();
                word_count = 0;
            }
        }
        if !batch.is_empty() {
            worker_session.endpoint.execute(&mut batch).await?;
        }
        Ok(())
    }

    /// Fits a sub-model to the leaves that overlap with its span, and allocates its table.
    async fn fit(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        table: &LeafTable,
        generation: u32,
        version: u32,
        overlapping: SpanLeaves<'_>,
    ) -> Result<TrainedSubModel, PoolError> {
        let SpanLeaves {
            span,
            mut lows,
            mut leaves,
        } = overlapping;
        let has_boundary = lows[0] < *span.start() && lows.len() > 1;
        if has_boundary
            && worker_session
                .endpoint
                .skips_check(ProtocolCheck::ModelsOverlap)
        {
            (lows, leaves) = (&lows[1..], &leaves[1..]);
        }
        let model = SubModel::fit(lows, span);
        let point_count = lows.len() as u64;
        self.sub_model_count.update(|count| count + 1);
        self.point_count.update(|count| count + point_count);
        // One point per leaf; records are not read.
        worker_session
            .endpoint
            .note_training(point_count, point_count);
        let table_place = self.place(worker_session, table, PlaceKind::Table, leaves.len());
        let record = SubModelRecord {
            version,
            generation,
            model,
            table: table_place.await?,
        };
        Ok(TrainedSubModel {
            record,
            table: entries(&model, lows, leaves),
        })
    }

    fn make_changed_due(&self, table: &Arc<LeafTable>, built: &BuiltTree, models: &Models) {
        for number in 0..models.head.sub_model_count {
            if !models.is_current(number, &built.tree) {
                table.make_due(self.worker.tables(), models, number);
            }
        }
    }

    /// Allocates far memory, in a new chunk if necessary.
    async fn place(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        table: &LeafTable,
        kind: PlaceKind,
        word_count: usize,
    ) -> Result<RemoteAddr, PoolError> {
        loop {
            if let Some(place) = table.area().take(kind, word_count) {
                return Ok(place);
            }
            let claimed = area::claim(
                &worker_session.endpoint,
                self.worker.layout(),
                worker_session.owner,
                table.id(),
                word_count,
            )
            .await;
            if matches!(claimed, Err(PoolError::Fabric(_))) {
                // The session may own a chunk that it does not know of.
                worker_session.broken.set(true);
            }
            let (start, chunk_count) = claimed?;
            table.area().extend(kind, start, chunk_count);
        }
    }
}

/// Returns a translation table: the addresses of the leaves, and their positions according to the
/// model.
fn entries(model: &SubModel, lows: &[u64], leaves: &[RemoteAddr]) -> Vec<RemoteAddr> {
    let leaves = leaves.iter().zip(lows).zip(0..);
    let entry = |((leaf, low), piece): ((&RemoteAddr, &u64), u32)| {
        leaf.with_spare(model.residual(piece, *low))
    };
    leaves.map(entry).collect()
}

/// Posts the table before the record, in one batch, in this order (FABRIC-2).
fn post(batch: &mut Batch, place: RemoteAddr, table: &LeafTable, trained: &TrainedSubModel) {
    let words: Vec<u64> = trained.table.iter().map(|leaf| leaf.word()).collect();
    batch.write(trained.record.table.word_at(0), &words);
    batch.write(place.word_at(0), &trained.record.encode(place, table.id()));
}

/// Returns a sub-model for a span to which no key is assigned.
fn nothing(head: &ModelHead, lows: &[u64], leaves: &[RemoteAddr]) -> TrainedSubModel {
    TrainedSubModel {
        record: SubModelRecord {
            version: 1,
            generation: head.generation,
            model: SubModel::fit(&lows[..1], &(lows[0]..=lows[0])),
            table: RemoteAddr::NULL,
        },
        table: leaves[..1].to_vec(),
    }
}

fn give_table(table: &LeafTable, trained: &TrainedSubModel) {
    let (place, length) = (trained.record.table, trained.table.len());
    if !place.is_null() {
        table.area().give(PlaceKind::Table, length, place);
    }
}

fn give_models(table: &LeafTable, models: &Models) {
    for trained in models.all_trained() {
        give_table(table, &trained);
    }
    let (word_count, place) = (size_words(&models.head), models.head.records);
    table.area().give(PlaceKind::Records, word_count, place);
}

/// Returns the words of the top model's lines and all records.
fn size_words(head: &ModelHead) -> usize {
    head.block_count() as usize * RECORD_SIZE_WORDS
}
