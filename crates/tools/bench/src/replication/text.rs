//! Formats rows and ratios as text, within 100 columns.

use std::collections::BTreeMap;

use super::config::ReplicationConfig;
use super::names::{ReplicationKind, ReplicationPhase};
use super::processor::Part;
use super::ratios::Ratio;
use super::rows::ReplicationRow;
use crate::report::columns::Columns;
use crate::report::median;
use crate::report::quantity::{count, latency, rate};

const ROWS: Columns<9> = Columns {
    columns: [
        ("phase", 8),
        ("kind", 7),
        ("clients", 12),
        ("all done", 12),
        ("I/O amp.", 10),
        ("net amp.", 10),
        ("write p99", 11),
        ("write p99.9", 13),
        ("read p99", 11),
    ],
    word_count: 2,
};

const PARTS: Columns<10> = Columns {
    columns: [
        ("phase", 8),
        ("kind", 7),
        ("total", 10),
        ("operate", 10),
        ("merge", 10),
        ("send", 10),
        ("b. log", 10),
        ("b. take", 10),
        ("b. build", 10),
        ("look", 9),
    ],
    word_count: 2,
};

const RATIOS: Columns<4> = Columns {
    columns: [("phase", 8), ("what", 56), ("here", 10), ("the paper", 16)],
    word_count: 2,
};

/// Returns the settings of the runs.
pub(super) fn header_text(config: &ReplicationConfig) -> String {
    format!(
        "{} + {} regions on two servers, {} records, values {}, {} operations, {} client threads\n\
         {} + {} background threads a server, L0 of {} entries, growth factor {}, {} fabric\n\
         puts promise {}; seed {}, {} rounds, commit {}\n",
        config.regions,
        config.regions,
        count(config.records),
        config.value_size,
        count(config.operations),
        config.threads,
        config.background,
        config.background,
        count(config.l0_entries),
        config.growth_factor,
        config.fabric,
        config.promise,
        config.seed,
        config.rounds,
        config.commit
    )
}

/// Returns medians of the rounds, by phase and kind: throughput, amplification and tails, followed
/// by processor time per operation, by part.
pub fn rows_text(rows: &[ReplicationRow]) -> String {
    let mut groups: BTreeMap<(ReplicationPhase, ReplicationKind), Vec<&ReplicationRow>> =
        BTreeMap::new();
    for row in rows {
        groups.entry((row.phase, row.kind)).or_default().push(row);
    }
    let mut text = ROWS.header();
    for ((phase, kind), rows) in &groups {
        let of = |value: &dyn Fn(&ReplicationRow) -> f64| {
            median(rows.iter().map(|row| value(row))).unwrap_or(0.0)
        };
        let tail = |value: &dyn Fn(&ReplicationRow) -> Option<u64>| {
            let all = rows.iter().filter_map(|row| value(row)).map(|it| it as f64);
            #[expect(clippy::cast_sign_loss, reason = "latencies are positive")]
            median(all).map_or("-".to_owned(), |it| latency(it as u64))
        };
        text += &ROWS.row([
            phase.to_string(),
            kind.to_string(),
            rate(of(&ReplicationRow::operations_per_s)),
            rate(of(&ReplicationRow::settled_operations_per_s)),
            format!("{:.2}", of(&ReplicationRow::io_amplification)),
            format!("{:.2}", of(&ReplicationRow::network_amplification)),
            tail(&|row| row.write_tail().map(|it| it.p99_ns)),
            tail(&|row| row.write_tail().map(|it| it.p999_ns)),
            tail(&|row| {
                row.tail(crate::workload::OperationKind::Read)
                    .map(|it| it.p99_ns)
            }),
        ]);
    }
    text += "\nprocessor time of both servers for an operation\n";
    text += &PARTS.header();
    for ((phase, kind), rows) in &groups {
        let of = |value: &dyn Fn(&ReplicationRow) -> f64| {
            let value = median(rows.iter().map(|row| value(row))).unwrap_or(0.0);
            #[expect(clippy::cast_sign_loss, reason = "times are positive")]
            latency(value.round() as u64)
        };
        let part = |part: Part| of(&move |row| row.part_ns_per_operation(part));
        text += &PARTS.row([
            phase.to_string(),
            kind.to_string(),
            of(&ReplicationRow::processor_ns_per_operation),
            part(Part::Operations),
            part(Part::PrimaryIndex),
            part(Part::Sending),
            part(Part::BackupLog),
            part(Part::BackupReceived),
            part(Part::BackupBuilt),
            part(Part::Looking),
        ]);
    }
    text
}

/// Returns the ratios, compared with the paper; nothing without both kinds.
pub fn ratios_text(ratios: &[Ratio]) -> String {
    if ratios.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{}", RATIOS.header());
    for ratio in ratios {
        let (from, to) = ratio.paper;
        text += &RATIOS.row([
            ratio.phase.to_string(),
            ratio.what.to_owned(),
            format!("{:.2}", ratio.ratio),
            format!("{from:.1} to {to:.1}"),
        ]);
    }
    text
}
