//! Configuration: search layers and table.

use farleaf::LayerKind;

use crate::runner::{BenchError, RunConfig};

/// Options of `farleaf bench costs`.
#[derive(Clone, Debug)]
pub struct CostsConfig {
    /// Search layers, each on a table of its own.
    pub layers: Vec<LayerKind>,
    /// Table, and number of operations of each kind (`operations`), by one thread; its layer is not
    /// used.
    pub table: RunConfig,
}

impl Default for CostsConfig {
    /// All layers, a million keys and a hundred thousand operations of each kind.
    fn default() -> Self {
        Self {
            layers: LayerKind::ALL.to_vec(),
            table: RunConfig {
                operations: 100_000,
                ..RunConfig::default()
            },
        }
    }
}

impl CostsConfig {
    /// Returns the settings of one layer's table.
    pub(super) fn table_of(&self, layer: LayerKind) -> RunConfig {
        RunConfig {
            layer,
            ..self.table.clone()
        }
    }

    /// Checks the limits of all options; the first option that is out of range is the error.
    ///
    /// # Errors
    /// [`BenchError::BadOption`].
    pub fn validate(&self) -> Result<(), BenchError> {
        self.table.validate()?;
        if self.layers.is_empty() {
            return Err(BenchError::bad(
                "index",
                "none",
                "at least one search layer",
            ));
        }
        let (operations, records) = (self.table.operations, self.table.records);
        if operations > records {
            let allowed =
                format!("at most --records ({records}), because each delete needs a record");
            return Err(BenchError::bad("operations", operations, allowed));
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
        CostsConfig::default().validate().expect("the defaults");
        let refused = |change: fn(&mut CostsConfig)| {
            let mut config = CostsConfig::default();
            change(&mut config);
            config.validate().expect_err("out of range").to_string()
        };
        assert!(refused(|config| config.layers.clear()).starts_with("--index is none"));
        assert!(refused(|config| config.table.slots = 9).starts_with("--slots is 9"));
        let many = refused(|config| config.table.records = 99_999);
        assert_eq!(
            many,
            "--operations is 100000: it must be at most --records (99999), because each delete \
             needs a record"
        );
    }
}
