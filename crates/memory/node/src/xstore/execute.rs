//! What each request comes to.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Batch, Endpoint, OperationKind, ProtocolCheck};
use farleaf_index::rpc::{Change, Failure, Looked, ModelNews, Reply, Request};
use farleaf_index::xstore::{ModelVersion, Place};
use farleaf_index::{Index, IndexError};
use farleaf_leaf::LeafError;

use super::served::LeafTable;
use super::worker::{Employer, Hired, Open, Worker};

impl<B: Employer> Worker<B> {
    /// Executes a request about a table of leaves.
    ///
    /// # Errors
    /// It could not be executed, or nobody knows whether it was; in words for the client.
    pub async fn execute(&self, table: &Arc<LeafTable>, request: Request) -> Result<Reply, String> {
        let hired = self.hired()?;
        let executed = async {
            self.follow().await?;
            match request {
                Request::Get(key) => {
                    let looked = self.look_up(&hired, table, key, None).await?;
                    Ok(Reply::Found(looked.found))
                }
                Request::LookUp(key, known) => {
                    let looked = self.look_up(&hired, table, key, Some(known)).await?;
                    Ok(Reply::Looked(Box::new(looked)))
                }
                Request::Change(key, change) => {
                    self.change(&hired, table, key, (change, None)).await
                }
                Request::ChangeAt(key, change, place) => {
                    self.change(&hired, table, key, (change, Some(place))).await
                }
                Request::Count => {
                    let open = self.open(&hired, table).await?;
                    Ok(Reply::Count(
                        open.built.record_count.load(Ordering::Relaxed),
                    ))
                }
                _ => Ok(Reply::Failed(Failure::OfLeaves)),
            }
        };
        match executed.await {
            Ok(reply) => Ok(reply),
            Err(IndexError::Leaf(LeafError::TableDropped { .. })) => {
                Ok(Reply::Failed(Failure::Dropped))
            }
            Err(error) if error.is_full() => Ok(Reply::Failed(Failure::PoolFull)),
            // U4: the client is told as it would be of its own READs.
            Err(error) if let Some(node) = error.lost_node() => Ok(Reply::NodeLost(node)),
            Err(error) => {
                let is_unknown = hired.broken.get();
                hired.note_failure(&error);
                let what = if is_unknown {
                    ", and may have been done"
                } else {
                    ""
                };
                Err(format!("the memory node could not do it{what}: {error}"))
            }
        }
    }

    async fn look_up(
        &self,
        hired: &Hired<B::Endpoint>,
        table: &Arc<LeafTable>,
        key: u64,
        known: Option<ModelVersion>,
    ) -> Result<Looked, IndexError> {
        let mut batch = Batch::new();
        loop {
            let open = self.open(hired, table).await?;
            let index = Index::new(hired.access(self.layout(), table), &open.state);
            let found = index.find(&mut batch, key).await;
            self.note(&open, hired, &mut batch, OperationKind::Get);
            match found {
                Ok((leaf, found)) => {
                    let news = known.map(|known| open.built.news_for(key, known));
                    let news = news.unwrap_or_default();
                    if news == ModelNews::None && known.is_some() {
                        open.table.note_missed(self.tables(), &open.built, key);
                    }
                    return Ok(Looked { found, leaf, news });
                }
                Err(error) => self.after(hired, &open, error).await?,
            }
        }
    }

    async fn change(
        &self,
        hired: &Hired<B::Endpoint>,
        table: &Arc<LeafTable>,
        key: u64,
        (change, place): (Change, Option<Place>),
    ) -> Result<Reply, IndexError> {
        let mut batch = Batch::new();
        loop {
            let open = self.open(hired, table).await?;
            let index = Index::new(hired.access(self.layout(), table), &open.state);
            if let Some(leaf) = place.and_then(|place| open.built.leaf_at(place)) {
                open.state.suggest(leaf);
            }
            let decide = |found| (change.decide(found), found);
            let changed = index.modify(&mut batch, key, decide).await;
            // Y4: whatever became of the change, leaves may have been split.
            self.note(&open, hired, &mut batch, OperationKind::Put);
            match changed {
                Ok(found) => {
                    open.built.count(change, found);
                    return Ok(Reply::Found(found));
                }
                Err(error) => self.after(hired, &open, error).await?,
            }
        }
    }

    /// Y4.
    fn note(
        &self,
        open: &Rc<Open>,
        hired: &Hired<B::Endpoint>,
        batch: &mut Batch,
        kind: OperationKind,
    ) {
        hired.endpoint.counters().record(kind, &batch.take_cost());
        let is_told = !hired.endpoint.leaves_out(ProtocolCheck::SplitsAreTold);
        for low in open.state.take_added_leaves() {
            if is_told {
                open.table.note_added(self.tables(), &open.built, low);
            }
        }
    }

    /// `Ok`: there is a newer tree, or leaves that are retired are followed from now on.
    async fn after(
        &self,
        hired: &Hired<B::Endpoint>,
        open: &Rc<Open>,
        error: IndexError,
    ) -> Result<(), IndexError> {
        if !matches!(error, IndexError::Outdated) {
            return Err(error);
        }
        let newer = self.build(hired, &open.table, Some(&open.built)).await?;
        if Arc::ptr_eq(&newer, &open.built) {
            open.state.follow_retired();
        }
        Ok(())
    }
}
