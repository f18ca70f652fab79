//! Comparison of Farleaf over `tcp` with Redis: the same gets and puts, with the same numbers of
//! connections and requests in flight, in turns, on one machine.
//!
//! Both servers have their own processes on loopback. A thread of this process drives each
//! connection. For both servers it polls for a while before it sleeps. Keys and values have 8
//! bytes; puts change values of existing records; keys are drawn uniformly.

mod farleaf_node;
mod redis;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use farleaf_base::random::Random;
use farleaf_bench::report::median;

use crate::subject::joined;

pub use farleaf_node::{FarleafNode, serve};
pub use redis::RedisServer;
pub use table::Row;

/// Kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads a value.
    Get,
    /// Changes a value.
    Put,
}

/// Settings of a comparison.
#[derive(Clone, Debug)]
pub struct NetworkPlan {
    /// Number of records on both sides.
    pub record_count: u64,
    /// Requests of a connection with one in flight; with more, ten times as many.
    pub request_count: u64,
    /// Number of rounds; results are medians over them.
    pub round_count: usize,
    /// Numbers of connections, each with a thread.
    pub connection_counts: Vec<usize>,
    /// Numbers of requests in flight per connection.
    pub in_flight_counts: Vec<usize>,
    /// Path of the Redis server's program.
    pub redis: PathBuf,
}

/// Side of the comparison.
pub trait Server: Sync {
    /// Opens a connection and makes requests for keys that `keys` draws, with a fixed number in
    /// flight. Every answer is checked.
    ///
    /// # Errors
    /// The server failed, or returned a wrong answer.
    fn work(
        &self,
        request: Request,
        in_flight: usize,
        request_count: u64,
        keys: &mut Keys,
    ) -> anyhow::Result<Duration>;
}

/// Random keys of a connection.
#[derive(Debug)]
pub struct Keys {
    random: Random,
    record_count: u64,
}

impl Keys {
    fn new(seed: u64, record_count: u64) -> Self {
        Self {
            random: Random::new(seed),
            record_count,
        }
    }

    /// Draws the next key.
    pub fn next_key(&mut self) -> u64 {
        key_of(self.random.below(self.record_count))
    }
}

/// Returns key number `index`: spread over the whole domain, in ascending order.
pub fn key_of(index: u64) -> u64 {
    index << 20
}

/// Returns the constant value of a key; puts write it again.
pub fn value_of(key: u64) -> u64 {
    !key
}

/// Runs all combinations, the two sides in turns.
///
/// # Errors
/// A server cannot be started, or failed.
pub fn compare(plan: &NetworkPlan, mut tell: impl FnMut(&str)) -> anyhow::Result<Vec<Row>> {
    tell("starting and loading both servers");
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
                let [farleaf, redis] =
                    rates.map(|rates| median(rates.into_iter()).unwrap_or(f64::NAN));
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

/// Returns the requests per second of all connections together.
fn measure(
    plan: &NetworkPlan,
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
        joined(threads).collect::<anyhow::Result<Vec<_>>>()
    })?;
    // Each connection's own time, without the time to open it.
    let rate = |time: &Duration| request_count as f64 / time.as_secs_f64();
    Ok(times.iter().map(rate).sum())
}
