//! Selection of the device, port, address and packet size: probed, or by options.

use core::fmt::Write as _;
use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;

use crate::verbs::VerbsError;
use crate::verbs::sys::{Context, DeviceLimits, DeviceList, PortStatus};

/// State of a port that carries packets.
const STATE_ACTIVE: u32 = 4;
const STATE_NAMES: [&str; 6] = ["nop", "down", "init", "armed", "active", "deferred"];
const LINK_LAYER_ETHERNET: u8 = 2;
/// Number of entries of a GID table that are examined.
const GID_COUNT_MAX: i32 = 256;

/// Selection of this host's RDMA devices. Missing options are probed: the first device with an
/// active port, its first active port, on Ethernet the first GID of `RoCE` v2 and IPv4, and the
/// port's active MTU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsOptions {
    /// Name of the device.
    pub device: Option<String>,
    /// Number of the device's port, from 1 on.
    pub port: Option<u8>,
    /// Index in the port's table of addresses (GIDs).
    pub gid_index: Option<u8>,
    /// Maximum payload of a packet in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu_bytes: Option<u16>,
}

/// An open device, with everything needed to connect through one of its ports.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) context: Arc<Context>,
    pub(super) limits: DeviceLimits,
    pub(super) port: u8,
    pub(super) status: PortStatus,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    /// The library's number for the MTU.
    pub(super) mtu_number: u32,
}

/// Entry of a GID table.
#[derive(Clone, Debug)]
struct GidEntry {
    index: u8,
    gid: [u8; 16],
    /// Kind as named by the kernel: "RoCE v2", "IB/RoCE v1"; empty if unknown.
    kind: String,
}

/// A device with its ports, before one is selected.
struct Candidate {
    name: String,
    context: Arc<Context>,
    limits: DeviceLimits,
    ports: Vec<(u8, PortStatus)>,
}

/// Returns the packet size in bytes for the library's number.
pub(super) fn mtu_bytes(number: u32) -> u16 {
    128 << number.clamp(1, 5)
}

/// Returns the library's number for a packet size in bytes; `None` if the size is not possible.
pub(super) fn mtu_number(bytes: u16) -> Option<u32> {
    (1..=5).find(|number| mtu_bytes(*number) == bytes)
}

impl Device {
    /// Opens the device that the options select.
    ///
    /// # Errors
    /// There is no library, no device, or nothing that fits the options; the error lists what
    /// exists.
    pub(super) fn open(options: &VerbsOptions) -> Result<Self, VerbsError> {
        let list = DeviceList::new().map_err(|why| VerbsError::Library { why })?;
        let no_device = |source| VerbsError::NoDevice { source };
        let list = list.map_err(|source| no_device(Some(source)))?;
        if list.names().is_empty() {
            return Err(no_device(None));
        }
        let candidates = candidates(&list, options)?;
        let found = describe(&candidates);
        let taken = candidates.into_iter().find_map(|candidate| {
            let fits = |(port, status): &&(u8, PortStatus)| {
                status.state == STATE_ACTIVE && options.port.is_none_or(|wanted| wanted == *port)
            };
            let port = *candidate.ports.iter().find(fits)?;
            Some((candidate, port))
        });
        let Some((candidate, (port, status))) = taken else {
            let wanted = options
                .port
                .map_or_else(String::new, |port| format!(" {port}"));
            return Err(VerbsError::NoPort { wanted, found });
        };
        Self::at_port(candidate, port, status, options)
    }

    fn at_port(
        candidate: Candidate,
        port: u8,
        status: PortStatus,
        options: &VerbsOptions,
    ) -> Result<Self, VerbsError> {
        let Candidate {
            name,
            context,
            limits,
            ..
        } = candidate;
        if !limits.has_atomics {
            return Err(VerbsError::NoAtomics { device: name });
        }
        let place = format!("port {port} of {name}");
        let table = gid_table(&context, &name, port, status.gid_count);
        let entry = choose_gid(&table, status.link_layer, options.gid_index);
        let Some(entry) = entry else {
            let wanted = options.gid_index.map_or_else(
                || "of RoCE v2".to_owned(),
                |index| format!("with index {index}"),
            );
            let found = describe_table(&table);
            return Err(VerbsError::NoGid {
                place,
                wanted,
                found,
            });
        };
        let mtu_number = match options.mtu_bytes {
            None => status.mtu_number.clamp(1, 5),
            Some(wanted) => mtu_number(wanted)
                .filter(|number| *number <= status.mtu_number)
                .ok_or(VerbsError::Mtu {
                    place,
                    wanted,
                    active: mtu_bytes(status.mtu_number),
                })?,
        };
        tracing::debug!(device = %name, port, gid_index = entry.index, mtu_number, "RDMA device");
        Ok(Self {
            name,
            context,
            limits,
            port,
            status,
            gid_index: entry.index,
            gid: entry.gid,
            mtu_number,
        })
    }

    /// Returns an error for an operation `what` of the device.
    pub(super) fn error(&self, what: &'static str, source: io::Error) -> VerbsError {
        VerbsError::Device {
            device: self.name.clone(),
            what,
            source,
        }
    }
}

