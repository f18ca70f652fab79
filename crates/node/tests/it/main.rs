//! Deterministic crashes: a session that stops between any two verbs, or in the middle of a WRITE,
//! at any point of any operation, loses nothing that was acknowledged, leaves no lock for ever and
//! leaks no leaf and no chunk; whoever comes next finds the old state or the new one.
//!
//! Each test runs an operation once without a crash to learn its effects, and then once for every
//! place at which it can be cut off, each time in a fresh region. After the cut the session is
//! fenced; then either another client comes first and meets what is left, or the memory node's
//! sweep does; then everything is audited.
//!
//! | module | what it holds |
//! |---|---|
//! | `cutting` | the endpoint that stops (F5) |
//! | `pool` | a region with its sessions, and clients over any endpoint |
//! | `catalog` | making and dropping tables, verb for verb as sessions do |
//! | `audit` | what must hold of a region in which nobody works |
//! | `scene` | a sound region, and ways to break it by hand |
//! | `findings` | that the audit sees what it is there for |
//! | `crash` | one operation, cut off everywhere |
//! | `records` | operations on records |
//! | `tables` | creation, bulk load, leases, drops |
//! | `keeper` | the sweep, reclamation and recovery themselves cut off |
//! | `leaves` | single leaves, and how a test damages them |
//! | `contradictions` | operations on leaves that contradict each other |
//! | `waiting` | what the node does about locks of the living, and its own |
//! | `dropped` | operations that are dropped, or fail, in the middle, by a session that goes on |
//! | `claims` | chunks that several sessions want |
//! | `meanwhile` | sessions that act and die while a sweep is under way |
//! | `moving` | `learned` tables that are retrained by moving, and the queue that asks for it |
//! | `trees` | that the audit sees what can be wrong with a tree |
//! | `compacting` | tables with a tree, compacted while sessions delete |
//! | `hindered` | such compactions, when somebody is in the way |
//! | `pages` | what is left of pages of byte strings |
//! | `emptied` | pages that become fewer |
//! | `counted` | what is counted of pages, and where |
//! | `half_moved` | a mover that has died when one of two leaves was retired |
//! | `paper` | `rolex` tables that are retrained where their leaves are |

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
mod keeper;
mod leaves;
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
