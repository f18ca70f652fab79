//! The control plane of persistent tables: it decides which server has which part of a table, and
//! which replica is the primary of each epoch.
//!
//! A table is cut by key into *regions*; each has a primary and backups on servers of a cluster. A
//! [`Coordinator`](coordinator::Coordinator), etcd or an embedded one, stores these assignments as
//! records. A [`Master`](master::Master), elected among any number, changes them. An
//! [`Agent`](agent::Agent) on each server makes the server do what they say. Clients read them into
//! a [`MapCache`](client::MapCache).
//!
//! Rules CONTROL-1 to CONTROL-23, and the argument that two primaries never both acknowledge, are
//! in `docs/reference/control-plane.md`.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use farleaf_base::clock::SystemClock;
//! use farleaf_cluster::coordinator::{Bound, Embedded};
//! use farleaf_cluster::lease::LeaseTerms;
//! use farleaf_cluster::master::Master;
//! use farleaf_cluster::plan::PlanOptions;
//! use farleaf_cluster::admin;
//!
//! let coordinator = Embedded::default();
//! let cluster = admin::create_cluster(&coordinator)?;
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
//! | module | contents |
//! |---|---|
//! | [`coordinator`] | the trait of coordinators, the embedded one, and the suite for all |
//! | [`record`] | keys and records, and their encoding |
//! | [`ids`] | numbers of clusters, tables, regions, servers, epochs, replicas |
//! | `identity` | random 128-bit identifiers |
//! | [`leased_key`] | a key held with a lease: registration, election |
//! | [`view`] | copy of the coordinator's records |
//! | [`mod@plan`] | the master's next steps, as a pure function |
//! | [`master`] | the master: reads, plans, writes |
//! | [`agent`] | a region server's side |
//! | [`client`] | the map of a client |
//! | [`admin`] | operations of administrators |
//! | [`starts`] | starts of the coordinator, and refusals of its records |
//! | [`omission`] | checks that tests can leave out |

#![forbid(unsafe_code)]

pub mod admin;
pub mod agent;
pub mod client;
pub mod coordinator;
pub mod error;
mod identity;
pub mod ids;
pub mod lease;
pub mod leased_key;
pub mod master;
pub mod omission;
pub mod plan;
pub mod record;
pub mod starts;
pub mod view;

pub use error::ClusterError;
