//! The list of what a former run wrote into its folder.

use std::collections::BTreeSet;
use std::path::Path;

use super::folder_error::FolderError;

/// The list's name.
pub(super) const LIST_NAME: &str = "files-of-this-run.txt";
/// Its first line, by which it is known.
const LIST_HEAD: &str = "Written by `farleaf figures`; the next run into this folder removes:";

/// The draft of the list of what was there and what will be.
pub(super) const LIST_OF_BOTH: &str = "both.txt";

/// The list as text.
pub(super) fn list_of(names: &BTreeSet<String>) -> String {
    let lines = names.iter().map(|name| format!("{name}\n"));
    format!("{LIST_HEAD}\n{}", lines.collect::<String>())
}

/// The names of a list, none of which leads out of the folder.
pub(super) fn parse(
    list: &str,
    folder: &Path,
    path: &Path,
) -> Result<BTreeSet<String>, FolderError> {
    let mut lines = list.lines();
    if lines.next() != Some(LIST_HEAD) {
        return Err(FolderError::Foreign {
            path: folder.to_owned(),
            found: LIST_NAME.to_owned(),
        });
    }
    match lines.clone().find(|line| !is_written(line)) {
        Some(line) => Err(FolderError::BadList {
            path: path.to_owned(),
            line: line.to_owned(),
        }),
        None => Ok(lines.map(str::to_owned).collect()),
    }
}

/// Whether a run may write a file of this name.
pub(super) fn is_written(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    let is_name = !name.starts_with('.') && name.bytes().all(is_part);
    let mut ends = [".csv", ".svg", ".html"].into_iter();
    is_name && ends.any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a list that names something outside its folder, or what no run writes, removes
    /// nothing.
    #[test]
    fn lists_that_lead_elsewhere_are_refused() {
        for line in [
            "../a.csv",
            "/etc/passwd",
            "sub/a.csv",
            ".a.csv",
            "a.txt",
            "",
        ] {
            let list = format!("{LIST_HEAD}\n{line}\n");
            let parsed = parse(&list, Path::new("f"), Path::new("f/list"));
            let error = parsed.expect_err("refused");
            assert!(
                matches!(error, FolderError::BadList { .. }),
                "{line}: {error}"
            );
        }
    }

    /// Promise: a list is read as it was written, and another text of its name is no list.
    #[test]
    fn lists_are_read_as_written() {
        let names: BTreeSet<String> = ["a.csv", "b-1.svg", "index.html"].map(str::to_owned).into();
        let (folder, path) = (Path::new("f"), Path::new("f/list"));
        assert_eq!(parse(&list_of(&names), folder, path).expect("ours"), names);
        for text in ["", "a.csv\n", &LIST_HEAD[..20]] {
            let error = parse(text, folder, path).expect_err("foreign");
            assert!(matches!(error, FolderError::Foreign { .. }), "{error}");
        }
    }
}
