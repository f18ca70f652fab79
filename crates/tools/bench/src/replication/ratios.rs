//! Ratios of Send-Index to Build-Index, compared with the paper's.

use serde::Serialize;

use super::names::{ReplicationKind, ReplicationPhase};
use super::rows::ReplicationRow;
use crate::report::median;

/// Ratio of sent trees to built ones in one measure.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// Phase of the ratio.
    pub phase: ReplicationPhase,
    /// Name of the measure; above 1, sending is better, except for the network.
    pub what: &'static str,
    /// Median of the rounds' ratios.
    pub ratio: f64,
    /// Range in the paper, from lowest to highest.
    pub paper: (f64, f64),
}

impl Ratio {
    /// Returns whether the ratio is at least the lowest one of the paper.
    pub fn is_reached(&self) -> bool {
        self.ratio >= self.paper.0
    }
}

type Value = fn(&ReplicationRow) -> f64;

/// Direction of the division.
#[derive(Clone, Copy)]
enum Order {
    SentByBuilt,
    BuiltBySent,
}

/// Ranges of the paper, over its workloads and mixes. For cycles of backups' trees the paper has a
/// factor of ten, half of which must be reached here.
const ALL: [(&str, Order, Value, (f64, f64)); 9] = [
    (
        "throughput, sent / built",
        Order::SentByBuilt,
        ReplicationRow::operations_per_s,
        (1.1, 1.7),
    ),
    (
        "throughput until all is done, sent / built",
        Order::SentByBuilt,
        ReplicationRow::settled_operations_per_s,
        (1.1, 1.7),
    ),
    (
        "processor time, built / sent",
        Order::BuiltBySent,
        ReplicationRow::processor_ns_per_operation,
        (1.2, 1.6),
    ),
    (
        "processor time for backups' trees, built / sent",
        Order::BuiltBySent,
        ReplicationRow::index_ns_per_operation,
        (5.0, 10.0),
    ),
    (
        "the same, but for the WRITEs of trees, built / sent",
        Order::BuiltBySent,
        ReplicationRow::index_ns_per_operation_but_writes,
        (5.0, 10.0),
    ),
    (
        "I/O amplification, built / sent",
        Order::BuiltBySent,
        ReplicationRow::io_amplification,
        (1.1, 3.0),
    ),
    (
        "network, sent / built",
        Order::SentByBuilt,
        ReplicationRow::network_amplification,
        (1.1, 1.3),
    ),
    (
        "p99 of writes, built / sent",
        Order::BuiltBySent,
        |row| row.write_tail().map_or(f64::NAN, |it| it.p99_ns as f64),
        (1.1, 1.5),
    ),
    (
        "p99.9 of writes, built / sent",
        Order::BuiltBySent,
        |row| row.write_tail().map_or(f64::NAN, |it| it.p999_ns as f64),
        (1.1, 1.5),
    ),
];

/// Returns the ratios of all phases that ran with both kinds. There is none if one of the two is
/// zero, such as trees in a phase without writes.
pub fn ratios(rows: &[ReplicationRow]) -> Vec<Ratio> {
    let mut phases: Vec<ReplicationPhase> = rows.iter().map(|row| row.phase).collect();
    phases.sort_unstable();
    phases.dedup();
    let mut all = Vec::new();
    for phase in phases {
        let of = |kind| {
            rows.iter()
                .filter(move |row| row.phase == phase && row.kind == kind)
        };
        for (what, order, value, paper) in ALL {
            let pairs = of(ReplicationKind::Sent).zip(of(ReplicationKind::Built));
            let each = pairs.map(|(sent, built)| match order {
                Order::SentByBuilt => value(sent) / value(built),
                Order::BuiltBySent => value(built) / value(sent),
            });
            let each = each.filter(|it| it.is_finite() && *it > 0.0);
            if let Some(ratio) = median(each) {
                all.push(Ratio {
                    phase,
                    what,
                    ratio,
                    paper,
                });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the median is the middle value.
    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }
}
