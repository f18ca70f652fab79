//! Configuration of a run, and its limits.

use farleaf::{LayerKind, METADATA_BUDGET_BYTES_MIN, ModelCache, PART_COUNT_MAX, VerbsOptions};

use super::fields::FIELD_SIZE_BYTES_MIN;
use super::strings::{KEY_SIZE_BYTES_MIN, Strings, VALUE_SIZE_BYTES_MIN, ValueSize};
use super::{BenchError, FabricKind, PersistentConfig};
use crate::dataset::Dataset;
use crate::distribution::Distribution;
use crate::quantity::count;
use crate::verify::WriterId;
use crate::workload::{WorkloadLetter, WorkloadSpec};

/// Maximal number of threads of a run. A pool has 1,023 sessions, some of which are its own.
pub const THREAD_COUNT_MAX: usize = 1_000;
const _: () = assert!(THREAD_COUNT_MAX <= WriterId::THREAD_COUNT_MAX);

/// Maximal number of operations that a thread keeps in flight: far more than needed to hide any
/// network's latency.
pub const IN_FLIGHT_COUNT_MAX: usize = 4_096;

/// Maximal number of records of a run: leaves are numbered with 32 bits.
pub const RECORD_COUNT_MAX: u64 = 1 << 32;

/// Options of `farleaf bench ycsb`.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Workloads in their order; each on a freshly loaded store.
    pub workloads: Vec<WorkloadLetter>,
    /// Search layer of the table.
    pub layer: LayerKind,
    /// Fabric of the pool.
    pub fabric: FabricKind,
    /// RDMA devices of this host to use, if the fabric is `verbs`.
    pub verbs: VerbsOptions,
    /// Number of loaded records.
    pub records: u64,
    /// Operations of each workload, of all threads together.
    pub operations: u64,
    /// Number of threads that share the operations.
    pub threads: usize,
    /// Operations that each thread keeps in flight; 1: it waits for each.
    pub in_flight: usize,
    /// Request distribution; `None`: the one that the workload defines.
    pub distribution: Option<Distribution>,
    /// Source of the keys.
    pub dataset: Dataset,
    /// Keys and values as byte strings; `None`: integers.
    pub strings: Option<Strings>,
    /// Slots of a leaf, of integers: 8, 12 or 16.
    pub slots: u64,
    /// Percentage of a leaf's slots that the load fills: 25 to 100.
    pub fill_percent: u8,
    /// Error bound of the models, in keys: 0.5 to 1024.
    pub epsilon_keys: f64,
    /// Metadata budget of each session in bytes; `None`: no limit.
    pub metadata_budget_bytes: Option<u64>,
    /// Links that a lookup may follow before it rereads the cached tree; `None`: the store's
    /// default.
    pub link_count_max: Option<u32>,
    /// Part of the models that sessions cache, of a table with the search layer `xstore`.
    pub model_cache: ModelCache,
    /// Whether sessions ask the memory node after a wrong model without following a link first.
    pub does_not_speculate: bool,
    /// Number of pools over which the table is divided; 1: one pool has all of it.
    pub partitions: usize,
    /// Persistent table instead of one in far memory; requires strings.
    pub persistent: Option<PersistentConfig>,
    /// Seed of keys and operations.
    pub seed: u64,
    /// Commit of the code that runs, for the report.
    pub commit: String,
}

impl Default for RunConfig {
    /// All six workloads, a million records and operations each, one thread with one operation in
    /// flight, on shared memory, with the store's default table options.
    fn default() -> Self {
        let table = farleaf::TableOptions::default();
        Self {
            workloads: WorkloadLetter::ALL.to_vec(),
            layer: table.layer,
            fabric: FabricKind::Shm,
            verbs: VerbsOptions::default(),
            records: 1_000_000,
            operations: 1_000_000,
            threads: 1,
            in_flight: 1,
            distribution: None,
            dataset: Dataset::Uniform,
            strings: None,
            slots: table.slots,
            fill_percent: table.fill_percent,
            epsilon_keys: table.epsilon_keys,
            metadata_budget_bytes: None,
            link_count_max: None,
            model_cache: ModelCache::All,
            does_not_speculate: false,
            partitions: 1,
            persistent: None,
            seed: 1,
            commit: "unknown".to_owned(),
        }
    }
}

