//! Reads that end where they begin, on pools whose memory this processor reaches by itself.
//!
//! A blocking get needs no future then: it is made only for what is left to do.

use farleaf_fabric::OperationKind;
use farleaf_index::operation::{Elsewhere, GetAtOnce, MultiGetAtOnce};

use crate::begin::Begun;
use crate::{AsyncTable, Error};

/// What is left of a read.
pub(crate) enum Rest<'a, W> {
    /// All of it: nothing has begun.
    All,
    /// It has begun, and goes on from here.
    Elsewhere(Begun<'a>, W),
}

/// A get after its first leaf.
pub(crate) enum GetBegun<'a> {
    Done(Option<u64>),
    Unfinished(Rest<'a, Elsewhere>),
}

/// A `multi_get` after a leaf per key.
pub(crate) enum MultiGetBegun<'a> {
    Done,
    Unfinished(Rest<'a, Vec<Elsewhere>>),
}

impl AsyncTable {
    #[inline]
    pub(crate) fn get_at_once(&self, key: u64) -> GetBegun<'_> {
        let Some(begun) = self.session.begin_briefly(&self.state) else {
            return GetBegun::Unfinished(Rest::All);
        };
        let index = self.index();
        match index.get_at_once(key) {
            GetAtOnce::Value(value) => {
                let cost = index.cost_at_once(1);
                self.session.record(OperationKind::Get, cost);
                GetBegun::Done(value)
            }
            GetAtOnce::Elsewhere(elsewhere) => {
                GetBegun::Unfinished(Rest::Elsewhere(begun.keep(), elsewhere))
            }
            GetAtOnce::Unable => GetBegun::Unfinished(Rest::All),
        }
    }

    #[cold]
    pub(crate) async fn get_rest(
        &self,
        key: u64,
        rest: Rest<'_, Elsewhere>,
    ) -> Result<Option<u64>, Error> {
        if let Rest::Elsewhere(begun, elsewhere) = rest {
            let mut operation = self.operation(begun);
            let batch = &mut operation.batch;
            let value = operation.index.get_elsewhere(batch, key, elsewhere).await;
            if let Some(done) = operation.finish(OperationKind::Get, value)? {
                return Ok(done);
            }
        }
        loop {
            let mut operation = self.begin()?;
            let value = operation.index.get(&mut operation.batch, key).await;
            if let Some(done) = operation.finish(OperationKind::Get, value)? {
                return Ok(done);
            }
        }
    }

    #[inline]
    pub(crate) fn multi_get_at_once(
        &self,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
    ) -> MultiGetBegun<'_> {
        let Some(begun) = self.session.begin_briefly(&self.state) else {
            return MultiGetBegun::Unfinished(Rest::All);
        };
        let index = self.index();
        match index.multi_get_at_once(keys, values) {
            MultiGetAtOnce::Read(elsewhere) if elsewhere.is_empty() => {
                let cost = index.cost_at_once(keys.len());
                self.session.record(OperationKind::MultiGet, cost);
                MultiGetBegun::Done
            }
            MultiGetAtOnce::Read(elsewhere) => {
                MultiGetBegun::Unfinished(Rest::Elsewhere(begun.keep(), elsewhere))
            }
            MultiGetAtOnce::Unable => MultiGetBegun::Unfinished(Rest::All),
        }
    }

    #[cold]
    pub(crate) async fn multi_get_rest(
        &self,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
        rest: Rest<'_, Vec<Elsewhere>>,
    ) -> Result<(), Error> {
        if let Rest::Elsewhere(begun, elsewhere) = rest {
            let mut operation = self.operation(begun);
            let batch = &mut operation.batch;
            let index = operation.index;
            let done = index.multi_get_elsewhere(batch, keys, values, &elsewhere);
            let done = done.await;
            if let Some(done) = operation.finish(OperationKind::MultiGet, done)? {
                return Ok(done);
            }
        }
        loop {
            let mut operation = self.begin()?;
            let index = operation.index;
            let done = index.multi_get(&mut operation.batch, keys, values).await;
            if let Some(done) = operation.finish(OperationKind::MultiGet, done)? {
                return Ok(done);
            }
        }
    }
}
