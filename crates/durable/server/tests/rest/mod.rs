//! Replicas at rest: the files of all in-sync replicas have the same log and the same trees.
//!
//! For the tests of `tests/it`, and for those of `tests/processes`, which are a separate test
//! binary.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_cluster::coordinator::SharedCoordinator;
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::record::RegionRecord;
use farleaf_lsm::follow::IndexKind;
use farleaf_server::compare::{ReplicaDirectory, compare_region, replica_in};
use farleaf_trial::ProcessCluster;
use farleaf_trial::fleet::view;

/// Time within which replicas at rest become equal, or never: the end of a log is on all disks a
/// second after the last write, and trees follow the log.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until the files of all in-sync replicas of all regions are equal byte by byte: log
/// segments, up to the end of their records, and trees. Skips regions with a member that has no
/// directory here. Returns the number of replicas that were compared with another one.
///
/// Only these differences are allowed:
///
/// - The primary's log may have one mark (28 bytes, without a write) after the end of its backups'
///   logs.
/// - A segment to which no tree refers, and from which the log is not read, may have been reclaimed
///   in one replica only.
/// - Bytes after the last record of a segment are never read.
/// - Backups that build their trees have trees of their own (`IndexKind::Built`).
///
/// # Panics
/// If they do not become equal.
pub(crate) fn wait_equal(
    coordinator: &SharedCoordinator,
    index: IndexKind,
    directory: impl Fn(ServerId) -> Option<PathBuf>,
) -> usize {
    let since = Instant::now();
    loop {
        match differences(coordinator, index, &directory) {
            Ok(count) => return count,
            Err(differences) => assert!(since.elapsed() < PATIENCE, "{}", differences.join("\n")),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits in the same way for servers that are processes and send trees to their backups. Only
/// running ones have a directory.
#[allow(dead_code, reason = "`tests/it` has all servers in its own process")]
pub(crate) fn wait_equal_in(fleet: &ProcessCluster) -> usize {
    wait_equal(&fleet.coordinator, IndexKind::Sent, |server| {
        let index = server.0 as usize - 1;
        let is_running = fleet.servers.get(index).is_some_and(Option::is_some);
        is_running.then(|| fleet.directory(index))
    })
}

/// Returns the number of replicas that equal another one, or the difference.
fn differences(
    coordinator: &SharedCoordinator,
    index: IndexKind,
    directory: &impl Fn(ServerId) -> Option<PathBuf>,
) -> Result<usize, Vec<String>> {
    let (mut count, mut lines) = (0, Vec::new());
    for seen in view(coordinator).regions.values() {
        let region = &seen.record;
        let directories = region.members().map(|it| directory(it.server));
        let Some(directories) = directories.collect::<Option<Vec<_>>>() else {
            continue;
        };
        match region_differences(region, index, &directories) {
            Ok(found) => {
                count += region.members().count() - 1;
                lines.extend(found);
            }
            Err(error) => lines.push(format!("{}: {error}", region.region)),
        }
    }
    if lines.is_empty() {
        Ok(count)
    } else {
        Err(lines)
    }
}

fn region_differences(
    region: &RegionRecord,
    index: IndexKind,
    directories: &[PathBuf],
) -> Result<Vec<String>, farleaf_server::ServerError> {
    let mut replicas: Vec<ReplicaDirectory> = Vec::new();
    let mut lines = Vec::new();
    for (member, directory) in region.members().zip(directories) {
        match replica_in(directory, region.region, member.number)? {
            Some(replica) => replicas.push(replica),
            None => lines.push(format!("{}: {} has no copy", region.region, member.server)),
        }
    }
    if replicas.is_empty() {
        return Ok(lines);
    }
    let compared = compare_region(&replicas, index)?;
    let stale = compared.stale.iter();
    lines.extend(stale.map(|it| format!("{}: {} is stale", region.region, it.path.display())));
    lines.extend(compared.damage);
    for (replica, comparison) in compared.others {
        if !comparison.is_equal() {
            lines.push(format!("{}: {comparison:#?}", replica.path.display()));
        }
    }
    Ok(lines)
}
