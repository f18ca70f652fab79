//! Loads records of byte strings into a table of a cluster, many per request.

use farleaf::persistent::{ClientError, PersistentTable};
use farleaf_cluster::ClusterError;
use indicatif::ProgressBar;

use super::each::InOrder as _;
use super::{LoadArguments, Records, read};
use crate::arguments::PoolArguments;
use crate::command::cluster_client::{Opened, open_cluster};
use crate::failure::{Ending, tell};
use crate::output::{counted, print};
use crate::progress::count_bar;
use crate::records::{Source, StringRecords};
use crate::table_options::KindName;
use crate::watch::Watched;
use farleaf_bench::quantity::count;

/// Maximum number of records in a batch, which is also limited in bytes. The part of a batch in one
/// region takes one round trip.
const BATCH_RECORD_COUNT: usize = 4096;
const BATCH_SIZE_BYTES: usize = 1 << 20;

/// Reads and checks the whole file, then writes the records in batches.
pub(super) fn run(
    pool: &PoolArguments,
    address: &str,
    arguments: &LoadArguments,
) -> anyhow::Result<Ending> {
    let format = arguments.line_format()?;
    let source = Source::from(arguments.file.clone());
    let opened = open_cluster(pool, address)?;
    let name = &arguments.table.table;
    if !arguments.create {
        // Opened first, because reading a long file takes time.
        let there = opened.cluster.open_table(name);
        there.map_err(|error| hint_at_create(&opened, error, name))?;
    }
    let kind = Some(KindName::Bytes);
    let Records::Bytes(records) = read(&source, format, kind)? else {
        unreachable!("records of bytes were asked for");
    };
    let table = if arguments.create {
        create(&opened, name, arguments)?
    } else {
        let table = opened.cluster.open_table(name);
        table.map_err(|error| opened.explain(error).context("nothing was loaded"))?
    };
    let table = match arguments.durability.durability() {
        Some(durability) => table.with_durability(durability),
        None => table,
    };
    let loading = Loading {
        source: &source,
        table: &table,
        records: &records,
    };
    loading.run(&opened)?;
    print(format_args!(
        "wrote {} of {source} into table '{name}'\n",
        counted(records.count(), "record"),
    ))?;
    Ok(Ending::Done)
}

fn hint_at_create(opened: &Opened, error: ClientError, name: &str) -> anyhow::Error {
    let is_missing = matches!(error, ClientError::Cluster(ClusterError::NoTable(_)));
    let error = opened.explain(error);
    if is_missing {
        error.context(format!(
            "nothing was loaded (--create creates table '{name}')"
        ))
    } else {
        error.context("nothing was loaded")
    }
}

/// Opens the table, or creates it. An existing table must have the given number of replicas.
fn create(
    opened: &Opened,
    name: &str,
    arguments: &LoadArguments,
) -> anyhow::Result<PersistentTable> {
    let options = arguments.persistent.options()?;
    match opened.cluster.create_table(name, &options) {
        Err(ClientError::Cluster(ClusterError::TableExists(_))) => {}
        created => {
            return created.map_err(|error| opened.explain(error).context("nothing was loaded"));
        }
    }
    let table = opened.cluster.open_table(name);
    let table = table.map_err(|error| opened.explain(error).context("nothing was loaded"))?;
    if table.replica_count() != options.replica_count {
        return Err(anyhow::anyhow!(
            "nothing was loaded: table '{name}' already exists with {} replicas, not {}; leave out \
             --create to load into the existing table",
            table.replica_count(),
            options.replica_count
        ));
    }
    Ok(table)
}

/// Records of a file, and their target table.
struct Loading<'a> {
    source: &'a Source,
    table: &'a PersistentTable,
    records: &'a StringRecords,
}

impl Loading<'_> {
    fn run(&self, opened: &Opened) -> anyhow::Result<()> {
        let bar = count_bar("writing", self.records.count() as u64);
        let written = self.write(opened, &bar);
        bar.finish_and_clear();
        written
    }

    /// Writes the records. SIGINT and SIGTERM stop it between two batches, or while it waits for a
    /// server.
    fn write(&self, opened: &Opened, bar: &ProgressBar) -> anyhow::Result<()> {
        let watched = Watched::new()?;
        let interrupted =
            |written_count| self.partly_loaded(written_count, anyhow::anyhow!("interrupted"));
        let work = || {
            let mut written_count = 0;
            while written_count < self.records.count() {
                bar.set_position(written_count as u64);
                if watched.note(written_count) {
                    return Err(interrupted(written_count));
                }
                let batch = self.batch_from(written_count);
                let put = self.table.multi_put(&batch);
                put.map_err(|error| self.partly_loaded(written_count, opened.explain(error)))?;
                written_count += batch.len();
            }
            Ok(())
        };
        let tell_waiting = |written_count: usize| {
            let key = self.records.shown_key(written_count).unwrap_or_default();
            tracing::warn!(
                "waiting at key {key} of table '{}' for a server; see `farleaf cluster status`",
                self.table.name()
            );
        };
        let give_up = |written_count| {
            bar.finish_and_clear();
            tell(&interrupted(written_count));
            std::process::exit(1);
        };
        watched.run(work, tell_waiting, give_up)
    }

    /// Returns the next batch: at least one record.
    fn batch_from(&self, first: usize) -> Vec<(&[u8], &[u8])> {
        let mut batch = Vec::new();
        let mut size_bytes = 0;
        while let Some((key, value)) = self.records.get(first + batch.len()) {
            size_bytes += key.len() + value.len();
            let is_full = batch.len() == BATCH_RECORD_COUNT || size_bytes > BATCH_SIZE_BYTES;
            if is_full && !batch.is_empty() {
                break;
            }
            batch.push((key, value));
        }
        batch
    }

    fn partly_loaded(&self, written_count: usize, why: anyhow::Error) -> anyhow::Error {
        let last = written_count.checked_sub(1);
        let last = last.and_then(|last| self.records.shown_key(last));
        let which = match last {
            Some(last) => format!("the keys up to {last}, and possibly some after it"),
            None => "possibly more".to_owned(),
        };
        why.context(format!(
            "only {} of {} of {} are known to be written into table '{}' ({which}); load \
             the file again, which starts from the first record",
            count(written_count as u64),
            counted(self.records.count(), "record"),
            self.source,
            self.table.name(),
        ))
    }
}
