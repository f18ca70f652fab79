//! The fabric contract, held by the `mem` and `shm` backends, and what `shm` promises besides.
//!
//! | module | what it holds |
//! |---|---|
//! | `backends` | the conformance suite over `mem` and `shm` |
//! | `names` | one node per name, and who may connect |
//! | `sessions` | F6: when a session is fenced, with real processes |
//! | `strangers` | peers that are no farleaf |
//! | `crowds` | more clients than a node can have |
//! | `mappings` | what may be mapped, and what `fork` does not inherit |
//! | `children` | the child processes that tests start |
//! | `encrypted` | `tcp` with TLS |
//! | `network` | the conformance suite over `tcp` |
//! | `windows` | what a node writes into memory of sessions |
//! | `hostile` | who speaks `tcp` by hand, and means harm |
//! | `node` | a memory node with nothing but sessions |

mod backends;
mod children;
mod crowds;
mod encrypted;
mod hostile;
mod mappings;
mod names;
mod network;
mod node;
mod sessions;
mod strangers;
mod windows;
