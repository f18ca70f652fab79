//! `farleaf sim network`: compares the modeled NICs with published measurements.

use clap::Args;
use comfy_table::CellAlignment;
use farleaf_sim::nic::model::{Measure, NetworkModel, NumberOrigin};
use farleaf_sim::nic::probe::{PROBE_COUNT, ProbeResult, SelfCheck, Verdict, self_check};
use farleaf_sim::nic::profile::{Profile, load_profile};

use crate::failure::{BadArgument, Ending};
use crate::log::say;
use crate::output::{grid, print};
use crate::progress::count_bar;

/// Network to check.
#[derive(Debug, Args)]
pub(crate) struct NetworkArguments {
    /// Testbed: `rolex`, `rf-tree`, `xstore`, or a file like those in crates/tools/sim/profiles
    #[arg(long, value_name = "PROFILE", default_value = "rolex")]
    profile: String,

    /// Print the model's parameters, too, each with its source
    #[arg(long)]
    parameters: bool,
}

/// Runs `farleaf sim network`.
pub(crate) fn run(arguments: &NetworkArguments) -> anyhow::Result<Ending> {
    let profile =
        load_profile(&arguments.profile).map_err(|error| BadArgument(error.to_string()))?;
    let bar = count_bar("probes", PROBE_COUNT as u64);
    // Shows the bar before the first probe is done, which may take a while.
    bar.tick();
    let check = self_check(&profile.model, &|| bar.inc(1));
    bar.finish_and_clear();
    let testbed = &profile.model.testbed;
    print(format!("Profile {}: {testbed}\n\n", profile_text(&profile)))?;
    if arguments.parameters {
        print(parameters(&profile.model))?;
    }
    print(figures(&check.results))?;
    print(format!(
        "{} Everything here is modeled, in virtual time.\n",
        check.summary()
    ))?;
    warn_if_far(&check);
    Ok(match check.verdict() {
        Verdict::Near => Ending::Done,
        Verdict::Far => Ending::Lacking,
        Verdict::NothingToCompare => Ending::Unjudged,
    })
}

/// Describes a profile by its name, with its differences from the built-in one of this name.
pub(super) fn profile_text(profile: &Profile) -> String {
    let label = profile.label();
    match &profile.file {
        None => label,
        Some(file) => format!("{label}, from {}", file.display()),
    }
}

/// Warns that the results rest on a network that differs much from published measurements. The
/// warning goes to stderr, where it is seen even if stdout is redirected.
pub(super) fn warn_if_far(check: &SelfCheck) {
    if check.verdict() == Verdict::Far {
        say(format_args!(
            "warning: the modelled network differs much from published measurements, so throughput \
             and latency are not meaningful; see `farleaf sim network` with this profile"
        ));
    }
}

fn figures(results: &[ProbeResult]) -> String {
    let millions = |rate: f64| format!("{:.2}", rate / 1e6);
    let rows = results.iter().map(|result| {
        let verb = match result.probe.measure {
            Measure::Read => "READ",
            Measure::CasSpread => "CAS, spread",
            Measure::CasOneWord => "CAS, one word",
        };
        let published = result.published.as_ref();
        let latency = result.published_latency.as_ref();
        let none = || "-".to_owned();
        let ratio = |ratio: Option<f64>| ratio.map_or_else(none, |it| format!("{it:.2}"));
        [
            verb.to_owned(),
            result.probe.size_bytes.to_string(),
            millions(result.rate_per_s),
            published.map_or_else(none, |it| millions(it.rate_per_s)),
            ratio(result.ratio()),
            published.map_or_else(String::new, |it| origin_text(it.by, it.is_fitted)),
            result.unloaded_ns.to_string(),
            latency.map_or_else(none, |it| it.latency_ns.to_string()),
            ratio(result.latency_ratio()),
            latency.map_or_else(String::new, |it| origin_text(it.by, it.is_fitted)),
        ]
    });
    let header = [
        "verb",
        "bytes",
        "M/s",
        "published",
        "ratio",
        "which is",
        "alone ns",
        "published",
        "ratio",
        "which is",
    ];
    let (left, right) = (CellAlignment::Left, CellAlignment::Right);
    let table = grid(
        header,
        [
            left, right, right, right, right, left, right, right, right, left,
        ],
        rows,
    );
    let rates = results.iter().filter_map(|it| it.published.as_ref());
    let rates = rates.map(|it| {
        let (rate, by, source) = (millions(it.rate_per_s), it.by, &it.source);
        format!("  {rate} M/s, {by}: {source}\n")
    });
    let latencies = results
        .iter()
        .filter_map(|it| it.published_latency.as_ref());
    let latencies = latencies.map(|it| {
        let (latency, by, source) = (it.latency_ns, it.by, &it.source);
        format!("  {latency} ns, {by}: {source}\n")
    });
    let sources: Vec<String> = rates.chain(latencies).collect();
    let sources = if sources.is_empty() {
        "  none\n".to_owned()
    } else {
        sources.concat()
    };
    format!(
        "{table}Rates are those of one memory node used by all clients; latencies are those of a \
         single verb. Published figures:\n{sources}\n"
    )
}

fn origin_text(by: NumberOrigin, is_fitted: bool) -> String {
    let fitted = if is_fitted { ", fitted" } else { "" };
    format!("{by}{fitted}")
}

fn parameters(model: &NetworkModel) -> String {
    let lines = model
        .parameters()
        .map(|(key, parameter)| format!("{key} = {}\n    {}", parameter.value, parameter.source));
    let lines: Vec<String> = lines.collect();
    format!("{}\n\n", lines.join("\n"))
}
