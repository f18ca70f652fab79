//! Executes requests about tables of leaves.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Batch, Endpoint, OperationKind, ProtocolCheck};
use farleaf_index::rpc::{Change, Failure, LookUpReply, ModelNews, WordReply, WordRequest};
use farleaf_index::xstore::{ModelVersion, TablePosition};
use farleaf_index::{Index, IndexError};
use farleaf_leaf::words::LeafError;

use super::served::LeafTable;
use super::worker::{OpenTable, SessionFactory, Worker, WorkerSession};

impl<B: SessionFactory> Worker<B> {
    /// Executes a request about a table of leaves.
    ///
    /// # Errors
    /// The request could not be executed, or its outcome is unknown. The message is for the client.
    pub async fn execute(
        &self,
        table: &Arc<LeafTable>,
        request: WordRequest,
    ) -> Result<WordReply, String> {
        let worker_session = self.worker_session()?;
        let executed = async {
            self.follow().await?;
            match request {
                WordRequest::Get(key) => {
                    let lookup = self.look_up(&worker_session, table, key, None).await?;
                    Ok(WordReply::Found(lookup.found))
                }
                WordRequest::LookUp(key, known) => {
                    let lookup = self
                        .look_up(&worker_session, table, key, Some(known))
                        .await?;
                    Ok(WordReply::LookUpReply(Box::new(lookup)))
                }
                WordRequest::Change(key, change) => {
                    self.change(&worker_session, table, key, change, None).await
                }
                WordRequest::ChangeAt(key, change, place) => {
                    self.change(&worker_session, table, key, change, Some(place))
                        .await
                }
                WordRequest::Count => {
                    let open = self.open(&worker_session, table).await?;
                    Ok(WordReply::Count(
                        open.built.record_count.load(Ordering::Relaxed),
                    ))
                }
                _ => Ok(WordReply::Failed(Failure::OfLeaves)),
            }
        };
        match executed.await {
            Ok(reply) => Ok(reply),
            Err(IndexError::Leaf(LeafError::TableDropped { .. })) => {
                Ok(WordReply::Failed(Failure::Dropped))
            }
            Err(error) if error.is_full() => Ok(WordReply::Failed(Failure::PoolFull)),
            // The client gets the same error as from its own READs.
            Err(error) if let Some(node) = error.lost_node() => Ok(WordReply::NodeLost(node)),
            Err(error) => {
                let is_unknown = worker_session.broken.get();
                worker_session.note_failure(&error);
                let what = if is_unknown {
                    " (it may have taken effect)"
                } else {
                    ""
                };
                Err(format!(
                    "the operation failed on the memory node{what}: {error}"
                ))
            }
        }
    }

    async fn look_up(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        table: &Arc<LeafTable>,
        key: u64,
        known: Option<ModelVersion>,
    ) -> Result<LookUpReply, IndexError> {
        let mut batch = Batch::new();
        loop {
            let open = self.open(worker_session, table).await?;
            let index = Index::new(worker_session.access(self.layout(), table), &open.state);
            let found = index.find(&mut batch, key).await;
            self.note(&open, worker_session, &mut batch, OperationKind::Get);
            match found {
                Ok((leaf, found)) => {
                    let news = known.map(|known| open.built.news_for(key, known));
                    let news = news.unwrap_or_default();
                    if news == ModelNews::None && known.is_some() {
                        open.table.note_missed(self.tables(), &open.built, key);
                    }
                    return Ok(LookUpReply { found, leaf, news });
                }
                Err(error) => self.after(worker_session, &open, error).await?,
            }
        }
    }

    async fn change(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        table: &Arc<LeafTable>,
        key: u64,
        change: Change,
        place: Option<TablePosition>,
    ) -> Result<WordReply, IndexError> {
        let mut batch = Batch::new();
        loop {
            let open = self.open(worker_session, table).await?;
            let index = Index::new(worker_session.access(self.layout(), table), &open.state);
            if let Some(leaf) = place.and_then(|place| open.built.leaf_at(place)) {
                open.state.suggest(leaf);
            }
            let decide = |found| (change.decide(found), found);
            let changed = index.modify(&mut batch, key, decide).await;
            // Whatever the outcome of the change, leaves may have been split.
            self.note(&open, worker_session, &mut batch, OperationKind::Put);
            match changed {
                Ok(found) => {
                    open.built.count(change, found);
                    return Ok(WordReply::Found(found));
                }
                Err(error) => self.after(worker_session, &open, error).await?,
            }
        }
    }

    /// Makes the sub-models due whose leaves were split.
    fn note(
        &self,
        open: &Rc<OpenTable>,
        worker_session: &WorkerSession<B::Endpoint>,
        batch: &mut Batch,
        kind: OperationKind,
    ) {
        worker_session
            .endpoint
            .counters()
            .record(kind, &batch.take_cost());
        let is_told = !worker_session
            .endpoint
            .skips_check(ProtocolCheck::SplitsAreReported);
        for low in open.state.take_added_leaves() {
            if is_told {
                open.table.note_added(self.tables(), &open.built, low);
            }
        }
    }

    /// Handles an error. `Ok` means retry: there is a newer tree, or retired leaves are followed
    /// from now on.
    async fn after(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        open: &Rc<OpenTable>,
        error: IndexError,
    ) -> Result<(), IndexError> {
        if !matches!(error, IndexError::Outdated) {
            return Err(error);
        }
        let newer = self
            .build(worker_session, &open.table, Some(&open.built))
            .await?;
        if Arc::ptr_eq(&newer, &open.built) {
            open.state.follow_retired();
        }
        Ok(())
    }
}