/// Result of the check of an option.
pub(super) type Check = Result<(), BenchError>;

impl RunConfig {
    /// Returns the checks of options that only some search layers have.
    fn layer_checks(&self) -> [Check; 4] {
        let (is_tree, is_xstore) = (
            self.layer == LayerKind::RfTree,
            self.layer == LayerKind::Xstore,
        );
        let takes_budget =
            self.layer == LayerKind::Learned || self.layer.cached_level_min().is_some();
        let is_default = self.model_cache == ModelCache::default();
        let given = format!("given with --index {}", self.layer);
        [
            (
                "metadata-budget",
                self.metadata_budget_bytes.is_none() || takes_budget,
                "used with --index learned, sherman or cell",
            ),
            // It would have no effect on layers that do not cache whole trees.
            (
                "link-count-max",
                self.link_count_max.is_none() || is_tree,
                "used with --index rf-tree, whose clients cache the whole tree",
            ),
            (
                "model-cache",
                is_default || is_xstore,
                "used with --index xstore, whose memory node trains the models",
            ),
            (
                "no-speculation",
                !self.does_not_speculate || is_xstore,
                "used with --index xstore, whose clients call the memory node when models miss",
            ),
        ]
        .map(|(option, is_good, allowed)| BenchError::check(option, is_good, &given, allowed))
    }

    /// Checks that each part has at least one record, so that there are bounds.
    fn partitions_check(&self) -> Check {
        let count_max = PART_COUNT_MAX.min(usize::try_from(self.records).unwrap_or(usize::MAX));
        BenchError::check(
            "partitions",
            (1..=count_max).contains(&self.partitions),
            self.partitions.to_string(),
            format!("from 1 to {PART_COUNT_MAX}, and not above --records"),
        )
    }

    /// Returns the checks of options for the other kind of table, and of sizes that no table of
    /// byte strings can have.
    fn string_checks(&self) -> Vec<Check> {
        let Some(strings) = self.strings else {
            return Vec::new();
        };
        let is_fitting = |size: usize| (VALUE_SIZE_BYTES_MIN..=64 << 20).contains(&size);
        let value_size = match strings.value_size {
            ValueSize::Fixed(size_bytes) => is_fitting(size_bytes),
            ValueSize::Mixed { .. } => true,
        };
        vec![
            BenchError::check(
                "index",
                self.layer.has_byte_tables(),
                format!("{} with --kind bytes", self.layer),
                "learned, rf-tree or rpc, which support tables of byte strings",
            ),
            BenchError::check(
                "partitions",
                self.partitions == 1,
                format!("{} with --kind bytes", self.partitions),
                "1, because a table of byte strings is in one pool",
            ),
            BenchError::check(
                "key-size",
                (KEY_SIZE_BYTES_MIN..=4096).contains(&strings.key_size_bytes()),
                strings.key_size_bytes().to_string(),
                format!("from {KEY_SIZE_BYTES_MIN} to 4096 bytes"),
            ),
            BenchError::check(
                "key-size",
                strings.key_size_bytes.is_none() || !matches!(self.dataset, Dataset::Keys(_)),
                "given with a key file",
                "omitted, because the file determines the sizes of the keys",
            ),
            BenchError::check(
                "page-size",
                matches!(strings.page_size_bytes, 512 | 1024 | 2048),
                strings.page_size_bytes.to_string(),
                "512, 1024 or 2048",
            ),
            BenchError::check(
                "value-size",
                value_size,
                strings.value_size.to_string(),
                format!("from {VALUE_SIZE_BYTES_MIN} bytes to 64 MiB"),
            ),
        ]
    }

    /// Checks that a value divides into fields of equal size, each with space for its header.
    fn fields_check(&self) -> Check {
        let strings = self.strings.unwrap_or_default();
        let count = strings.field_count;
        let (is_good, given, allowed) = match strings.value_size {
            ValueSize::Mixed { name, .. } => (
                count == 1,
                format!("{count} with --value-size {name}"),
                "1, because values of several sizes have no fields of equal size".to_owned(),
            ),
            ValueSize::Fixed(size_bytes) => (
                count == 1
                    || count > 0
                        && size_bytes % count == 0
                        && size_bytes / count >= FIELD_SIZE_BYTES_MIN,
                format!("{count} with values of {size_bytes} bytes"),
                format!(
                    "1, or a number that divides the value into fields of {FIELD_SIZE_BYTES_MIN} \
                     bytes or more"
                ),
            ),
        };
        BenchError::check("fields", is_good, given, allowed)
    }

