//! The folder that figures are written into, and the list of what a former run wrote there.
//!
//! A folder is taken if it is empty or has that list. Then exactly the files of the list are
//! removed and new ones made; whatever else lies there is not touched, and never overwritten.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The list's name.
const LIST_NAME: &str = "files-of-this-run.txt";
/// Its first line, by which it is known.
const LIST_HEAD: &str = "Written by `farleaf figures`; the next run into this folder removes:";

/// Why a folder is not taken, or not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// It is somebody else's.
    #[error(
        "folder {} is not empty, and `farleaf figures` did not write it (it has {}); name an empty \
         or a new one",
        path.display(),
        crate::shown::text(found)
    )]
    Foreign {
        /// Which folder.
        path: PathBuf,
        /// One thing that lies there.
        found: String,
    },
    /// A file would be overwritten that no former run wrote.
    #[error(
        "{} is in the way, and `farleaf figures` did not write it; move it, or name another folder",
        path.display()
    )]
    InTheWay {
        /// Which file.
        path: PathBuf,
    },
    /// The list of a former run names what no run writes.
    #[error(
        "{} names '{}', which no run writes; name another folder",
        path.display(),
        crate::shown::text(line)
    )]
    BadList {
        /// Which file.
        path: PathBuf,
        /// Its line.
        line: String,
    },
    /// A file cannot be read, written or removed.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A folder that can be written, with what a former run wrote there.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    former: BTreeSet<String>,
}

impl Folder {
    /// Takes a folder for files of these names, and makes it if it is not there. Nothing is removed
    /// yet, but it is tried whether files can be made.
    ///
    /// # Errors
    /// It is somebody else's, or cannot be written.
    pub fn claim(path: &Path, names: &[String]) -> Result<Self, FolderError> {
        fs::create_dir_all(path).map_err(at(path))?;
        let list_path = path.join(LIST_NAME);
        let former = match fs::read_to_string(&list_path) {
            Ok(list) => Some(parse(&list, path, &list_path)?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(source) => return Err(at(&list_path)(source)),
        };
        for entry in fs::read_dir(path).map_err(at(path))? {
            let entry = entry.map_err(at(path))?;
            let found = entry.file_name().to_string_lossy().into_owned();
            let Some(former) = &former else {
                let path = path.to_owned();
                return Err(FolderError::Foreign { path, found });
            };
            let is_wanted = names.iter().any(|name| name.eq_ignore_ascii_case(&found));
            if is_wanted && !former.contains(&found) {
                return Err(FolderError::InTheWay { path: entry.path() });
            }
        }
        let folder = Self {
            path: path.to_owned(),
            former: former.unwrap_or_default(),
        };
        folder.write_list(&folder.former)?;
        Ok(folder)
    }

    /// Removes what a former run wrote, and writes these files, each under its name.
    ///
    /// # Errors
    /// A file cannot be removed or written; the list then names what may be there.
    pub(super) fn replace(&self, files: &[(String, String)]) -> Result<(), FolderError> {
        let names: BTreeSet<String> = files.iter().map(|(name, _)| name.clone()).collect();
        // Whenever this ends, the list names all that may be there.
        self.write_list(&self.former.union(&names).cloned().collect())?;
        for name in &self.former {
            let path = self.path.join(name);
            match fs::remove_file(&path) {
                Err(source) if source.kind() != ErrorKind::NotFound => {
                    return Err(at(&path)(source));
                }
                _ => {}
            }
        }
        for (name, text) in files {
            let path = self.path.join(name);
            let made = fs::File::create_new(&path);
            made.and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(at(&path))?;
        }
        self.write_list(&names)
    }

    /// Where a file of this name is.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn write_list(&self, names: &BTreeSet<String>) -> Result<(), FolderError> {
        let path = self.path.join(LIST_NAME);
        let lines = names.iter().map(|name| format!("{name}\n"));
        let list = format!("{LIST_HEAD}\n{}", lines.collect::<String>());
        // Made under another name first: a list that is cut off would orphan files.
        let draft = self.path.join(format!("{LIST_NAME}.new"));
        fs::write(&draft, list).map_err(at(&draft))?;
        fs::rename(&draft, &path).map_err(at(&path))
    }
}

