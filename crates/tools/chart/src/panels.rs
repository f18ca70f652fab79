//! Panels: several charts of lines over one horizontal axis, one below the other, as SVG.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub use crate::series::{ChartError, Colour, Series};
use crate::series::{FONT, mark_height, message, number};

/// Share of a panel's height that stays free above its lines: to separate them from the frame, or
/// for a legend.
const HEADROOM: f64 = 0.08;
const LEGEND_HEADROOM: f64 = 0.45;
/// Width in pixels.
const WIDTH: u32 = 760;
const TITLE_HEIGHT: u32 = 34;
const PANEL_HEIGHT: u32 = 190;
/// Distance from the name of one mark to that of the next, in pixels.
const MARK_NAME_HEIGHT: i32 = 15;
/// Height of the names and the label below the last panel, in pixels.
const X_AXIS_HEIGHT: u32 = 44;
const CAPTION_HEIGHT: u32 = 24;

/// Panels, from top to bottom.
#[derive(Clone, Debug, PartialEq)]
pub struct Panels {
    /// Title above all panels.
    pub title: String,
    /// Caption below all panels, which states what was measured.
    pub caption: String,
    /// Label below the horizontal axis, with its unit.
    pub x_label: String,
    /// List of the panels.
    pub panels: Vec<Panel>,
    /// Vertical lines through all panels.
    pub marks: Vec<Mark>,
}

/// One panel.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Label beside the vertical axis, with the unit.
    pub y_label: String,
    /// Lower end of the vertical axis.
    pub y_from: f64,
    /// Least upper end of the vertical axis, which extends to the highest value.
    pub y_to: f64,
    /// Lines of the panel. A panel with several lines has a legend, unless the panel above has the
    /// same.
    pub series: Vec<Series>,
}

/// Event at one position of the horizontal axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Position of the event.
    pub x: f64,
    /// Name of the event, in one to three words.
    pub name: String,
}

/// Draws the panels as SVG.
///
/// # Errors
/// The plotting library rejects them.
pub fn draw(panels: &Panels) -> Result<String, ChartError> {
    let mut svg = String::new();
    draw_into(&mut svg, panels).map_err(|what| ChartError {
        title: panels.title.clone(),
        what,
    })?;
    Ok(svg)
}

fn draw_into(svg: &mut String, of: &Panels) -> Result<(), String> {
    let below = X_AXIS_HEIGHT + CAPTION_HEIGHT;
    let height = TITLE_HEIGHT + PANEL_HEIGHT * of.panels.len() as u32 + below;
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE).map_err(message)?;
    let centred = |size, ink: f64| {
        let style = (FONT, size).into_font().color(&BLACK.mix(ink));
        style.pos(Pos::new(HPos::Center, VPos::Top))
    };
    let middle = WIDTH as i32 / 2;
    let caption_at = (middle, (height - CAPTION_HEIGHT) as i32 + 4);
    root.draw_text(&of.title, &centred(16, 1.0), (middle, 10))
        .map_err(message)?;
    root.draw_text(&of.caption, &centred(12, 0.65), caption_at)
        .map_err(message)?;
    let x_to = x_end(of);
    let (_, mut rest) = root.split_vertically(TITLE_HEIGHT);
    for (index, panel) in of.panels.iter().enumerate() {
        let is_last = index + 1 == of.panels.len();
        let above = index.checked_sub(1).map(|above| &of.panels[above]);
        let place = PanelPosition {
            x_to,
            is_first: index == 0,
            is_last,
            has_legend: panel.series.len() > 1 && above.is_none_or(|it| !is_alike(it, panel)),
        };
        let x_axis = if is_last { X_AXIS_HEIGHT } else { 0 };
        let (area, others) = rest.split_vertically(PANEL_HEIGHT + x_axis);
        draw_panel(&area, of, panel, place)?;
        rest = others;
    }
    root.present().map_err(message)
}

