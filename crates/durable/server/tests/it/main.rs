//! Region servers, over an embedded coordinator and real connections, in one process.
//!
//! | module | contents |
//! |---|---|
//! | `test_cluster` | servers of a cluster, and a client |
//! | `adopting` | failovers in which backups keep identical pieces |
//! | `agreeing` | backups that do not write what their primary wrote |
//! | `disk` | a disk that fails |
//! | `serving` | tables that are served, and continue when servers end |
//! | `disks` | disks that fail, are full, or are slow, under load |
//! | `bits` | bits that flip on disks |
//! | `damage` | corruption that all copies have |
//! | `outages` | unavailable coordinators, and clusters that are started from their disks |
//! | `encrypted` | connections with TLS |
//! | `recorder` | a proxy that records and alters bytes |
//! | `recording` | messages between servers, recorded |
//! | `recovering` | all servers are down, and a copy is damaged meanwhile |
//! | `splitting` | regions that are split while they are served |
//! | `tail` | logs without further writes |
//! | `verifying` | replicas that differ from their primary, and directories of older versions |
//! | `rest` | comparison of the files of replicas at rest |
//! | `legacy` | directories of a cluster without a 128-bit identifier |
//! | `moves` | replicas that move, under load |
//! | `identity` | handles of other tables, and copies of other clusters |
//! | `directories` | directories that belong to another server or cluster, or are damaged |

mod adopting;
mod agreeing;
mod bits;
mod damage;
mod directories;
mod disk;
mod disks;
mod encrypted;
mod identity;
mod legacy;
mod moves;
mod outages;
mod recorder;
mod recording;
mod recovering;
#[path = "../rest/mod.rs"]
mod rest;
mod serving;
mod splitting;
mod tail;
mod test_cluster;
mod verifying;
