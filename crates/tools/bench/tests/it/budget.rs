//! Tests of small sweeps over metadata budgets.

use farleaf_bench::budget::{BudgetConfig, BudgetReport, CSV_NAME, SVG_NAME, files, run};
use farleaf_bench::runner::{BenchError, FabricKind, RunConfig, Silent};

fn small(percents: &[f64]) -> BudgetConfig {
    BudgetConfig {
        percents: percents.to_vec(),
        table: RunConfig {
            fabric: FabricKind::Mem,
            records: 100_000,
            operations: 20_000,
            // Many models.
            epsilon_keys: 2.0,
            ..BudgetConfig::default().table
        },
        ..BudgetConfig::default()
    }
}

fn run_right(config: &BudgetConfig) -> BudgetReport {
    let report = run(config, &Silent).expect("a sweep");
    assert!(report.is_right(), "{:?}", report.points);
    report
}

/// Promise: budgets hold, and less memory never makes gets cheaper. With far more than all, a
/// get costs the same as without a budget, and with almost nothing it is still correct.
#[test]
fn gets_get_dearer_as_budgets_shrink() {
    let percents = [200.0, 60.0, 20.0, 2.0];
    let report = run_right(&small(&percents));
    assert_eq!(report.points.len(), 2 * (1 + percents.len()));
    for points in report.points.chunks(1 + percents.len()) {
        let none = &points[0];
        assert_eq!((none.percent, none.held_bytes), (None, report.full_bytes));
        for point in &points[1..] {
            assert!(Some(point.held_bytes) <= point.budget_bytes, "{point:?}");
        }
        for pair in points.windows(2) {
            let trips = (pair[0].mean.round_trips, pair[1].mean.round_trips);
            assert!(trips.1 >= trips.0 * 0.99, "{pair:?}");
        }
        assert!(
            points[1].mean.round_trips < none.mean.round_trips + 0.05,
            "{points:?}"
        );
        let least = points.last().expect("there are some");
        assert!(
            least.mean.round_trips > 1.5 && least.mean.model_pages > 0.5,
            "{least:?}"
        );
    }
}

/// Promise: the files have a line for each point, in the order of the header, and a chart of both
/// distributions.
#[test]
fn files_hold_all_points() {
    let report = run_right(&small(&[50.0, 10.0]));
    let files = files(&report).expect("files");
    let [(csv_name, csv), (svg_name, svg)] = &files[..] else {
        panic!("{files:?}");
    };
    assert_eq!((csv_name.as_str(), svg_name.as_str()), (CSV_NAME, SVG_NAME));
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + report.points.len());
    assert!(
        lines.iter().all(|line| line.len() == lines[0].len()),
        "{csv}"
    );
    let budget = lines[0].iter().position(|name| *name == "budget_percent");
    let budgets: Vec<&str> = lines[1..]
        .iter()
        .map(|line| line[budget.expect("a column")])
        .collect();
    assert_eq!(budgets, ["", "50", "10", "", "50", "10"]);
    for name in [
        "uniform",
        "zipfian",
        "round trips per get",
        "metadata budget (% of all)",
    ] {
        assert!(svg.contains(name), "{name}");
    }
}

/// Promise: a budget that is too small for any table is refused by name, with the least one.
#[test]
fn a_budget_below_the_least_is_refused() {
    let error = run(&small(&[0.1]), &Silent).expect_err("too small");
    assert!(
        matches!(
            &error,
            BenchError::BadOption {
                option: "budgets",
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("at least 1024 bytes"), "{error}");
}
