//! Tests of the protocol's promises (`docs/reference/wire.md`) through the public interface.
//!
//! | module | contents |
//! |---|---|
//! | `parties` | services, servers, and both sides of the protocol written by hand |
//! | `doors` | greetings: which clients are admitted |
//! | `frames` | requests and replies, valid and invalid |
//! | `floods` | more requests than there is memory, and many from one address |
//! | `connection_limits` | many connections, and more than the limit |
//! | `slow_peers` | peers that send or read a few bytes at a time |
//! | `speed` | cost of a call compared with a bare exchange; runs only on request |
//! | `encrypted` | connections with TLS |
//! | `ends` | stopping a server |

mod connection_limits;
mod doors;
mod encrypted;
mod ends;
mod floods;
mod frames;
mod parties;
mod slow_peers;
mod speed;
