//! Clusters in virtual time: several masters, servers and clients use a coordinator with losses and
//! delays. There are crashes, pauses, cut connections, and clocks that differ.
//!
//! | module | contents |
//! |---|---|
//! | `link` | connection to the coordinator, and true time |
//! | `sim_servers` | region servers with logs and replication, and nothing more |
//! | `host` | such a server, as its agent sees it |
//! | `world` | schedule of all actors |
//! | `faults` | faults |
//! | `check` | checks after every event, and at the end |

mod check;
mod faults;
pub(crate) mod host;
mod link;
pub(crate) mod sim_servers;
mod world;

use std::collections::BTreeMap;

use farleaf_cluster::omission::Check;

use self::world::{Plant, World};

/// Reads a number from a variable. Tests run `FARLEAF_SIM_RUNS` seeds (default 400) from
/// `FARLEAF_SIM_SEED` (default 1) on.
fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is '{text}', which is no number"))
    })
}

/// Under all faults, two primaries can never both acknowledge, a promoted replica had everything,
/// nothing durable is lost, nothing goes back, and every key is in one region. After the faults,
/// every region is served again and fully replicated.
#[test]
fn clusters_keep_their_promises() {
    let (first, count) = (
        number("FARLEAF_SIM_SEED", 1),
        number("FARLEAF_SIM_RUNS", 400),
    );
    let mut steps: BTreeMap<String, u64> = BTreeMap::new();
    let (mut damage_count, mut again_count, mut replaced_count) = (0, 0, 0);
    for seed in first..first + count {
        match World::new(seed, Plant::Nothing).run() {
            Ok(world) => {
                damage_count += world.damage_count;
                again_count += world.checker.again_count;
                replaced_count += world.replaced_count;
                for (name, count) in world.steps {
                    *steps.entry(name).or_default() += count;
                }
            }
            Err(broken) => panic!("{broken}"),
        }
    }
    println!(
        "{count} runs, {damage_count} damaged copies, {again_count} replicas opened again, \
         {replaced_count} other coordinators: {steps:?}"
    );
    assert!(replaced_count > 0 || count < 100, "it was never replaced");
    assert!(damage_count > 0 || count < 100, "no copy was ever damaged");
    assert!(again_count > 0 || count < 100, "none was opened again");
}

/// Returns whether events are printed, to investigate a seed: `FARLEAF_SIM_TRACE=1`.
fn traces() -> bool {
    static TRACES: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *TRACES.get_or_init(|| std::env::var_os("FARLEAF_SIM_TRACE").is_some())
}

/// Clocks that are worse than configured at worst cause old reads. No write is acknowledged at an
/// epoch after one at a later epoch, and no durable write is lost.
#[test]
fn wild_clocks_lose_no_write() {
    let first = number("FARLEAF_SIM_SEED", 1);
    let count = number("FARLEAF_SIM_RUNS", 400) / 4;
    let mut overlap_count = 0;
    for seed in first..first + count {
        match World::new(seed, Plant::WildClocks).run() {
            Ok(world) => overlap_count += world.checker.overlap_count,
            Err(broken) => panic!("{broken}"),
        }
    }
    println!("{count} runs, {overlap_count} events at which two could have answered a read");
    assert!(overlap_count > 0, "the clocks were not wild enough");
}

/// Number of seeds within which a planted bug is found.
const FOUND_WITHIN_RUN_COUNT: u64 = 1_200;
/// First of these seeds.
const FOUND_FROM_SEED: u64 = 900;

fn is_found(plant: Plant) {
    let mut seeds = FOUND_FROM_SEED..FOUND_FROM_SEED + FOUND_WITHIN_RUN_COUNT;
    let found = seeds.find_map(|seed| World::new(seed, plant).run().err());
    println!("{plant:?}: {found:?}");
    assert!(found.is_some(), "{plant:?} is not found");
}

macro_rules! plants {
    ($($(#[$doc:meta])* $name:ident: $plant:expr;)*) => {
        $($(#[$doc])* #[test] fn $name() { is_found($plant); })*
    };
}

plants! {
    /// Differing clocks without a margin are found (CONTROL-9).
    no_margin_is_found: Plant::NoMargin;
    /// A lease that counts from its reply is found (CONTROL-9).
    a_lease_from_its_answer_is_found: Plant::Omitted(Check::LeaseCountsFromRequest);
    /// A promotion of a backup that was not in sync is found (CONTROL-13).
    a_backup_not_in_sync_is_found: Plant::Omitted(Check::PromotedWasInSync);
    /// A deposed master's write without comparison is found (CONTROL-11).
    a_deposed_master_is_found: Plant::Omitted(Check::MasterIsCompared);
    /// A write without comparison of the record is found (CONTROL-11).
    a_lost_update_is_found: Plant::Omitted(Check::RecordIsCompared);
    /// A primary that is replaced before it has stopped is found (CONTROL-13, CONTROL-15).
    a_primary_replaced_too_early_is_found: Plant::Omitted(Check::PrimaryIsOver);
    /// A new primary at the old epoch is found (CONTROL-13).
    an_epoch_that_stays_is_found: Plant::Omitted(Check::EpochIsRaised);
    /// A region that continues before all its members are back is found (CONTROL-18).
    a_hasty_recovery_is_found: Plant::Omitted(Check::AllMembersAreBack);
    /// A member that is removed only because its lease ended is found: the primary may have been
    /// lost with it (CONTROL-14, CONTROL-18).
    a_loss_that_nobody_tells_is_found: Plant::Omitted(Check::LossIsReported);
    /// A backup that counts as in sync before its primary reports it is found (CONTROL-14).
    an_early_in_sync_is_found: Plant::Omitted(Check::InSyncIsReported);
    /// A replica that broke on a full disk, and is opened again by any later record, is found
    /// (CONTROL-16).
    a_replica_that_opens_unasked_is_found: Plant::Omitted(Check::OpenedAgainIsNamed);
    /// An agent that follows a coordinator of another cluster is found.
    another_cluster_is_found: Plant::Omitted(Check::ClusterIsCompared);
}
