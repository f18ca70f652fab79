//! Configuration: budgets and table of a sweep.

use farleaf::LayerKind;

use crate::distribution::Distribution;
use crate::runner::{BenchError, RunConfig};
use crate::workload::WorkloadLetter;

/// Options of `farleaf bench budget`.
#[derive(Clone, Debug)]
pub struct BudgetConfig {
    /// Budgets, in percent of the bytes that a session without a budget holds.
    pub percents: Vec<f64>,
    /// Distributions of requests, each measured with all budgets.
    pub distributions: Vec<Distribution>,
    /// Table, and number of gets (`operations`) that one thread executes under each budget.
    pub table: RunConfig,
}

impl Default for BudgetConfig {
    /// A million keys and as many gets, uniform and zipfian, from 100 % to 1 %.
    fn default() -> Self {
        Self {
            percents: vec![
                100.0, 90.0, 75.0, 60.0, 50.0, 40.0, 30.0, 20.0, 10.0, 5.0, 2.0, 1.0,
            ],
            distributions: vec![Distribution::Uniform, Distribution::Zipfian],
            table: RunConfig {
                // Only gets.
                workloads: vec![WorkloadLetter::C],
                ..RunConfig::default()
            },
        }
    }
}

/// Greatest budget in percent: above 100, to measure the cost of a budget that does not limit.
const PERCENT_MAX: f64 = 1000.0;

impl BudgetConfig {
    /// Checks the limits of all options; the first option that is out of range is the error.
    ///
    /// # Errors
    /// [`BenchError::BadOption`].
    pub fn validate(&self) -> Result<(), BenchError> {
        self.table.validate()?;
        let bad =
            |option, given: String, allowed: &str| Err(BenchError::bad(option, given, allowed));
        if self.table.layer != LayerKind::Learned {
            return bad("index", self.table.layer.to_string(), "learned");
        }
        let is_bad = |percent: &&f64| !(**percent > 0.0 && **percent <= PERCENT_MAX);
        if let Some(percent) = self.percents.iter().find(is_bad) {
            let allowed = "above 0 and at most 1000 (percent)";
            return bad("budgets", percent.to_string(), allowed);
        }
        if self.distributions.contains(&Distribution::Latest) {
            let allowed = "uniform or zipfian, because this benchmark inserts no records";
            return bad("distribution", "latest".to_owned(), allowed);
        }
        if self.percents.is_empty() || self.distributions.is_empty() {
            return bad("budgets", "none".to_owned(), "at least one");
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
        BudgetConfig::default().validate().expect("the defaults");
        let refused = |change: fn(&mut BudgetConfig)| {
            let mut config = BudgetConfig::default();
            change(&mut config);
            config.validate().expect_err("out of range").to_string()
        };
        for percent in ["0", "-3", "NaN", "1000.5"] {
            let mut config = BudgetConfig::default();
            config.percents.push(percent.parse().expect("a number"));
            let error = config.validate().expect_err("out of range").to_string();
            assert!(
                error.starts_with(&format!("--budgets is {percent}")),
                "{error}"
            );
        }
        assert!(refused(|config| config.percents.clear()).starts_with("--budgets is none"));
        assert!(refused(|config| config.table.records = 0).starts_with("--records is 0"));
        assert!(refused(|config| config.table.layer = LayerKind::Rolex).starts_with("--index"));
        let latest = refused(|config| config.distributions.push(Distribution::Latest));
        assert!(latest.starts_with("--distribution is latest"), "{latest}");
    }
}