fn candidates(list: &DeviceList, options: &VerbsOptions) -> Result<Vec<Candidate>, VerbsError> {
    let wanted = |name: &String| options.device.as_ref().is_none_or(|wanted| wanted == name);
    let mut candidates = Vec::new();
    for (index, name) in list
        .names()
        .iter()
        .enumerate()
        .filter(|(_, name)| wanted(name))
    {
        let error = |what| {
            move |source| VerbsError::Device {
                device: name.clone(),
                what,
                source,
            }
        };
        let context = list.open(index).map_err(error("open it"))?;
        let limits = context.limits().map_err(error("query its limits"))?;
        let mut ports = Vec::new();
        for port in 1..=limits.port_count {
            ports.push((port, context.port(port).map_err(error("query its ports"))?));
        }
        candidates.push(Candidate {
            name: name.clone(),
            context,
            limits,
            ports,
        });
    }
    match &options.device {
        Some(wanted) if candidates.is_empty() => Err(VerbsError::UnknownDevice {
            wanted: wanted.clone(),
            found: list.names().join(", "),
        }),
        _ => Ok(candidates),
    }
}

/// Describes all ports for an error.
fn describe(candidates: &[Candidate]) -> String {
    let mut text = String::new();
    for candidate in candidates {
        for (port, status) in &candidate.ports {
            let state = STATE_NAMES.get(status.state as usize).unwrap_or(&"unknown");
            let gap = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{gap}{} port {port} {state}", candidate.name);
        }
    }
    if text.is_empty() {
        "devices without ports".clone_into(&mut text);
    }
    text
}

fn gid_table(context: &Context, device: &str, port: u8, gid_count: i32) -> Vec<GidEntry> {
    let read = |index: i32| {
        let gid = context.gid(port, index).ok()?;
        let file = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
        let kind = std::fs::read_to_string(file).unwrap_or_default();
        (gid != [0; 16]).then(|| GidEntry {
            index: index as u8,
            gid,
            kind: kind.trim().to_owned(),
        })
    };
    (0..gid_count.min(GID_COUNT_MAX)).filter_map(read).collect()
}

fn is_ipv4(gid: &[u8; 16]) -> bool {
    Ipv6Addr::from(*gid).to_ipv4_mapped().is_some()
}

/// Returns the selected entry; otherwise on Ethernet one of `RoCE` v2, preferably of IPv4;
/// otherwise the first.
fn choose_gid(table: &[GidEntry], link_layer: u8, wanted: Option<u8>) -> Option<GidEntry> {
    let mut entries = table.iter();
    let chosen = match wanted {
        Some(index) => entries.find(|entry| entry.index == index),
        None if link_layer == LINK_LAYER_ETHERNET => {
            let is_second = |entry: &&GidEntry| entry.kind == "RoCE v2";
            let mut second = table.iter().filter(is_second);
            let first = second.clone().find(|entry| is_ipv4(&entry.gid));
            first.or_else(|| second.next())
        }
        None => entries.next(),
    };
    chosen.cloned()
}

fn describe_table(table: &[GidEntry]) -> String {
    let entries = table.iter().map(|entry| {
        let GidEntry { index, gid, kind } = entry;
        let address = Ipv6Addr::from(*gid);
        let kind = if kind.is_empty() {
            "kind unknown"
        } else {
            kind
        };
        format!("{index} = {address} ({kind})")
    });
    let text = entries.collect::<Vec<_>>().join(", ");
    if text.is_empty() {
        "empty".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, gid: Ipv6Addr, kind: &str) -> GidEntry {
        GidEntry {
            index,
            gid: gid.octets(),
            kind: kind.to_owned(),
        }
    }

    fn table() -> Vec<GidEntry> {
        let local = Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 1);
        let mapped = std::net::Ipv4Addr::new(10, 8, 0, 1).to_ipv6_mapped();
        vec![
            entry(0, local, "IB/RoCE v1"),
            entry(1, local, "RoCE v2"),
            entry(2, mapped, "IB/RoCE v1"),
            entry(3, mapped, "RoCE v2"),
        ]
    }

    /// Promise: on Ethernet the address is one that routers forward (`RoCE` v2), preferably of
    /// IPv4; an explicit index selects its entry or nothing.
    #[test]
    fn addresses_are_chosen_by_kind() {
        let table = table();
        let index = |entry: Option<GidEntry>| entry.map(|entry| entry.index);
        assert_eq!(index(choose_gid(&table, 2, None)), Some(3));
        assert_eq!(index(choose_gid(&table[..2], 2, None)), Some(1));
        assert_eq!(index(choose_gid(&table[..1], 2, None)), None);
        assert_eq!(index(choose_gid(&table, 1, None)), Some(0));
        assert_eq!(index(choose_gid(&table, 2, Some(2))), Some(2));
        assert_eq!(index(choose_gid(&table, 2, Some(9))), None);
        assert_eq!(describe_table(&table[3..]), "3 = ::ffff:10.8.0.1 (RoCE v2)");
        assert_eq!(describe_table(&[]), "empty");
    }

    /// Promise: packet sizes are those that the hardware supports.
    #[test]
    fn packet_sizes_have_numbers() {
        assert_eq!(mtu_number(1024), Some(3));
        assert_eq!(
            [mtu_number(0), mtu_number(1500), mtu_number(8192)],
            [None; 3]
        );
        assert_eq!((mtu_bytes(1), mtu_bytes(5)), (256, 4096));
    }
}
