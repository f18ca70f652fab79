//! Memory that a run needs.

use farleaf::LayerKind;

use super::strings::{Strings, ValueSize};
use super::{BenchError, PersistentConfig, RunConfig, ServersConfig};
use crate::dataset::StringKeys;

const BLOCK_SIZE_BYTES: u64 = 64;

/// Bytes per slot: its word, and the padding of a record to words.
const SLOT_SIZE_BYTES: f64 = 12.0;

/// Bytes besides the parts below: the region's own tables, sessions, partly used chunks.
const SPARE_SIZE_BYTES: u64 = 16 << 20;

/// Bytes of leaves that a session leases ahead for its splits.
const LEASE_SIZE_BYTES: u64 = 64 << 10;

/// Bytes of a model's descriptor.
const MODEL_SIZE_BYTES: u64 = 64;

/// Bytes of a synonym leaf table of ROLEX: 256 entries and their count, in whole blocks.
const ROLEX_SYNONYM_TABLE_SIZE_BYTES: u64 = 2_112;

/// Bytes per record that the process itself needs, for sorting keys and looking up inserts by key.
const PROCESS_BYTES_PER_RECORD: u64 = 16;
const PROCESS_BYTES_PER_INSERT: u64 = 64;

/// Bytes of a leaf's entry in an inner node.
const INNER_ENTRY_SIZE_BYTES: u64 = 17;

/// Bytes of a leaf's entry in a translation table.
const WORD_SIZE_BYTES: f64 = 8.0;

/// Bytes that the memory node counts per record that it holds itself; also those of a session's
/// rings.
const SERVED_RECORD_SIZE_BYTES: u64 = 64;
const RINGS_SIZE_BYTES: u64 = 64 << 10;

/// Bytes of a backup's buffers for its primary's log and for trees.
const BACKUP_SIZE_BYTES: u64 = 12 << 20;

/// Returns the size of a pool for all records of `config` and all inserts, with a margin of a
/// quarter. An estimate: the number of models depends on the keys.
pub(crate) fn pool_size_bytes(config: &RunConfig, insert_count: u64) -> u64 {
    if let Some(strings) = &config.strings {
        let key_size_bytes = strings.key_size_bytes() as f64;
        return string_pool_size_bytes(config, strings, key_size_bytes, insert_count);
    }
    if config.layer == LayerKind::Rpc {
        let records = config.records.saturating_add(insert_count);
        let records_bytes = records.saturating_mul(SERVED_RECORD_SIZE_BYTES);
        return (records_bytes / 4 * 5)
            .saturating_add((config.threads as u64 + 1) * RINGS_SIZE_BYTES)
            .saturating_add(SPARE_SIZE_BYTES);
    }
    let fill = f64::from(config.fill_percent) / 100.0;
    // At least the two records that a split leaves; a quarter of 8 slots is as few.
    let records_per_leaf = (config.slots as f64 * fill).max(2.0);
    let leaf_count = config.records as f64 / records_per_leaf + 1.0;
    // For random keys a model spans about 6 epsilon^2 of them (1,500 at 16); real keys are rougher.
    let records_per_model = (2.0 * config.epsilon_keys.powi(2)).min(256.0);
    let model_count = (config.records as f64 / records_per_model + 1.0).min(leaf_count);
    let model_bytes = match config.layer {
        // At least one block.
        LayerKind::Learned => MODEL_SIZE_BYTES + BLOCK_SIZE_BYTES,
        LayerKind::Rolex => MODEL_SIZE_BYTES + ROLEX_SYNONYM_TABLE_SIZE_BYTES,
        // Models of about as many leaves as the load's, with a word for each leaf.
        LayerKind::Xstore => MODEL_SIZE_BYTES + 4 * BLOCK_SIZE_BYTES,
        LayerKind::RfTree
        | LayerKind::Fg
        | LayerKind::Sherman
        | LayerKind::Cell
        | LayerKind::Rpc => 0,
    };
    // Nodes that splits leave half full.
    let has_tree = u64::from(config.layer.has_tree());
    let entry_bytes = has_tree * 2 * INNER_ENTRY_SIZE_BYTES;
    // Worst case of inserts: each splits a full leaf of its own.
    let leaf_bytes = (leaf_size_bytes(config.slots) + entry_bytes) as f64;
    let leaves_bytes = (leaf_count + insert_count as f64) * leaf_bytes;
    // One residual byte per leaf, and a synonym entry for every eighth, rounded up.
    let table_bytes = match config.layer {
        // Twice, since they are retrained in powers of two, and for as many leaves more.
        LayerKind::Xstore => (leaf_count + insert_count as f64) * 4.0 * WORD_SIZE_BYTES,
        _ => 0.0,
    };
    let search_bytes = model_count * model_bytes as f64 + leaf_count * 3.0 + table_bytes;
    let lease_bytes = config.threads as u64 * LEASE_SIZE_BYTES;
    saturating((leaves_bytes + search_bytes) * 1.25)
        .saturating_add(lease_bytes)
        .saturating_add(SPARE_SIZE_BYTES)
}

