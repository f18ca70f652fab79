//! Folder into which files are written: its owner, and the list of files that an earlier run wrote.
//!
//! A folder is accepted if it is empty or has such a list, written by the same command. Exactly the
//! files of the list are then replaced (see `draft`). Other files are not touched, and never
//! overwritten. The folder stays locked until its run ends, if the file system supports locks.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::folder_error::FolderError;

use crate::draft::{DRAFT_NAME, Draft, FailedFile, OLDER_DRAFT_NAME, remove_drafts};
use crate::folder_error::at;
use crate::list::{LIST_NAME, LIST_OF_BOTH, list_of, parse};

/// Writable folder, with the names of files that an earlier run wrote there.
#[derive(Clone, Debug)]
pub struct Folder {
    writer: &'static str,
    path: PathBuf,
    former: BTreeSet<String>,
    /// Lock, which is released when the last copy is dropped; `None` if the file system does not
    /// support locks.
    _lock: Option<Arc<File>>,
}

impl Folder {
    /// Claims a folder for files of these names, which end in `.csv`, `.svg` or `.html`, and
    /// creates it if it is missing. `writer` is the command, as users call it. Nothing is replaced
    /// yet, but the call checks whether files can be created. It removes the drafts of an aborted
    /// run.
    ///
    /// # Errors
    /// The folder has another owner, another run uses it, or it cannot be written.
    pub fn claim(writer: &'static str, path: &Path, names: &[String]) -> Result<Self, FolderError> {
        check_kind(path)?;
        fs::create_dir_all(path).map_err(at(path))?;
        let lock = lock(path)?;
        let list_path = path.join(LIST_NAME);
        let former = match fs::read_to_string(&list_path) {
            Ok(list) => Some(parse(writer, &list, path, &list_path)?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(source) => return Err(at(&list_path)(source)),
        };
        check_entries(writer, path, former.as_ref(), names)?;
        remove_drafts(writer, path)?;
        let folder = Self {
            writer,
            path: path.to_owned(),
            former: former.unwrap_or_default(),
            _lock: lock,
        };
        folder.check_places(names.iter().map(String::as_str))?;
        let mut draft = Draft::new(writer, path).map_err(|(path, source)| at(&path)(source))?;
        let written = draft.write(LIST_NAME, &list_of(writer, &folder.former));
        written.map_err(|(path, source)| at(&path)(source))?;
        draft.settle(LIST_NAME, LIST_NAME).map_err(at(&list_path))?;
        Ok(folder)
    }

    /// Writes these files, each under its name, and replaces those of an earlier run. All are
    /// written as drafts first; only then are they moved into place, the last one last.
    ///
    /// # Errors
    /// A file cannot be written: the folder is unchanged. Or it cannot be moved into place: the
    /// list then names all files that may exist.
    pub fn replace(&self, files: &[(String, String)]) -> Result<(), FolderError> {
        let names: BTreeSet<String> = files.iter().map(|(name, _)| name.clone()).collect();
        self.check_places(names.iter().map(String::as_str))?;
        let mut draft = self.drafts(files, &names).map_err(|(path, source)| {
            let has_former = !self.former.is_empty();
            FolderError::Unwritten {
                path,
                has_former,
                source,
            }
        })?;
        let half = |path: PathBuf| move |source| FolderError::HalfReplaced { path, source };
        let list_path = self.file(LIST_NAME);
        // From here on to the end, the list names all files that may exist.
        draft
            .settle(LIST_OF_BOTH, LIST_NAME)
            .map_err(at(&list_path))?;
        draft.keep();
        for (name, _) in files {
            draft.settle(name, name).map_err(half(self.file(name)))?;
        }
        for name in self.former.difference(&names) {
            let path = self.file(name);
            match fs::remove_file(&path) {
                Err(source) if source.kind() != ErrorKind::NotFound => {
                    return Err(half(path)(source));
                }
                _ => {}
            }
        }
        draft
            .settle(LIST_NAME, LIST_NAME)
            .map_err(half(list_path))?;
        remove_drafts(self.writer, &self.path)
    }

    /// Writes all files and both lists as drafts.
    fn drafts(
        &self,
        files: &[(String, String)],
        names: &BTreeSet<String>,
    ) -> Result<Draft, FailedFile> {
        let mut draft = Draft::new(self.writer, &self.path)?;
        for (name, text) in files {
            draft.write(name, text)?;
        }
        let both = self.former.union(names).cloned().collect();
        draft.write(LIST_OF_BOTH, &list_of(self.writer, &both))?;
        draft.write(LIST_NAME, &list_of(self.writer, names))?;
        Ok(draft)
    }

    /// Refuses to replace a folder, or a file that does not belong to a run.
    fn check_places<'a>(&'a self, names: impl Iterator<Item = &'a str>) -> Result<(), FolderError> {
        for name in names.chain(self.former.iter().map(String::as_str)) {
            let path = self.file(name);
            let is_file = match fs::symlink_metadata(&path) {
                Ok(metadata) => !metadata.is_dir() && self.former.contains(name),
                Err(error) if error.kind() == ErrorKind::NotFound => true,
                Err(source) => return Err(at(&path)(source)),
            };
            if !is_file {
                return Err(FolderError::InTheWay {
                    writer: self.writer,
                    path,
                });
            }
        }
        Ok(())
    }

