//! Tables of byte strings, in a pool's memory or on the disks of a cluster.

use std::ops::ControlFlow;

use farleaf::ByteTable;
use farleaf::key::ByteRange;
use farleaf::persistent::{ClientError, Durability, PersistentTable};

use super::cluster_client::explain;

/// Table of byte strings with either storage engine.
pub(super) enum StringTable {
    Memory(ByteTable),
    Persistent {
        table: PersistentTable,
        /// Address of the table's cluster, for messages.
        address: String,
    },
}

impl StringTable {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Memory(table) => &table.info().name,
            Self::Persistent { table, .. } => table.name(),
        }
    }

    /// Returns the table with this durability of its writes. A pool has only one kind of
    /// durability.
    pub(super) fn with_durability(self, durability: Option<Durability>) -> Self {
        match (self, durability) {
            (Self::Persistent { table, address }, Some(durability)) => Self::Persistent {
                table: table.with_durability(durability),
                address,
            },
            (table, _) => table,
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        match self {
            Self::Memory(table) => Ok(table.get(key)?),
            Self::Persistent { table, address } => of(address, table.get(key)),
        }
    }

    pub(super) fn multi_get(&self, keys: &[Vec<u8>]) -> anyhow::Result<Vec<Option<Vec<u8>>>> {
        match self {
            Self::Memory(table) => Ok(table.multi_get(keys)?),
            Self::Persistent { table, address } => of(address, table.multi_get(keys)),
        }
    }

    /// Writes a key. Returns its previous value.
    pub(super) fn replace(&self, key: &[u8], value: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        match self {
            Self::Memory(table) => Ok(table.replace(key, value)?),
            Self::Persistent { table, address } => of(address, table.replace(key, value)),
        }
    }

    /// Removes a key. Returns its previous value.
    pub(super) fn take(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        match self {
            Self::Memory(table) => Ok(table.take(key)?),
            Self::Persistent { table, address } => of(address, table.take(key)),
        }
    }

    pub(super) fn delete_prefix(&self, prefix: &[u8]) -> anyhow::Result<u64> {
        match self {
            Self::Memory(table) => Ok(table.delete_prefix(prefix)?),
            Self::Persistent { table, address } => of(address, table.delete_prefix(prefix)),
        }
    }

    /// Calls `visit` with the records of a range, ascending or descending, with or without their
    /// values, until it breaks.
    pub(super) fn visit(
        &self,
        range: &ByteRange,
        is_descending: bool,
        keys_only: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        let (start, end) = (range.start.as_slice(), range.end.as_deref());
        match (self, is_descending) {
            (Self::Memory(table), false) => {
                let records = table.range(start, end);
                let mut records = if keys_only {
                    records.keys_only()
                } else {
                    records
                };
                while let Some(record) = records.next_in_place() {
                    let (key, value) = record?;
                    if visit(key, value)?.is_break() {
                        break;
                    }
                }
            }
            (Self::Memory(table), true) => {
                let records = table.range_reverse(start, end);
                let records = if keys_only {
                    records.keys_only()
                } else {
                    records
                };
                for record in records {
                    let record = record?;
                    if visit(&record.key, &record.value)?.is_break() {
                        break;
                    }
                }
            }
            (Self::Persistent { table, address }, _) => {
                let records = if is_descending {
                    table.range_reverse(start, end)
                } else {
                    table.range(start, end)
                };
                let records = if keys_only {
                    records.keys_only()
                } else {
                    records
                };
                for record in records {
                    let record = of(address, record)?;
                    if visit(&record.key, &record.value)?.is_break() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

fn of<T>(address: &str, result: Result<T, ClientError>) -> anyhow::Result<T> {
    result.map_err(|error| explain(error, address))
}
