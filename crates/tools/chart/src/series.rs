//! Elements of charts.

use plotters::style::RGBColor;

use crate::shown;

pub(crate) const FONT: &str = "sans-serif";

/// Returns half of the height of a line's mark in the legend, in pixels.
pub(crate) fn mark_height(series: &Series) -> i32 {
    if series.is_dashed { 1 } else { 5 }
}

/// Values under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Color of the series' bars or line.
    pub colour: Colour,
    /// Whether the series' line is thin and dashed, as for a baseline.
    pub is_dashed: bool,
    /// Positions on the horizontal axis, ascending, and the values there.
    pub values: Vec<(f64, f64)>,
}

/// Colors that also differ in brightness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Colour {
    /// Dark.
    Blue,
    /// Bright.
    Orange,
    /// Medium bright.
    Green,
    /// Medium bright, for what is not compared.
    Grey,
    /// Medium bright, far from green.
    Red,
    /// Dark, far from blue.
    Purple,
    /// Bright, far from orange.
    Teal,
    /// Dark, close to orange.
    Brown,
}

impl Colour {
    pub(crate) fn rgb(self) -> RGBColor {
        match self {
            Self::Blue => RGBColor(0x1B, 0x5E, 0x9E),
            Self::Orange => RGBColor(0xE6, 0x8A, 0x1F),
            Self::Green => RGBColor(0x3F, 0x8F, 0x4F),
            Self::Grey => RGBColor(0x77, 0x77, 0x77),
            Self::Teal => RGBColor(0x2A, 0xB7, 0xB0),
            Self::Brown => RGBColor(0x8C, 0x51, 0x0A),
            Self::Red => RGBColor(0xB2, 0x18, 0x2B),
            Self::Purple => RGBColor(0x6A, 0x3D, 0x9A),
        }
    }
}

/// Error of a chart that the plotting library could not draw.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("chart '{title}' cannot be drawn: {what}")]
pub struct ChartError {
    /// Title of the chart.
    pub title: String,
    /// Description of the error.
    pub what: String,
}

/// Formats a number without a zero fraction, and with a comma between thousands.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "plotters passes labels so"
)]
pub(crate) fn number(number: &f64) -> String {
    if *number >= 1000.0 {
        return shown::count(number.round() as u64);
    }
    let shown = format!("{number:.2}");
    shown.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(crate) fn message(error: impl std::fmt::Display) -> String {
    error.to_string()
}
