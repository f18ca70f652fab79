//! What the wire promises (W1 to W15 of `docs/wire.md`), from outside.
//!
//! | module | what it holds |
//! |---|---|
//! | `parties` | services, servers, and both sides spoken by hand, from the document alone |
//! | `doors` | greetings: who is let in (W1 to W5, W7, W8) |
//! | `frames` | requests and answers, honest and not (W6, W9 to W13) |
//! | `crowds` | many connections, and too many (W14) |
//! | `speed` | what a call costs beside a bare exchange; only when asked for |
//! | `ends` | the end of a server (W15) |

mod crowds;
mod doors;
mod ends;
mod frames;
mod parties;
mod speed;
