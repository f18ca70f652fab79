//! Checks of pool addresses.

use farleaf_fabric::shm::PoolName;

/// Returns whether this is syntactically a host name and port; only connecting shows whether the
/// host exists.
pub(crate) fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// Returns why an address without one of the known kinds is rejected, and the likely address.
pub(crate) fn unknown_kind(address: &str) -> String {
    match address.split_once(':') {
        // A kind, host and port have two colons; an IPv6 address is in brackets.
        Some((host, rest))
            if is_host_and_port(address) && (host.starts_with('[') || !rest.contains(':')) =>
        {
            format!("missing kind, as in 'tcp:{address}'")
        }
        Some((kind, _)) => format!("unknown kind '{kind}:'"),
        None if PoolName::new(address).is_ok() => format!("missing kind, as in 'shm:{address}'"),
        None => "missing kind".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: an address without a kind is quoted with the likely one.
    #[test]
    fn the_likely_kind_is_named() {
        for (address, why) in [
            ("h:1", "missing kind, as in 'tcp:h:1'"),
            ("[::1]:80", "missing kind, as in 'tcp:[::1]:80'"),
            ("udp:h:1", "unknown kind 'udp:'"),
            ("default", "missing kind, as in 'shm:default'"),
            ("", "missing kind"),
        ] {
            assert_eq!(unknown_kind(address), why);
        }
    }
}
