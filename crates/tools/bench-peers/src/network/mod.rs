//! Farleaf over `tcp` beside Redis: the same gets and puts, by as many connections with as many
//! requests in flight, in turns, on one machine.
//!
//! Both servers are processes of their own on loopback. Each connection is driven by a thread of
//! this process, which asks again for a while before it sleeps, for both alike. Keys and values are
//! of 8 bytes; puts change values of records that are there; keys are drawn uniformly.

mod farleaf_node;
mod redis;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub use farleaf_node::{FarleafNode, serve};
pub use redis::RedisServer;
pub use table::Row;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read a value.
    Get,
    /// Change a value.
    Put,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Records on both sides.
    pub record_count: u64,
    /// Requests of a connection with one in flight; with more, ten times as many.
    pub request_count: u64,
    /// Rounds; medians are told.
    pub round_count: usize,
    /// Connections, each with a thread.
    pub connection_counts: Vec<usize>,
    /// Requests of a connection in flight.
    pub in_flight_counts: Vec<usize>,
    /// The Redis server's program.
    pub redis: PathBuf,
}

/// A side of the comparison.
pub trait Server: Sync {
    /// Opens a connection and does so many requests for keys that `keys` draws, with so many in
    /// flight. Every answer is checked.
    ///
    /// # Errors
    /// The server failed, or answered wrongly.
    fn work(
        &self,
        request: Request,
        in_flight: usize,
        request_count: u64,
        keys: &mut Keys,
    ) -> anyhow::Result<Duration>;
}

/// Draws the keys of a connection.
#[derive(Debug)]
pub struct Keys {
    draw: StdRng,
    record_count: u64,
}

impl Keys {
    fn new(seed: u64, record_count: u64) -> Self {
        Self {
            draw: StdRng::seed_from_u64(seed),
            record_count,
        }
    }

    /// The next one.
    pub fn next_key(&mut self) -> u64 {
        key_of(self.draw.random_range(0..self.record_count))
    }
}

/// Key number `index`: spread over all of them, in ascending order.
pub fn key_of(index: u64) -> u64 {
    index << 20
}

/// The value that a key always has; puts write it again.
pub fn value_of(key: u64) -> u64 {
    !key
}

/// Runs all combinations, the two sides in turns.
///
/// # Errors
/// A server cannot be started, or failed.
pub fn compare(plan: &Plan, mut tell: impl FnMut(&str)) -> anyhow::Result<Vec<Row>> {
    tell("starting and filling both servers");
    let redis = RedisServer::start(&plan.redis).context("cannot use Redis")?;
    redis.fill(plan.record_count)?;
    let farleaf = FarleafNode::start(plan.record_count)?;
    let sides: [&dyn Server; 2] = [&farleaf, &redis];
    let mut rows = Vec::new();
    for request in [Request::Get, Request::Put] {
        for &connection_count in &plan.connection_counts {
            for &in_flight in &plan.in_flight_counts {
                let mut rates = [Vec::new(), Vec::new()];
                for round in 0..plan.round_count {
                    for (side, rates) in sides.iter().zip(&mut rates) {
                        let rate =
                            measure(plan, *side, request, connection_count, in_flight, round)?;
                        rates.push(rate);
                    }
                }
                let [farleaf, redis] = rates.map(median);
                let row = Row {
                    request,
                    connection_count,
                    in_flight,
                    farleaf,
                    redis,
                };
                tell(&row.to_string());
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// Requests a second of all connections together.
fn measure(
    plan: &Plan,
    side: &dyn Server,
    request: Request,
    connection_count: usize,
    in_flight: usize,
    round: usize,
) -> anyhow::Result<f64> {
    let factor = if in_flight > 1 { 10 } else { 1 };
    let request_count = plan.request_count * factor / connection_count as u64;
    let work = |connection: usize| {
        let seed = (round * 1000 + connection) as u64;
        let mut keys = Keys::new(seed, plan.record_count);
        side.work(request, in_flight, request_count, &mut keys)
    };
    let work = &work;
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connection_count)
            .map(|connection| scope.spawn(move || work(connection)))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect::<anyhow::Result<Vec<_>>>()
    })?;
    // Each connection's own time: opening it is none of it.
    let rate = |time: &Duration| request_count as f64 / time.as_secs_f64();
    Ok(times.iter().map(rate).sum())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
