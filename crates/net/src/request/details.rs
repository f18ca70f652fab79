//! What clusters add to the messages of a [greeting](crate::greeting).
//!
//! | message | bytes of the details | meaning |
//! |---|---|---|
//! | hello | 0..16 | cluster that the client expects; 0: any |
//! | challenge | 0..16 | cluster of the server; 0: none |
//! | | 16..20 | largest size of a request in bytes |
//! | welcome | 0 | 0: admitted; 1: the server belongs to another cluster than expected |
//!
//! Integers are little-endian, and unused bytes are 0.

use farleaf_base::foreign_protocol::PortKind;

use crate::greeting::{DETAILS_SIZE_BYTES, Details, Protocol};
use crate::request::cluster::ClusterTag;

/// Version of the protocol; both sides must have the same.
pub const WIRE_VERSION: u16 = 3;

/// The protocol of requests.
pub(crate) const WIRE: Protocol = Protocol {
    port: PortKind::Cluster,
    version: WIRE_VERSION,
};
/// Name of the protocol in the names of files with secrets.
pub(crate) const PROTOCOL: &str = "wire";

const CLUSTER_SIZE_BYTES: usize = 16;

/// Details of a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChallengeDetails {
    pub(crate) cluster: Option<ClusterTag>,
    pub(crate) request_size_bytes_max: u32,
}

/// Encodes the details of a hello.
pub(crate) fn encode_hello(expected: Option<ClusterTag>) -> Details {
    let mut details = [0; DETAILS_SIZE_BYTES];
    let bits = expected.map_or(0, ClusterTag::bits);
    details[..CLUSTER_SIZE_BYTES].copy_from_slice(&bits.to_le_bytes());
    details
}

/// Decodes the details of a hello: the cluster that the client expects.
pub(crate) fn decode_hello(details: &Details) -> Option<ClusterTag> {
    let mut bits = [0; CLUSTER_SIZE_BYTES];
    bits.copy_from_slice(&details[..CLUSTER_SIZE_BYTES]);
    ClusterTag::new(u128::from_le_bytes(bits))
}

impl ChallengeDetails {
    pub(crate) fn encode(self) -> Details {
        let mut details = encode_hello(self.cluster);
        details[16..20].copy_from_slice(&self.request_size_bytes_max.to_le_bytes());
        details
    }

    pub(crate) fn decode(details: &Details) -> Self {
        let mut size_bytes = [0; 4];
        size_bytes.copy_from_slice(&details[16..20]);
        Self {
            cluster: decode_hello(details),
            request_size_bytes_max: u32::from_le_bytes(size_bytes),
        }
    }
}

/// Encodes the details of a welcome.
pub(crate) fn encode_welcome(is_admitted: bool) -> Details {
    let mut details = [0; DETAILS_SIZE_BYTES];
    details[0] = u8::from(!is_admitted);
    details
}

/// Decodes the details of a welcome: whether the client is admitted.
pub(crate) fn decode_welcome(details: &Details) -> bool {
    details[0] == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: details have these bytes, so that programs of one version understand each other.
    #[test]
    fn details_are_golden() {
        let cluster = ClusterTag::new(0x0403 << 112 | 0x0201);
        let mut golden = [0; DETAILS_SIZE_BYTES];
        golden[..16].copy_from_slice(&[1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 4]);
        assert_eq!(encode_hello(cluster), golden);
        assert_eq!(decode_hello(&golden), cluster);
        assert_eq!(decode_hello(&[0; DETAILS_SIZE_BYTES]), None);
        golden[16..20].copy_from_slice(&[5, 6, 7, 8]);
        let challenge = ChallengeDetails {
            cluster,
            request_size_bytes_max: 0x0807_0605,
        };
        assert_eq!(challenge.encode(), golden);
        assert_eq!(ChallengeDetails::decode(&golden), challenge);
        assert_eq!(encode_welcome(true), [0; DETAILS_SIZE_BYTES]);
        for is_admitted in [true, false] {
            assert_eq!(decode_welcome(&encode_welcome(is_admitted)), is_admitted);
        }
    }
}
