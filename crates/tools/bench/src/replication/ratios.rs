//! Send-Index beside Build-Index, and beside what the paper has.

use serde::Serialize;

use super::names::{ReplicationKind, ReplicationPhase};
use super::rows::ReplicationRow;

/// How much better sent trees are than built ones, in one respect.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// In which phase.
    pub phase: ReplicationPhase,
    /// In which respect; above 1, sending is the better one, but for the network.
    pub what: &'static str,
    /// The median of the rounds' ratios.
    pub ratio: f64,
    /// What the paper has, from lowest to highest.
    pub paper: (f64, f64),
}

impl Ratio {
    /// Whether it is no less than the least of the paper's.
    pub fn is_reached(&self) -> bool {
        self.ratio >= self.paper.0
    }
}

type Value = fn(&ReplicationRow) -> f64;

/// Which of the two is divided by the other one.
#[derive(Clone, Copy)]
enum Order {
    SentByBuilt,
    BuiltBySent,
}

/// The paper's ranges are over its workloads and mixes. Of cycles for backups' trees it has ten
/// times less, of which half is what must be reached here.
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

/// All ratios of all phases that were run with both kinds. Where one of the two is nothing, as
/// trees are in a phase that writes nothing, there is none.
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

/// The middle one; of an even number, the mean of the two.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some(f64::midpoint(values[low], values[high]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the middle is the middle.
    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }
}
