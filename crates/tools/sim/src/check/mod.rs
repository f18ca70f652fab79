//! What must hold of every run, each promise in a file of its own.
//!
//! | module | promise |
//! |---|---|
//! | [`linearizability`] | every key behaves like one register (D9) |
//! | [`scans`] | scans are in order, and miss nothing that was there throughout (D9) |
//! | [`catalog`] | the catalog can be read (C1 to C3) |
//! | [`tiling`] | ranges tile the keys (D6) |
//! | [`locks`] | no lock stays after the sweep (D8) |
//! | [`leaks`] | every leaf and every chunk is in use or free (A4, W3, W4) |
//! | [`roots`] | the root is what the last load made it, and leads to the leaves (B2 to B4) |
//! | [`names`] | the name of a table that comes and goes is one register (C2, C3) |
//! | [`lists`] | whoever lists the tables is told of all that are there, and of no other (C2, C3) |
//! | [`refusals`] | operations are refused only for what was really so |
//! | [`closing`] | a session that closes has nothing under way, and is fenced (F6) |
//! | [`drops`] | dropped tables become free (D7, G3) |
//! | [`draining`] | a node that is to be left is, and holds nothing any more (U5, V5) |
//! | [`sweeping`] | where nothing befell anybody, nothing is left to sweep (D8) |
//! | [`steps`] | an operation waits for one step of a retrainer at the most (R8) |
//! | [`caches`] | a cache leads to all that its tree lists (I7) |
//! | [`models`] | models lead to every key, when nobody writes (Y6) |
//! | [`mod@bytes`] | pages tile the keys, and every value block is referred to once, or free (D6, BV1 to BV11) |
//! | [`strings`] | what is read within one operation is not written anew meanwhile (BV2, BV4) |
//! | [`counters`] | endpoints count all that is executed for them (F9) |
//!
//! [`region`] has the region audited once ([`farleaf_node::audit`]) for those that look at it.

pub mod bytes;
pub mod caches;
pub mod catalog;
pub mod closing;
pub mod counters;
pub mod draining;
pub mod drops;
pub mod leaks;
pub mod linearizability;
pub mod lists;
pub mod locks;
pub mod models;
pub mod names;
pub mod refusals;
pub mod region;
pub mod roots;
pub mod scans;
pub mod steps;
pub mod strings;
pub mod sweeping;
pub mod tiling;

use core::fmt;
use std::cell::RefCell;
use std::rc::Rc;

/// Promises that were broken, as all find them who judge a run.
pub type Findings = Rc<RefCell<Vec<Violation>>>;

/// A promise that a run broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise, in a word.
    pub promise: &'static str,
    /// How.
    pub how: String,
}

impl Violation {
    /// A broken promise.
    pub fn new(promise: &'static str, how: impl Into<String>) -> Self {
        Self {
            promise,
            how: how.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.how)
    }
}