/// Estimates [`pool_size_bytes`] for a table of byte strings. Pages are as full as a load makes
/// them, or half full after splits. Value blocks are larger than their contents, and some of them
/// wait to be reused. Keys have the given mean size.
fn string_pool_size_bytes(
    config: &RunConfig,
    strings: &Strings,
    key_size_bytes: f64,
    insert_count: u64,
) -> u64 {
    let fill = f64::from(config.fill_percent) / 100.0;
    let mean = strings.value_size_bytes_mean();
    let is_inline = mean <= strings.inline_value_size_bytes as f64;
    let in_page = key_size_bytes + SLOT_SIZE_BYTES + if is_inline { mean } else { 24.0 };
    let page = strings.page_size_bytes as f64;
    // A page with space for one record and not for two.
    let record_bytes = if in_page * 2.0 > page - 200.0 {
        page
    } else {
        in_page * 1.3
    };
    let block_bytes = if is_inline && strings.value_size == ValueSize::Fixed(mean as usize) {
        0.0
    } else {
        (mean + key_size_bytes + SLOT_SIZE_BYTES) * 1.5
    };
    let loaded = config.records as f64 * (record_bytes / fill + block_bytes);
    let inserted = insert_count as f64 * (record_bytes * 2.5 + block_bytes);
    // Blocks that updates unlink within some hundredths of a second.
    let updates = (config.threads as f64 * 20_000.0).min(config.operations as f64);
    let in_limbo = updates * block_bytes.min(1024.0 * 1024.0);
    saturating((loaded + inserted) * 1.25 + in_limbo).saturating_add(4 * SPARE_SIZE_BYTES)
}

/// Returns the size of each pool of `config`. Each of several pools has its share of the records,
/// and space for all inserts, as all may belong to one part's keys. `keys` are those of a file, if
/// it has been read.
pub(crate) fn part_size_bytes(
    config: &RunConfig,
    insert_count: u64,
    keys: Option<&StringKeys>,
) -> u64 {
    if let (Some(strings), Some(keys)) = (&config.strings, keys) {
        return string_pool_size_bytes(config, strings, keys.size_bytes_mean(), insert_count);
    }
    let share = RunConfig {
        records: config.records.div_ceil(config.partitions as u64),
        ..config.clone()
    };
    pool_size_bytes(&share, insert_count)
}

/// Returns the distance between two leaves: five words, keys and values, in whole blocks.
fn leaf_size_bytes(slots: u64) -> u64 {
    ((5 + 2 * slots) * 8).next_multiple_of(BLOCK_SIZE_BYTES)
}

#[expect(clippy::cast_sign_loss, reason = "sizes are positive")]
fn saturating(bytes: f64) -> u64 {
    bytes as u64
}

/// Checks that the host has memory for a run with this many inserts. The system does not refuse
/// keys or process memory; it kills a process instead.
///
/// # Errors
/// [`BenchError::TooLarge`]. A host that does not report its memory is trusted.
pub(crate) fn check_memory(
    config: &RunConfig,
    insert_count: u64,
    keys: Option<&StringKeys>,
) -> Result<(), BenchError> {
    let Some(available_bytes) = available_bytes() else {
        return Ok(());
    };
    let process_bytes = config
        .records
        .saturating_mul(PROCESS_BYTES_PER_RECORD)
        .saturating_add(insert_count.saturating_mul(PROCESS_BYTES_PER_INSERT));
    let store_bytes = match &config.persistent {
        None => pools_size_bytes(config, insert_count, keys),
        Some(persistent) => servers_size_bytes(config, persistent),
    };
    let needed_bytes = store_bytes.saturating_add(process_bytes);
    if needed_bytes <= available_bytes {
        return Ok(());
    }
    let records = config.records;
    Err(BenchError::TooLarge {
        records,
        insert_count,
        needed_bytes,
        available_bytes,
        instead: match config.strings {
            Some(_) => "smaller --value-size",
            None => "more --slots",
        },
    })
}

/// Returns the size of all pools together.
fn pools_size_bytes(config: &RunConfig, insert_count: u64, keys: Option<&StringKeys>) -> u64 {
    let pool_bytes = part_size_bytes(config, insert_count, keys);
    let pool_bytes = pool_bytes.saturating_mul(config.partitions as u64);
    // The node holds the records besides its pool.
    let pool_count = if config.layer == LayerKind::Rpc { 2 } else { 1 };
    pool_bytes.saturating_mul(pool_count)
}

