//! What can be wrong with a page whose checksum is right, or that is being recovered.

use thiserror::Error;

use crate::outside::Unread;
use crate::words::Reference;

/// Why a page could not be worked on. Apart from [`Unread`](Self::Unread), which asks for
/// something, the page is damaged, and whoever knows its address and table says so.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageError {
    /// No damage: a string has to be read first.
    #[error("a string of {0} was not read yet: read it, and ask again")]
    Unread(Reference),
    /// The words say what no page can say.
    #[error("its words say what no page can say")]
    Malformed,
    /// Keys are there twice, or outside the fences, or the fences are not in order.
    #[error("its keys and fences contradict each other")]
    Disorder,
    /// Its link leads to a page that does not begin further right (D8).
    #[error("its link to the right does not lead further right")]
    LinkToTheLeft,
    /// BP5: its right sibling begins at a fence that no key in the page begins with.
    #[error("its right sibling begins where it has no key to end at")]
    NoFence,
    /// No cut makes two pages that have room for its records.
    #[error("there is no way to cut it into two pages")]
    NoCut,
}

impl From<Unread> for PageError {
    fn from(Unread(reference): Unread) -> Self {
        Self::Unread(reference)
    }
}
