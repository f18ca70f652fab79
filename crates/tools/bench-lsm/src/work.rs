//! Loads and runs, as in the Talos paper (section 5): YCSB's, over keys of 24 bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use farleaf_bench::distribution::{ScrambledZipfian, fnv_hash, numbered_stream};
use farleaf_bench::runner::{Strings, ValueSize};
use rand::{Rng, RngExt};

use crate::engines::Engine;

/// Records that a scan reads.
pub const SCAN_RECORD_COUNT: usize = 50;

/// Phase of a comparison. All but the load choose records like YCSB's zipfian requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Phase {
    /// Load A: all records are put, in the order of hashes of their numbers.
    Load,
    /// Run A: half gets, half puts of keys that are there.
    A,
    /// Run C: gets.
    C,
    /// Scans of 50 records; a tenth as many as other operations.
    Scan,
}

impl Phase {
    /// Returns the name in reports.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Load => "Load A",
            Self::A => "Run A",
            Self::C => "Run C",
            Self::Scan => "scans",
        }
    }
}

/// Quantity of work.
#[derive(Clone, Copy, Debug)]
pub struct WorkAmount {
    /// Records of the load.
    pub record_count: u64,
    /// Operations of each other phase.
    pub operation_count: u64,
    /// Number of threads, which share the operations.
    pub thread_count: usize,
    /// Sizes of values.
    pub value_size: ValueSize,
    /// Seed of the requests.
    pub seed: u64,
}

/// Results of a phase.
#[derive(Clone, Copy, Debug)]
pub struct PhaseResult {
    /// Number of operations.
    pub operation_count: u64,
    /// Bytes of keys and values that were put.
    pub put_size_bytes: u64,
    /// Sum of the sizes of values and the counts of records that reads have found: the same for all
    /// engines.
    pub found: u64,
    /// Time until the last thread was done. A load ends with a sync.
    pub time: Duration,
}

/// Results of one thread.
#[derive(Clone, Copy, Debug, Default)]
struct ThreadTotals {
    put_size_bytes: u64,
    found: u64,
}

impl WorkAmount {
    fn strings(&self) -> Strings {
        Strings {
            value_size: self.value_size,
            ..Strings::default()
        }
    }

    fn operation_count(&self, phase: Phase) -> u64 {
        match phase {
            Phase::Load => self.record_count,
            Phase::A | Phase::C => self.operation_count,
            Phase::Scan => (self.operation_count / 10).max(1),
        }
    }

    /// Executes a phase.
    ///
    /// # Errors
    /// The engine failed.
    pub fn run(&self, engine: &dyn Engine, phase: Phase) -> anyhow::Result<PhaseResult> {
        let operation_count = self.operation_count(phase);
        let next = AtomicU64::new(0);
        let started = Instant::now();
        let shares = thread::scope(|scope| {
            let threads = (0..self.thread_count).map(|thread| {
                let next = &next;
                scope.spawn(move || self.share(engine, phase, thread, next, operation_count))
            });
            let threads: Vec<_> = threads.collect();
            let joined = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .expect("a thread of the comparison does not panic")
            });
            joined.collect::<anyhow::Result<Vec<ThreadTotals>>>()
        })?;
        if phase == Phase::Load {
            engine.sync()?;
        }
        let time = started.elapsed();
        Ok(PhaseResult {
            operation_count,
            put_size_bytes: shares.iter().map(|share| share.put_size_bytes).sum(),
            found: shares.iter().map(|share| share.found).sum(),
            time,
        })
    }

    /// Executes one thread's operations: in a load, the next numbers; otherwise those of its own
    /// stream.
    fn share(
        &self,
        engine: &dyn Engine,
        phase: Phase,
        thread: usize,
        next: &AtomicU64,
        operation_count: u64,
    ) -> anyhow::Result<ThreadTotals> {
        let strings = self.strings();
        let chooser = ScrambledZipfian::new(self.record_count);
        // A separate stream for every phase, so that none finds the requests of the last one in the
        // caches.
        let stream = phase as usize * self.thread_count + thread;
        let mut random = numbered_stream(self.seed, stream);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut share = ThreadTotals::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= operation_count {
                return Ok(share);
            }
            let record = match phase {
                Phase::Load => number,
                _ => chooser.sample(&mut random),
            };
            let hashed = fnv_hash(record);
            strings.key(hashed, &mut key);
            let puts = match phase {
                Phase::Load => true,
                Phase::A => random.random::<bool>(),
                Phase::C | Phase::Scan => false,
            };
            if puts {
                strings.value(hashed, random.next_u64(), &mut value);
                engine.put(&key, &value)?;
                share.put_size_bytes += (key.len() + value.len()) as u64;
            } else if phase == Phase::Scan {
                share.found += engine.scan(&key, SCAN_RECORD_COUNT)? as u64;
            } else {
                let found = engine.get(&key)?;
                let size_bytes = found.ok_or_else(|| {
                    anyhow::anyhow!("key '{}' is missing", String::from_utf8_lossy(&key))
                })?;
                share.found += size_bytes as u64;
            }
        }
    }
}
