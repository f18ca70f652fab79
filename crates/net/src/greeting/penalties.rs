//! Limit of wrong proofs per address.
//!
//! A client that guesses secrets does not wait for the answer to a guess, so delaying the answer
//! does not slow it down. Therefore, after a wrong proof, the proofs from the same address are
//! *checked* one after the other, [`CHECK_PAUSE`] apart, and no more than [`WAITING_COUNT_MAX`] of
//! them wait. That ends when the address has sent no wrong proof for [`FORGET_TIME`]. A proof from
//! an address without a recent wrong one is checked at once.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Reason that a server gives for a proof that it does not check.
pub const TOO_MANY_WRONG_PROOFS: &str = "too many wrong secrets from this address; try again later";
/// Time between the checks of two proofs from an address that has sent a wrong one: less than five
/// guesses per second.
const CHECK_PAUSE: Duration = Duration::from_millis(250);
/// Largest number of proofs of one address that wait for their check. The last one waits for less
/// than the time of a greeting.
const WAITING_COUNT_MAX: u32 = 16;
/// Time after a wrong proof for which proofs from its address are checked one after the other.
const FORGET_TIME: Duration = Duration::from_secs(5);
/// Largest number of addresses of which wrong proofs are remembered. An attacker with more
/// addresses makes the server forget the one that may be checked next.
const ADDRESS_COUNT_MAX: usize = 16 << 10;

/// Times at which the proofs of addresses are checked.
#[derive(Debug, Default)]
pub struct Penalties(HashMap<Host, Penalty>);

/// Limit of one address.
#[derive(Clone, Copy, Debug)]
struct Penalty {
    /// Time from which its next proof may be checked.
    next: Instant,
    /// Time at which its last wrong proof is forgotten.
    until: Instant,
}

impl Penalty {
    fn is_over(&self, now: Instant) -> bool {
        self.next <= now && self.until <= now
    }
}

/// Address that counts as one peer: an IPv4 address, or the network of an IPv6 address, which one
/// host usually has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Host {
    Four([u8; 4]),
    Six([u16; 4]),
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::Four(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self::Six([a, b, c, d])
            }
        }
    }
}

impl Penalties {
    /// Returns the time from which a proof that has arrived now may be checked; `None` if too many
    /// proofs from this address already wait.
    pub fn schedule(&mut self, peer: IpAddr, now: Instant) -> Option<Instant> {
        let host = Host::from(peer);
        if self.0.get(&host).is_some_and(|it| it.is_over(now)) {
            self.0.remove(&host);
        }
        let Some(penalty) = self.0.get_mut(&host) else {
            return Some(now);
        };
        let check_at = penalty.next.max(now);
        if check_at > now + CHECK_PAUSE * WAITING_COUNT_MAX {
            return None;
        }
        penalty.next = check_at + CHECK_PAUSE;
        Some(check_at)
    }

    /// Records a right proof: the next one need not wait for it.
    pub fn on_right_proof(&mut self, peer: IpAddr, now: Instant) {
        if let Some(penalty) = self.0.get_mut(&peer.into()) {
            let earlier = penalty.next.checked_sub(CHECK_PAUSE);
            penalty.next = earlier.map_or(now, |earlier| earlier.max(now));
        }
    }

    /// Records a wrong proof.
    pub fn on_wrong_proof(&mut self, peer: IpAddr, now: Instant) {
        if self.0.len() >= ADDRESS_COUNT_MAX {
            self.0.retain(|_, penalty| !penalty.is_over(now));
        }
        if self.0.len() >= ADDRESS_COUNT_MAX {
            let soonest = self.0.iter().min_by_key(|(_, penalty)| penalty.next);
            if let Some(host) = soonest.map(|(host, _)| *host) {
                self.0.remove(&host);
            }
        }
        let (next, until) = (now + CHECK_PAUSE, now + FORGET_TIME);
        let new = Penalty { next, until };
        let penalty = self.0.entry(peer.into()).or_insert(new);
        penalty.next = penalty.next.max(next);
        penalty.until = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(host: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, host])
    }

    /// Promise: of an address that sends wrong proofs as fast as it can, fewer than five per second
    /// are checked, and proofs from other addresses are checked at once.
    #[test]
    fn guesses_are_checked_one_after_the_other() {
        let start = Instant::now();
        let mut penalties = Penalties::default();
        let mut checks = Vec::new();
        for millisecond in 0..10_000 {
            let now = start + Duration::from_millis(millisecond);
            checks.extend(penalties.schedule(peer(1), now));
            if checks.last().is_some_and(|check_at| *check_at <= now) {
                penalties.on_wrong_proof(peer(1), now);
            }
            assert_eq!(penalties.schedule(peer(2), now), Some(now));
        }
        let made = checks
            .iter()
            .filter(|it| **it < start + Duration::from_secs(10));
        assert!((35..50).contains(&made.count()), "{}", checks.len());
        let apart = checks.windows(2).skip(1).map(|pair| pair[1] - pair[0]);
        assert!(apart.min() >= Some(CHECK_PAUSE));
    }

    /// Promise: after a wrong proof a right one waits for one pause at most, and not at all when
    /// the pause is over.
    #[test]
    fn a_mistake_costs_one_pause() {
        let now = Instant::now();
        let mut penalties = Penalties::default();
        assert_eq!(penalties.schedule(peer(1), now), Some(now));
        penalties.on_wrong_proof(peer(1), now);
        assert_eq!(penalties.schedule(peer(1), now), Some(now + CHECK_PAUSE));
        let later = now + CHECK_PAUSE * 4;
        assert_eq!(penalties.schedule(peer(1), later), Some(later));
    }

    /// Promise: right proofs from an address with a wrong one wait for no other right ones, and
    /// when the wrong one is forgotten, for nothing.
    #[test]
    fn right_proofs_are_not_slowed_down_for_ever() {
        let start = Instant::now();
        let mut penalties = Penalties::default();
        penalties.on_wrong_proof(peer(1), start);
        let mut now = start + CHECK_PAUSE;
        for _ in 0..100 {
            assert_eq!(penalties.schedule(peer(1), now), Some(now));
            penalties.on_right_proof(peer(1), now);
            now += Duration::from_millis(1);
        }
        let later = start + FORGET_TIME;
        for _ in 0..100 {
            assert_eq!(penalties.schedule(peer(1), later), Some(later));
        }
        assert!(penalties.0.is_empty());
    }

    /// Promise: addresses of one IPv6 network count as one peer, and an IPv4 address counts as
    /// itself in either notation.
    #[test]
    fn a_host_has_no_more_guesses_than_one() {
        let now = Instant::now();
        for (wrong, next) in [
            ("2001:db8::1", "2001:db8::ffff:2"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
        ] {
            let address = |text: &str| text.parse::<IpAddr>().expect("an address");
            let mut penalties = Penalties::default();
            penalties.on_wrong_proof(address(wrong), now);
            assert!(penalties.schedule(address(next), now) > Some(now), "{next}");
            assert_eq!(penalties.schedule(address("2001:db8:1::1"), now), Some(now));
        }
    }

    /// Promise: the memory for wrong proofs is bounded.
    #[test]
    fn old_addresses_are_forgotten() {
        let now = Instant::now();
        let mut penalties = Penalties::default();
        for number in 0..2 * ADDRESS_COUNT_MAX as u32 {
            penalties.on_wrong_proof(IpAddr::from(number.to_be_bytes()), now);
        }
        assert!(penalties.0.len() <= ADDRESS_COUNT_MAX);
    }
}