/// Position of a panel among the others, and what is drawn in it besides its lines.
#[derive(Clone, Copy)]
struct PanelPosition {
    x_to: f64,
    is_first: bool,
    is_last: bool,
    has_legend: bool,
}

/// Returns whether the legend of one panel also fits the lines of the other.
fn is_alike(one: &Panel, other: &Panel) -> bool {
    let legend = |panel: &Panel| -> Vec<(String, Colour)> {
        let series = panel.series.iter();
        series.map(|it| (it.name.clone(), it.colour)).collect()
    };
    legend(one) == legend(other)
}

/// Drawing area of a panel.
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Context<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn draw_panel(
    area: &Area<'_>,
    of: &Panels,
    panel: &Panel,
    place: PanelPosition,
) -> Result<(), String> {
    let values = panel.series.iter().flat_map(|series| &series.values);
    let highest = values.map(|(_, value)| *value).fold(panel.y_to, f64::max);
    let headroom = if place.has_legend {
        LEGEND_HEADROOM
    } else {
        HEADROOM
    };
    let y_to = panel.y_from + ((highest - panel.y_from) * (1.0 + headroom)).max(1e-9);
    let mut builder = ChartBuilder::on(area);
    builder.margin_top(8).margin_bottom(6);
    builder.margin_left(10).margin_right(24);
    builder
        .x_label_area_size(if place.is_last { X_AXIS_HEIGHT } else { 0 })
        .y_label_area_size(76);
    let context = builder.build_cartesian_2d(0.0..place.x_to, panel.y_from..y_to);
    let mut context = context.map_err(message)?;
    let mut mesh = context.configure_mesh();
    mesh.y_desc(&panel.y_label)
        .axis_desc_style((FONT, 13))
        .label_style((FONT, 12))
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .x_labels(12)
        .y_labels(5);
    if place.is_last {
        mesh.x_desc(&of.x_label);
    }
    mesh.draw().map_err(message)?;
    draw_marks(&mut context, &of.marks, panel.y_from, y_to, place)?;
    draw_lines(&mut context, panel)?;
    if !place.has_legend {
        return Ok(());
    }
    // On the side without names of marks.
    let is_left = |mark: &Mark| mark.x < place.x_to / 2.0;
    let position = if of.marks.iter().all(is_left) {
        SeriesLabelPosition::UpperRight
    } else {
        SeriesLabelPosition::UpperLeft
    };
    let mut labels = context.configure_series_labels();
    labels
        .position(position)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 12));
    labels.draw().map_err(message)
}

/// Draws the marks; their names are in the first panel only.
fn draw_marks(
    context: &mut Context<'_, '_>,
    marks: &[Mark],
    y_from: f64,
    y_to: f64,
    place: PanelPosition,
) -> Result<(), String> {
    let ink = BLACK.mix(0.55);
    for (index, mark) in marks.iter().enumerate() {
        let ends = [(mark.x, y_from), (mark.x, y_to)];
        let line = DashedLineSeries::new(ends, 5, 4, ink.stroke_width(1));
        context.draw_series(line).map_err(message)?;
        if place.is_first {
            let style = (FONT, 12).into_font().color(&ink);
            // On the side with more space.
            let (side, aside) = if mark.x < place.x_to / 2.0 {
                (HPos::Left, 5)
            } else {
                (HPos::Right, -5)
            };
            let style = style.pos(Pos::new(side, VPos::Top));
            let below = 3 + MARK_NAME_HEIGHT * index as i32;
            let (x, y) = context.backend_coord(&(mark.x, y_to));
            let area = context.plotting_area().strip_coord_spec();
            let (left, top) = area.get_base_pixel();
            area.draw_text(&mark.name, &style, (x - left + aside, y - top + below))
                .map_err(message)?;
        }
    }
    Ok(())
}

