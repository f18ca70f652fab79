//! Value blocks in a node's memory, in this process: sessions that write, read and unlink them, and
//! that die at any verb; the sweep of their blocks; and a checker that accounts for every piece.

mod account;
mod crash;
mod dying_endpoint;
mod grace;
mod large;
mod lost;
mod reading;
mod soak;
mod sweeping;
mod world;
