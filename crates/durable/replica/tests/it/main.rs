//! Primaries and backups, over memory of this process, with faults, and over a network.
//!
//! | module | contents |
//! |---|---|
//! | `world` | backups that are served while their primary waits, and an endpoint with faults |
//! | `histories` | random histories compared with a model; primaries that end at any verb |
//! | `power` | power failure of all replicas |
//! | `agreements` | backups that do not write what their primary wrote |
//! | `adopts` | backups that keep identical pieces when another primary fills them |
//! | `changes` | backups that are lost, removed, and filled during writes |
//! | `epochs` | old primaries that wake up |
//! | `raises` | primaries that continue at a later epoch, or stop |
//! | `hostile` | memory and messages with arbitrary content |
//! | `scrubs` | bits that flip on the devices of either side |
//! | `compares` | comparison of a primary's pieces with its backups' by the scrubber |
//! | `counters` | costs of the two kinds of index, and of a write |
//! | `backends` | replication over plain `mem`, `tcp` and `shm` |
//! | `over` | the tests for `backends` and `tests/over_verbs` (in `tests/over`) |

mod adopts;
mod agreements;
mod backends;
mod changes;
mod compares;
mod counters;
mod epochs;
mod histories;
mod hostile;
#[path = "../over/mod.rs"]
mod over;
mod power;
mod raises;
mod scrubs;
mod world;
