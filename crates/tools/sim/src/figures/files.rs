//! Names of the files.

/// Name of the page's file.
pub(super) const PAGE_NAME: &str = "index.html";

/// Returns the name of a figure's CSV file.
pub(super) fn csv_name(id: &str) -> String {
    format!("{id}.csv")
}

/// Returns the name of the SVG file of one of its charts.
pub(super) fn chart_name(id: &str, chart: &str) -> String {
    format!("{id}-{}.svg", file_name(chart))
}

/// Returns the title in a form that is valid in a file name.
fn file_name(title: &str) -> String {
    let is_valid = |letter: char| letter.is_ascii_alphanumeric();
    let words = title.split(|letter| !is_valid(letter));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-").to_ascii_lowercase()
}
