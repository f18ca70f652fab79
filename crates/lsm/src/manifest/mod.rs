//! The manifest (MF1 to MF3): what every segment is, changed by edits that are in force or not.
//!
//! | module | what it holds |
//! |---|---|
//! | `state` | what it says, and what an edit changes of that |
//! | `line` | an edit as a line of text, and back |
//! | `file` | the files: making, reading, appending, writing anew |

mod file;
mod line;
mod state;
#[cfg(test)]
mod tests;

pub use file::Manifest;
pub use state::{Change, LogEntry, ManifestState, TreeEntry};