    /// Checks the limits of all options; the first option that is out of range is the error.
    ///
    /// # Errors
    /// [`BenchError::BadOption`].
    pub fn validate(&self) -> Result<(), BenchError> {
        let budget_bytes = self.metadata_budget_bytes.unwrap_or(u64::MAX);
        let checks = [
            BenchError::check(
                "workload",
                !self.workloads.is_empty(),
                "none",
                "at least one of A to F",
            ),
            BenchError::within("records", self.records, 1, RECORD_COUNT_MAX, ""),
            BenchError::check(
                "operations",
                self.operations > 0,
                self.operations.to_string(),
                "at least 1",
            ),
            BenchError::within("threads", self.threads, 1, THREAD_COUNT_MAX, ""),
            BenchError::within("in-flight", self.in_flight, 1, IN_FLIGHT_COUNT_MAX, ""),
            BenchError::check(
                "slots",
                matches!(self.slots, 8 | 12 | 16),
                self.slots.to_string(),
                "8, 12 or 16",
            ),
            BenchError::within("fill", self.fill_percent, 25, 100, " (percent)"),
            BenchError::within("epsilon", self.epsilon_keys, 0.5, 1024.0, " (keys)"),
            BenchError::check(
                "metadata-budget",
                budget_bytes >= METADATA_BUDGET_BYTES_MIN,
                format!("{budget_bytes} bytes"),
                format!("at least {METADATA_BUDGET_BYTES_MIN} bytes"),
            ),
        ];
        let mut checks = checks
            .into_iter()
            .chain(self.layer_checks())
            .chain([self.partitions_check()])
            .chain(self.persistent.iter().flat_map(|it| it.checks(self)))
            .chain(self.string_checks())
            .chain([self.fields_check()]);
        checks.find(Result::is_err).unwrap_or(Ok(()))
    }

    /// Formats the settings of the table in a line.
    pub(crate) fn table_text(&self) -> String {
        format!(
            "{} records, {} keys, {} fabric; slots {}, fill {} %, epsilon {}, seed {}, commit {}",
            count(self.records),
            self.dataset,
            self.fabric,
            self.slots,
            self.fill_percent,
            self.epsilon_keys,
            self.seed,
            self.commit
        )
    }

    /// Returns the number of insert keys that is enough for each workload.
    pub(super) fn insert_count_max(&self) -> u64 {
        let counts = self
            .workloads
            .iter()
            .map(|workload| self.insert_count_of(*workload));
        counts.max().unwrap_or(0)
    }

    /// Returns the number of insert keys that one workload may use.
    pub(super) fn insert_count_of(&self, workload: WorkloadLetter) -> u64 {
        WorkloadSpec::of(workload).insert_count_max(self.operations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut RunConfig)) -> String {
        let mut config = RunConfig::default();
        change(&mut config);
        config.validate().expect_err("out of range").to_string()
    }

    /// Promise: the defaults are within all limits, and so are the limits themselves.
    #[test]
    fn the_defaults_and_the_limits_are_good() {
        let config = RunConfig::default();
        config.validate().expect("the defaults");
        for (fill_percent, epsilon_keys, slots) in [(25, 0.5, 8), (100, 1024.0, 16)] {
            let config = RunConfig {
                records: RECORD_COUNT_MAX,
                threads: THREAD_COUNT_MAX,
                in_flight: IN_FLIGHT_COUNT_MAX,
                slots,
                fill_percent,
                epsilon_keys,
                ..config.clone()
            };
            config.validate().expect("the limits");
        }
    }

