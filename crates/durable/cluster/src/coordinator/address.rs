//! Addresses of coordinators.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Address of a coordinator. Its text form parses to the same address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorAddress {
    /// `tcp:HOST:PORT`: a coordinator served by another process, for
    /// [`RemoteCoordinator`](super::served::RemoteCoordinator).
    Served(String),
    /// `etcd:HOST:PORT[,HOST:PORT...]`: members of an etcd cluster, for `farleaf-etcd`.
    Etcd(Vec<String>),
    /// `dir:PATH`: an [`Embedded`](super::Embedded) coordinator in this process, with its
    /// directory.
    Directory(PathBuf),
}

/// Error for a text that is not an address of a coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{text}' is not a valid coordinator address: {why}; use 'tcp:HOST:PORT', \
     'etcd:HOST:PORT[,HOST:PORT...]' or 'dir:PATH'"
)]
pub struct CoordinatorAddressError {
    /// The text.
    pub text: String,
    /// Reason why the address is invalid.
    pub why: String,
}

/// Returns whether a text is `HOST:PORT`, with an IPv6 address in brackets.
fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let is_host = match inner {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(is_of_name),
    };
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    is_host && is_number && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn is_of_name(character: char) -> bool {
    !character.is_whitespace() && !character.is_control() && !"[]:/,".contains(character)
}

impl FromStr for CoordinatorAddress {
    type Err = CoordinatorAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const PLACE: &str = "HOST:PORT with a port from 1 to 65535 and an IPv6 address in brackets";
        let wrong = |why: String| CoordinatorAddressError {
            text: text.to_owned(),
            why,
        };
        let Some((kind, place)) = text.split_once(':') else {
            return Err(wrong("missing kind".to_owned()));
        };
        match kind {
            "tcp" if is_host_and_port(place) => Ok(Self::Served(place.to_owned())),
            "tcp" => Err(wrong(format!("expected 'tcp:' and {PLACE}"))),
            "etcd" => {
                let members: Vec<_> = place.split(',').map(str::to_owned).collect();
                match members.iter().find(|it| !is_host_and_port(it)) {
                    None => Ok(Self::Etcd(members)),
                    Some(member) => Err(wrong(format!(
                        "expected 'etcd:' and a comma-separated list of {PLACE}, found '{member}'"
                    ))),
                }
            }
            "dir" if place.is_empty() || place.contains('\0') => {
                Err(wrong("expected 'dir:' and a path".to_owned()))
            }
            "dir" => Ok(Self::Directory(PathBuf::from(place))),
            _ if is_host_and_port(text) => Err(wrong(format!("missing kind, as in 'tcp:{text}'"))),
            other => Err(wrong(format!("unknown kind '{other}:'"))),
        }
    }
}

impl fmt::Display for CoordinatorAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Served(place) => write!(formatter, "tcp:{place}"),
            Self::Etcd(members) => write!(formatter, "etcd:{}", members.join(",")),
            Self::Directory(path) => write!(formatter, "dir:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses are parsed, and printed unchanged.
    #[test]
    fn addresses_are_read() {
        let etcd = |them: &[&str]| {
            let members = them.iter().map(|it| (*it).to_owned());
            CoordinatorAddress::Etcd(members.collect())
        };
        let served = |place: &str| CoordinatorAddress::Served(place.to_owned());
        let cases = [
            ("tcp:10.0.0.5:7480", served("10.0.0.5:7480")),
            ("tcp:node-1.example:1", served("node-1.example:1")),
            ("tcp:[::1]:65535", served("[::1]:65535")),
            ("etcd:a:2379", etcd(&["a:2379"])),
            (
                "etcd:a:2379,[fe80::1]:2379,10.0.0.5:1",
                etcd(&["a:2379", "[fe80::1]:2379", "10.0.0.5:1"]),
            ),
            (
                "dir:/var/lib/far leaf:1",
                CoordinatorAddress::Directory("/var/lib/far leaf:1".into()),
            ),
            ("dir:.", CoordinatorAddress::Directory(".".into())),
        ];
        for (text, address) in cases {
            assert_eq!(text.parse(), Ok(address.clone()));
            assert_eq!(address.to_string(), text);
        }
    }

    /// Invalid addresses are refused with the reason and the allowed forms.
    #[test]
    fn other_texts_are_refused() {
        let cases = [
            ("", "missing kind"),
            ("10.0.0.5", "missing kind"),
            ("10.0.0.5:7480", "missing kind, as in 'tcp:10.0.0.5:7480'"),
            ("udp:h:1", "unknown kind 'udp:'"),
            ("TCP:h:1", "unknown kind 'TCP:'"),
            ("tcp:", "expected 'tcp:' and HOST:PORT"),
            ("tcp:h", "expected 'tcp:' and HOST:PORT"),
            ("tcp::80", "expected 'tcp:' and HOST:PORT"),
            ("tcp:h:0", "a port from 1 to 65535"),
            ("tcp:h:+1", "a port from 1 to 65535"),
            ("tcp:h:65536", "a port from 1 to 65535"),
            ("tcp:::1:80", "an IPv6 address in brackets"),
            ("tcp:[h]:80", "an IPv6 address in brackets"),
            ("tcp:a:1,b:1", "expected 'tcp:' and HOST:PORT"),
            ("tcp:a b:1", "expected 'tcp:' and HOST:PORT"),
            ("etcd:", "found ''"),
            ("etcd:a:1,", "found ''"),
            ("etcd:a:1,b", "found 'b'"),
            ("etcd:http://a:1", "found 'http://a:1'"),
            ("dir:", "expected 'dir:' and a path"),
        ];
        for (text, why) in cases {
            let error = text.parse::<CoordinatorAddress>().expect_err(text);
            let message = error.to_string();
            assert!(message.contains(why), "{message}");
            assert!(message.contains(&format!("'{text}'")), "{message}");
            assert!(message.contains("use 'tcp:HOST:PORT', 'etcd:"), "{message}");
        }
    }
}