fn draw_lines(context: &mut Context<'_, '_>, panel: &Panel) -> Result<(), String> {
    for series in &panel.series {
        let colour = series.colour.rgb();
        let values = series.values.iter().copied();
        let drawn = if series.is_dashed {
            context.draw_series(DashedLineSeries::new(values, 4, 3, colour.stroke_width(1)))
        } else {
            context.draw_series(LineSeries::new(values, colour.stroke_width(2)))
        };
        let high = mark_height(series);
        drawn
            .map_err(message)?
            .label(&series.name)
            .legend(move |(x, y)| {
                Rectangle::new([(x, y - high), (x + 14, y + high)], colour.filled())
            });
    }
    Ok(())
}

/// Returns the common end of the horizontal axis: the last position of any value.
fn x_end(of: &Panels) -> f64 {
    let series = of.panels.iter().flat_map(|panel| &panel.series);
    let places = series.flat_map(|it| it.values.iter().map(|(x, _)| *x));
    let last = places.chain(of.marks.iter().map(|mark| mark.x));
    let last = last.fold(0.0, f64::max);
    if last > 0.0 { last } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(y_label: &str, names: &[&str], values: &[(f64, f64)]) -> Panel {
        Panel {
            y_label: y_label.to_owned(),
            y_from: 0.0,
            y_to: 1.0,
            series: names
                .iter()
                .map(|name| Series {
                    name: (*name).to_owned(),
                    colour: Colour::Blue,
                    is_dashed: false,
                    values: values.to_vec(),
                })
                .collect(),
        }
    }

    fn lines_of(svg: &str) -> Vec<&str> {
        svg.lines().map(str::trim).collect()
    }

    /// Promise: title, caption, axes and marks are named exactly once; only a panel with several
    /// lines has a legend, unless the one above has the same.
    #[test]
    fn everything_is_named_once() {
        let values = [(1.0, 0.5), (2.0, 3.0), (3.0, 1.0)];
        let of = Panels {
            title: "title".to_owned(),
            caption: "caption".to_owned(),
            x_label: "time (s)".to_owned(),
            panels: vec![
                panel("upper", &["reads", "writes"], &values),
                panel("middle", &["reads", "writes"], &values),
                panel("lower", &["alone"], &values),
            ],
            marks: [1.0, 2.5]
                .map(|x| Mark {
                    x,
                    name: format!("mark at {x}"),
                })
                .into(),
        };
        let svg = draw(&of).expect("drawn");
        let lines = lines_of(&svg);
        for text in [
            "title",
            "caption",
            "time (s)",
            "upper",
            "middle",
            "lower",
            "reads",
            "writes",
            "mark at 1",
            "mark at 2.5",
        ] {
            let count = lines.iter().filter(|line| **line == text).count();
            assert_eq!(count, 1, "{text}");
        }
        assert!(!lines.contains(&"alone"));
    }

    /// Promise: a dashed line is drawn in pieces, and named like any other.
    #[test]
    fn a_dashed_line_is_told_from_a_whole_one() {
        let drawn = |is_dashed| {
            let mut of = panel("y", &["one", "two"], &[(0.0, 1.0), (9.0, 1.0)]);
            of.series[1].is_dashed = is_dashed;
            let of = Panels {
                title: "t".to_owned(),
                caption: String::new(),
                x_label: "x".to_owned(),
                panels: vec![of],
                marks: Vec::new(),
            };
            draw(&of).expect("drawn")
        };
        let (whole, dashed) = (drawn(false), drawn(true));
        let lines = |svg: &str| svg.matches("<polyline").count();
        assert!(lines(&dashed) > lines(&whole) + 20);
        assert!(lines_of(&dashed).contains(&"two"));
    }

    /// Promise: panels without any value are drawn, too.
    #[test]
    fn nothing_is_drawn_as_nothing() {
        let of = Panels {
            title: "t".to_owned(),
            caption: String::new(),
            x_label: "x".to_owned(),
            panels: vec![panel("y", &["a", "b"], &[]), panel("z", &[], &[])],
            marks: Vec::new(),
        };
        assert!(draw(&of).is_ok());
    }
}
