//! Subject of a measurement: executes one thread's share of the work, timed.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use crate::peer::{Client, GROUP_SIZE, Peer, PeerError, SCAN_LIMIT, Work};
use crate::records::{Records, Sink};
use crate::requests::Requests;

/// Operations between two calls of [`Client::pause`]. A multiple of [`GROUP_SIZE`].
pub const PAUSE_OPERATION_COUNT: usize = 128;

/// Work of all threads of a phase.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Kind of work.
    pub work: Work,
    /// Version of the values that puts write, see [`Records::value`].
    pub version: u64,
}

/// Result of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Time from when all threads were ready until this one was done.
    pub duration: Duration,
    /// Checksum of the results of reads; equal for all maps.
    pub checksum: u64,
}

/// Subject that can be measured: a map, or the floor.
pub trait Subject<R: Records>: Send + Sync {
    /// Executes one thread's share: warms up, waits at `start` for the other threads, and takes the
    /// time. Waits at `start` once in any case.
    ///
    /// # Errors
    /// The map failed.
    fn run(
        &self,
        task: Task,
        requests: &Requests<R>,
        start: &Barrier,
    ) -> Result<Outcome, PeerError>;
}

impl<R: Records, P: Peer<R> + Send> Subject<R> for P {
    fn run(
        &self,
        task: Task,
        requests: &Requests<R>,
        start: &Barrier,
    ) -> Result<Outcome, PeerError> {
        let (warm_up, timed) = requests.keys();
        let warm = self.client(task.work).and_then(|mut client| {
            perform(&mut client, task, requests.records(), &warm_up)?;
            Ok(client)
        });
        start.wait();
        let mut client = warm?;
        let started_at = Instant::now();
        let checksum = perform(&mut client, task, requests.records(), &timed)?;
        let checksum = black_box(checksum);
        let duration = started_at.elapsed();
        Ok(Outcome { duration, checksum })
    }
}

/// Returns the results of threads, in their order; a panic of a thread continues here.
pub(crate) fn joined<T>(threads: Vec<ScopedJoinHandle<'_, T>>) -> impl Iterator<Item = T> {
    threads.into_iter().map(|thread| {
        let joined = thread.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Executes a task for each of the keys, and adds up the results.
fn perform<R: Records>(
    client: &mut impl Client<R>,
    task: Task,
    records: &R,
    keys: &[R::Item<'_>],
) -> Result<u64, PeerError> {
    let mut checksum = Checksum(0);
    let mut value = Vec::new();
    for keys in keys.chunks(PAUSE_OPERATION_COUNT) {
        match task.work {
            Work::Get => {
                for key in keys {
                    client.get(*key, &mut checksum)?;
                }
            }
            Work::MultiGet => {
                for group in keys.chunks(GROUP_SIZE) {
                    client.multi_get(group, &mut checksum)?;
                }
            }
            Work::Put => {
                for key in keys {
                    client.put(*key, records.value(*key, task.version, &mut value))?;
                }
            }
            Work::Scan => {
                for key in keys {
                    client.scan(*key, SCAN_LIMIT, &mut checksum)?;
                }
            }
        }
        client.pause()?;
    }
    Ok(checksum.0)
}

/// Sum of the results; missing values count, too.
struct Checksum(u64);

impl<R: Records> Sink<R> for Checksum {
    #[inline]
    fn value(&mut self, value: Option<R::Item<'_>>) {
        self.0 = self.0.wrapping_add(value.map_or(0x5555_5555, R::digest));
    }

    #[inline]
    fn record(&mut self, key: R::Item<'_>, value: R::Item<'_>) {
        let both = R::digest(key) ^ R::digest(value).rotate_left(31);
        self.0 = self.0.wrapping_add(both);
    }
}
