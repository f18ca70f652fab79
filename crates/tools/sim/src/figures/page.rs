//! Page of the figures: one self-contained HTML file.

use farleaf_chart::page::STYLE;
use farleaf_index::LayerKind;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::glossary::GLOSSARY;
use super::measure::{Suite, SuiteResults};
use super::report::FigureReport;
use crate::display::{amount, count};
use crate::nic::probe::Verdict;

/// Drawn figure, as the page shows it.
pub(super) struct DrawnFigure<'a> {
    pub(super) report: &'a FigureReport<'a>,
    pub(super) charts: Vec<String>,
}

/// Returns the page as HTML.
pub(super) fn page(suite: &Suite, measured: &SuiteResults, figures: &[DrawnFigure<'_>]) -> String {
    let experiments = suite.experiments();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (experiments.title) ", modeled" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (experiments.title) }
                (head(suite))
                (network(suite, measured))
                @for figure in figures {
                    (section(suite, figure))
                }
                (glossary())
                (experiment_parameters(suite))
                (network_parameters(suite))
            }
        }
    };
    page.into_string()
}

fn head(suite: &Suite) -> Markup {
    let (size_name, size) = suite.size();
    html! {
        p.modelled {
            strong { "Modelled, not measured on hardware." }
            " The store's real code ran in virtual time over a model of this testbed: "
            (suite.model().testbed) ". The model's parameters, each with its source, are at the "
            "end of this page. Round trips and bytes are counted; they depend on the model "
            "only where clients contend, by how often they try again; throughput and latency do."
        }
        p.note {
            "Size: " (size_name) ". " (count(size.record_count as u64))
            " records are loaded, split by key range over the memory nodes: fewer than the paper "
            "has, see the sizes' source. After "
            (count(size.warm_up_operation_count)) " operations, "
            (count(size.window_operation_count))
            " are measured. " (suite.model().compute.threads_per_node.value)
            " threads on each compute node, where a figure does not vary them; what else holds is "
            "in the parameters of the experiments. Seed " (suite.experiments().seed)
            "; the same seed gives the same page."
        }
    }
}

/// Returns the section on the network: its name, its differences from the profile of that name, and
/// how close it is to published numbers.
fn network(suite: &Suite, measured: &SuiteResults) -> Markup {
    let (profile, check) = (suite.profile(), measured.self_check());
    let name = &profile.model.name;
    html! {
        p.note {
            "Network: profile " strong { (name) } ", "
            @match &profile.file {
                None => { "built in. " }
                Some(file) => { "from file " code { (file.display()) } ". " }
            }
            @match profile.differences().as_deref() {
                None => { "No built-in profile has this name. " }
                Some([]) if profile.file.is_some() => {
                    "It differs in nothing from the built-in profile of this name. "
                }
                Some([]) => {}
                Some(_) => {
                    strong { "It is not the built-in profile of this name" } ": see the table. "
                }
            }
            "Self-check of its READ and CAS rates and base latency: " (check.summary())
            @if check.verdict() != Verdict::Near {
                " " strong {
                    "Throughput and latency on this page rest on a network that nothing confirms."
                }
            }
        }
        @if let Some(differences) = profile.differences().filter(|it| !it.is_empty()) {
            table {
                tr { th { "Changed" } th { "Here" } th { "Built-in " (name) } }
                @for it in &differences {
                    tr { td { (it.key) } td { (it.value) } td { (it.other) } }
                }
            }
        }
        @if !suite.is_papers_testbed() {
            p.modelled {
                strong { "Not the paper's testbed." }
                " The paper's numbers below are of the built-in profile " (suite.experiments().paper_profile)
                "; ours beside them are of other machines. Compare only what does not depend on "
                "the network: geometry, bytes, metadata."
            }
        }
    }
}

