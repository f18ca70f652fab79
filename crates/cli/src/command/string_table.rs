//! Tables of byte strings, in a pool's memory or on the disks of a cluster.

use farleaf::persistent::{ClientError, Durability, PersistentTable};
use farleaf::{ByteTable, Record};

use super::cluster_way::told;

/// Table of byte strings with either storage engine.
pub(super) enum StringTable {
    Memory(ByteTable),
    Persistent {
        table: PersistentTable,
        /// Address of the table's cluster, for messages.
        address: String,
    },
}

/// Records in ascending or descending order.
pub(super) type StringRecords = Box<dyn Iterator<Item = anyhow::Result<Record>>>;

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

    /// Returns the records of a range, ascending or descending, with or without their values.
    pub(super) fn records(
        &self,
        (start, end): (&[u8], Option<&[u8]>),
        is_descending: bool,
        keys_only: bool,
    ) -> StringRecords {
        match self {
            Self::Memory(table) => in_memory(table, (start, end), is_descending, keys_only),
            Self::Persistent { table, address } => {
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
                let address = address.clone();
                Box::new(records.map(move |record| {
                    let record = of(&address, record)?;
                    Ok(Record {
                        key: record.key,
                        value: record.value,
                    })
                }))
            }
        }
    }
}

fn in_memory(
    table: &ByteTable,
    (start, end): (&[u8], Option<&[u8]>),
    is_descending: bool,
    keys_only: bool,
) -> StringRecords {
    match (is_descending, keys_only) {
        (false, false) => Box::new(table.range(start, end).map(|it| Ok(it?))),
        (false, true) => Box::new(table.range(start, end).keys_only().map(|it| Ok(it?))),
        (true, false) => Box::new(table.range_reverse(start, end).map(|it| Ok(it?))),
        (true, true) => Box::new(
            table
                .range_reverse(start, end)
                .keys_only()
                .map(|it| Ok(it?)),
        ),
    }
}

fn of<T>(address: &str, done: Result<T, ClientError>) -> anyhow::Result<T> {
    done.map_err(|error| told(error, address))
}
