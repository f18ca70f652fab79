//! YCSB for Farleaf: data sets, request distributions, workloads, checks of results, reports.
//!
//! - [`dataset`]: keys to load and to insert.
//! - [`distribution`]: request distributions, exactly as YCSB draws them.
//! - [`workload`]: the core workloads A to F as streams of operations over record indexes.
//! - [`verify`]: checks of concurrent operations' answers.
//! - [`report`]: results of a run, as tables and as JSON.
//! - [`runner`]: loads a store, runs a workload on it from many threads, times and checks it.
//! - [`budget`]: costs of gets in sessions with a metadata budget; not YCSB.
//! - [`calls`]: costs of calls of the memory node, compared with a plain echo; not YCSB.
//! - [`costs`]: costs of each operation with each search layer, by counters; not YCSB.
//! - [`replication`]: regions that two servers replicate to each other, with trees sent and built.
//! - [`timeline`]: throughput of a table while it grows, shrinks or moves; not YCSB.
//!
//! Only [`runner`], [`budget`], [`calls`], [`costs`], [`replication`] and [`timeline`] use a store,
//! a clock and threads. Other callers, such as the simulator, use the other modules with their own.
//! For one seed, all modules except these six yield the same results in every run.

#![forbid(unsafe_code)]

pub mod budget;
pub mod calls;
pub mod costs;
pub mod dataset;
pub mod distribution;
pub mod named;
pub mod quantity;
pub mod replication;
pub mod report;
pub mod runner;
pub mod timeline;
pub mod verify;
pub mod workload;
