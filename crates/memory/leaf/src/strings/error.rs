//! Errors of pages whose checksum matches, or that are being recovered.

use thiserror::Error;

use crate::strings::outside::Unread;
use crate::strings::words::Reference;

/// Reason why an operation on a page failed. Except for [`Unread`](Self::Unread), the page is
/// corrupted, and the caller reports its address and table.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageError {
    /// A string must be read first; not corruption.
    #[error("the string of {0} has not been read yet; read it and retry")]
    Unread(Reference),
    /// The words are impossible in a page.
    #[error("its words are not a valid page")]
    Malformed,
    /// Keys are duplicate or outside the fences, or the fences are not in order.
    #[error("its keys and fences contradict each other")]
    Disorder,
    /// The link leads to a page that does not begin further right (LEAF-8).
    #[error("its right link leads to a page that does not begin further right")]
    LinkToTheLeft,
    /// The right sibling begins at a fence whose bytes no key in the page begins with.
    #[error("its right sibling begins at a fence that no key in the page begins with")]
    NoFence,
    /// No cut makes two pages that the records fit into.
    #[error("it cannot be split into two pages that its records fit into")]
    NoCut,
}

impl From<Unread> for PageError {
    fn from(Unread(reference): Unread) -> Self {
        Self::Unread(reference)
    }
}
