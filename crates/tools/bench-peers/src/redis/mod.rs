//! Redis support, independent of the address: the server's process, and waiting for bytes.

mod process;
mod socket;

pub use process::RedisProcess;
pub(crate) use socket::receive;
