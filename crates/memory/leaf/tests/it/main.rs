//! Integration tests of leaves: long histories compared with a model, with crashes at every verb.
//!
//! | module | contents |
//! |---|---|
//! | `strings` | pages of byte strings, without a fabric |
//! | `blobs` | value blocks, over a pool in memory |

mod blobs;
mod strings;
