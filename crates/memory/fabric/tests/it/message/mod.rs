//! Calls between two sides that share only the two rings.
//!
//! | module | content |
//! |---|---|
//! | `sides` | memories of a caller and a server, and a server that replies |
//! | `calls` | promises and costs of calls |
//! | `cut_off` | calls that are dropped, and callers that are broken by that |
//! | `hostile` | rings of arbitrary content, tested and fuzzed |

mod calls;
mod cut_off;
mod hostile;
mod sides;
