//! Promises that every run must keep, each in a file of its own.
//!
//! | module | promise |
//! |---|---|
//! | [`linearizability`] | every key behaves like one register (LEAF-9) |
//! | [`scans`] | scans are in order and miss nothing that was there throughout (LEAF-9) |
//! | [`memory`] | the memory audit ([`farleaf_node::audit`]) finds nothing |
//! | [`names`] | the name of a table that is created and dropped is one register |
//! | [`lists`] | lists contain every table that existed throughout, and no others |
//! | [`refusals`] | operations fail only for an actual reason |
//! | [`closing`] | a closed session has no batch in flight, and is fenced (FABRIC-6) |
//! | [`drops`] | dropped tables become free (LEAF-7) |
//! | [`draining`] | a draining node leaves, and has no data of the pool then |
//! | [`sweeping`] | without faults nothing is left to sweep (LEAF-8) |
//! | [`steps`] | an operation waits for at most one step of a retrainer |
//! | [`caches`] | a cache leads to all leaves that its tree lists |
//! | [`models`] | models lead to every key, when nothing is written |
//! | [`mod@bytes`] | pages tile the keys, and every value block has one reference or is free (LEAF-6) |
//! | [`strings`] | no operation reads a string that was overwritten after the page was read |
//! | [`counters`] | endpoints count all that is executed for them (FABRIC-9) |

pub mod bytes;
pub mod caches;
pub mod closing;
pub mod counters;
pub mod draining;
pub mod drops;
pub mod linearizability;
pub mod lists;
pub mod memory;
pub mod models;
pub mod names;
pub mod refusals;
pub mod scans;
pub mod steps;
pub mod strings;
pub mod sweeping;

use core::fmt;
use std::cell::RefCell;
use std::rc::Rc;

/// Broken promises, as collected by all checks of a run.
pub type Findings = Rc<RefCell<Vec<Violation>>>;

/// Promise that a run broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the promise.
    pub promise: &'static str,
    /// Description of the violation.
    pub how: String,
}

impl Violation {
    /// Creates a violation.
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
