//! F9: what an endpoint has counted is what was executed for it.

use farleaf_fabric::{Counters, OperationKind};

use super::Violation;

/// Compares the verbs that a client's endpoint has counted with those that the world executed for
/// it. Only for clients that nothing happened to: a batch that is cut off is counted by nobody the
/// same way.
pub fn check(counters: &Counters, executed_verb_count: u64) -> Option<Violation> {
    let counted = OperationKind::ALL.map(|kind| counters.kind(kind).cost.verbs);
    let counted: u64 = counted.iter().sum();
    (counted != executed_verb_count).then(|| {
        let how = format!("{counted} verbs were counted where {executed_verb_count} were executed");
        Violation::new("counters", how)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::Cost;

    #[test]
    fn a_verb_that_nobody_counted_is_seen() {
        let counters = Counters::default();
        let cost = Cost {
            verbs: 3,
            ..Cost::default()
        };
        counters.record(OperationKind::Get, &cost);
        counters.record(OperationKind::Put, &cost);
        assert_eq!(check(&counters, 6), None);
        assert!(check(&counters, 7).is_some());
    }
}
