//! Calls between two sides that share nothing but the two rings.
//!
//! | module | what it holds |
//! |---|---|
//! | `sides` | a caller's and a server's memory, and a server that answers |
//! | `calls` | what calls promise (E2 to E6), and what they cost |
//! | `cut_off` | calls that are dropped, and callers that are broken (E8) |
//! | `hostile` | rings in which anything may stand (E7), fuzzed |

mod calls;
mod cut_off;
mod hostile;
mod sides;
