//! Problems with a cluster's identity: directories of other clusters, and servers that reject the
//! coordinator's records.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use farleaf::key::text::escape;
use farleaf_cluster::ids::ClusterId;
use farleaf_cluster::view::View;
use serde::Serialize;

use super::cluster_status::ClusterStatus;
use crate::output::counted;

/// Orphan: a directory that a server keeps until an operator removes it.
#[derive(Serialize)]
pub(super) struct OrphanStatus {
    server: u64,
    path: String,
    how: String,
}

/// Server that rejects the coordinator's records, with its reason.
#[derive(Serialize)]
pub(super) struct RefusalStatus {
    server: u64,
    how: String,
}

pub(super) fn orphans_of(view: &View) -> Vec<OrphanStatus> {
    let servers = view.lives.keys().copied();
    let reports = servers.filter_map(|server| Some((server, view.server_report(server)?)));
    let orphans = reports.flat_map(|(server, report)| {
        let orphans = report.orphans.iter();
        orphans.map(move |orphan| OrphanStatus {
            server: server.0,
            path: orphan.path.clone(),
            how: orphan.how.clone(),
        })
    });
    orphans.collect()
}

pub(super) fn refusals_of(view: &View) -> Vec<RefusalStatus> {
    let refusals = view.refusals.iter();
    let refusals = refusals.map(|(server, entry)| RefusalStatus {
        server: server.0,
        how: entry.record.how.clone(),
    });
    refusals.collect()
}

/// Beginning of the advice that follows the reason in a server's report.
const ADVICE: &str = ". This server serves nothing";

/// Returns lines that describe the problems and how to fix them.
pub(super) fn identity_text(status: &ClusterStatus) -> String {
    let mut text = String::new();
    let mut advised = BTreeSet::new();
    for RefusalStatus { server, how } in &status.refusals {
        let how = escape(how.as_bytes());
        // The advice is long, and the same for all of one start.
        let how = match how.split_once(ADVICE) {
            Some((fact, advice)) if !advised.insert(advice.to_owned()) => format!("{fact}."),
            _ => how,
        };
        let _ = writeln!(
            text,
            "server {server} rejects the coordinator's records: {how}"
        );
    }
    for OrphanStatus { server, path, how } in &status.orphans {
        let (path, how) = (escape(path.as_bytes()), escape(how.as_bytes()));
        let _ = writeln!(
            text,
            "server {server} keeps {path}, but does not use it: {how}. It may be the only copy of \
             its data: do not delete it while a region is not served. To use it, stop the server, \
             move it back to `regions`, and start the server."
        );
    }
    text
}

/// Returns the problems with the identity, for the list of all problems.
pub(super) fn identity_lacks(status: &ClusterStatus) -> Vec<String> {
    let mut lacks = Vec::new();
    if status.cluster.is_some_and(ClusterId::is_legacy) {
        let how = "the cluster was created by an older version and has no 128-bit id, so its \
                   servers serve nothing (run `farleaf cluster adopt`)";
        lacks.push(how.to_owned());
    }
    match status.refusals.len() {
        0 => {}
        1 => lacks.push("1 server rejects the coordinator's records".to_owned()),
        count => lacks.push(format!(
            "{} reject the coordinator's records",
            counted(count, "server")
        )),
    }
    match status.orphans.len() {
        0 => {}
        1 => lacks.push("1 orphaned directory is kept for an operator".to_owned()),
        count => lacks.push(format!(
            "{} are kept for an operator",
            counted(count, "orphan")
        )),
    }
    lacks
}
