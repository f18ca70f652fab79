//! Region servers, over an embedded coordinator and real connections, in one process.
//!
//! | module | what it holds |
//! |---|---|
//! | `crew` | servers of a cluster, and a client |
//! | `adopting` | failovers in which backups keep what they have |
//! | `agreeing` | backups that do not write what their primary wrote |
//! | `disk` | a disk that fails |
//! | `serving` | tables that are served, and go on when servers end |
//! | `disks` | disks that fail, are full, or are slow, under load |
//! | `bits` | bits that are not what was written |
//! | `damage` | damage that all copies have |
//! | `outages` | coordinators that are away, and clusters that are started from their disks |
//! | `recording` | what servers send each other, recorded |
//! | `recovering` | all servers are down, and a copy is damaged meanwhile |
//! | `tail` | logs to which nobody writes any more |
//! | `verifying` | replicas that differ from their primary, and directories of older versions |
//! | `rest` | the files of replicas at rest, which are equal |
//! | `legacy` | directories of a cluster without a 128-bit identifier |
//! | `moves` | replicas that move, under load |
//! | `identity` | handles of other tables, and copies of other clusters |
//! | `directories` | directories that are another's, or not as they were written |

mod adopting;
mod agreeing;
mod bits;
mod crew;
mod damage;
mod directories;
mod disk;
mod disks;
mod identity;
mod legacy;
mod moves;
mod outages;
mod recording;
mod recovering;
#[path = "../rest/mod.rs"]
mod rest;
mod serving;
mod splitting;
mod tail;
mod verifying;
