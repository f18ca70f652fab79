//! The manifest (MF1 to MF4): what every segment is, changed by edits that are in force or not.
//!
//! | module | what it holds |
//! |---|---|
//! | `state` | what it says, and what an edit changes of that |
//! | `line` | an edit as a line of text, and back |
//! | `search` | whether a whole line is behind one that is not |
//! | `checked` | what it says, once it was found to be possible (MF4) |
//! | `file` | the files: making, reading, appending, writing anew |

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
