//! One interface to tables of every kind, for the commands on records.
//!
//! Keys and values are byte strings. Words are encoded as 8 bytes, most significant first, which
//! keeps their order.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;

use farleaf::key::ByteRange;

use super::connection::{log_costs, open_table};
use super::target::{AnyTable, Sessions, read_word, refuse_for_words};
use crate::arguments::{PoolArguments, TableArgument};
use crate::cluster_options::DurabilityArgument;
use crate::failure::BadArgument;
use crate::log::say;
use crate::strings::{EncodingArguments, Notation, ShownString, word_of};

/// Open table with the notation of its keys and values.
pub(super) struct TableHandle {
    table: AnyTable,
    notation: Notation,
    sessions: Option<Sessions>,
}

impl TableHandle {
    /// Opens the table that the arguments name. `bytes_option` is the given option of the command
    /// that only tables of bytes support, if any.
    ///
    /// # Errors
    /// The table cannot be opened, or it holds words and an option is for tables of bytes.
    pub(super) fn open(
        pool: &PoolArguments,
        argument: &TableArgument,
        encoding: EncodingArguments,
        bytes_option: Option<&str>,
    ) -> anyhow::Result<Self> {
        let (sessions, table) = open_table(pool, &argument.table)?;
        let notation = match &table {
            AnyTable::Words(table) => {
                refuse_for_words(table, [encoding.given(), bytes_option])?;
                Notation::Words
            }
            AnyTable::Bytes(_) => Notation::Bytes(encoding),
        };
        Ok(Self {
            table,
            notation,
            sessions,
        })
    }

    /// Returns the table with this durability of its writes.
    pub(super) fn with_durability(self, durability: DurabilityArgument) -> Self {
        let table = self.table.with_durability(durability);
        Self { table, ..self }
    }

    pub(super) fn name(&self) -> &str {
        match &self.table {
            AnyTable::Words(table) => table.name(),
            AnyTable::Bytes(table) => table.name(),
        }
    }

    pub(super) const fn notation(&self) -> Notation {
        self.notation
    }

    /// Formats a key or a value.
    pub(super) const fn show<'a>(&self, bytes: &'a [u8]) -> ShownString<'a> {
        self.notation.show(bytes)
    }

    /// Reports on stderr that a key is absent.
    pub(super) fn report_absent(&self, key: &[u8]) {
        let (key, name) = (self.show(key), self.name());
        say(format_args!("key {key} is absent from table '{name}'"));
    }

    /// Logs the costs of the command so far, for `-v`.
    pub(super) fn log_costs(&self) {
        log_costs(self.sessions.as_ref());
    }

    /// Parses a key.
    pub(super) fn read_key(&self, argument: &OsStr) -> Result<Vec<u8>, BadArgument> {
        match self.notation {
            Notation::Words => self.read_word("key", argument),
            Notation::Bytes(encoding) => encoding.read_key(argument),
        }
    }

    /// Parses all keys, before any of them is used.
    pub(super) fn read_keys(&self, arguments: &[OsString]) -> Result<Vec<Vec<u8>>, BadArgument> {
        arguments.iter().map(|key| self.read_key(key)).collect()
    }

    /// Parses a value.
    pub(super) fn read_value(&self, argument: &OsStr) -> Result<Vec<u8>, BadArgument> {
        match self.notation {
            Notation::Words => self.read_word("value", argument),
            Notation::Bytes(encoding) => encoding.read("value", argument),
        }
    }

    fn read_word(&self, role: &str, argument: &OsStr) -> Result<Vec<u8>, BadArgument> {
        let word = read_word(self.name(), role, argument)?;
        Ok(word.to_be_bytes().to_vec())
    }

    /// Returns the values of the keys, in order.
    pub(super) fn get(&self, keys: &[Vec<u8>]) -> anyhow::Result<Vec<Option<Vec<u8>>>> {
        match (&self.table, keys) {
            (AnyTable::Words(table), [key]) => Ok(vec![table.get(word_of(key))?.map(bytes_of)]),
            (AnyTable::Words(table), _) => {
                let keys: Vec<u64> = keys.iter().map(|key| word_of(key)).collect();
                let values = table.multi_get(&keys)?.into_iter();
                Ok(values.map(|value| value.map(bytes_of)).collect())
            }
            (AnyTable::Bytes(table), [key]) => Ok(vec![table.get(key)?]),
            (AnyTable::Bytes(table), _) => table.multi_get(keys),
        }
    }

    /// Writes a key. Returns its previous value.
    pub(super) fn replace(&self, key: &[u8], value: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        match &self.table {
            AnyTable::Words(table) => Ok(table.put(word_of(key), word_of(value))?.map(bytes_of)),
            AnyTable::Bytes(table) => table.replace(key, value),
        }
    }

    /// Removes a key. Returns its previous value.
    pub(super) fn take(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        match &self.table {
            AnyTable::Words(table) => Ok(table.delete(word_of(key))?.map(bytes_of)),
            AnyTable::Bytes(table) => table.take(key),
        }
    }

    /// Removes all keys with this prefix, of a table of bytes. Returns their number.
    pub(super) fn delete_prefix(&self, prefix: &[u8]) -> anyhow::Result<u64> {
        match &self.table {
            AnyTable::Words(_) => unreachable!("prefixes are options of tables of bytes"),
            AnyTable::Bytes(table) => table.delete_prefix(prefix),
        }
    }

    /// Calls `visit` with key and value of the records of a range, ascending or descending, until
    /// it breaks. With `keys_only`, values of byte strings may be empty.
    pub(super) fn visit(
        &self,
        range: &ByteRange,
        is_descending: bool,
        keys_only: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        let table = match &self.table {
            AnyTable::Words(table) => table,
            AnyTable::Bytes(table) => return table.visit(range, is_descending, keys_only, visit),
        };
        let start = word_of(&range.start);
        // The end of a range is the successor of a word: its 8 bytes and one more.
        let last = range.end.as_deref().map_or(u64::MAX, word_of);
        for record in table.range(start..=last, is_descending) {
            let (key, value) = record?;
            if visit(&key.to_be_bytes(), &value.to_be_bytes())?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn bytes_of(word: u64) -> Vec<u8> {
    word.to_be_bytes().to_vec()
}