fn section(suite: &Suite, drawn: &DrawnFigure<'_>) -> Markup {
    let report = drawn.report;
    html! {
        h2 id=(report.figure.id) { (report.figure.title) " (modeled)" }
        @if !report.figure.note.is_empty() {
            p.note { (report.figure.note) }
        }
        div.charts {
            @for svg in &drawn.charts {
                (PreEscaped(svg))
            }
        }
        @if !report.beside.is_empty() {
            table {
                tr {
                    th { "What" }
                    th { "The paper" @if !suite.is_papers_testbed() { ", on another testbed" } }
                    th { "Ours, modeled or counted" }
                }
                @for beside in &report.beside {
                    tr { td { (beside.what) } td { (beside.paper) } td { (beside.ours) } }
                }
            }
        } @else {
            p.note { "Of this figure we know no number that the paper prints." }
        }
        details {
            summary { "All values (also in " (report.figure.id) ".csv)" }
            (values(report))
        }
    }
}

fn values(report: &FigureReport<'_>) -> Markup {
    html! {
        table {
            tr {
                th { "Chart" } th { "At" } th { "Layer" }
                @for name in &report.header { th { (name) } }
            }
            @for row in &report.rows {
                tr {
                    td { (row.chart) } td { (row.place) } td { (row.layer) }
                    @for cell in &row.cells {
                        @let is_number = cell.replace(',', "").parse::<f64>().is_ok();
                        td.number[is_number].lines[!is_number] { (cell) }
                    }
                }
            }
        }
    }
}

fn glossary() -> Markup {
    html! {
        h2 { "Words" }
        dl {
            @for (word, meaning) in GLOSSARY {
                dt { strong { (word) } }
                dd { (meaning) }
            }
        }
    }
}

fn experiment_parameters(suite: &Suite) -> Markup {
    let experiments = suite.experiments();
    let (_, size) = suite.size();
    let sizes = [
        ("record_count", size.record_count as u64),
        ("warm_up_operation_count", size.warm_up_operation_count),
        ("window_operation_count", size.window_operation_count),
    ];
    html! {
        h2 { "Parameters of the experiments" }
        p.note { "They hold where a figure does not vary them." }
        table {
            tr { th { "Parameter" } th { "Value" } th { "Source" } }
            @for (key, value, source) in experiments.defaults.parameters() {
                tr { td { (key) } td.number { (value) } td { (source) } }
            }
            @for (key, value) in sizes {
                tr {
                    td { (key) }
                    td.number { (count(value)) }
                    td { (experiments.size.source) }
                }
            }
        }
    }
}

/// Returns whether any run depends on the parameter of this key. A memory node's cores answer
/// calls; its background work is one thread, which has a core in every testbed.
fn is_used(suite: &Suite, key: &str) -> bool {
    let experiments = suite.experiments();
    let figures = experiments.figure.iter();
    let layers = figures.flat_map(|figure| figure.layers_or(&experiments.layers));
    let mut layers = layers.copied();
    match key {
        "memory.cores_per_node" | "memory.call_ns" => layers.any(LayerKind::has_calls),
        // Clients read leaves themselves, in layers that have leaves.
        "memory.call_record_ns" => layers.any(|layer| !layer.has_leaves()),
        _ => true,
    }
}

fn network_parameters(suite: &Suite) -> Markup {
    let model = suite.model();
    html! {
        h2 { "Parameters of the model" }
        p.note {
            "Testbed: " (model.testbed) ". NIC: " (model.nic.name) "."
            @if let Some(shared) = &model.shared_machines {
                " Each compute node is the memory node of its number, with its NICs (source: "
                (shared.source) "): what a thread posts to its own machine goes through the NIC "
                "and back, over no link."
            }
        }
        table {
            tr { th { "Parameter" } th { "Value" } th { "Source" } }
            @for (key, parameter) in model.parameters() {
                tr {
                    td {
                        (key)
                        @if !is_used(suite, key) { " (unused: no run depends on it)" }
                    }
                    td.number { (amount(parameter.value)) }
                    td { (parameter.source) }
                }
            }
        }
        p.note {
            "Not modeled: congestion in the switch, packet loss, caches of the NIC for queue "
            "pairs and translations, a limit of outstanding READs per queue pair, the memory "
            "bus, and other work on any processor."
        }
    }
}
