//! Administrative commands that change a cluster.

use std::ffi::OsStr;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_cluster::admin;
use farleaf_cluster::ids::{RegionId, ServerId, TableId};
use farleaf_cluster::plan::{PlanOptions, plan};
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{AdminReply, AdminRequestKind, Phase};
use farleaf_cluster::view::View;

use super::PatienceArgument;
use super::cluster_status::{phase_text, servers_of};
use crate::command::cluster_client::Opened;
use crate::failure::Ending;
use crate::log::say;
use crate::output::{counted, print};
use crate::strings::EncodingArguments;

/// Interval at which the reason for waiting is printed, if nothing changes.
const REPORT_INTERVAL: Duration = Duration::from_secs(3);

/// Maximum number of waiting regions whose reasons are printed.
const REPORTED_COUNT_MAX: usize = 4;

/// Interval at which the progress is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

pub(super) fn move_replica(
    opened: &Opened,
    table: &str,
    region: u64,
    from: u64,
    to: u64,
    patience: PatienceArgument,
) -> anyhow::Result<Ending> {
    let view = opened.view()?;
    let (table, region) = find_region(opened, &view, table, region)?;
    let (from, to) = (ServerId(from), ServerId(to));
    check_server(opened, &view, from)?;
    check_server(opened, &view, to)?;
    let kind = AdminRequestKind::Move {
        table,
        region,
        from,
        to,
    };
    order(opened, kind, patience)?;
    print(format_args!(
        "{region} moves from {from} to {to}; `farleaf cluster status` shows the progress\n"
    ))?;
    Ok(Ending::Done)
}

pub(super) fn split(
    opened: &Opened,
    name: &str,
    key: &OsStr,
    encoding: EncodingArguments,
    patience: PatienceArgument,
) -> anyhow::Result<Ending> {
    let at = Key(encoding.read_key(key)?);
    let view = opened.view()?;
    let named = admin::table_named(opened.coordinator(), name);
    let table = named.map_err(|error| opened.explain(error))?;
    let regions = view.regions_of(table);
    let found = regions.iter().find(|region| region.covers(&at.0));
    let region = found.map(|record| record.region).ok_or_else(|| {
        anyhow::anyhow!(
            "table '{name}' has no region with the key {}; see `farleaf cluster status --table \
             {name}`",
            encoding.show(&at.0)
        )
    })?;
    let shown = encoding.show(&at.0).to_string();
    let kind = AdminRequestKind::Split { table, region, at };
    order(opened, kind, patience)?;
    print(format_args!(
        "{region} is split at {shown}; `farleaf cluster status` shows the progress\n"
    ))?;
    Ok(Ending::Done)
}

pub(super) fn give_up(
    opened: &Opened,
    table: &str,
    region: u64,
    servers: &[u64],
    patience: PatienceArgument,
) -> anyhow::Result<Ending> {
    let view = opened.view()?;
    let (table, region) = find_region(opened, &view, table, region)?;
    let servers: Vec<_> = servers.iter().copied().map(ServerId).collect();
    for server in &servers {
        check_server(opened, &view, *server)?;
    }
    let names: Vec<String> = servers.iter().map(ToString::to_string).collect();
    let kind = AdminRequestKind::GiveUp {
        table,
        region,
        servers,
    };
    order(opened, kind, patience)?;
    print(format_args!(
        "{region} continues without {}\n",
        names.join(", ")
    ))?;
    Ok(Ending::Done)
}

/// Returns the region with this number; fails if it is not of this table.
fn find_region(
    opened: &Opened,
    view: &View,
    name: &str,
    region: u64,
) -> anyhow::Result<(TableId, RegionId)> {
    let named = admin::table_named(opened.coordinator(), name);
    let table = named.map_err(|error| opened.explain(error))?;
    let region = RegionId(region);
    let entry = view.regions.get(&region);
    if entry.is_none_or(|entry| entry.record.table != table) {
        return Err(anyhow::anyhow!(
            "table '{name}' has no {region}; see `farleaf cluster status --table {name}`"
        ));
    }
    Ok((table, region))
}

fn check_server(opened: &Opened, view: &View, server: ServerId) -> anyhow::Result<()> {
    if servers_of(view).contains(&server) {
        return Ok(());
    }
    Err(anyhow::anyhow!(
        "no {server} in the cluster at {}; see `farleaf cluster status`",
        opened.address
    ))
}

