//! `farleaf region compare`: compares the replicas in several servers' directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use farleaf_cluster::ids::RegionId;
use farleaf_lsm::follow::IndexKind;
use farleaf_server::compare::{RegionComparison, ReplicaDirectory, compare_region, replicas_in};
use serde::Serialize;

use super::region::IndexName;
use crate::failure::Ending;
use crate::output::{Lines, OutputFormat};
use farleaf_bench::quantity::size;

/// Directories to compare.
#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// Data directories of servers, as given to `region serve --data`
    #[arg(value_name = "DIR", required = true, num_args = 2..)]
    directories: Vec<PathBuf>,

    /// How backups get their index, as given to `region serve --index`; trees that backups have
    /// `built` differ, and are not compared
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    index: IndexName,

    /// Output format: `text`, or `json`, one object for each region
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    #[arg(hide_possible_values = true)]
    output: OutputFormat,
}

/// Replicas of one region, in the form of the output.
#[derive(Debug, Serialize)]
struct Compared {
    table: u64,
    region: u64,
    epoch: u64,
    replicas: Vec<String>,
    segment_count: u64,
    tree_count: u64,
    size_bytes: u64,
    mark_size_bytes_max: u64,
    differences: Vec<String>,
    lags: Vec<String>,
    stale: Vec<String>,
}

impl Compared {
    fn of(compared: RegionComparison) -> Self {
        let name = |it: &ReplicaDirectory| it.path.display().to_string();
        let first = &compared.first;
        let mut all = Self {
            table: first.table.0,
            region: first.region.0,
            epoch: first.epoch.0,
            replicas: vec![name(first)],
            segment_count: 0,
            tree_count: 0,
            size_bytes: 0,
            mark_size_bytes_max: 0,
            differences: compared.damage,
            lags: Vec::new(),
            stale: compared.stale.iter().map(name).collect(),
        };
        for (replica, comparison) in compared.others {
            all.replicas.push(name(&replica));
            all.segment_count += comparison.segment_count;
            all.tree_count += comparison.tree_count;
            all.size_bytes += comparison.size_bytes;
            all.mark_size_bytes_max = all.mark_size_bytes_max.max(comparison.mark_size_bytes);
            all.differences.extend(comparison.differences);
            all.lags.extend(comparison.lags);
        }
        all
    }

    fn text(&self) -> String {
        let (region, table) = (self.region, self.table);
        let how = match (self.replicas.len(), self.differences.len()) {
            (1, 0) => "1 replica, nothing to compare it with".to_owned(),
            (count, 0) => format!(
                "{count} replicas are equal ({} log segments and {} trees compared, {})",
                self.segment_count,
                self.tree_count,
                size(self.size_bytes)
            ),
            (count, _) => format!("{count} replicas DIFFER"),
        };
        let mut text = format!("region {region} of table {table}: {how}");
        let mut add = |what: &str, lines: &[String]| {
            for line in lines {
                text.extend(["\n  ", what, ": ", line]);
            }
        };
        add("differs", &self.differences);
        add("not yet received", &self.lags);
        add("out of date, not compared", &self.stale);
        text
    }
}

/// Compares the replicas of every region.
pub(super) fn run(arguments: &CompareArguments) -> anyhow::Result<Ending> {
    let index = match arguments.index {
        IndexName::Sent => IndexKind::Sent,
        IndexName::Built => IndexKind::Built,
    };
    let mut regions: BTreeMap<RegionId, Vec<ReplicaDirectory>> = BTreeMap::new();
    let mut first_by_path = BTreeMap::new();
    for directory in &arguments.directories {
        // A missing directory is reported below.
        let path = directory.canonicalize();
        if let Some(before) = path
            .ok()
            .and_then(|path| first_by_path.insert(path, directory))
        {
            anyhow::bail!(
                "{} and {} are the same directory: give the data directories of different servers",
                before.display(),
                directory.display()
            );
        }
        for replica in replicas(directory)? {
            regions.entry(replica.region).or_default().push(replica);
        }
    }
    let mut lines = Lines::new(arguments.output);
    let (mut differing_count, mut is_judged) = (0_u64, false);
    for replicas in regions.values() {
        let compared = Compared::of(compare_region(replicas, index)?);
        differing_count += u64::from(!compared.differences.is_empty());
        is_judged |= compared.replicas.len() > 1;
        lines.line(compared.text(), &compared)?;
    }
    lines.finish()?;
    Ok(match (differing_count, is_judged) {
        (0, true) => Ending::Done,
        (0, false) => Ending::Unjudged,
        _ => Ending::Lacking,
    })
}

fn replicas(directory: &Path) -> anyhow::Result<Vec<ReplicaDirectory>> {
    replicas_in(directory).with_context(|| {
        format!(
            "cannot compare {}: give the data directory of a region server",
            directory.display()
        )
    })
}