    /// Returns the path of a file of this name.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Refuses paths that cannot be folders.
fn check_kind(path: &Path) -> Result<(), FolderError> {
    let is = match (fs::metadata(path), fs::symlink_metadata(path)) {
        (Ok(metadata), _) if metadata.is_dir() => return Ok(()),
        (Ok(_), _) => "a file",
        (Err(_), Ok(_)) => "a symbolic link without a target",
        (Err(_), Err(_)) => return Ok(()),
    };
    let path = path.to_owned();
    Err(FolderError::NoFolder { path, is })
}

/// Locks the folder for this run.
fn lock(path: &Path) -> Result<Option<Arc<File>>, FolderError> {
    let folder = File::open(path).map_err(at(path))?;
    match folder.try_lock() {
        Ok(()) => Ok(Some(Arc::new(folder))),
        Err(TryLockError::WouldBlock) => Err(FolderError::Busy {
            path: path.to_owned(),
        }),
        // Some file systems do not lock folders: of two runs, the last one to write wins.
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Refuses folders with files that do not belong to an earlier run, and files that would be
/// overwritten.
fn check_entries(
    writer: &'static str,
    path: &Path,
    former: Option<&BTreeSet<String>>,
    names: &[String],
) -> Result<(), FolderError> {
    for entry in fs::read_dir(path).map_err(at(path))? {
        let entry = entry.map_err(at(path))?;
        let found = entry.file_name().to_string_lossy().into_owned();
        if found == DRAFT_NAME || found == OLDER_DRAFT_NAME {
            continue;
        }
        let Some(former) = former else {
            let path = path.to_owned();
            return Err(FolderError::Foreign {
                writer,
                path,
                found,
            });
        };
        let is_wanted = names.iter().any(|name| name.eq_ignore_ascii_case(&found));
        if is_wanted && !former.contains(&found) {
            return Err(FolderError::InTheWay {
                writer,
                path: entry.path(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: &str = "farleaf figures";

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

    /// Promise: a second run removes exactly what the first one wrote, and does not touch other
    /// files.
    #[test]
    fn what_a_former_run_wrote_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("made/by/it");
        let first = ["a.csv", "b.svg", "index.html"];
        let folder = Folder::claim(WRITER, &path, &names(&first)).expect("new");
        folder.replace(&files(&first)).expect("written");
        drop(folder);
        fs::write(path.join("notes.txt"), "mine").expect("written");
        let second = ["c.csv", "index.html"];
        let folder = Folder::claim(WRITER, &path, &names(&second)).expect("ours");
        folder.replace(&files(&second)).expect("written");
        let expected = ["c.csv", LIST_NAME, "index.html", "notes.txt"];
        assert_eq!(there(&path), expected);
        assert_eq!(
            fs::read_to_string(path.join("notes.txt")).expect("there"),
            "mine"
        );
    }

    /// Promise: a folder with a file that no run wrote is refused, and not changed; so is a folder
    /// in which a file would be overwritten.
    #[test]
    fn folders_of_others_are_refused() {
        let place = tempfile::tempdir().expect("a folder");
        fs::write(place.path().join("thesis.tex"), "mine").expect("written");
        let refused = Folder::claim(WRITER, place.path(), &names(&["index.html"]));
        let error = refused.expect_err("refused").to_string();
        assert!(
            error.contains("did not write") && error.contains("thesis.tex"),
            "{error}"
        );
        assert_eq!(there(place.path()), ["thesis.tex"]);

        let path = place.path().join("figures");
        let folder = Folder::claim(WRITER, &path, &names(&["a.csv"])).expect("new");
        folder.replace(&files(&["a.csv"])).expect("written");
        drop(folder);
        fs::write(path.join("index.html"), "mine").expect("written");
        let refused = Folder::claim(WRITER, &path, &names(&["a.csv", "index.html"]));
        let error = refused.expect_err("refused");
        assert!(matches!(error, FolderError::InTheWay { .. }), "{error}");
        assert_eq!(
            fs::read_to_string(path.join("index.html")).expect("there"),
            "mine"
        );
    }

    /// Creates a folder like one that an earlier run wrote.
    fn of_a_former_run(of: &[&str]) -> tempfile::TempDir {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::claim(WRITER, place.path(), &names(of)).expect("new");
        folder.replace(&files(of)).expect("written");
        place
    }

    /// Promise: a run that cannot write all of its files leaves an earlier run's files and list
    /// unchanged, leaves no files of its own, and reports it.
    #[test]
    fn a_run_that_fails_while_writing_loses_nothing() {
        let place = of_a_former_run(&["a.csv", "index.html"]);
        let before = there(place.path());
        let folder = Folder::claim(WRITER, place.path(), &names(&["a.csv"])).expect("ours");
        let failed = folder.replace(&[
            ("a.csv".to_owned(), "new".to_owned()),
            ("none/b.csv".to_owned(), String::new()),
        ]);
        let error = failed.expect_err("no such folder").to_string();
        assert!(
            error.contains("the files of the earlier run are unchanged")
                && error.contains("run again"),
            "{error}"
        );
        drop(folder);
        assert_eq!(there(place.path()), before);
        let text = fs::read_to_string(place.path().join("a.csv")).expect("there");
        assert_eq!(text, "a.csv\n");
        let list = fs::read_to_string(place.path().join(LIST_NAME)).expect("there");
        assert_eq!(
            list,
            list_of(
                WRITER,
                &names(&["a.csv", "index.html"]).into_iter().collect()
            )
        );
    }

    /// Promise: a folder under a name to be written, or that an earlier run wrote, is detected when
    /// the folder is claimed; so is a file created there during the run.
    #[test]
    fn what_is_in_the_way_is_noticed_before_anything_is_replaced() {
        let place = of_a_former_run(&["a.csv", "index.html"]);
        fs::remove_file(place.path().join("a.csv")).expect("removed");
        fs::create_dir(place.path().join("a.csv")).expect("made");
        for wanted in ["a.csv", "index.html"] {
            let error =
                Folder::claim(WRITER, place.path(), &names(&[wanted])).expect_err("a folder");
            let FolderError::InTheWay { path, .. } = error else {
                panic!("{error}");
            };
            assert!(path.ends_with("a.csv"));
        }
        fs::remove_dir(place.path().join("a.csv")).expect("removed");
        let wanted = ["b.csv", "index.html"];
        let folder = Folder::claim(WRITER, place.path(), &names(&wanted)).expect("ours");
        fs::write(place.path().join("b.csv"), "mine").expect("written");
        let error = folder.replace(&files(&wanted)).expect_err("in the way");
        assert!(matches!(error, FolderError::InTheWay { .. }), "{error}");
        let text = fs::read_to_string(place.path().join("b.csv")).expect("there");
        assert_eq!(text, "mine");
    }

    /// Promise: leftovers of an aborted run do not make the folder another owner's, and the next
    /// run removes them; with any other file beside them, the folder is refused.
    #[test]
    fn drafts_of_a_failed_run_are_replaced() {
        let place = tempfile::tempdir().expect("a folder");
        let drafts = place.path().join(DRAFT_NAME);
        fs::create_dir(&drafts).expect("made");
        for name in ["a.csv", LIST_NAME, LIST_OF_BOTH] {
            fs::write(drafts.join(name), "cut o").expect("written");
        }
        fs::write(place.path().join(OLDER_DRAFT_NAME), "").expect("written");
        let folder = Folder::claim(WRITER, place.path(), &names(&["a.csv"])).expect("ours");
        folder.replace(&files(&["a.csv"])).expect("written");
        drop(folder);
        assert_eq!(there(place.path()), ["a.csv", LIST_NAME]);

        let place = tempfile::tempdir().expect("a folder");
        fs::create_dir(place.path().join(DRAFT_NAME)).expect("made");
        fs::write(place.path().join("thesis.tex"), "mine").expect("written");
        let error = Folder::claim(WRITER, place.path(), &[]).expect_err("not ours");
        assert!(matches!(error, FolderError::Foreign { .. }), "{error}");
    }

    /// Promise: of two concurrent runs into one folder the second is refused when it starts.
    #[test]
    fn a_folder_is_one_runs_at_a_time() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("new");
        let folder = Folder::claim(WRITER, &path, &names(&["a.csv"])).expect("new");
        let error = Folder::claim(WRITER, &path, &names(&["a.csv"])).expect_err("taken");
        assert!(matches!(error, FolderError::Busy { .. }), "{error}");
        folder.replace(&files(&["a.csv"])).expect("written");
        drop(folder);
        Folder::claim(WRITER, &path, &names(&["a.csv"])).expect("free");
    }

    /// Promise: a place that cannot be written is detected when the folder is claimed, and the
    /// error says what a path is that is not a folder.
    #[test]
    fn what_cannot_be_written_is_noticed_at_once() {
        let place = tempfile::tempdir().expect("a folder");
        let file = place.path().join("file");
        fs::write(&file, "").expect("written");
        let error = Folder::claim(WRITER, &file.join("inside"), &[]).expect_err("no folder");
        assert!(matches!(error, FolderError::Io { .. }), "{error}");
        let link = place.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).expect("made");
        for (path, expected) in [
            (file, "is a file, not"),
            (link, "is a symbolic link without"),
        ] {
            let error = Folder::claim(WRITER, &path, &[]).expect_err("no folder");
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert!(!place.path().join("nowhere").exists());
    }
}