/// Records a change request, and waits for the master's answer.
fn order(
    opened: &Opened,
    kind: AdminRequestKind,
    patience: PatienceArgument,
) -> anyhow::Result<()> {
    let coordinator = opened.coordinator();
    let recorded = admin::admin_request(coordinator, kind);
    let admin_request = recorded.map_err(|error| opened.explain(error))?;
    let deadline = Instant::now() + Duration::from_secs(patience.timeout.into());
    loop {
        let answered = admin::answer(coordinator, admin_request);
        match answered.map_err(|error| opened.explain(error))? {
            Some(AdminReply::Begun) => return Ok(()),
            Some(AdminReply::Refused(why)) => {
                return Err(anyhow::anyhow!(
                    "the master rejected the request: {why}; nothing was changed"
                ));
            }
            None if Instant::now() >= deadline => {
                return Err(anyhow::anyhow!(
                    "no reply from a master within {} s; the request stays recorded, and the next \
                     master processes it; see `farleaf cluster status`",
                    patience.timeout
                ));
            }
            None => thread::sleep(LOOK_INTERVAL),
        }
    }
}

pub(super) fn drain(opened: &Opened, server: u64, waits: bool) -> anyhow::Result<Ending> {
    let server = ServerId(server);
    check_server(opened, &opened.view()?, server)?;
    let drained = admin::set_drain(opened.coordinator(), server, true);
    drained.map_err(|error| opened.explain(error))?;
    if !waits {
        print(format_args!(
            "{server} is drained: its replicas move to other servers; `farleaf cluster status` \
             shows the progress\n"
        ))?;
        return Ok(Ending::Done);
    }
    wait_drained(opened, server)
}

/// Waits until the server has no replicas. Prints now and then which ones are left, and why.
fn wait_drained(opened: &Opened, server: ServerId) -> anyhow::Result<Ending> {
    let (mut reported_count, mut reported_at) = (0, Instant::now());
    loop {
        let view = opened.view()?;
        if !view.drains.contains(&server) {
            return Err(anyhow::anyhow!(
                "the drain of {server} was canceled by another command"
            ));
        }
        let left_count = replica_count(&view, server);
        if left_count == 0 {
            print(format_args!(
                "{server} has no replicas left and can be stopped\n"
            ))?;
            return Ok(Ending::Done);
        }
        if left_count != reported_count || reported_at.elapsed() >= REPORT_INTERVAL {
            say(format_args!(
                "{server} has {} left: {}",
                counted(left_count, "replica"),
                why_left(&view, server)
            ));
            (reported_count, reported_at) = (left_count, Instant::now());
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Returns the reason why a drained server still has replicas.
fn why_left(view: &View, server: ServerId) -> String {
    if view.master.is_none() {
        return "no master is elected, so no replica moves".to_owned();
    }
    let waiting = plan(view, &PlanOptions::default()).waiting;
    let regions = view.regions.values().map(|entry| &entry.record);
    let remaining: Vec<_> = regions
        .filter(|record| record.replica_on(server).is_some())
        .collect();
    let mut reasons: Vec<String> = remaining
        .iter()
        .take(REPORTED_COUNT_MAX)
        .map(|record| {
            let region = record.region;
            let waits = waiting.iter().find(|it| it.region == region);
            match (waits, &record.phase) {
                (Some(waits), _) => format!("{region} needs {}", waits.what),
                (None, Phase::Steady) => format!(
                    "{region} has not moved yet: only a few regions move at once, and its primary \
                     must be open"
                ),
                (None, _) => format!("{region} is {}", phase_text(record)),
            }
        })
        .collect();
    if remaining.len() > reasons.len() {
        reasons.push(format!("and {} more", remaining.len() - reasons.len()));
    }
    reasons.join("; ")
}

fn replica_count(view: &View, server: ServerId) -> usize {
    let regions = view.regions.values();
    regions
        .filter(|entry| entry.record.replica_on(server).is_some())
        .count()
}

pub(super) fn undrain(opened: &Opened, server: u64) -> anyhow::Result<Ending> {
    let server = ServerId(server);
    check_server(opened, &opened.view()?, server)?;
    let undrained = admin::set_drain(opened.coordinator(), server, false);
    undrained.map_err(|error| opened.explain(error))?;
    print(format_args!("{server} gets replicas again\n"))?;
    Ok(Ending::Done)
}
