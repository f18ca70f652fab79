//! Chart of bars or lines, drawn as SVG.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub use crate::series::{ChartError, Colour, Series};
use crate::series::{FONT, message, number};

/// Size of a chart in pixels.
const SIZE: (u32, u32) = (640, 400);
/// Share of a category's width that its bars take together.
const BARS_SHARE: f64 = 0.76;

/// Values of each series at each position.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Title of the chart among those of its figure.
    pub title: String,
    /// Label below the horizontal axis.
    pub x_label: String,
    /// Label beside the vertical axis, with its unit.
    pub y_label: String,
    /// Names under the bars; if empty, positions are numbers, and the chart has lines.
    pub categories: Vec<String>,
    /// Values of the chart. With categories, positions are their indexes.
    pub series: Vec<Series>,
}

/// Draws a chart as SVG, with a caption below it.
///
/// # Errors
/// The plotting library rejects it.
pub fn draw(chart: &Chart, title: &str, caption: &str) -> Result<String, ChartError> {
    let mut svg = String::new();
    draw_into(&mut svg, chart, title, caption).map_err(|what| ChartError {
        title: title.to_owned(),
        what,
    })?;
    Ok(svg)
}

fn draw_into(svg: &mut String, chart: &Chart, title: &str, caption: &str) -> Result<(), String> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(message)?;
    let (upper, lower) = root.split_vertically(SIZE.1 - 24);
    let style = (FONT, 12).into_font().color(&BLACK.mix(0.65));
    let style = style.pos(Pos::new(HPos::Center, VPos::Top));
    let middle = (SIZE.0 as i32 / 2, 4);
    lower.draw_text(caption, &style, middle).map_err(message)?;
    let (from, to) = x_range(chart);
    let values = chart.series.iter().flat_map(|series| &series.values);
    let highest = values.map(|(_, value)| *value).fold(0.0, f64::max);
    let mut builder = ChartBuilder::on(&upper);
    builder.caption(title, (FONT, 16)).margin(8);
    builder.margin_right(20);
    builder.x_label_area_size(44).y_label_area_size(62);
    // Space for the legend above everything.
    let context = builder.build_cartesian_2d(from..to, 0.0..(highest * 1.3).max(1e-9));
    let mut context = context.map_err(message)?;
    draw_axes(&mut context, chart)?;
    draw_series(&mut context, chart)?;
    let mut labels = context.configure_series_labels();
    labels
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 13));
    labels.draw().map_err(message)?;
    root.present().map_err(message)
}

/// Drawing context of a chart.
type Context<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn draw_axes(context: &mut Context<'_, '_>, chart: &Chart) -> Result<(), String> {
    let names = &chart.categories;
    let name = |x: &f64| {
        let nearest = x.round();
        let is_place = (x - nearest).abs() < 0.01 && *x > -0.5;
        let name = names.get(nearest.max(0.0) as usize);
        name.filter(|_| is_place).cloned().unwrap_or_default()
    };
    let mut mesh = context.configure_mesh();
    mesh.x_desc(&chart.x_label)
        .y_desc(&chart.y_label)
        .axis_desc_style((FONT, 13))
        .label_style((FONT, 12))
        .light_line_style(TRANSPARENT)
        .y_label_formatter(&number)
        .y_labels(8);
    if names.is_empty() {
        mesh.x_label_formatter(&number);
        return mesh.draw().map_err(message);
    }
    mesh.disable_x_mesh()
        .x_labels(2 * names.len() + 1)
        .x_label_formatter(&name);
    mesh.draw().map_err(message)
}

fn draw_series(context: &mut Context<'_, '_>, chart: &Chart) -> Result<(), String> {
    let width = BARS_SHARE / chart.series.len().max(1) as f64;
    for (index, series) in chart.series.iter().enumerate() {
        let colour = series.colour.rgb();
        let values = &series.values;
        let drawn = if chart.categories.is_empty() {
            let dots = values.iter().map(|at| Circle::new(*at, 3, colour.filled()));
            context.draw_series(dots).map_err(message)?;
            let values = values.iter().copied();
            if series.is_dashed {
                context.draw_series(DashedLineSeries::new(values, 4, 3, colour.stroke_width(1)))
            } else {
                context.draw_series(LineSeries::new(values, colour.stroke_width(2)))
            }
        } else {
            let bars = values.iter().map(|(x, value)| {
                let left = x - BARS_SHARE / 2.0 + width * index as f64;
                Rectangle::new(
                    [(left, 0.0), (left + width * 0.94, *value)],
                    colour.filled(),
                )
            });
            context.draw_series(bars)
        };
        drawn
            .map_err(message)?
            .label(&series.name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    Ok(())
}

/// Returns the range of the horizontal axis. Bars have a slot each; lines begin at 0 if their first
/// number is near it.
fn x_range(chart: &Chart) -> (f64, f64) {
    if !chart.categories.is_empty() {
        return (-0.5, chart.categories.len() as f64 - 0.5);
    }
    let places = chart.series.iter().flat_map(|series| &series.values);
    let highest = places.map(|(x, _)| *x).fold(0.0, f64::max);
    (0.0, if highest > 0.0 { highest * 1.03 } else { 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(categories: &[&str], values: &[(f64, f64)]) -> Chart {
        Chart {
            title: "t".to_owned(),
            x_label: "workload".to_owned(),
            y_label: "million operations a second".to_owned(),
            categories: categories.iter().map(|name| (*name).to_owned()).collect(),
            series: vec![Series {
                name: "learned".to_owned(),
                colour: Colour::Blue,
                is_dashed: false,
                values: values.to_vec(),
            }],
        }
    }

    /// Promise: every category is under its bar exactly once, and the axes have labels.
    #[test]
    fn categories_and_axes_are_named() {
        let of = chart(&["Aa", "Bb", "Cc"], &[(0.0, 3.0), (1.0, 5.0), (2.0, 1.0)]);
        let svg = draw(&of, "title", "modelled").expect("drawn");
        let labels: Vec<&str> = svg.lines().map(str::trim).collect();
        for text in ["Aa", "Bb", "Cc", "workload", "learned", "title", "modelled"] {
            let count = labels.iter().filter(|line| **line == text).count();
            assert_eq!(count, 1, "{text}");
        }
    }

    /// Promise: a chart of zeros is drawn, too.
    #[test]
    fn zeros_are_drawn() {
        assert!(draw(&chart(&[], &[(0.0, 0.0)]), "t", "c").is_ok());
        assert!(draw(&chart(&["A"], &[(0.0, 0.0)]), "t", "c").is_ok());
    }
}
