//! Measures the rounds, one after the other.

use std::time::Instant;

use farleaf::{LayerKind, OperationKind, Pool, PoolOptions, Session, Table, TableOptions};
use farleaf_executor::TaskSet;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::config::CallsConfig;
use super::echo::{Echo, MESSAGE_SIZE_BYTES};
use super::rows::{calls_row, header_text};
use crate::report::median;
use crate::runner::{BenchError, FabricKind, ProgressSink, Row};

/// Keys of the table: few, so that a lookup costs the node little.
const KEY_COUNT: u64 = 1024;
const POOL_SIZE_BYTES: u64 = 16 << 20;
/// Recorded latencies end here; longer ones count as this.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// Results of one subject with a fixed number of calls in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallsRow {
    /// Name of the subject: `echo`, or the fabric.
    pub subject: &'static str,
    /// Calls in flight.
    pub in_flight: u32,
    /// Calls of all rounds.
    pub operations: u64,
    /// Calls per second, the median of the rounds.
    pub calls_per_s: f64,
    /// Median of the ratios to the echo of the same round; 1 for the echo itself.
    pub ratio_to_echo: f64,
    /// Median latency over all rounds, in ns.
    pub latency_ns_p50: u64,
    /// 99th percentile of the latency over all rounds, in ns.
    pub latency_ns_p99: u64,
    /// Round trips per call, by the session's counters; 1 for an echo, which has none.
    pub round_trips: f64,
    /// Bytes read per call.
    pub bytes_read: f64,
    /// Bytes written per call.
    pub bytes_written: f64,
    /// Number of wrong answers.
    pub wrong: u64,
}

/// Server that is measured.
enum MeasuredServer {
    Echo(Echo),
    Node {
        fabric: FabricKind,
        session: Session,
        table: Table,
        /// Ends last.
        _pool: Pool,
    },
}

/// Results of a subject's rounds.
struct Rounds {
    per_s: Vec<f64>,
    latencies: Histogram<u64>,
    wrong_count: u64,
}

/// Measures all fabrics.
///
/// # Errors
/// The host lacks memory or loopback, or a node failed.
pub fn run(config: &CallsConfig, sink: &dyn ProgressSink) -> Result<Vec<CallsRow>, BenchError> {
    config.validate()?;
    sink.note(&header_text(config));
    let mut subjects = vec![MeasuredServer::Echo(
        Echo::start().map_err(BenchError::Echo)?,
    )];
    for fabric in &config.fabrics {
        subjects.push(MeasuredServer::node(*fabric, config)?);
    }
    let mut rows = Vec::new();
    for in_flight in &config.in_flight {
        let mut rounds: Vec<Rounds> = subjects.iter().map(|_| Rounds::new()).collect();
        let before: Vec<_> = subjects.iter().map(MeasuredServer::cost).collect();
        for _ in 0..config.rounds {
            for (subject, rounds) in subjects.iter_mut().zip(&mut rounds) {
                rounds.add(subject, config.operations, *in_flight)?;
            }
        }
        let echo_per_s = rounds[0].per_s.clone();
        let operations = config.operations * u64::from(config.rounds);
        for ((subject, rounds), before) in subjects.iter().zip(rounds).zip(before) {
            let ratios = rounds.per_s.iter().zip(&echo_per_s);
            let ratios = ratios.map(|(own, echo)| own / echo);
            let cost = subject.cost();
            let each = |index: usize| (cost[index] - before[index]) / operations as f64;
            let is_echo = matches!(subject, MeasuredServer::Echo(_));
            let message = MESSAGE_SIZE_BYTES as f64;
            let [round_trips, bytes_read, bytes_written] = if is_echo {
                [1.0, message, message]
            } else {
                [each(0), each(1), each(2)]
            };
            let row = CallsRow {
                subject: subject.name(),
                in_flight: *in_flight,
                operations,
                calls_per_s: median(rounds.per_s.iter().copied()).expect("there is a round"),
                ratio_to_echo: median(ratios).expect("there is a round"),
                latency_ns_p50: rounds.latencies.value_at_quantile(0.5),
                latency_ns_p99: rounds.latencies.value_at_quantile(0.99),
                round_trips,
                bytes_read,
                bytes_written,
                wrong: rounds.wrong_count,
            };
            sink.row(&Row::new(calls_row(&row), &row));
            rows.push(row);
        }
    }
    Ok(rows)
}

impl Rounds {
    fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
        let latencies = latencies.expect("the bounds are in order");
        Self {
            per_s: Vec::new(),
            latencies,
            wrong_count: 0,
        }
    }

    fn add(
        &mut self,
        subject: &mut MeasuredServer,
        operation_count: u64,
        in_flight: u32,
    ) -> Result<(), BenchError> {
        let started_at = Instant::now();
        let latencies = &mut self.latencies;
        let mut record = |ns: u64| latencies.saturating_record(ns.max(1));
        self.wrong_count += match subject {
            MeasuredServer::Echo(echo) => echo
                .run(operation_count, in_flight, &mut record)
                .map_err(BenchError::Echo)?,
            MeasuredServer::Node { session, table, .. } => {
                call(session, table, operation_count, in_flight, &mut record).map_err(in_layer)?
            }
        };
        self.per_s
            .push(operation_count as f64 / started_at.elapsed().as_secs_f64());
        Ok(())
    }
}

