//! Builds the pages of `docs/` as a book: `cargo run -p farleaf-book -- --to target/book`.
//!
//! The book has only the pages of `docs/`, so a link from a page to another file of the repository
//! becomes the file's path. That all links lead somewhere, and that the book lists all pages, are
//! rules of `farleaf-tidy`.

#![forbid(unsafe_code)]

mod links;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Parser;
use mdbook_driver::MDBook;
use mdbook_driver::book::BookItem;

/// Build the documentation as a book
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder for the book; must be new, empty, or have an earlier book, which is replaced
    #[arg(long, value_name = "DIR", default_value = "target/book")]
    to: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folder = std::env::current_dir()?.join(&arguments.to);
    check_replaceable(&folder)?;
    let mut book = MDBook::load(root.join("docs")).context("cannot read docs/")?;
    book.config.build.build_dir.clone_from(&folder);
    let mut page_count = 0;
    book.book.for_each_mut(|item| {
        let BookItem::Chapter(chapter) = item else {
            return;
        };
        let Some(path) = chapter.source_path.clone() else {
            return;
        };
        page_count += 1;
        chapter.content = links::with_paths_for_outer_links(&path, &chapter.content);
    });
    book.build().context("cannot build the book")?;
    println!("wrote {page_count} pages to {}", folder.display());
    Ok(())
}

/// Refuses a folder with other files: mdBook deletes everything in the folder of its book.
fn check_replaceable(folder: &Path) -> anyhow::Result<()> {
    let is_empty = match folder.read_dir() {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(error).with_context(|| folder.display().to_string()),
    };
    // mdBook writes this file into each book.
    if !is_empty && !folder.join(".nojekyll").exists() {
        bail!(
            "folder '{}' has files that are not part of a book; name a new or empty folder",
            folder.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sources are no book, and are not replaced by one.
    #[test]
    fn a_folder_with_other_files_is_refused() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let refused = check_replaceable(&sources).expect_err("it has main.rs");
        assert!(
            refused.to_string().contains("not part of a book"),
            "{refused}"
        );
        check_replaceable(&sources.join("none")).expect("it is new");
    }
}
