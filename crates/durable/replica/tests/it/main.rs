//! Primaries and backups, over memory of this process, with faults, and over a network.
//!
//! | module | what it holds |
//! |---|---|
//! | `world` | backups that are served when their primary waits, and an endpoint with faults |
//! | `histories` | random histories against a model; primaries that die at any verb |
//! | `power` | all lose their power |
//! | `agreements` | backups that do not write what their primary wrote |
//! | `adopts` | backups that keep what they have when another primary fills them |
//! | `changes` | backups lost, removed, filled while writes go on |
//! | `epochs` | old primaries that wake up |
//! | `raises` | primaries that go on at a later epoch, or stop |
//! | `hostile` | memory and messages in which anything may stand |
//! | `scrubs` | bits that flip on the devices of either side |
//! | `compares` | the scrubber compares a primary's pieces with its backups' |
//! | `counters` | what the two kinds of index cost, and what a write does |
//! | `backends` | the same over plain `mem`, `tcp` and `shm` |
//! | `over` | what those are, beside `tests/over_verbs` (in `tests/over`) |

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
