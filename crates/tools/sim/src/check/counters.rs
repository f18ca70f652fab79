//! Checks the counters of endpoints: an endpoint counts what the simulator executed for it
//! (FABRIC-9).

use farleaf_fabric::{Cost, Counters, OperationKind};

use super::Violation;

/// Compares the counters of a client's endpoint with what the simulator executed for it. Only for
/// clients without faults, since a batch that was cut off has no defined count. The check ignores
/// retries and leaves, which the simulator does not know.
pub fn check(counters: &Counters, executed: Cost) -> Option<Violation> {
    let mut counted = Cost::default();
    for kind in OperationKind::ALL {
        counted += counters.kind(kind).cost;
    }
    let differences: Vec<String> = compared(&counted)
        .into_iter()
        .zip(compared(&executed))
        .filter(|(counted, executed)| counted != executed)
        .map(|((what, counted), (_, executed))| {
            format!("{counted} {what} were counted but {executed} were executed")
        })
        .collect();
    (!differences.is_empty()).then(|| Violation::new("counters", differences.join(", ")))
}

fn compared(cost: &Cost) -> [(&'static str, u64); 6] {
    [
        ("round trips", cost.round_trips),
        ("doorbells", cost.doorbells),
        ("verbs", cost.verbs),
        ("bytes read", cost.bytes_read),
        ("bytes written", cost.bytes_written),
        ("atomics", cost.atomics),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Cost = Cost {
        round_trips: 1,
        doorbells: 1,
        verbs: 3,
        bytes_read: 160,
        bytes_written: 24,
        atomics: 1,
        retries: 5,
        leaves_read: 6,
        links: 7,
    };

    /// Promise: the check compares each number by itself, over all kinds of operations, except
    /// retries, leaves and links.
    #[test]
    fn whatever_nobody_counted_is_seen() {
        let counters = Counters::default();
        counters.record(OperationKind::Get, &ONE);
        counters.record(OperationKind::Control, &ONE);
        let executed = Cost {
            round_trips: 2,
            doorbells: 2,
            verbs: 6,
            bytes_read: 320,
            bytes_written: 48,
            atomics: 2,
            ..Cost::default()
        };
        assert_eq!(check(&counters, executed), None);
        let more = |change: fn(&mut Cost)| {
            let mut more = executed;
            change(&mut more);
            more
        };
        for (what, other) in [
            ("2 round trips", more(|cost| cost.round_trips += 1)),
            ("2 doorbells", more(|cost| cost.doorbells += 1)),
            ("6 verbs", more(|cost| cost.verbs -= 1)),
            ("320 bytes read", more(|cost| cost.bytes_read += 8)),
            ("48 bytes written", more(|cost| cost.bytes_written -= 8)),
            ("2 atomics", more(|cost| cost.atomics += 1)),
        ] {
            let violation = check(&counters, other).expect(what);
            assert!(violation.how.starts_with(what), "{violation}");
            assert!(!violation.how.contains(", "), "{violation}");
        }
    }
}
