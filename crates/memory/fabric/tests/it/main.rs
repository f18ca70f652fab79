//! Tests of the fabric contract on the `mem`, `shm` and `tcp` backends, and of the backends' own
//! promises.
//!
//! | module | content |
//! |---|---|
//! | `backends` | the conformance suite over `mem` and `shm` |
//! | `names` | one node per name, and access to its socket |
//! | `sessions` | FABRIC-6: when a session is fenced, with real processes |
//! | `strangers` | peers that are not Farleaf programs |
//! | `crowds` | more clients than a node can have |
//! | `message` | calls over rings |
//! | `mappings` | which descriptors can be mapped, and inheritance by `fork` |
//! | `children` | the child processes that tests start |
//! | `encrypted` | `tcp` with TLS |
//! | `network` | the conformance suite over `tcp` |
//! | `windows` | a node's writes into windows of sessions |
//! | `hostile` | attackers that implement `tcp` by hand |
//! | `node` | a memory node that has only sessions |

mod backends;
mod children;
mod crowds;
mod encrypted;
mod hostile;
mod mappings;
mod message;
mod names;
mod network;
mod node;
mod sessions;
mod strangers;
mod windows;
