//! Requests between servers: JSON after the tag `R`.

use std::fmt;

use farleaf_cluster::ids::{Epoch, RegionId, ReplicaNumber, ServerId};
use farleaf_cluster::record::region::Key;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::attachment::AttachmentKey;
use crate::context::{Context, PeerAddress};

/// First byte of requests between servers.
pub(crate) const TAG: u8 = b'R';

/// Version of all messages in this module.
const VERSION: u32 = 3;

/// The addressed replica and the requesting primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplicaName {
    pub(crate) region: RegionId,
    pub(crate) replica: ReplicaNumber,
    pub(crate) epoch: Epoch,
    /// Server of the primary at this epoch.
    pub(crate) primary: ServerId,
}

/// Request of a primary to a backup's server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum PeerRequest {
    /// Requests memory for a new copy that the primary writes.
    Attach {
        of: ReplicaName,
        /// The primary's public key for the agreement on the memory's secret.
        key: AttachmentKey,
        /// Whether no pieces are taken from the copy in force, and that copy is moved aside when
        /// the new one replaces it. Set if the primary's log is damaged, so that the copy may have
        /// data that it lacks.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keeps_copy: bool,
    },
    /// Requests that the copy of this attachment is put in force.
    Commit {
        of: ReplicaName,
        attachment: u64,
        /// Damaged log segments of the copy, which no replica had intact.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        damaged: Vec<u64>,
    },
    /// Requests a replica, with the same number, of a region being split off, at the next epoch.
    Prepare {
        of: ReplicaName,
        child: RegionId,
        from: Key,
        to: Option<Key>,
    },
    /// Reports that the region being split off was never created.
    Abandon { of: ReplicaName, child: RegionId },
}

/// Reply to a request.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum PeerReply {
    /// Location of the memory.
    Attached {
        attachment: u64,
        port: u16,
        /// The backup's public key for the agreement on the memory's secret.
        key: AttachmentKey,
        slot_count: u64,
        /// End of the log of the backup's copy, if that copy may have lost its end (CONTROL-18).
        reach: Option<u64>,
        /// Damaged log segments of that copy, as far as the backup knows.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        damaged: Vec<u64>,
    },
    /// The copy is durably in force.
    Committed,
    /// The replica exists, and can be attached.
    Prepared,
    /// The replica is removed, or never existed.
    Abandoned,
    /// The server does not know this epoch yet.
    NotYet(String),
    /// The server cannot or will not do it.
    Refused(String),
}

impl fmt::Display for PeerReply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached { attachment, .. } => write!(formatter, "attachment {attachment}"),
            Self::Committed => formatter.write_str("committed"),
            Self::Prepared => formatter.write_str("prepared"),
            Self::Abandoned => formatter.write_str("removed"),
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

/// Appends an encoded request or reply.
fn encode<T: Serialize>(body: &T, out: &mut Vec<u8>) {
    let version = VERSION;
    serde_json::to_writer(out, &Versioned { version, body }).expect("it is a plain value");
}

/// Encodes a request after the tag.
pub(crate) fn encode_request(request: &PeerRequest) -> Vec<u8> {
    let mut bytes = vec![TAG];
    encode(request, &mut bytes);
    bytes
}

/// Encodes a reply and replaces the buffer's content with it.
pub(crate) fn encode_reply(reply: &PeerReply, out: &mut Vec<u8>) {
    out.clear();
    encode(reply, out);
}

/// Decodes untrusted bytes of a request, without the tag, or of a reply.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let version = crate::directory::version_of(bytes)?;
    if version != VERSION {
        return Err(format!(
            "unsupported version {version}; this server supports version {VERSION}"
        ));
    }
    let versioned: Versioned<T> =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(versioned.body)
}

/// Sends a request to another server and waits for the reply. Costs one round trip, and one or two
/// for the connection.
pub(crate) fn ask(
    context: &Context,
    server: ServerId,
    request: &PeerRequest,
) -> Result<(PeerReply, PeerAddress), String> {
    let address = context.address_of(server)?;
    let call = || -> Result<PeerReply, String> {
        let connected = context.connect(&address);
        let mut connection = connected.map_err(|error| error.to_string())?;
        let answer = connection.call(&encode_request(request));
        decode(answer.map_err(|error| error.to_string())?)
    };
    let reply = call().inspect_err(|_| context.forget_address(server))?;
    Ok((reply, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::fuzzing::run;

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

    /// Fixes the format: a change needs a new version.
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
            let refused = decode::<PeerRequest>(other.as_bytes()).expect_err("another version");
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
            let refused = decode::<PeerRequest>(bad.as_bytes()).expect_err("no key");
            assert!(refused.contains("64 lower-case"), "{refused}");
        }
    }

    /// Any bytes decode to an error, or to a message that encodes to the same message again.
    #[test]
    fn bytes_are_messages_or_errors() {
        run("requests of servers", |random| {
            let mut bytes = encode_request(&attach()).split_off(1);
            random.mutate(&mut bytes);
            if let Ok(request) = decode::<PeerRequest>(&bytes) {
                let again = encode_request(&request).split_off(1);
                assert_eq!(decode::<PeerRequest>(&again), Ok(request));
            }
            let _ = decode::<PeerReply>(&bytes);
        });
    }
}
