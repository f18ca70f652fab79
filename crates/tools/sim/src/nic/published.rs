//! What is published of NICs: rates and latencies that the model is put beside.

use serde::{Deserialize, Serialize};

use super::model::{ModelError, Parameter};
use super::probe::READ_SIZES_BYTES;
use super::range::{Range, check};

/// What a published rate is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// READs of some size.
    Read,
    /// CAS on words of different slots.
    CasSpread,
    /// CAS on one word.
    CasOneWord,
}

impl core::fmt::Display for Measure {
    /// As profiles have it.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::CasSpread => "cas_spread",
            Self::CasOneWord => "cas_one_word",
        })
    }
}

/// How a published figure got into a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The source states it for such a NIC.
    Stated,
    /// It follows from what the source states.
    Derived,
    /// It is another NIC's.
    Assumed,
}

impl core::fmt::Display for Standing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(match self {
            Self::Stated => "stated",
            Self::Derived => "derived",
            Self::Assumed => "assumed",
        })
    }
}

/// A rate that such NICs were found to have, for one memory node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRate {
    /// Of what.
    pub measure: Measure,
    /// Size of each verb's data.
    pub size_bytes: u64,
    /// Verbs per second.
    pub rate_per_s: f64,
    /// How the figure got here.
    pub by: Standing,
    /// The model's parameters were set by it: that it comes out shows only that the queues add
    /// nothing of their own.
    #[serde(default)]
    pub is_fitted: bool,
    /// Who found it.
    pub source: String,
}

/// A latency that one verb was found to have when nobody else is there, posting and polling
/// included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedLatency {
    /// Of what.
    pub measure: Measure,
    /// Size of the verb's data.
    pub size_bytes: u64,
    /// In the median.
    pub latency_ns: f64,
    /// How the figure got here.
    pub by: Standing,
    /// The model's parameters were set by it.
    #[serde(default)]
    pub is_fitted: bool,
    /// Who found it.
    pub source: String,
}

/// Refuses a published figure that the self-check does not measure, or that nobody says.
pub(super) fn check_published(
    (key, value): (&'static str, f64),
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

/// Refuses two published figures of one thing.
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
