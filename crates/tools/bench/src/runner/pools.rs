//! Pools of a run: memory of its table, if it is in far memory.

use farleaf::{
    Bounds, Error, ErrorKind, PageOptions, PartitionedPool, Pool, PoolOptions, TableKind,
    TableOptions,
};

use super::string_codec::StringCodec;
use super::string_table::StringStore;
use super::{BenchError, ProgressSink, RunConfig, TABLE_NAME, size};
use crate::dataset::KeySet;
use crate::verify::loaded_value;
use crate::workload::WorkloadLetter;

/// Maximal number of times that a pool's size is doubled because its keys do not fit.
const ENLARGEMENT_COUNT_MAX: u32 = 4;

/// Pools of the table, by its kind.
#[derive(Clone, Debug)]
pub(super) enum Pools {
    One(Pool),
    Several(PartitionedPool),
    /// Table of byte strings.
    Strings(StringStore<Pool>),
}

impl Pools {
    /// Creates one or several pools with space for all records and inserts, and loads the keys.
    ///
    /// # Errors
    /// The host has not enough memory, or the store failed.
    pub(super) fn make_loaded(
        config: &RunConfig,
        keys: &KeySet,
        workload: WorkloadLetter,
        progress: &dyn ProgressSink,
    ) -> Result<Self, BenchError> {
        let insert_count = config.insert_count_of(workload);
        let strings = keys.strings().map(AsRef::as_ref);
        let mut size_bytes = size::part_size_bytes(config, insert_count, strings);
        let mut enlargement_count = 0;
        loop {
            let pools = make_pools(config, keys, size_bytes);
            let pools = pools.map_err(BenchError::store(workload, "creating a pool"))?;
            match load_into(&pools, config, keys, progress) {
                Ok(()) => return Ok(pools),
                // The number of models that the keys need is known only after the load.
                Err(error)
                    if matches!(error.kind_in_pool(), ErrorKind::Full(_))
                        && enlargement_count < ENLARGEMENT_COUNT_MAX =>
                {
                    enlargement_count += 1;
                    size_bytes = size_bytes.saturating_mul(2);
                }
                Err(error) => return Err(BenchError::store(workload, "loading")(error)),
            }
        }
    }

    /// Returns the only pool, or the first.
    pub(super) fn first(&self) -> &Pool {
        match self {
            Self::One(pool) | Self::Strings(StringStore { place: pool, .. }) => pool,
            Self::Several(pools) => &pools.pools()[0],
        }
    }

    /// Creates the table and loads the records; each of several pools gets as many of them.
    fn load(
        &self,
        options: &TableOptions,
        keys: &[u64],
        value_of: impl Fn(u64) -> u64,
        progress: impl FnMut(u64),
    ) -> Result<(), Error> {
        let records = keys.iter().map(|key| (*key, value_of(*key)));
        match self {
            Self::One(pool) => {
                let session = pool.session()?;
                let table = session.create_table(TABLE_NAME, options)?;
                table.bulk_load(records, progress)?;
                drop(table);
                session.close()
            }
            Self::Strings(StringStore {
                place: pool,
                string_codec,
            }) => {
                let session = pool.session()?;
                let table = session.create_byte_table(TABLE_NAME, options)?;
                let records = records.map(|(number, word)| {
                    let (mut key, mut value) = (Vec::new(), Vec::new());
                    string_codec.key(number, &mut key);
                    string_codec.strings.value(number, word, &mut value);
                    (key, value)
                });
                table.bulk_load(records, progress)?;
                drop(table);
                session.close()
            }
            Self::Several(pools) => {
                let bounds = Bounds::of_sample(keys.to_vec(), pools.pools().len())?;
                let session = pools.session()?;
                let table = session.create_table(TABLE_NAME, options, &bounds)?;
                table.bulk_load(records, progress)?;
                drop(table);
                session.close()
            }
        }
    }
}

/// Creates one pool for each part of the table.
fn make_pools(config: &RunConfig, keys: &KeySet, size_bytes: u64) -> Result<Pools, Error> {
    let make = |_| {
        Pool::embedded(&PoolOptions {
            fabric: config.fabric.embedded(&config.verbs),
            size_bytes,
            ..PoolOptions::default()
        })
    };
    if let Some(strings) = config.strings {
        return Ok(Pools::Strings(StringStore {
            place: make(0)?,
            string_codec: StringCodec::new(strings, keys),
        }));
    }
    if config.partitions == 1 {
        return Ok(Pools::One(make(0)?));
    }
    let pools: Result<Vec<Pool>, Error> = (0..config.partitions).map(make).collect();
    Ok(Pools::Several(PartitionedPool::new(pools?)?))
}

/// Creates the table and loads all keys, with the values of [`loaded_value`].
pub(crate) fn load_keys(
    pool: &Pool,
    config: &RunConfig,
    keys: &KeySet,
    progress: &dyn ProgressSink,
) -> Result<(), Error> {
    load_into(&Pools::One(pool.clone()), config, keys, progress)
}

fn load_into(
    pools: &Pools,
    config: &RunConfig,
    keys: &KeySet,
    progress: &dyn ProgressSink,
) -> Result<(), Error> {
    let kind = config.strings.map_or(TableKind::Words, |strings| {
        TableKind::Bytes(PageOptions {
            page_size_bytes: strings.page_size_bytes,
            inline_value_size_bytes: strings.inline_value_size_bytes,
        })
    });
    let options = TableOptions {
        kind,
        slots: config.slots,
        layer: config.layer,
        fill_percent: config.fill_percent,
        epsilon_keys: config.epsilon_keys,
    };
    let advance = |done| progress.advance(done);
    pools.load(&options, keys.loaded(), loaded_value, advance)
}
