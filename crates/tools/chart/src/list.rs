//! List of the files that a run wrote into its folder.

use std::collections::BTreeSet;
use std::path::Path;

use crate::folder::FolderError;

/// Name of the list.
pub(super) const LIST_NAME: &str = "files-of-this-run.txt";
/// Returns the first line of a list, which identifies it: a command accepts only its own folders.
fn list_head(writer: &str) -> String {
    format!("Written by `{writer}`; the next run into this folder removes:")
}

/// Name of the draft of the list with previous and new files.
pub(super) const LIST_OF_BOTH: &str = "both.txt";

/// Returns the list as text.
pub(super) fn list_of(writer: &str, names: &BTreeSet<String>) -> String {
    let lines = names.iter().map(|name| format!("{name}\n"));
    format!("{}\n{}", list_head(writer), lines.collect::<String>())
}

/// Parses the names of a list; refuses names outside the folder.
pub(super) fn parse(
    writer: &'static str,
    list: &str,
    folder: &Path,
    path: &Path,
) -> Result<BTreeSet<String>, FolderError> {
    let mut lines = list.lines();
    if lines.next() != Some(&list_head(writer)) {
        return Err(FolderError::Foreign {
            writer,
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

/// Returns whether a run may write a file of this name.
pub(super) fn is_written(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    let is_name = !name.starts_with('.') && name.bytes().all(is_part);
    let mut ends = [".csv", ".svg", ".html"].into_iter();
    is_name && ends.any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: &str = "farleaf figures";

    /// Promise: a list that names a file outside its folder, or one that no run writes, removes
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
            let list = format!("{}\n{line}\n", list_head(WRITER));
            let parsed = parse(WRITER, &list, Path::new("f"), Path::new("f/list"));
            let error = parsed.expect_err("refused");
            assert!(
                matches!(error, FolderError::BadList { .. }),
                "{line}: {error}"
            );
        }
    }

    /// Promise: a list parses back. Another text under its name, or another command's list, is not
    /// a list.
    #[test]
    fn lists_are_read_as_written() {
        let names: BTreeSet<String> = ["a.csv", "b-1.svg", "index.html"].map(str::to_owned).into();
        let (folder, path) = (Path::new("f"), Path::new("f/list"));
        let list = list_of(WRITER, &names);
        let parsed = parse(WRITER, &list, folder, path);
        assert_eq!(parsed.expect("ours"), names);
        let of_another = list_of("farleaf bench timeline", &names);
        for text in ["", "a.csv\n", &list[..20], &of_another] {
            let error = parse(WRITER, text, folder, path).expect_err("foreign");
            assert!(matches!(error, FolderError::Foreign { .. }), "{error}");
        }
    }
}
