//! Why there are no verbs on this host, in words that say what was found.

use std::io;

use thiserror::Error;

use crate::verbs::sys::LIBRARY_NAME;

/// Why verbs cannot be used on this host, or not as was asked for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library is not installed, or not whole.
    #[error(
        "verbs need {LIBRARY_NAME}, which cannot be loaded ({why}); install it (Debian: \
         libibverbs1 and ibverbs-providers), or use tcp:"
    )]
    Library {
        /// What the loader said.
        why: String,
    },
    /// The library found no device.
    #[error(
        "this host has no RDMA device{}; load its driver, or add a Soft-RoCE one (`rdma link add \
         rxe0 type rxe netdev NETDEV`), or use tcp:", because(.source.as_ref())
    )]
    NoDevice {
        /// What the system said, if it said anything.
        source: Option<io::Error>,
    },
    /// There is no device of the name that was given.
    #[error("there is no RDMA device '{wanted}'; this host has {found}")]
    UnknownDevice {
        /// What was asked for.
        wanted: String,
        /// The devices there are.
        found: String,
    },
    /// No port is active, or not the one that was given.
    #[error("no active port {wanted}; found: {found}; bring the link up, or choose another")]
    NoPort {
        /// What was asked for.
        wanted: String,
        /// Devices, ports and their states.
        found: String,
    },
    /// The port has no such address.
    #[error("{place} has no GID {wanted}; its table: {found}; choose another index")]
    NoGid {
        /// Device and port.
        place: String,
        /// What was asked for.
        wanted: String,
        /// The entries there are.
        found: String,
    },
    /// The link cannot carry such packets.
    #[error(
        "an MTU of {wanted} bytes is not possible on {place}: it is one of 256, 512, 1024, 2048 and \
         4096, and at most the port's active {active}"
    )]
    Mtu {
        /// Device and port.
        place: String,
        /// What was asked for.
        wanted: u16,
        /// What the port has.
        active: u16,
    },
    /// CAS and FAA cannot be done without.
    #[error("the RDMA device {device} has no atomics, which a pool needs; choose another")]
    NoAtomics {
        /// Which device.
        device: String,
    },
    /// The driver said no.
    #[error("the RDMA device {device} cannot {what}: {source}")]
    Device {
        /// Which device.
        device: String,
        /// What it was asked to do.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The memory cannot be registered.
    #[error(
        "the RDMA device {device} cannot register {size_bytes} bytes of memory: {source}; registered \
         memory is locked: raise the limit (`ulimit -l`), or take less"
    )]
    Memory {
        /// Which device.
        device: String,
        /// How much.
        size_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
}

impl VerbsError {
    /// Whether the host has no usable device at all, so that tests of verbs are skipped.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Library { .. } | Self::NoDevice { .. })
    }
}

fn because(source: Option<&io::Error>) -> String {
    source.map_or_else(String::new, |source| format!(" ({source})"))
}
