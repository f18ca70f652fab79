//! Links from a page of the book to files outside of `docs/`: they become paths.

use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

/// Replaces links that leave `docs/` by their text and the path of the file they lead to. `page` is
/// the path of the page, relative to `docs/`. Code is left as it stands.
pub(crate) fn with_paths_for_outer_links(page: &Path, text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_code = false;
    for line in text.split_inclusive('\n') {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence {
            out.push_str(line);
        } else {
            replace_in_line(page, line, &mut out);
        }
    }
    out
}

fn replace_in_line(page: &Path, line: &str, out: &mut String) {
    let mut rest = line;
    while let Some(middle) = rest.find("](") {
        let close = rest[middle..].find(')').map(|it| middle + it);
        let (Some(start), Some(close)) = (rest[..middle].rfind('['), close) else {
            // No link: what follows may be one.
            let (passed, behind) = rest.split_at(middle + 2);
            out.push_str(passed);
            rest = behind;
            continue;
        };
        let (link_text, target) = (&rest[start + 1..middle], &rest[middle + 2..close]);
        match resolve(page, target) {
            Some(path) if !path.starts_with("docs") => {
                out.push_str(&rest[..start]);
                out.push_str(link_text);
                let path = path.display().to_string();
                // A text that is the path already needs no second one.
                if !link_text.contains(&path) {
                    let _ = write!(out, " (`{path}`)");
                }
            }
            _ => out.push_str(&rest[..=close]),
        }
        rest = &rest[close + 1..];
    }
    out.push_str(rest);
}

/// Path of a link's target, relative to the root; `None` for a link into the page or the web.
fn resolve(page: &Path, target: &str) -> Option<PathBuf> {
    let file = target.split('#').next().unwrap_or_default();
    if file.is_empty() || file.contains("://") || file.starts_with("mailto:") {
        return None;
    }
    let folder = Path::new("docs").join(page.parent().unwrap_or(Path::new("")));
    let mut resolved = PathBuf::new();
    for part in folder.join(file).components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            part => resolved.push(part),
        }
    }
    Some(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(text: &str) -> String {
        with_paths_for_outer_links(Path::new("how-to/a.md"), text)
    }

    /// Links to other pages, into the page and into the web stay, and code does; a link to another
    /// file becomes its path.
    #[test]
    fn outer_links_become_paths() {
        let inner = "See [b](../reference/b.md#c), [d](#d) and [e](https://example.org/).\n";
        assert_eq!(replaced(inner), inner);
        let code = "```sh\n[a](../../b.rs)\n```\n";
        assert_eq!(replaced(code), code);
        let outer = "](x The [table](../../crates/a.rs) and [crates/b.rs](../../crates/b.rs).";
        assert_eq!(
            replaced(outer),
            "](x The table (`crates/a.rs`) and crates/b.rs."
        );
    }
}
