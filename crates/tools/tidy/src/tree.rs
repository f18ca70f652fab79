//! Source tree as the rules see it: paths from the root with `/`, and their texts.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs, io};

/// File that marks build folders.
const BUILD_FOLDER_MARK: &str = "CACHEDIR.TAG";

/// Extensions of the files whose text a rule reads; of other files only the path is kept.
const READ_EXTENSIONS: &[&str] = &["md", "rs", "toml"];

/// All files of a source tree, in the order of their paths.
#[derive(Debug, Clone, Default)]
pub struct SourceTree {
    files: BTreeMap<String, String>,
}

impl SourceTree {
    /// Reads the tree below `root`, without build output and version control data. Symbolic links
    /// are not followed. A text that is not UTF-8 is an error.
    pub fn read(root: &Path) -> io::Result<SourceTree> {
        let mut tree = SourceTree::default();
        tree.read_folder(root, "")?;
        Ok(tree)
    }

    /// Creates a tree of these paths and texts, for testing a rule.
    pub fn planted<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> SourceTree {
        let own = |(path, text): (&str, &str)| (path.to_owned(), text.to_owned());
        SourceTree {
            files: files.into_iter().map(own).collect(),
        }
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let file_name = entry.file_name();
            let name = file_name.to_string_lossy();
            let (kind, path) = (entry.file_type()?, format!("{prefix}{name}"));
            if kind.is_dir() {
                if name != ".git" && !entry.path().join(BUILD_FOLDER_MARK).exists() {
                    self.read_folder(&entry.path(), &format!("{path}/"))?;
                }
                continue;
            }
            let is_read = extension(&path).is_some_and(|it| READ_EXTENSIONS.contains(&it));
            let text = if is_read && kind.is_file() {
                read_text(&entry.path())?
            } else {
                String::new()
            };
            self.files.insert(path, text);
        }
        Ok(())
    }

    /// Returns the text of a file, if it exists.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns all paths with their texts.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the paths with this extension, with their texts.
    pub fn files_with_extension(&self, wanted: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files()
            .filter(move |(path, _)| extension(path) == Some(wanted))
    }

    /// Returns all paths below a folder, which is given without a closing `/`; "" is the root.
    pub fn paths_below(&self, folder: &str) -> impl Iterator<Item = &str> {
        let prefix = if folder.is_empty() {
            String::new()
        } else {
            format!("{folder}/")
        };
        self.files
            .keys()
            .map(String::as_str)
            .filter(move |path| path.starts_with(&prefix))
    }

    /// Returns the folders of the crates, relative to `crates/`, each with the text of its
    /// manifest.
    ///
    /// A manifest inside another crate (a fuzz target, for example) is not a crate of its own.
    pub fn crates(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter_map(|(path, text)| {
            let folder = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
            let parents = folder.match_indices('/').map(|(end, _)| &folder[..end]);
            let is_inner = parents
                .into_iter()
                .any(|it| self.text(&format!("crates/{it}/Cargo.toml")).is_some());
            (!is_inner).then_some((folder, text))
        })
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let name_file =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::read_to_string(path).map_err(name_file)
}

/// Returns what follows the last dot of the file's name.
pub fn extension(path: &str) -> Option<&str> {
    Path::new(path).extension()?.to_str()
}

/// Violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Path of the file, from the root.
    pub path: String,
    /// Number of the line, counted from 1; 0 for the whole file.
    pub line_number: usize,
    /// Description of the violation, with a fix if it is not obvious.
    pub message: String,
}

impl Violation {
    /// Creates a violation in one line; `line_index` counts from 0.
    pub fn in_line(path: &str, line_index: usize, message: impl Into<String>) -> Violation {
        Violation {
            path: path.to_owned(),
            line_number: line_index + 1,
            message: message.into(),
        }
    }

    /// Creates a violation by the file as a whole.
    pub fn in_file(path: &str, message: impl Into<String>) -> Violation {
        Violation {
            path: path.to_owned(),
            line_number: 0,
            message: message.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line_number {
            0 => write!(formatter, "{}: {}", self.path, self.message),
            line_number => write!(formatter, "{}:{line_number}: {}", self.path, self.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: folders below crates/ with a manifest are crates, except those inside another
    /// crate.
    #[test]
    fn crates_are_folders_with_a_manifest() {
        let tree = SourceTree::planted([
            ("Cargo.toml", "root"),
            ("crates/memory/leaf/Cargo.toml", "leaf"),
            ("crates/memory/leaf/fuzz/Cargo.toml", "fuzz"),
            ("crates/empty/src/lib.rs", ""),
        ]);
        assert_eq!(tree.crates().collect::<Vec<_>>(), [("memory/leaf", "leaf")]);
    }

    /// Promise: a folder's files are those below it, not those of a folder whose name begins alike.
    #[test]
    fn a_folder_does_not_hold_its_namesakes_files() {
        let tree = SourceTree::planted([("docs/a.md", ""), ("docs-old/b.md", "")]);
        assert_eq!(tree.paths_below("docs").collect::<Vec<_>>(), ["docs/a.md"]);
        assert_eq!(tree.paths_below("").count(), 2);
    }
}