    /// Promise: an out-of-range option is refused by name, with its value and the permitted values.
    #[test]
    fn what_is_out_of_range_is_named() {
        assert_eq!(
            refused(|config| config.threads = 1_001),
            "--threads is 1001: it must be from 1 to 1000"
        );
        assert!(refused(|config| config.workloads.clear()).starts_with("--workload "));
        assert!(refused(|config| config.records = 0).starts_with("--records is 0"));
        assert!(refused(|config| config.records = u64::MAX).starts_with("--records "));
        assert!(refused(|config| config.operations = 0).starts_with("--operations is 0"));
        assert!(refused(|config| config.threads = 0).starts_with("--threads is 0"));
        assert!(refused(|config| config.in_flight = 0).starts_with("--in-flight is 0"));
        assert!(refused(|config| config.in_flight = 4_097).starts_with("--in-flight "));
        assert!(refused(|config| config.slots = 10).contains("8, 12 or 16"));
        assert!(refused(|config| config.fill_percent = 24).starts_with("--fill is 24"));
        assert!(refused(|config| config.fill_percent = 101).starts_with("--fill is 101"));
        assert!(refused(|config| config.epsilon_keys = 0.4).starts_with("--epsilon is 0.4"));
        assert_eq!(
            refused(|config| config.metadata_budget_bytes = Some(1023)),
            "--metadata-budget is 1023 bytes: it must be at least 1024 bytes"
        );
        let rolex = refused(|config| {
            (config.metadata_budget_bytes, config.layer) = (Some(1 << 30), LayerKind::Rolex);
        });
        assert!(rolex.starts_with("--metadata-budget is given with --index rolex"));
        for layer in LayerKind::ALL {
            let config = RunConfig {
                layer,
                link_count_max: Some(0),
                ..RunConfig::default()
            };
            assert_eq!(config.validate().is_ok(), layer == LayerKind::RfTree);
        }
        let sherman = refused(|config| {
            (config.link_count_max, config.layer) = (Some(2), LayerKind::Sherman);
        });
        assert_eq!(
            sherman,
            "--link-count-max is given with --index sherman: it must be used with --index rf-tree, \
             whose clients cache the whole tree"
        );
        assert!(refused(|config| config.partitions = 0).starts_with("--partitions is 0"));
        assert!(refused(|config| config.partitions = 257).contains("from 1 to 256"));
        let few = refused(|config| (config.records, config.partitions) = (3, 4));
        assert!(few.contains("not above --records"), "{few}");
        assert!(refused(|config| config.epsilon_keys = f64::NAN).starts_with("--epsilon is NaN"));
    }

    /// Promise: an option that no table of byte strings can have is refused, too.
    #[test]
    fn what_strings_cannot_have_is_named() {
        let strings = |change: fn(&mut Strings)| {
            refused(|config| change(config.strings.insert(Strings::default())))
        };
        assert_eq!(
            strings(|strings| strings.key_size_bytes = Some(23)),
            "--key-size is 23: it must be from 24 to 4096 bytes"
        );
        let of_file = refused(|config| {
            config.dataset = Dataset::Keys("names".into());
            config.strings.insert(Strings::default()).key_size_bytes = Some(24);
        });
        assert_eq!(
            of_file,
            "--key-size is given with a key file: it must be omitted, because the file determines \
             the sizes of the keys"
        );
        assert!(strings(|strings| strings.page_size_bytes = 4096).starts_with("--page-size "));
        assert!(
            strings(|strings| strings.value_size = ValueSize::Fixed(7))
                .starts_with("--value-size ")
        );
        assert_eq!(
            strings(|strings| strings.field_count = 3),
            "--fields is 3 with values of 1000 bytes: it must be 1, or a number that divides the \
             value into fields of 16 bytes or more"
        );
        assert!(strings(|strings| strings.field_count = 0).starts_with("--fields is 0 with "));
        assert!(strings(|strings| strings.field_count = 100).starts_with("--fields is 100 with "));
        let of_mix = strings(|strings| {
            strings.field_count = 10;
            strings.value_size = "SD".parse().expect("a mix");
        });
        assert_eq!(
            of_mix,
            "--fields is 10 with --value-size SD: it must be 1, because values of several \
             sizes have no fields of equal size"
        );
        let of_trees = refused(|config| {
            (config.strings, config.layer) = (Some(Strings::default()), LayerKind::Fg);
        });
        assert_eq!(
            of_trees,
            "--index is fg with --kind bytes: it must be learned, rf-tree or rpc, which \
             support tables of byte strings"
        );
    }
}
