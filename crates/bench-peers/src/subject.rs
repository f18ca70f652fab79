//! One thread's share of the work, timed.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::peer::{Client, GROUP_SIZE, Peer, PeerError, SCAN_LIMIT, Work};
use crate::requests::{Requests, value_of};

/// Operations between two calls of [`Client::pause`]. A multiple of [`GROUP_SIZE`].
pub const PAUSE_OPERATION_COUNT: usize = 128;

/// What all threads of a phase do.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The kind of work.
    pub work: Work,
    /// Which value puts write, see [`value_of`].
    pub version: u64,
}

/// What one thread measured.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// From when all threads were ready until this one was done.
    pub duration: Duration,
    /// Of everything that reads found; equal for all maps.
    pub checksum: u64,
}

/// What can be measured: a map, or the floor.
pub trait Subject: Send + Sync {
    /// Does one thread's share: warms up, waits at `start` for the other threads, and takes the
    /// time. Waits at `start` once in any case.
    ///
    /// # Errors
    /// The map's own.
    fn run(&self, task: Task, requests: &Requests, start: &Barrier) -> Result<Outcome, PeerError>;
}

impl<P: Peer + Send> Subject for P {
    fn run(&self, task: Task, requests: &Requests, start: &Barrier) -> Result<Outcome, PeerError> {
        let warm = self.client(task.work).and_then(|mut client| {
            perform(&mut client, task, requests.warm_up_keys())?;
            Ok(client)
        });
        start.wait();
        let mut client = warm?;
        let begun = Instant::now();
        let checksum = black_box(perform(&mut client, task, requests.timed_keys())?);
        let duration = begun.elapsed();
        Ok(Outcome { duration, checksum })
    }
}

/// Does a task for each of the keys, and adds up what it finds.
fn perform(client: &mut impl Client, task: Task, keys: &[u64]) -> Result<u64, PeerError> {
    let mut checksum = Checksum(0);
    let mut values = Vec::with_capacity(GROUP_SIZE);
    let mut records = Vec::with_capacity(SCAN_LIMIT);
    for keys in keys.chunks(PAUSE_OPERATION_COUNT) {
        match task.work {
            Work::Get => {
                for key in keys {
                    checksum.add_value(client.get(*key)?);
                }
            }
            Work::MultiGet => {
                for group in keys.chunks(GROUP_SIZE) {
                    client.multi_get(group, &mut values)?;
                    for value in &values {
                        checksum.add_value(*value);
                    }
                }
            }
            Work::Put => {
                for key in keys {
                    client.put(*key, value_of(*key, task.version))?;
                }
            }
            Work::Scan => {
                for key in keys {
                    client.scan(*key, SCAN_LIMIT, &mut records)?;
                    for record in &records {
                        checksum.add_record(*record);
                    }
                }
            }
        }
        client.pause();
    }
    Ok(checksum.0)
}

/// A sum of what was found; what was not found counts, too.
struct Checksum(u64);

impl Checksum {
    #[inline]
    fn add_value(&mut self, value: Option<u64>) {
        self.0 = self.0.wrapping_add(value.unwrap_or(0x5555_5555));
    }

    #[inline]
    fn add_record(&mut self, (key, value): (u64, u64)) {
        self.0 = self.0.wrapping_add(key ^ value.rotate_left(31));
    }
}
