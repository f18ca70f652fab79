//! The control plane of persistent tables: which server has which part of a table, who is its
//! primary, and since when.
//!
//! A table is cut by key into *regions*; each has a primary and backups on servers of a cluster.
//! Who is what lies in a [`Coordinator`](coordinator::Coordinator), etcd or an embedded one, as
//! records. A [`Master`](master::Master) changes them, elected among any number; an
//! [`Agent`](agent::Agent) on each server has the server do what they say; clients read them into a
//! [`MapCache`](client::MapCache). The rules CP1 to CP22, on which the argument stands that two
//! primaries never both acknowledge, are in `docs/cluster.md`.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use farleaf_cluster::clock::SystemClock;
//! use farleaf_cluster::coordinator::{Bound, Embedded};
//! use farleaf_cluster::lease::LeaseTerms;
//! use farleaf_cluster::master::Master;
//! use farleaf_cluster::plan::PlanOptions;
//! use farleaf_cluster::admin;
//!
//! let coordinator = Embedded::default();
//! let cluster = admin::found(&coordinator)?;
//! admin::create_table(&coordinator, "words", 3, &[])?;
//! let (clock, terms) = (Arc::new(SystemClock), LeaseTerms::default());
//! let options = PlanOptions::default();
//! let coordinator = Bound::to(coordinator, cluster);
//! let mut master = Master::new(coordinator, clock, terms, "here", options);
//! master.tick(Duration::ZERO)?;
//! assert_eq!(master.waiting()[0].what, "a server for its first replica");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`coordinator`] | what is needed of a coordinator; the embedded one; the suite for all |
//! | [`record`] | keys and records, and their encoding |
//! | [`ids`] | numbers of clusters, tables, regions, servers, epochs, replicas |
//! | `identity` | random 128-bit identifiers |
//! | [`clock`], [`lease`] | how long one may act on a lease |
//! | [`tenure`] | a key that is held by a lease: registration, election |
//! | [`view`] | the records as they were seen |
//! | [`mod@plan`] | what the master would do next, as a pure function |
//! | [`master`] | the master: looks, plans, writes |
//! | [`agent`] | a region server's side |
//! | [`client`] | the map of a client |
//! | [`admin`] | what administrators do |
//! | [`starts`] | starts of the coordinator, and who refuses its records |
//! | [`omission`] | checks that tests leave out |

#![forbid(unsafe_code)]

pub mod admin;
pub mod agent;
pub mod client;
pub mod clock;
pub mod coordinator;
pub mod error;
mod identity;
pub mod ids;
pub mod lease;
pub mod master;
pub mod omission;
pub mod plan;
pub mod record;
pub mod starts;
pub mod tenure;
pub mod view;

pub use error::ClusterError;
