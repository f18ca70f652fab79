//! What talking to a Redis server takes, whatever its address: its process, and waiting for bytes.

mod process;
mod socket;

pub use process::RedisProcess;
pub(crate) use socket::receive;
