//! What servers ask each other: JSON behind the tag `R` (RS5).

use std::fmt;
use std::net::SocketAddr;

use farleaf_cluster::ids::{Epoch, RegionId, ReplicaNumber, ServerId};
use farleaf_cluster::record::region::Key;
use serde::{Deserialize, Serialize};

use crate::attachment::AttachmentKey;
use crate::context::Context;

/// The first byte of requests of servers.
pub(crate) const TAG: u8 = b'R';

/// The version of all that is said here.
const VERSION: u32 = 3;

/// Which replica is asked, by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplicaName {
    pub(crate) region: RegionId,
    pub(crate) replica: ReplicaNumber,
    pub(crate) epoch: Epoch,
    /// The server that is primary at this epoch.
    pub(crate) primary: ServerId,
}

/// What a primary asks of a backup's server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum PeerRequest {
    /// Memory into which it can write, for a copy that begins.
    Attach {
        of: ReplicaName,
        /// The primary's half of what the memory's secret is agreed on with.
        key: AttachmentKey,
        /// RS8: nothing is taken from the copy in force, which is moved aside when the new one
        /// takes its place: the primary's log is damaged, and that copy may have what it lacks.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keeps_copy: bool,
    },
    /// That the copy which was begun by this attachment be the one in force.
    Commit {
        of: ReplicaName,
        attachment: u64,
        /// RS8: the segments of the log that are damaged in it, as no replica had them whole.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        damaged: Vec<u64>,
    },
    /// A replica of a region that is being split off, of the same number, at the next epoch (RS9).
    Prepare {
        of: ReplicaName,
        child: RegionId,
        from: Key,
        to: Option<Key>,
    },
    /// The region that was being split off never came into being.
    Abandon { of: ReplicaName, child: RegionId },
}

/// What it answers.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum PeerReply {
    /// Where the memory is.
    Attached {
        attachment: u64,
        port: u16,
        /// The backup's half of what the memory's secret is agreed on with.
        key: AttachmentKey,
        slot_count: u64,
        /// CP18: how far the log of the copy goes that it has, if that may have lost its end.
        reach: Option<u64>,
        /// RS8: the segments of the log that are damaged in that, as far as it was told.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        damaged: Vec<u64>,
    },
    /// It is in force, durably.
    Committed,
    /// The replica is there, and can be attached.
    Prepared,
    /// It is gone, or never was.
    Abandoned,
    /// It does not know of this epoch yet.
    NotYet(String),
    /// It cannot, or will not.
    Refused(String),
}

impl fmt::Display for PeerReply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached { attachment, .. } => write!(formatter, "attachment {attachment}"),
            Self::Committed => formatter.write_str("it is in force"),
            Self::Prepared => formatter.write_str("it is prepared"),
            Self::Abandoned => formatter.write_str("it is gone"),
            Self::NotYet(how) => write!(formatter, "not yet: {how}"),
            Self::Refused(how) => write!(formatter, "refused: {how}"),
        }
    }
}

impl fmt::Debug for PeerReply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Versioned<T> {
    version: u32,
    body: T,
}

/// As bytes, behind the tag.
pub(crate) fn encode_request(request: &PeerRequest) -> Vec<u8> {
    let versioned = Versioned {
        version: VERSION,
        body: request,
    };
    let mut bytes = vec![TAG];
    serde_json::to_writer(&mut bytes, &versioned).expect("it is a plain value");
    bytes
}

/// Of bytes that may be anything, without the tag.
pub(crate) fn decode_request(bytes: &[u8]) -> Result<PeerRequest, String> {
    decode(bytes)
}

/// In the place of what the buffer had.
pub(crate) fn encode_reply(reply: &PeerReply, out: &mut Vec<u8>) {
    out.clear();
    let versioned = Versioned {
        version: VERSION,
        body: reply,
    };
    serde_json::to_writer(out, &versioned).expect("it is a plain value");
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let version = crate::directory::version_of(bytes)?;
    if version != VERSION {
        return Err(format!(
            "it is of version {version}, and this server knows version {VERSION} alone"
        ));
    }
    let versioned: Versioned<T> =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(versioned.body)
}

