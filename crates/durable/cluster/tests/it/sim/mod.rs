//! Clusters in virtual time: several masters, servers and clients over a coordinator that is
//! reached with losses and delays, with crashes, pauses, cut ways, and clocks that differ.
//!
//! | module | what it holds |
//! |---|---|
//! | `random` | where all chance comes from |
//! | `link` | the way to the coordinator, and true time |
//! | `fleet` | region servers with logs and replication, and no more |
//! | `host` | such a server, as its agent sees it |
//! | `world` | who acts when |
//! | `faults` | what goes wrong |
//! | `check` | what must hold after every event, and in the end |

mod check;
mod faults;
pub(crate) mod fleet;
pub(crate) mod host;
mod link;
mod random;
mod world;

use std::collections::BTreeMap;

use farleaf_cluster::omission::Check;

use self::world::{Plant, World};

/// Runs `FARLEAF_SIM_RUNS` seeds (400 if it is not set) from `FARLEAF_SIM_SEED` (1) on.
fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is '{text}', which is no number"))
    })
}

/// Whatever goes wrong: two primaries never can both acknowledge, who is promoted had everything,
/// nothing durable is lost and nothing goes back, every key is in one region; and when nothing goes
/// wrong any more, every region is served again by as many replicas as it should have.
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

/// Whether what happens is told, to look into a seed: `FARLEAF_SIM_TRACE=1`.
fn traces() -> bool {
    static TRACES: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *TRACES.get_or_init(|| std::env::var_os("FARLEAF_SIM_TRACE").is_some())
}

/// Clocks that are worse than agreed on make reads old at the worst: no write is acknowledged at an
/// epoch after one at a later epoch, and none that is durable is lost.
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

/// Within how many seeds a planted bug is found.
const FOUND_WITHIN_RUN_COUNT: u64 = 1200;

fn is_found(plant: Plant) {
    let mut seeds = 1..=FOUND_WITHIN_RUN_COUNT;
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
    /// Clocks that differ, and no margin for it, are found (CP9).
    no_margin_is_found: Plant::NoMargin;
    /// A lease that counts from its answer is found (CP9).
    a_lease_from_its_answer_is_found: Plant::Omitted(Check::LeaseCountsFromRequest);
    /// A promotion of a backup that was not in sync is found (CP13).
    a_backup_not_in_sync_is_found: Plant::Omitted(Check::PromotedWasInSync);
    /// A deposed master's write that is not compared is found (CP11).
    a_deposed_master_is_found: Plant::Omitted(Check::MasterIsCompared);
    /// A write on a record that is not compared is found (CP11).
    a_lost_update_is_found: Plant::Omitted(Check::RecordIsCompared);
    /// A primary that is replaced before it has stopped is found (CP13, CP15).
    a_primary_replaced_too_early_is_found: Plant::Omitted(Check::PrimaryIsOver);
    /// A new primary at the old epoch is found (CP13).
    an_epoch_that_stays_is_found: Plant::Omitted(Check::EpochIsRaised);
    /// A region that goes on before all its members are back is found (CP18).
    a_hasty_recovery_is_found: Plant::Omitted(Check::AllMembersAreBack);
    /// A member that leaves for the end of its lease alone is found: the primary may have been lost
    /// with it (CP14, CP18).
    a_loss_that_nobody_tells_is_found: Plant::Omitted(Check::LossIsTold);
    /// A backup that counts as in sync before its primary says so is found (CP14).
    an_early_in_sync_is_found: Plant::Omitted(Check::InSyncIsReported);
    /// A replica that broke for want of room, and is opened again by any later record, is found
    /// (CP16).
    a_replica_that_opens_unasked_is_found: Plant::Omitted(Check::OpenedAgainIsNamed);
    /// An agent that follows a coordinator of another cluster is found (ID2).
    another_cluster_is_found: Plant::Omitted(Check::ClusterIsCompared);
}
