//! A node's memory at the end of a run, after the last sweep, as the memory node's own audit sees
//! it while virtual time stands still. The checks of the catalog, tiling, locks, leaks and roots
//! use it.

use farleaf_executor::block_on;
use farleaf_index::IndexError;
use farleaf_node::audit::{Audit, Promise, audit};

use super::{Violation, catalog, leaks, locks, roots, tiling};
use crate::fabric::endpoint::StillEndpoint;
use crate::history::Operation;
use crate::node::Node;
use crate::session::Session;

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

    /// Runs all checks.
    pub fn check(&self) -> Vec<Violation> {
        [
            catalog::check(self),
            tiling::check(self),
            locks::check(self),
            leaks::check(self),
            roots::check(self),
        ]
        .concat()
    }

    /// Returns the violations of one promise, under the simulator's name for it.
    pub(super) fn broken(&self, promise: Promise, name: &'static str) -> Vec<Violation> {
        let findings = self.audit.findings.iter();
        findings
            .filter(|finding| finding.promise() == promise)
            .map(|finding| Violation::new(name, finding.to_string()))
            .collect()
    }
}
