//! Deterministic crash tests. A session may stop between any two verbs, or in the middle of a
//! WRITE, in any operation. It then loses no acknowledged change, leaves no lock forever, and leaks
//! no leaf and no chunk. The next process finds the old state or the new one.
//!
//! Each test runs an operation once without a crash to record its effects. Then it runs the
//! operation once for every place at which it can be interrupted, each time in a fresh memory.
//! After the interruption the session is fenced. Either another client comes first, or the memory
//! node's sweep runs; then everything is audited.
//!
//! | module | contents |
//! |---|---|
//! | `cutting` | the endpoint that stops (FABRIC-5) |
//! | `pool` | a node's memory with its sessions, and clients over any endpoint |
//! | `catalog` | creation and drop of tables with the same verbs as sessions |
//! | `audit` | invariants of an idle node memory |
//! | `scene` | a sound memory, and ways to corrupt it by hand |
//! | `findings` | tests of the audit |
//! | `crash` | interruption of one operation at every place |
//! | `records` | operations on records |
//! | `tables` | creation, bulk load, leases, drops |
//! | `maintainer` | interruption of the sweep, reclamation and recovery |
//! | `leaves` | helpers for single leaves |
//! | `contradictions` | operations on leaves that contradict each other |
//! | `waiting` | locks of live clients and of the node itself |
//! | `dropped` | operations that are dropped, or fail, in a session that continues |
//! | `claims` | chunks that several sessions claim |
//! | `meanwhile` | sessions that act and die during a sweep |
//! | `moving` | retraining of `learned` tables by moving leaves, and the retraining queue |
//! | `trees` | tests of the audit of trees |
//! | `compacting` | compactions of tables with a tree while sessions delete |
//! | `hindered` | compactions that are blocked by other sessions |
//! | `pages` | leftovers of dead sessions in pages of byte strings |
//! | `emptied` | merges of pages |
//! | `counted` | counters of pages |
//! | `half_moved` | a mover that died when one of two leaves was retired |
//! | `paper` | retraining of `rolex` tables in place |

mod audit;
mod catalog;
mod claims;
mod compacting;
mod contradictions;
mod counted;
mod crash;
mod cutting;
mod dropped;
mod emptied;
mod findings;
mod half_moved;
mod hindered;
mod leaves;
mod maintainer;
mod meanwhile;
mod moving;
mod pages;
mod paper;
mod pool;
mod records;
mod scene;
mod tables;
mod trees;
mod waiting;