impl MeasuredServer {
    fn node(fabric: FabricKind, config: &CallsConfig) -> Result<Self, BenchError> {
        let made = || {
            let pool = Pool::embedded(&PoolOptions {
                fabric: fabric.embedded(&config.verbs),
                size_bytes: POOL_SIZE_BYTES,
                retrain_thread_count: 0,
                ..PoolOptions::default()
            })?;
            let session = pool.session()?;
            let options = TableOptions {
                layer: LayerKind::Rpc,
                ..TableOptions::default()
            };
            let table = session.create_table("calls", &options)?;
            table.bulk_load((0..KEY_COUNT).map(|key| (key, value_of(key))), |_| ())?;
            Ok(Self::Node {
                fabric,
                session,
                table,
                _pool: pool,
            })
        };
        made().map_err(in_layer)
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Echo(_) => "echo",
            Self::Node { fabric, .. } => fabric.name(),
        }
    }

    /// Returns the round trips, bytes read and bytes written so far.
    fn cost(&self) -> [f64; 3] {
        match self {
            Self::Echo(_) => [0.0; 3],
            Self::Node { session, .. } => {
                let cost = session.counters(OperationKind::Get).cost;
                [cost.round_trips, cost.bytes_read, cost.bytes_written].map(|it| it as f64)
            }
        }
    }
}

const fn value_of(key: u64) -> u64 {
    key ^ 0x5555
}

/// Makes the calls of a round. Returns the number of wrong answers.
fn call(
    session: &Session,
    table: &Table,
    operation_count: u64,
    in_flight: u32,
    mut record_latency: impl FnMut(u64),
) -> Result<u64, farleaf::Error> {
    let table = table.asynchronous();
    let timed_get = |number: u64| async move {
        let (key, started_at) = (number % KEY_COUNT, Instant::now());
        let found = table.get(key).await;
        (found, value_of(key), started_at.elapsed().as_nanos() as u64)
    };
    let (mut wrong_count, mut failed) = (0, None);
    let mut done = |(found, wanted, ns): (Result<Option<u64>, farleaf::Error>, u64, u64)| {
        record_latency(ns);
        match found {
            Ok(found) => wrong_count += u64::from(found != Some(wanted)),
            Err(error) => failed = Some(error),
        }
    };
    if in_flight == 1 {
        for number in 0..operation_count {
            done(session.block_on(timed_get(number)));
        }
    } else {
        let mut tasks = TaskSet::with_capacity(in_flight as usize);
        for number in 0..operation_count {
            tasks.run_until_vacant(session.completions(), &mut done);
            match tasks.spawn(timed_get(number)) {
                Ok(Some(ended)) => done(ended),
                Ok(None) => {}
                Err(_) => unreachable!("the set has a vacancy"),
            }
        }
        tasks.drain(session.completions(), &mut done);
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(wrong_count),
    }
}

fn in_layer(source: farleaf::Error) -> BenchError {
    BenchError::Layer {
        layer: LayerKind::Rpc,
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    struct Rows(RefCell<Vec<String>>);

    impl ProgressSink for Rows {
        fn row(&self, row: &Row) {
            let json = row.json.as_ref().expect("an object");
            self.0.borrow_mut().push(json.clone());
        }
    }

    /// Promise: every answer is correct. In shared memory a call is one round trip that writes one
    /// segment and reads nothing, whatever the number in flight.
    #[test]
    fn calls_in_shared_memory_are_one_round_trip() {
        let config = CallsConfig {
            fabrics: vec![FabricKind::Mem, FabricKind::Tcp],
            in_flight: vec![1, 8],
            operations: 300,
            rounds: 2,
            ..CallsConfig::default()
        };
        let sink = Rows(RefCell::default());
        let rows = run(&config, &sink).expect("it runs");
        let lines = rows.iter().map(serde_json::to_string);
        let lines: serde_json::Result<Vec<String>> = lines.collect();
        assert_eq!(lines.expect("objects"), sink.0.into_inner());
        let names: Vec<_> = rows
            .iter()
            .map(|row| (row.subject, row.in_flight))
            .collect();
        let expected = [
            ("echo", 1),
            ("mem", 1),
            ("tcp", 1),
            ("echo", 8),
            ("mem", 8),
            ("tcp", 8),
        ];
        assert_eq!(names, expected);
        for row in &rows {
            assert_eq!((row.wrong, row.operations), (0, 600), "{row:?}");
            assert!(row.calls_per_s > 0.0 && row.ratio_to_echo > 0.0, "{row:?}");
            let is_segment = (row.bytes_written - MESSAGE_SIZE_BYTES as f64).abs() < 1e-9;
            assert!(is_segment, "{row:?}");
        }
        let mem = &rows[1];
        assert_eq!((mem.round_trips, mem.bytes_read), (1.0, 0.0), "{mem:?}");
    }
}
