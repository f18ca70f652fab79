//! Errors of verbs on this host, which list what was found.

use std::io;

use thiserror::Error;

use crate::verbs::sys::LIBRARY_NAME;

/// Reason why verbs cannot be used on this host, or not with the given options.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library is not installed, or incomplete.
    #[error(
        "verbs need {LIBRARY_NAME}, which cannot be loaded ({why}); install it (Debian: \
         libibverbs1 and ibverbs-providers), or use tcp:"
    )]
    Library {
        /// Message of the loader.
        why: String,
    },
    /// The library found no device.
    #[error(
        "this host has no RDMA device{}; load its driver, or add a Soft-RoCE one (`rdma link add \
         rxe0 type rxe netdev NETDEV`), or use tcp:", because(.source.as_ref())
    )]
    NoDevice {
        /// Error of the operating system, if any.
        source: Option<io::Error>,
    },
    /// There is no device of the given name.
    #[error("no RDMA device '{wanted}' on this host; choose one of: {found}")]
    UnknownDevice {
        /// Requested device.
        wanted: String,
        /// Existing devices.
        found: String,
    },
    /// No port is active, or not the selected one.
    #[error("no active port{wanted}; found: {found}; bring the link up, or choose another")]
    NoPort {
        /// Requested port, after a space; empty if none was requested.
        wanted: String,
        /// Existing devices, ports and their states.
        found: String,
    },
    /// The port has no such address.
    #[error("{place} has no GID {wanted}; choose another index from its GID table: {found}")]
    NoGid {
        /// Device and port.
        place: String,
        /// Requested address.
        wanted: String,
        /// Existing entries.
        found: String,
    },
    /// The link does not support packets of this size.
    #[error(
        "unsupported MTU of {wanted} bytes on {place}; use 256, 512, 1024, 2048 or 4096, and at \
         most the port's active MTU of {active}"
    )]
    Mtu {
        /// Device and port.
        place: String,
        /// Requested MTU in bytes.
        wanted: u16,
        /// Active MTU of the port in bytes.
        active: u16,
    },
    /// The device does not support CAS and FAA, which Farleaf requires.
    #[error(
        "RDMA device '{device}' does not support atomics, which a pool requires; choose another"
    )]
    NoAtomics {
        /// Name of the device.
        device: String,
    },
    /// The driver returned an error.
    #[error("RDMA device '{device}': cannot {what}: {source}")]
    Device {
        /// Name of the device.
        device: String,
        /// Failed operation.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The memory cannot be registered.
    #[error(
        "RDMA device '{device}' cannot register {size_bytes} bytes of memory: {source}; raise the \
         limit on locked memory (`ulimit -l`), or use less memory"
    )]
    Memory {
        /// Name of the device.
        device: String,
        /// Size in bytes.
        size_bytes: u64,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl VerbsError {
    /// Returns true if the host has no usable device at all, so that tests of verbs are skipped.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Library { .. } | Self::NoDevice { .. })
    }
}

fn because(source: Option<&io::Error>) -> String {
    source.map_or_else(String::new, |source| format!(" ({source})"))
}
