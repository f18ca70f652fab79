//! Parameters of a modeled network, read from TOML, each with its source.

use serde::{Deserialize, Serialize};

pub use super::published::{Measure, NumberOrigin, PublishedLatency, PublishedRate};
use super::published::{check_distinct, check_published};
pub use super::range::THREADS_PER_NODE_MAX;
use super::range::check;
use crate::display;

/// Number with its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Value in the unit with which the key's name ends.
    pub value: f64,
    /// Source of the number, or the reason for an estimate.
    pub source: String,
}

/// Compute nodes: the clients' machines, and the costs of operations on their processors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeNodes {
    /// Number of compute nodes.
    pub node_count: Parameter,
    /// NICs of each node; its threads are distributed over them.
    pub nics_per_node: Parameter,
    /// Client threads of each node, one per core.
    pub threads_per_node: Parameter,
    /// A thread's time for one operation before it posts anything: the request and the search in
    /// the models.
    pub operation_ns: Parameter,
    /// A thread's time to ring one doorbell.
    pub doorbell_ns: Parameter,
    /// A thread's time to poll the completion of what one doorbell posted, and to continue the task
    /// that waits for it.
    pub completion_ns: Parameter,
    /// A thread's time to write one verb's work queue element.
    pub verb_ns: Parameter,
    /// A thread's time to check 1024 bytes that were read.
    pub checksum_ns_per_kib: Parameter,
    /// Shortest time after which a task that backs off from a lock is polled again: no other task
    /// of its thread has work.
    pub backoff_turn_ns_min: Parameter,
    /// Longest such time: all other tasks of its thread have work. Drawn times are mostly short.
    pub backoff_turn_ns_max: Parameter,
}

/// Memory nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryNodes {
    /// Number of memory nodes.
    pub node_count: Parameter,
    /// NICs of each node; clients are distributed over them.
    pub nics_per_node: Parameter,
    /// Cores of each node. Calls of tables whose node executes operations wait for one. No get,
    /// scan or put of any other table does. The node's background thread has one core in any case.
    pub cores_per_node: Parameter,
    /// A core's time for one call about one record, from polling the request to posting the reply.
    pub call_ns: Parameter,
    /// A core's time for each further record of a call: to find it in the node's map, and to copy
    /// it into the reply.
    pub call_record_ns: Parameter,
    /// A core's time to train models on one key.
    pub retrain_ns_per_key: Parameter,
    /// Time from a NIC back to itself, which replaces `one_way_ns` for the node's own verbs.
    pub loopback_ns: Parameter,
}

/// Parameters of one NIC, of either kind of node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicParameters {
    /// Name of the NIC.
    pub name: String,
    /// Bandwidth of the NIC's port in each direction.
    pub bandwidth_gbit_per_s: Parameter,
    /// READs and WRITEs per second of its pipeline, as requester and responder together.
    pub verb_rate_per_s: Parameter,
    /// CAS and FAA per second of its pipeline as responder, on different words.
    pub atomic_rate_per_s: Parameter,
    /// Time for which an atomic occupies its slot of the locking table.
    pub atomic_same_slot_ns: Parameter,
    /// Slots of the locking table; word `n` of a node's memory is in slot `n` modulo this.
    pub atomic_slot_count: Parameter,
    /// Time that one doorbell takes of the requester's pipeline.
    pub doorbell_ns: Parameter,
    /// Time from NIC to NIC without load: wire, switch, and the buses at both ends.
    pub one_way_ns: Parameter,
    /// Maximal payload of one packet.
    pub mtu_bytes: Parameter,
    /// Bytes of each packet of a request besides its payload.
    pub request_header_bytes: Parameter,
    /// Bytes of each packet of a reply besides its payload.
    pub response_header_bytes: Parameter,
}

/// Machines that are compute and memory nodes at once. A thread's verbs to its own machine go
/// through that machine's NIC and back ([`MemoryNodes::loopback_ns`]), never past it: atomics of a
/// processor and of a NIC are not atomic to each other (FABRIC-4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedMachines {
    /// Source of this statement.
    pub source: String,
}

