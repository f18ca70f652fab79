//! Progress bars: on stderr, and only if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Returns a bar that counts bytes of a file; without a known length it only counts.
pub(crate) fn bytes_bar(what: &'static str, length_bytes: Option<u64>) -> ProgressBar {
    let template = if length_bytes.is_some() {
        "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}"
    } else {
        "{msg} {spinner} {binary_bytes}"
    };
    bar(what, length_bytes, template)
}

/// Returns a bar that counts items.
pub(crate) fn count_bar(what: impl Into<String>, count: u64) -> ProgressBar {
    bar(
        what,
        Some(count),
        "{msg} {wide_bar} {human_pos} of {human_len}, {eta} left",
    )
}

fn bar(what: impl Into<String>, length: Option<u64>, template: &str) -> ProgressBar {
    // The default target is stderr, hidden when that is not a terminal.
    let bar = ProgressBar::no_length();
    if let Some(length) = length {
        bar.set_length(length);
    }
    // The templates are constants; the default one is a fallback that shows progress, too.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what.into());
    bar
}
