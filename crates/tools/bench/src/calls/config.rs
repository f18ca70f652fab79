//! Configuration: fabrics and numbers of calls.

use farleaf::VerbsOptions;

use crate::runner::{BenchError, FabricKind};

/// Maximal number of calls in flight.
const IN_FLIGHT_COUNT_MAX: u32 = 1024;

/// Options of `farleaf bench calls`.
#[derive(Clone, Debug, PartialEq)]
pub struct CallsConfig {
    /// Fabrics over which the node is called.
    pub fabrics: Vec<FabricKind>,
    /// Numbers of calls in flight.
    pub in_flight: Vec<u32>,
    /// Calls per round.
    pub operations: u64,
    /// Number of rounds.
    pub rounds: u32,
    /// RDMA device that serves, if `verbs` is among the fabrics.
    pub verbs: VerbsOptions,
    /// Commit of the measured version.
    pub commit: String,
}

impl Default for CallsConfig {
    /// Shared memory and TCP; one call at a time, and 16; five rounds of 20,000.
    fn default() -> Self {
        Self {
            fabrics: vec![FabricKind::Shm, FabricKind::Tcp],
            in_flight: vec![1, 16],
            operations: 20_000,
            rounds: 5,
            verbs: VerbsOptions::default(),
            commit: String::new(),
        }
    }
}

impl CallsConfig {
    /// Checks the limits of all options; the first option that is out of range is the error.
    ///
    /// # Errors
    /// [`BenchError::BadOption`].
    pub fn validate(&self) -> Result<(), BenchError> {
        if self.fabrics.is_empty() {
            return Err(BenchError::bad("fabric", "none", "at least one fabric"));
        }
        let is_bad = |count: &&u32| !(1..=IN_FLIGHT_COUNT_MAX).contains(*count);
        if let Some(count) = self.in_flight.iter().find(is_bad) {
            let allowed = format!("1 to {IN_FLIGHT_COUNT_MAX}");
            return Err(BenchError::bad("in-flight", count, allowed));
        }
        if self.in_flight.is_empty() || self.operations == 0 || self.rounds == 0 {
            let options = "operations, --rounds or --in-flight";
            return Err(BenchError::bad(options, 0, "at least 1"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the defaults are valid, and an out-of-range option is refused by name.
    #[test]
    fn what_is_out_of_range_is_named() {
        CallsConfig::default().validate().expect("the defaults");
        let refused = |change: fn(&mut CallsConfig)| {
            let mut config = CallsConfig::default();
            change(&mut config);
            config.validate().expect_err("out of range").to_string()
        };
        assert!(refused(|config| config.fabrics.clear()).starts_with("--fabric is none"));
        assert!(refused(|config| config.in_flight.push(1025)).starts_with("--in-flight is 1025"));
        assert!(refused(|config| config.rounds = 0).contains("--rounds"));
    }
}
