//! A region in which nobody works any more and which was swept, as the memory node's own audit sees
//! it while the world stands still: what the checks of the catalog, tiling, locks, leaks and roots
//! look at.

use farleaf_executor::block_on;
use farleaf_index::IndexError;
use farleaf_node::audit::{Audit, Promise, audit};

use super::{Violation, catalog, leaks, locks, roots, tiling};
use crate::fabric::endpoint::StillEndpoint;
use crate::node::Node;
use crate::session::Session;

/// Everything that is looked at.
#[derive(Debug)]
pub struct Region {
    audit: Audit,
}

impl Region {
    /// Reads the region, through a session's endpoint. `None`: there is no table, and nothing else
    /// is wrong.
    ///
    /// # Errors
    /// The fabric failed.
    pub fn read(node: &Node, session: &Session<StillEndpoint>) -> Result<Option<Self>, IndexError> {
        let audit = block_on(audit(session.endpoint(), &node.layout), || 0)?;
        let is_empty = audit.tables.is_empty() && audit.findings.is_empty();
        Ok((!is_empty).then_some(Self { audit }))
    }

    /// All checks.
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

    /// What breaks one promise, under the name that the simulator has for it.
    pub(super) fn broken(&self, promise: Promise, name: &'static str) -> Vec<Violation> {
        let findings = self.audit.findings.iter();
        findings
            .filter(|finding| finding.promise() == promise)
            .map(|finding| Violation::new(name, finding.to_string()))
            .collect()
    }
}