/// Asks another server. One round trip, and one or two for the connection.
pub(crate) fn ask(
    context: &Context,
    server: ServerId,
    request: &PeerRequest,
) -> Result<(PeerReply, SocketAddr), String> {
    let address = context.address_of(server)?;
    let asked = || -> Result<PeerReply, String> {
        let connected = context.connect(address);
        let mut connection = connected.map_err(|error| error.to_string())?;
        let answer = connection.call(&encode_request(request));
        decode(answer.map_err(|error| error.to_string())?)
    };
    let reply = asked().inspect_err(|_| context.forget_address(server))?;
    Ok((reply, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::fuzzing::run;

    const NAME: ReplicaName = ReplicaName {
        region: RegionId(5),
        replica: ReplicaNumber(2),
        epoch: Epoch(9),
        primary: ServerId(3),
    };
    const KEY: AttachmentKey = AttachmentKey([7; 32]);

    fn attach() -> PeerRequest {
        PeerRequest::Attach {
            of: NAME,
            key: KEY,
            keeps_copy: false,
        }
    }

    /// The format: a later version that changes it must say so.
    #[test]
    fn messages_are_golden() {
        let attach = encode_request(&attach());
        let of = r#"{"region":5,"replica":2,"epoch":9,"primary":3}"#;
        let key = "07".repeat(32);
        let golden = format!(r#"R{{"version":3,"body":{{"attach":{{"of":{of},"key":"{key}"}}}}}}"#);
        assert_eq!(String::from_utf8_lossy(&attach), golden);
        let commit = PeerRequest::Commit {
            of: NAME,
            attachment: 4,
            damaged: Vec::new(),
        };
        let golden =
            format!(r#"R{{"version":3,"body":{{"commit":{{"of":{of},"attachment":4}}}}}}"#);
        assert_eq!(String::from_utf8_lossy(&encode_request(&commit)), golden);
        let mut out = Vec::new();
        let attached = PeerReply::Attached {
            attachment: 4,
            port: 80,
            key: KEY,
            slot_count: 2,
            reach: Some(9),
            damaged: Vec::new(),
        };
        encode_reply(&attached, &mut out);
        let golden = [
            r#"{"version":3,"body":{"attached":{"attachment":4,"port":80,"key":""#,
            &key,
            r#"","slot_count":2,"reach":9}}}"#,
        ];
        let golden = golden.concat();
        assert_eq!(String::from_utf8_lossy(&out), golden);
        assert_eq!(decode::<PeerReply>(&out), Ok(attached));
        for version in [2, 4] {
            let other = format!(r#"{{"version":{version},"bodies":[]}}"#);
            let refused = decode_request(other.as_bytes()).expect_err("another version");
            assert!(refused.contains(&format!("version {version}")), "{refused}");
        }
        for bad in [
            "",
            "07",
            &"0g".repeat(32),
            &"0A".repeat(32),
            &"é".repeat(32),
        ] {
            let bad = format!(r#"{{"version":3,"body":{{"attach":{{"of":{of},"key":"{bad}"}}}}}}"#);
            let refused = decode_request(bad.as_bytes()).expect_err("no key");
            assert!(refused.contains("64 lower-case"), "{refused}");
        }
    }

    /// Promise: bytes that are no message are an error, and what is one is said again as it was.
    #[test]
    fn bytes_are_messages_or_errors() {
        run("requests of servers", |random| {
            let mut bytes = encode_request(&attach()).split_off(1);
            random.mutate(&mut bytes);
            if let Ok(request) = decode_request(&bytes) {
                let again = encode_request(&request).split_off(1);
                assert_eq!(decode_request(&again), Ok(request));
            }
            let _ = decode::<PeerReply>(&bytes);
        });
    }
}
