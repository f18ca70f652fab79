//! Markdown as far as the rules read it: what is code, and what is not.

/// Lines of a Markdown text outside of fenced code blocks, each with its index.
pub fn lines_outside_code(text: &str) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let mut fence: Option<&str> = None;
    for (line_index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| start.starts_with(mark));
        if mark.is_some() && (fence.is_none() || fence == mark) {
            fence = if fence.is_some() { None } else { mark };
        } else if fence.is_none() {
            lines.push((line_index, line));
        }
    }
    lines
}

/// Returns the line with blanks in place of code spans.
pub fn without_code_spans(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    // An unpaired last backtick opens no code span.
    let paired_count = parts.len() - 1 - (parts.len() - 1) % 2;
    let keep = |(index, part): (usize, &&str)| {
        let is_code = index % 2 == 1 && index < paired_count;
        if is_code {
            " ".to_owned()
        } else {
            (*part).to_owned()
        }
    };
    parts.iter().enumerate().map(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fence ends at the same mark only, and an unpaired backtick opens no code span.
    #[test]
    fn code_is_left_out() {
        let text = "a\n```sh\nb\n~~~\nc\n```\nd\n~~~\ne\n~~~\n";
        assert_eq!(lines_outside_code(text), [(0, "a"), (6, "d")]);
        assert_eq!(without_code_spans("a `b` c `d"), "a   c d");
    }
}
