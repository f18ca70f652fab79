//! The manifest: use of every segment, changed by atomic edits.
//!
//! `docs/explanation/lsm.md` describes it under *The manifest*.
//!
//! | module | contents |
//! |---|---|
//! | `state` | the manifest's contents, and the changes of an edit |
//! | `line` | encoding an edit as a line of text |
//! | `search` | searching for a valid line behind an invalid one |
//! | `checked` | checking contents and edits for consistency |
//! | `file` | files: creating, reading, appending, rewriting |

mod checked;
mod file;
mod line;
mod search;
mod state;
#[cfg(test)]
mod tests;

pub use file::Manifest;
#[cfg(test)]
pub(crate) use line::chain;
pub use state::{Change, LogEntry, ManifestState, TreeEntry};
