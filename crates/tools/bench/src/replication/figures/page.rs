//! Page of the figures: one self-contained HTML file.

use farleaf_chart::page::STYLE;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::drawn::Figure;
use super::suite::{GROWTH_FACTOR, MIXES, Suite, parsed};
use crate::replication::ratios::{Ratio, ratios};
use crate::replication::rows::ReplicationRow;
use crate::report::quantity::count;

/// Figure with its charts as SVG.
pub(super) struct DrawnFigure {
    pub(super) figure: Figure,
    pub(super) charts: Vec<String>,
}

/// Returns the page as HTML.
pub(super) fn page(suite: &Suite, rows: &[ReplicationRow], figures: &[DrawnFigure]) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "Talos: trees sent, trees built, no replication" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Talos: trees sent, trees built, no replication" }
                (head(suite))
                (beside(rows))
                @for drawn in figures {
                    (section(drawn))
                }
            }
        }
    };
    page.into_string()
}

fn head(suite: &Suite) -> Markup {
    let (size, base) = (suite.size(), suite.base());
    html! {
        p.modelled {
            strong { "Real runs on this machine, not modeled, and not on the paper's testbed." }
            " Two servers, each primary of " (size.regions) " regions and backup of as many, and "
            (base.threads) " threads of clients in one process, on "
            (Suite::processor_count()) " processors that all of them share, with "
            "everything else that ran meanwhile. Verbs go to " (base.fabric)
            " memory: the processor that posts them executes them, in a NIC's place. Ratios are "
            "what can be compared."
        }
        p.note {
            "These are the subjects of figures 5 to 10 of the paper; which one has which number "
            "there is not said here. Size: " (size.name) ". " (count(size.records))
            " records are loaded; each workload after that has " (count(size.operations))
            " operations, on what the ones before have left. L0 of " (count(size.l0_entries))
            " entries, growth factor " (GROWTH_FACTOR) " where it does not vary; puts promise "
            (base.promise) ". Kinds: " strong { "none" } ", no backups; " strong { "sent" }
            ", trees are sent to a backup (Send-Index); " strong { "built" }
            ", it makes them itself (Build-Index). Every get was checked, and records of each "
            "promoted backup beside its primary. Commit " (base.commit) "."
        }
    }
}

/// Returns a table that compares trees sent with trees built, for each mix, with the paper's
/// numbers.
fn beside(rows: &[ReplicationRow]) -> Markup {
    let of_mix = |mix: &str| -> Vec<Ratio> {
        let mix = parsed(mix).to_string();
        let own = rows
            .iter()
            .filter(|row| row.value_size == mix && row.growth_factor == GROWTH_FACTOR);
        ratios(&own.cloned().collect::<Vec<_>>())
    };
    let all = MIXES.map(of_mix);
    let mut names = Vec::new();
    for ratio in all.iter().flatten() {
        let name = (ratio.phase, ratio.what, ratio.paper);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.sort_by_key(|(phase, _, _)| *phase);
    html! {
        h2 { "Trees sent beside trees built" }
        p.note {
            "The paper's ranges are over its workloads and mixes, of cycles where this page has "
            "processor time."
        }
        table {
            tr {
                th { "Phase" } th { "What" } th { "The paper" }
                @for mix in MIXES { th { (mix) } }
            }
            @for (phase, what, (from, to)) in names {
                tr {
                    td { (phase) } td { (what) }
                    td.number { (format!("{from:.1} to {to:.1}")) }
                    @for ratios in &all {
                        @let ratio = ratios.iter().find(|it| it.phase == phase && it.what == what);
                        td.number { @if let Some(it) = ratio { (format!("{:.2}", it.ratio)) } }
                    }
                }
            }
        }
    }
}

fn section(drawn: &DrawnFigure) -> Markup {
    let figure = &drawn.figure;
    html! {
        h2 id=(figure.id) { (figure.title) " (measured on this machine)" }
        p.note { (figure.note) }
        div.charts {
            @for svg in &drawn.charts {
                (PreEscaped(svg))
            }
        }
        details {
            summary { "All values (also in " (figure.csv_name()) ")" }
            table {
                tr { th { "Chart" } th { "At" } th { "Kind" } th { "Value" } }
                @for [chart, place, kind, value] in &figure.values {
                    tr { td { (chart) } td { (place) } td { (kind) } td.number { (value) } }
                }
            }
        }
    }
}
