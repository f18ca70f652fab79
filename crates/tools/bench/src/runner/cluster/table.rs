//! Operations on a persistent table, executed synchronously by each thread.

use farleaf::SessionOptions;
use farleaf::persistent::{ClientError, Insertion, PersistentTable};
use farleaf_executor::{Completions, block_on};

use super::super::string_table::ByteStore;
use super::super::subject::Handle;

/// One thread's client of a persistent table.
pub(in super::super) struct ClusterStore(PersistentTable);

impl Handle for ClusterStore {
    type Place = PersistentTable;
    type Error = ClientError;

    fn open(table: &PersistentTable, _: &SessionOptions) -> Result<Self, ClientError> {
        Ok(Self(table.clone()))
    }

    fn completions(&self) -> impl Completions {
        || 0
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(future, self.completions())
    }
}

impl ByteStore for ClusterStore {
    async fn get_with<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, ClientError> {
        Ok(read(self.0.get(key)?.as_deref()))
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, ClientError> {
        self.0.update(key, value)
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        Ok(match self.0.insert(key, value)? {
            Insertion::Inserted => None,
            Insertion::AlreadyPresent(found) => Some(found),
        })
    }

    async fn scan(
        &self,
        from: &[u8],
        limit: usize,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), ClientError> {
        let found = self.0.scan(from, None, limit)?;
        for record in &found {
            visit(&record.key, &record.value);
        }
        Ok(())
    }
}
