//! Limit of connections that have not proven anything.

use std::collections::HashMap;
use std::net::IpAddr;

/// Largest number of connections without a completed greeting. One more replaces the
/// [oldest of the busiest address](oldest_of_busiest).
pub const UNAUTHENTICATED_COUNT_MAX: usize = 256;

/// Returns the index of the connection that makes space for another one, of connections in the
/// order of their age: the oldest one of the address that has most of them. So a peer that floods
/// the port excludes only itself.
pub fn oldest_of_busiest(peers: impl Iterator<Item = IpAddr> + Clone) -> Option<usize> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for peer in peers.clone() {
        *counts.entry(peer).or_default() += 1;
    }
    let most = counts.values().max().copied()?;
    let mut peers = peers;
    peers.position(|peer| counts.get(&peer) == Some(&most))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the oldest connection of the address with most connections is chosen.
    #[test]
    fn the_busiest_address_makes_space() {
        let peers = |hosts: &[u8]| {
            let peers = hosts.iter().map(|host| IpAddr::from([10, 0, 0, *host]));
            oldest_of_busiest(peers)
        };
        assert_eq!(peers(&[]), None);
        assert_eq!(peers(&[1, 2, 2, 3]), Some(1));
        assert_eq!(peers(&[4, 2, 2, 4]), Some(0));
    }
}
