//! Compares promoted backups with their primaries.

use farleaf_fabric::Endpoint;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_lsm::Engine;
use farleaf_replica::{Backup, Epoch, Primary};

use super::error::ReplicationError;
use super::requests::{is_value, number_of, region_of};
use super::servers::{EPOCH, RunLocation};
use super::strings_of;

/// Promotes all backups, given by server and region, and looks up records of each region there and
/// at its primary. The configuration sets the total number of records.
///
/// # Errors
/// A backup cannot be promoted, or differs from its primary.
pub(super) fn check_promoted<E: Endpoint + Send + 'static>(
    place: &RunLocation<'_>,
    primaries: &[Primary<E>],
    backups: Vec<Backup<MappedEndpoint>>,
    record_count: u64,
) -> Result<u64, ReplicationError> {
    let config = place.config;
    if config.check_records == 0 {
        return Ok(0);
    }
    let promoted = promote(place, backups)?;
    let strings = strings_of(config);
    let stride = (record_count / config.check_records).max(1);
    let (mut key, mut checked_count) = (Vec::new(), 0);
    for record in (0..record_count).step_by(stride as usize) {
        let number = number_of(record);
        strings.key(number, &mut key);
        let region = region_of(number, primaries.len());
        let what = || format!("looking up a record of region {region}");
        let own = primaries[region].engine().get(&key);
        let own = own.map_err(ReplicationError::engine(what()))?;
        let is_right = own
            .as_deref()
            .is_some_and(|it| is_value(&strings, number, it));
        let is_same = match &promoted[region] {
            None => true,
            Some(engine) => {
                let found = engine.get(&key);
                found.map_err(ReplicationError::engine(what()))? == own
            }
        };
        if !is_right || !is_same {
            return Err(ReplicationError::Promoted {
                kind: place.kind,
                region,
                key: String::from_utf8_lossy(&key).into_owned(),
            });
        }
        checked_count += 1;
    }
    Ok(checked_count)
}

/// Returns the engines of all backups, by region; none without replication.
fn promote(
    place: &RunLocation<'_>,
    backups: Vec<Backup<MappedEndpoint>>,
) -> Result<Vec<Option<Engine>>, ReplicationError> {
    let mut promoted: Vec<Option<Engine>> = Vec::new();
    promoted.resize_with(place.config.region_count(), || None);
    for (index, backup) in backups.into_iter().enumerate() {
        let regions = place.config.regions as usize;
        let region = place.first_backed_up(index / regions) + index % regions;
        let engine = backup.promote(Epoch(EPOCH.0 + 1), place.engine_options());
        let engine = engine.map_err(ReplicationError::replica(format!(
            "promoting the backup of region {region}"
        )))?;
        promoted[region] = Some(engine);
    }
    Ok(promoted)
}