/// Testbed: its machines, its NICs, and published measurements of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkModel {
    /// Name of the testbed.
    pub name: String,
    /// Description of the testbed, for people.
    pub testbed: String,
    /// Machines of the clients.
    pub compute: ComputeNodes,
    /// Memory nodes of the testbed.
    pub memory: MemoryNodes,
    /// NICs of every machine.
    pub nic: NicParameters,
    /// If present, each compute node is the memory node of the same number, with its NICs.
    #[serde(default)]
    pub shared_machines: Option<SharedMachines>,
    /// Published rates with which the model is compared.
    #[serde(default)]
    pub published: Vec<PublishedRate>,
    /// Published latencies with which the model is compared.
    #[serde(default)]
    pub published_latency: Vec<PublishedLatency>,
}

/// Errors of a profile.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum ModelError {
    /// Invalid TOML, or a key that is missing, unknown, or of the wrong type; with the line.
    #[error("{0}")]
    Syntax(String),
    /// A number is out of range.
    #[error("{key} = {}: must be {expected}", display::number(*value))]
    OutOfRange {
        /// Key with its table.
        key: &'static str,
        /// Value of the key.
        value: f64,
        /// Permitted values.
        expected: String,
    },
    /// The self-check does not measure this published rate, so it would not be compared.
    #[error(
        "published.size_bytes = {size_bytes}: the self-check measures READs of 8 to 4096 bytes, \
         powers of two, and atomics of 8"
    )]
    NotMeasured {
        /// Size of the verb.
        size_bytes: u64,
    },
    /// Two published numbers have the same measure; the self-check would compare only one.
    #[error(
        "{key}: measure = \"{measure}\" with size_bytes = {size_bytes} is given twice; keep the \
         one to compare with"
    )]
    PublishedTwice {
        /// Name of the table.
        key: &'static str,
        /// Measure of both.
        measure: Measure,
        /// Size of the verb.
        size_bytes: u64,
    },
    /// Machines are compute and memory nodes at once, but the numbers of the two differ.
    #[error(
        "shared_machines: {compute_key} = {compute} and {memory_key} = {memory} must be the same; \
         remove shared_machines if compute nodes are separate machines"
    )]
    NotShared {
        /// Key of the number of compute nodes.
        compute_key: &'static str,
        /// Number of compute nodes.
        compute: f64,
        /// Key of the number of memory nodes.
        memory_key: &'static str,
        /// Number of memory nodes.
        memory: f64,
    },
    /// A text is empty or cannot be displayed.
    #[error("{key} = '{}': must be {expected}", display::text(value))]
    BadText {
        /// Key with its table.
        key: &'static str,
        /// Value of the key.
        value: String,
        /// Permitted values.
        expected: &'static str,
    },
    /// A number has no source.
    #[error(
        "{key}: its source is empty; state where the number comes from or how it was estimated"
    )]
    NoSource {
        /// Key with its table.
        key: &'static str,
    },
}

const NAME_BYTES_MAX: usize = 48;
const TEXT_CHARS_MAX: usize = 200;
const SOURCE_CHARS_MAX: usize = 1000;
const EXPECTED_NAME: &str =
    "1 to 48 of the characters A-Z a-z 0-9 . _ - and must not start with a dot";
const EXPECTED_TEXT: &str = "1 to 200 characters, none of them a control character";
const EXPECTED_SOURCE: &str =
    "a number with a source of at most 1000 characters, none of them a control character";

