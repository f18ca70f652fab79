//! YCSB for Farleaf: data sets, request distributions, workloads, checks of results, reports.
//!
//! - [`dataset`]: which keys are loaded and which are inserted.
//! - [`distribution`]: which records are asked for, exactly as YCSB draws them.
//! - [`workload`]: the core workloads A to F as streams of operations over record indexes.
//! - [`verify`]: whether what an operation yielded is right, under concurrency.
//! - [`report`]: what a run measured, as tables and as JSON.
//! - [`runner`]: loads a store, runs a workload on it from many threads, times and checks it.
//! - [`budget`]: what gets cost sessions that hold only a part of what leads to leaves; no YCSB.
//! - [`calls`]: what a call of the memory node costs, beside a plain echo; no YCSB.
//! - [`costs`]: what each operation costs with each search layer, by the counters; no YCSB.
//! - [`replication`]: regions that two servers replicate to each other, with trees sent and built.
//! - [`timeline`]: watches a table while it grows, shrinks or moves; no YCSB.
//!
//! Only [`runner`], [`budget`], [`calls`], [`costs`], [`replication`] and [`timeline`] know a
//! store, a clock and threads; whoever brings others of these, a simulator say, uses the rest as it
//! is. With one seed all but these six yields the same in every run.

#![forbid(unsafe_code)]

pub mod budget;
pub mod calls;
pub mod costs;
pub mod dataset;
pub mod distribution;
pub mod replication;
pub mod report;
pub mod runner;
pub mod timeline;
pub mod verify;
pub mod workload;
