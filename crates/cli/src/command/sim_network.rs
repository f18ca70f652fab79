//! `farleaf sim network`: what the modelled NICs do, beside what is published of such.

use clap::Args;
use comfy_table::CellAlignment;
use farleaf_sim::nic::model::{Measure, NetworkModel};
use farleaf_sim::nic::probe::{ProbeResult, TOLERANCE_PERCENT, self_check};
use farleaf_sim::nic::profile::load_profile;

use crate::failure::{BadArgument, Ending};
use crate::output::{grid, print};

/// Which network.
#[derive(Debug, Args)]
pub(crate) struct NetworkArguments {
    /// The testbed: `rolex`, `xstore`, or a file like those in crates/sim/profiles
    #[arg(long, value_name = "PROFILE", default_value = "rolex")]
    profile: String,

    /// Print the model's parameters, too, each with its source
    #[arg(long)]
    parameters: bool,
}

/// Does it.
pub(crate) fn run(arguments: &NetworkArguments) -> anyhow::Result<Ending> {
    let model = load_profile(&arguments.profile).map_err(|error| BadArgument(error.to_string()))?;
    let results = self_check(&model);
    print(format!("{}\n\n", model.testbed))?;
    if arguments.parameters {
        print(parameters(&model))?;
    }
    print(rates(&results))?;
    let is_near = results.iter().all(ProbeResult::is_near);
    print(verdict(&results, is_near))?;
    Ok(if is_near {
        Ending::Done
    } else {
        Ending::Lacking
    })
}

fn verdict(results: &[ProbeResult], is_near: bool) -> String {
    let published = results.iter().filter_map(|it| it.published.as_ref());
    let (fitted, checks): (Vec<_>, Vec<_>) = published.partition(|it| it.is_fitted);
    let verdict = match (checks.len() + fitted.len(), is_near) {
        (0, _) => "Nothing is published to compare with".to_owned(),
        (_, true) => format!("All are within {TOLERANCE_PERCENT} % of what is published"),
        (_, false) => format!("NOT all are within {TOLERANCE_PERCENT} % of what is published"),
    };
    format!(
        "{verdict}: {} rates that the parameters were set by (fitted), and {} that check them. \
         Latencies are not compared. Everything here is modelled, in virtual time.\n",
        fitted.len(),
        checks.len()
    )
}

fn rates(results: &[ProbeResult]) -> String {
    let millions = |rate: f64| format!("{:.2}", rate / 1e6);
    let rows = results.iter().map(|result| {
        let verb = match result.probe.measure {
            Measure::Read => "READ",
            Measure::CasSpread => "CAS, spread",
            Measure::CasOneWord => "CAS, one word",
        };
        let published = result.published.as_ref();
        let none = || "-".to_owned();
        [
            verb.to_owned(),
            result.probe.size_bytes.to_string(),
            millions(result.rate_per_s),
            result.unloaded_ns.to_string(),
            published.map_or_else(none, |it| millions(it.rate_per_s)),
            result.ratio().map_or_else(none, |it| format!("{it:.2}")),
            published.map_or_else(String::new, |it| {
                let fitted = if it.is_fitted { ", fitted" } else { "" };
                format!("{}{fitted}", it.by)
            }),
        ]
    });
    let header = [
        "verb",
        "bytes",
        "M/s",
        "alone ns",
        "published M/s",
        "ratio",
        "which is",
    ];
    let (left, right) = (CellAlignment::Left, CellAlignment::Right);
    let table = grid(
        header,
        [left, right, right, right, right, right, left],
        rows,
    );
    let sources = results
        .iter()
        .filter_map(|result| result.published.as_ref());
    let sources = sources.map(|it| {
        let (rate, by, source) = (millions(it.rate_per_s), it.by, &it.source);
        format!("  {rate} M/s, {by}: {source}\n")
    });
    let sources: Vec<String> = sources.collect();
    format!(
        "{table}Rates of one memory node, all clients at it. Published figures:\n{}\n",
        sources.concat()
    )
}

fn parameters(model: &NetworkModel) -> String {
    let lines = model
        .parameters()
        .map(|(key, parameter)| format!("{key} = {}\n    {}", parameter.value, parameter.source));
    let lines: Vec<String> = lines.collect();
    format!("{}\n\n", lines.join("\n"))
}
