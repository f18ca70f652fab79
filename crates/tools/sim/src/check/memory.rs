//! Audit of a node's memory at the end of a run, after the last sweep, while virtual time stands
//! still.

use farleaf_executor::block_on;
use farleaf_index::IndexError;
use farleaf_node::audit::{Audit, Promise, audit};

use super::Violation;
use crate::fabric::endpoint::StillEndpoint;
use crate::history::Operation;
use crate::node::Node;
use crate::session::Session;

/// Promises that the audit checks, with their names:
///
/// - catalog: every entry is readable, and no two tables have the same name or number
/// - tiling: along the links, ranges cover all keys without gap or overlap, and leaves are intact
///   and linked once each, with records in their ranges, each once (LEAF-6)
/// - locks: when all clients have ended and the sweep is done, no lock of the catalog, a leaf slot
///   or a chunk is held (LEAF-8)
/// - leaks: every chunk and leaf is in use or free, free memory is zero, chunks of runs have linked
///   leaves, and snapshots have exactly the chunks that they need
/// - roots: the root belongs to the load that retired the first leaf, or to none, and its snapshot
///   is intact and leads to linked leaves
const PROMISES: [(Promise, &str); 5] = [
    (Promise::Catalog, "catalog"),
    (Promise::Tiling, "tiling"),
    (Promise::Locks, "locks"),
    (Promise::Leaks, "leaks"),
    (Promise::Root, "roots"),
];

/// Memory and audit of one node.
#[derive(Debug)]
pub struct Region {
    audit: Audit,
}

impl Region {
    /// Reads the memory through a session's endpoint; `None` if there is no table and nothing else
    /// is wrong.
    ///
    /// # Errors
    /// The fabric failed.
    pub fn read(node: &Node, session: &Session<StillEndpoint>) -> Result<Option<Self>, IndexError> {
        let audit = block_on(audit(session.endpoint(), &node.layout), || 0)?;
        // Tables that an audit skips ([`bytes`](super::bytes)) count as tables, too.
        let is_empty =
            audit.tables.is_empty() && audit.findings.is_empty() && !session.is_of_bytes();
        Ok((!is_empty).then_some(Self { audit }))
    }

    /// Returns the result of the audit.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Returns why a reader's operation should not have failed with a lost node, or `None`. If the
    /// walk along the links reached the key, its leaf is on a node that exists.
    pub fn should_answer(&self, table: Option<u32>, operation: &Operation) -> Option<String> {
        let tables = self.audit.tables.iter();
        let table = tables
            .into_iter()
            .find(|it| Some(it.entry.record.id.0) == table)?;
        let is_seen = |key: u64| table.unseen_from.is_none_or(|from| key < from);
        let is_due = match operation.on_table() {
            Operation::Get(key) => is_seen(*key),
            Operation::Scan(..) => table.unseen_from.is_none(),
            _ => true,
        };
        is_due.then(|| {
            format!("{operation:x?} reported a lost node, but its leaf is on an available node")
        })
    }

    /// Returns the violations of each promise, under the simulator's name for it.
    pub fn check(&self) -> Vec<Violation> {
        let violations = PROMISES.into_iter().flat_map(|(promise, name)| {
            let findings = self.audit.findings.iter();
            let of_promise = findings.filter(move |finding| finding.promise() == promise);
            of_promise.map(move |finding| Violation::new(name, finding.to_string()))
        });
        violations.collect()
    }
}
