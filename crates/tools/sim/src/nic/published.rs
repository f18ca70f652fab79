//! Published rates and latencies of NICs, with which the model is compared.

use serde::{Deserialize, Serialize};

use super::model::{ModelError, Parameter};
use super::range::{Range, check};

/// Sizes of the measured READs, in bytes.
pub const READ_SIZES_BYTES: [u64; 10] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// Measure of a published rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// READs of one size.
    Read,
    /// CAS on words of different slots.
    CasSpread,
    /// CAS on one word.
    CasOneWord,
}

impl core::fmt::Display for Measure {
    /// Formats the measure as profiles write it.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::CasSpread => "cas_spread",
            Self::CasOneWord => "cas_one_word",
        })
    }
}

/// Origin of a published number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumberOrigin {
    /// The source states it for such a NIC.
    Stated,
    /// The number follows from what the source states.
    Derived,
    /// The number is another NIC's.
    Assumed,
}

impl core::fmt::Display for NumberOrigin {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(match self {
            Self::Stated => "stated",
            Self::Derived => "derived",
            Self::Assumed => "assumed",
        })
    }
}

/// Measured rate of such NICs, for one memory node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRate {
    /// Measure of the rate.
    pub measure: Measure,
    /// Size of each verb's data.
    pub size_bytes: u64,
    /// Rate in verbs per second.
    pub rate_per_s: f64,
    /// Origin of the number.
    pub by: NumberOrigin,
    /// Whether the model's parameters were fitted to it. If so, its agreement shows only that the
    /// queues add no time of their own.
    #[serde(default)]
    pub is_fitted: bool,
    /// Source of the number.
    pub source: String,
}

/// Measured latency of one verb without load, including posting and polling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedLatency {
    /// Measure of the latency.
    pub measure: Measure,
    /// Size of the verb's data.
    pub size_bytes: u64,
    /// Median in nanoseconds.
    pub latency_ns: f64,
    /// Origin of the number.
    pub by: NumberOrigin,
    /// Whether the model's parameters were fitted to it.
    #[serde(default)]
    pub is_fitted: bool,
    /// Source of the number.
    pub source: String,
}

/// Refuses a published number that the self-check does not measure, or that has no source.
pub(super) fn check_published(
    key: &'static str,
    value: f64,
    measure: Measure,
    size_bytes: u64,
    source: &str,
) -> Result<(), ModelError> {
    let figure = Parameter {
        value,
        source: source.to_owned(),
    };
    check(key, &figure, Range::Amount(1.0, 1e12))?;
    let is_measured = match measure {
        Measure::Read => READ_SIZES_BYTES.contains(&size_bytes),
        Measure::CasSpread | Measure::CasOneWord => size_bytes == 8,
    };
    if is_measured {
        return Ok(());
    }
    Err(ModelError::NotMeasured { size_bytes })
}

/// Refuses two published numbers of the same measure.
pub(super) fn check_distinct(
    key: &'static str,
    figures: impl Iterator<Item = (Measure, u64)>,
) -> Result<(), ModelError> {
    let mut known = Vec::new();
    for (measure, size_bytes) in figures {
        if known.contains(&(measure, size_bytes)) {
            return Err(ModelError::PublishedTwice {
                key,
                measure,
                size_bytes,
            });
        }
        known.push((measure, size_bytes));
    }
    Ok(())
}
