//! Value blocks over a region in memory: sessions that write, read and unlink them, that die at any
//! verb, and the sweep of what they held; and a checker that accounts for every piece.

mod account;
mod crash;
mod grace;
mod large;
mod lost;
mod mortal;
mod reading;
mod soak;
mod sweeping;
mod world;