fn at(path: &Path) -> impl Fn(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io {
        path: path.clone(),
        source,
    }
}

/// The names of a list, none of which leads out of the folder.
fn parse(list: &str, folder: &Path, path: &Path) -> Result<BTreeSet<String>, FolderError> {
    let mut lines = list.lines();
    if lines.next() != Some(LIST_HEAD) {
        return Err(FolderError::Foreign {
            path: folder.to_owned(),
            found: LIST_NAME.to_owned(),
        });
    }
    let is_name = |line: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        !line.starts_with('.') && line.bytes().all(is_part)
    };
    let is_ours = |line: &str| {
        let ends = [".csv", ".svg", ".html"];
        is_name(line) && ends.iter().any(|end| line.ends_with(end))
    };
    match lines.clone().find(|line| !is_ours(line)) {
        Some(line) => Err(FolderError::BadList {
            path: path.to_owned(),
            line: line.to_owned(),
        }),
        None => Ok(lines.map(str::to_owned).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    fn files(of: &[&str]) -> Vec<(String, String)> {
        let of = of.iter();
        of.map(|name| ((*name).to_owned(), format!("{name}\n")))
            .collect()
    }

    fn there(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).expect("a folder");
        let entries = entries.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> = entries
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort_unstable();
        names
    }

    /// Promise: a second run removes exactly what the first one wrote, and leaves alone what
    /// somebody else put beside it.
    #[test]
    fn what_a_former_run_wrote_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("made/by/it");
        let first = ["a.csv", "b.svg", "index.html"];
        let folder = Folder::claim(&path, &names(&first)).expect("new");
        folder.replace(&files(&first)).expect("written");
        fs::write(path.join("notes.txt"), "mine").expect("written");
        let second = ["c.csv", "index.html"];
        let folder = Folder::claim(&path, &names(&second)).expect("ours");
        folder.replace(&files(&second)).expect("written");
        let expected = ["c.csv", LIST_NAME, "index.html", "notes.txt"];
        assert_eq!(there(&path), expected);
        assert_eq!(
            fs::read_to_string(path.join("notes.txt")).expect("there"),
            "mine"
        );
    }

    /// Promise: a folder with anything in it that no run wrote is refused, and left as it is; so is
    /// one in which a file would be overwritten.
    #[test]
    fn folders_of_others_are_refused() {
        let place = tempfile::tempdir().expect("a folder");
        fs::write(place.path().join("thesis.tex"), "mine").expect("written");
        let refused = Folder::claim(place.path(), &names(&["index.html"]));
        let error = refused.expect_err("refused").to_string();
        assert!(
            error.contains("is not empty") && error.contains("thesis.tex"),
            "{error}"
        );
        assert_eq!(there(place.path()), ["thesis.tex"]);

        let path = place.path().join("figures");
        let folder = Folder::claim(&path, &names(&["a.csv"])).expect("new");
        folder.replace(&files(&["a.csv"])).expect("written");
        fs::write(path.join("index.html"), "mine").expect("written");
        let refused = Folder::claim(&path, &names(&["a.csv", "index.html"]));
        let error = refused.expect_err("refused");
        assert!(matches!(error, FolderError::InTheWay { .. }), "{error}");
        assert_eq!(
            fs::read_to_string(path.join("index.html")).expect("there"),
            "mine"
        );
    }

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
            let place = tempfile::tempdir().expect("a folder");
            let list = format!("{LIST_HEAD}\n{line}\n");
            fs::write(place.path().join(LIST_NAME), list).expect("written");
            let error = Folder::claim(place.path(), &[]).expect_err("refused");
            assert!(
                matches!(error, FolderError::BadList { .. }),
                "{line}: {error}"
            );
        }
    }

    /// Promise: a place where nothing can be written is noticed when the folder is claimed.
    #[test]
    fn what_cannot_be_written_is_noticed_at_once() {
        let place = tempfile::tempdir().expect("a folder");
        let file = place.path().join("file");
        fs::write(&file, "").expect("written");
        for path in [file.clone(), file.join("inside")] {
            let error = Folder::claim(&path, &[]).expect_err("no folder");
            assert!(matches!(error, FolderError::Io { .. }), "{error}");
        }
    }
}