/// Returns the memory of own servers. For each region: an L0 being filled, one being written, half
/// as much of its log, and a cache, as far as there are records for them. For each backup: buffers
/// for its primary's log.
fn servers_size_bytes(config: &RunConfig, persistent: &PersistentConfig) -> u64 {
    let ServersConfig::Own { l0_size_bytes, .. } = &persistent.servers else {
        return 0;
    };
    let strings = config.strings.unwrap_or_default();
    let record_bytes = strings.value_size_bytes_mean() + strings.key_size_bytes() as f64;
    let region_count = persistent.regions as u64;
    let records_bytes =
        saturating((config.records as f64 + config.operations as f64) * record_bytes);
    let primary_bytes = (*l0_size_bytes as u64 * 5 / 2)
        .saturating_add(farleaf_lsm::EngineOptions::new().cache_size_bytes as u64)
        .min((records_bytes / region_count).saturating_mul(2));
    let backups_bytes = persistent.replicas.saturating_sub(1) as u64 * BACKUP_SIZE_BYTES;
    region_count
        .saturating_mul(primary_bytes.saturating_add(backups_bytes))
        .saturating_add(SPARE_SIZE_BYTES)
}

/// Returns the memory that the kernel considers available; `None` if it does not report it.
pub(crate) fn available_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    parse_available_bytes(&meminfo)
}

/// Parses the available memory: ordinary pages, and reserved huge pages.
fn parse_available_bytes(meminfo: &str) -> Option<u64> {
    let number = |name: &str| {
        let line = meminfo
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let huge_kib = number("HugePages_Free").unwrap_or(0) * number("Hugepagesize").unwrap_or(0);
    number("MemAvailable")?
        .checked_add(huge_kib)?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the estimate follows the leaves' sizes (3, 4 and 5 blocks). Emptier leaves,
    /// inserts, threads and ROLEX's tables make it larger.
    #[test]
    fn what_needs_more_memory_makes_the_pool_larger() {
        assert_eq!([8, 12, 16].map(leaf_size_bytes), [192, 256, 320]);
        let config = RunConfig::default();
        let size = pool_size_bytes(&config, 0);
        // 166,667 leaves of 192 bytes, plus a quarter.
        assert!((40_000_000..60_000_000).contains(&size), "{size}");
        assert!(pool_size_bytes(&config, 1_000_000) > size + 200_000_000);
        let larger = [
            RunConfig {
                fill_percent: 25,
                ..config.clone()
            },
            RunConfig {
                layer: LayerKind::Rolex,
                ..config.clone()
            },
            RunConfig {
                epsilon_keys: 0.5,
                ..config.clone()
            },
            RunConfig {
                threads: 100,
                ..config.clone()
            },
        ];
        for config in larger {
            assert!(pool_size_bytes(&config, 0) > size, "{config:?}");
        }
    }

    /// Promise: several pools share the records, but each has space for all inserts.
    #[test]
    fn parts_share_the_records() {
        let one = RunConfig::default();
        let four = RunConfig {
            partitions: 4,
            ..one.clone()
        };
        let records_bytes =
            |config: &RunConfig| part_size_bytes(config, 0, None) - SPARE_SIZE_BYTES;
        assert!((3..=4).contains(&(records_bytes(&one) / records_bytes(&four))));
        let inserts_bytes = |config: &RunConfig| {
            part_size_bytes(config, 1_000_000, None) - part_size_bytes(config, 0, None)
        };
        assert_eq!(inserts_bytes(&one), inserts_bytes(&four));
    }

    /// Promise: more than the host has is refused with both sizes, whatever the numbers.
    #[test]
    fn more_than_the_host_has_is_refused() {
        check_memory(&RunConfig::default(), 0, None).expect("a small run");
        let large = RunConfig {
            operations: u64::MAX,
            ..RunConfig::default()
        };
        let error =
            check_memory(&large, large.insert_count_max(), None).expect_err("inserts without end");
        assert!(matches!(error, BenchError::TooLarge { .. }), "{error}");
        assert!(error.to_string().contains("fewer --records"), "{error}");
    }

    /// Promise: available memory is the kernel's estimate, plus the huge pages that it does not
    /// count.
    #[test]
    fn huge_pages_are_available_too() {
        let meminfo = "MemFree: 1 kB\nMemAvailable:   100 kB\nHugePages_Free:    2\nHugepagesize:       2048 kB\n";
        assert_eq!(parse_available_bytes(meminfo), Some((100 + 4096) * 1024));
        assert_eq!(
            parse_available_bytes("MemAvailable: 7 kB\n"),
            Some(7 * 1024)
        );
        assert_eq!(parse_available_bytes(""), None);
    }
}