impl NetworkModel {
    /// Parses a profile.
    ///
    /// # Errors
    /// The profile is invalid; the error names the key.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let read = toml::from_str(text);
        let model: Self =
            read.map_err(|error: toml::de::Error| ModelError::Syntax(display::message(&error)))?;
        model.check_texts()?;
        for (key, parameter, range) in model.ranges() {
            check(key, parameter, range)?;
        }
        model.check_shared()?;
        for it in &model.published {
            check_published(
                "published.rate_per_s",
                it.rate_per_s,
                it.measure,
                it.size_bytes,
                &it.source,
            )?;
        }
        for it in &model.published_latency {
            check_published(
                "published_latency.latency_ns",
                it.latency_ns,
                it.measure,
                it.size_bytes,
                &it.source,
            )?;
        }
        let rates = model.published.iter();
        check_distinct("published", rates.map(|it| (it.measure, it.size_bytes)))?;
        let latencies = model.published_latency.iter();
        let latencies = latencies.map(|it| (it.measure, it.size_bytes));
        check_distinct("published_latency", latencies)?;
        Ok(model)
    }

    /// Checks that shared machines have the same number of both kinds of node.
    fn check_shared(&self) -> Result<(), ModelError> {
        let Some(shared) = &self.shared_machines else {
            return Ok(());
        };
        if shared.source.trim().is_empty() {
            let key = "shared_machines.source";
            return Err(ModelError::NoSource { key });
        }
        let (compute, memory) = (&self.compute, &self.memory);
        let counts = [
            (
                ("compute.node_count", &compute.node_count),
                ("memory.node_count", &memory.node_count),
            ),
            (
                ("compute.nics_per_node", &compute.nics_per_node),
                ("memory.nics_per_node", &memory.nics_per_node),
            ),
        ];
        for ((compute_key, compute), (memory_key, memory)) in counts {
            // Both are integers.
            if (compute.value - memory.value).abs() >= 1.0 {
                return Err(ModelError::NotShared {
                    compute_key,
                    compute: compute.value,
                    memory_key,
                    memory: memory.value,
                });
            }
        }
        Ok(())
    }

    /// Checks names, which appear in files, pages and terminals.
    fn check_texts(&self) -> Result<(), ModelError> {
        let refused = |key, value: &str, expected| ModelError::BadText {
            key,
            value: value.to_owned(),
            expected,
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let name = &self.name;
        let is_sound = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_name);
        if !is_sound || name.starts_with('.') {
            return Err(refused("name", name, EXPECTED_NAME));
        }
        for (key, value) in [("testbed", &self.testbed), ("nic.name", &self.nic.name)] {
            let is_sound = (1..=TEXT_CHARS_MAX).contains(&value.trim().chars().count());
            if !is_sound || value.contains(char::is_control) {
                return Err(refused(key, value, EXPECTED_TEXT));
            }
        }
        let sources = self
            .parameters()
            .map(|(key, parameter)| (key, &parameter.source));
        let published = self.published.iter();
        let published = published.map(|it| ("published.source", &it.source));
        let latencies = self.published_latency.iter();
        let latencies = latencies.map(|it| ("published_latency.source", &it.source));
        let shared = self.shared_machines.iter();
        let shared = shared.map(|it| ("shared_machines.source", &it.source));
        for (key, source) in sources.chain(published).chain(latencies).chain(shared) {
            if source.contains(char::is_control) || source.chars().count() > SOURCE_CHARS_MAX {
                return Err(refused(key, source, EXPECTED_SOURCE));
            }
        }
        Ok(())
    }

    /// Returns every parameter with its key.
    pub fn parameters(&self) -> impl Iterator<Item = (&'static str, &Parameter)> {
        let ranges = self.ranges().into_iter();
        ranges.map(|(key, parameter, _)| (key, parameter))
    }

    /// Returns the number of threads of all compute nodes.
    pub fn thread_count(&self) -> usize {
        (self.compute.node_count.value * self.compute.threads_per_node.value) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLEX: &str = include_str!("../../profiles/rolex.toml");

    /// Returns the error of a profile with this change.
    fn refusal(from: &str, to: &str) -> String {
        assert!(ROLEX.contains(from), "nothing to replace");
        NetworkModel::parse(&ROLEX.replacen(from, to, 1))
            .expect_err("refused")
            .to_string()
    }

    /// Promise: an out-of-range number is refused, with its key and the permitted values.
    #[test]
    fn numbers_out_of_range_are_named() {
        let error = refusal("mtu_bytes = { value = 4096", "mtu_bytes = { value = 0");
        assert_eq!(
            error,
            "nic.mtu_bytes = 0: must be a whole number from 64 to 65536"
        );
        let error = refusal("node_count = { value = 3", "node_count = { value = 2.5");
        assert!(
            error.starts_with("compute.node_count = 2.5: must be a whole"),
            "{error}"
        );
        let error = refusal("doorbell_ns = { value = 6", "doorbell_ns = { value = nan");
        assert!(error.starts_with("nic.doorbell_ns = NaN"), "{error}");
    }

    /// Promise: no error is longer than a few lines, whatever the number or name.
    #[test]
    fn huge_numbers_and_names_are_shown_short() {
        let error = refusal("mtu_bytes = { value = 4096", "mtu_bytes = { value = 1e300");
        assert_eq!(
            error,
            "nic.mtu_bytes = 1e300: must be a whole number from 64 to 65536"
        );
        let name = format!("name = \"{}\"", "n".repeat(10_000));
        let error = refusal("name = \"rolex\"", &name);
        assert!(
            error.starts_with("name = 'nnn") && error.len() < 300,
            "{error}"
        );
    }

    /// Promise: a profile's names can be used in a file, a page and a terminal.
    #[test]
    fn names_that_are_none_are_refused() {
        for name in ["", "../x", "a/b", ".hidden", "a\\u001b[2J", "two words"] {
            let error = refusal("name = \"rolex\"", &format!("name = \"{name}\""));
            assert!(error.starts_with("name = '"), "{name}: {error}");
        }
        let from = "name = \"ConnectX-5, 100 Gb/s\"";
        let error = refusal(from, "name = \" \"");
        assert!(error.starts_with("nic.name = ' ': must be"), "{error}");
        let error = refusal("eRPC (NSDI'19)", "eRPC\\u0007");
        assert!(error.starts_with("nic.one_way_ns = 'eRPC\\u{7}"), "{error}");
    }

    /// Promise: a published rate that would not be compared is refused, with the reason.
    #[test]
    fn a_published_rate_that_is_not_measured_is_refused() {
        let text = include_str!("../../profiles/rolex.toml").replace("= 4096", "= 4000");
        let error = NetworkModel::parse(&text).expect_err("not measured");
        assert!(matches!(
            error,
            ModelError::NotMeasured { size_bytes: 4000 }
        ));
    }

    /// Promise: two published numbers of the same measure are refused.
    #[test]
    fn a_figure_that_is_published_twice_is_refused() {
        for (from, key) in [
            ("[[published]]", "published"),
            ("[[published_latency]]", "published_latency"),
        ] {
            let end = ROLEX.split(from).nth(1).expect("a figure");
            let end = end.split("\n[").next().expect("an end");
            let error = NetworkModel::parse(&format!("{ROLEX}\n{from}{end}"));
            let error = error.expect_err("refused").to_string();
            let expected = format!("{key}: measure = \"read\" with size_bytes = ");
            assert!(error.starts_with(&expected), "{error}");
            assert!(error.contains("is given twice"), "{error}");
        }
    }

    /// Promise: a number without a source is refused.
    #[test]
    fn a_number_without_a_source_is_refused() {
        let error = refusal(
            "source = \"ROLEX (FAST'23), testbed: 3 compute nodes\"",
            "source = \" \"",
        );
        assert!(
            error.starts_with("compute.node_count: its source is empty"),
            "{error}"
        );
    }

    /// Promise: shared machines have equal numbers of both nodes, and a source.
    #[test]
    fn shared_machines_are_as_many_of_either() {
        let shared = |source: &str| format!("[shared_machines]\nsource = \"{source}\"\n\n[nic]");
        let error = refusal("[nic]", &shared(" "));
        assert!(
            error.starts_with("shared_machines.source: its source is empty"),
            "{error}"
        );
        let text = ROLEX.replacen("[nic]", &shared("a test"), 1);
        assert!(NetworkModel::parse(&text).is_ok(), "3 and 3");
        let text = text.replacen("node_count = { value = 3", "node_count = { value = 2", 1);
        let error = NetworkModel::parse(&text).expect_err("2 and 3").to_string();
        assert!(
            error.starts_with("shared_machines: compute.node_count = 2 and memory.node_count = 3"),
            "{error}"
        );
    }

    /// Promise: an error of a missing, misspelled or mistyped key names the key and its line.
    #[test]
    fn keys_that_are_wrong_are_named() {
        let error = refusal("one_way_ns", "one_way_nanoseconds");
        assert!(
            error.contains("one_way_nanoseconds") && error.contains("line"),
            "{error}"
        );
        let error = refusal(
            "mtu_bytes = { value = 4096",
            "mtu_bytes = { value = \"4096\"",
        );
        assert!(
            error.contains("line") && error.contains("string"),
            "{error}"
        );
    }
}
