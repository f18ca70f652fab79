//! Requests from a primary to a backup (REPLICATION-3), as JSON.

use farleaf_lsm::follow::{BaseManifest, IndexKind, InstalledEdit, OwnPiece, PieceSum};
use farleaf_lsm::log::record::EngineId;
use farleaf_lsm::place::{LogNumber, TreeId};
use farleaf_lsm::scrub::PieceName;
use farleaf_lsm::tree::TreeShape;
use farleaf_lsm::written::WrittenSum;
use serde::{Deserialize, Serialize};

/// Version of all messages in this module, and of [`Layout`](crate::Layout).
pub(crate) const VERSION: u32 = 3;
/// Highest number of log segments that one request frees: the request has to fit into the ring.
pub(crate) const FREED_COUNT_MAX: usize = 512;

/// Result of a request; requests without a result get an empty reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ReplicationReply {
    /// Result of `Begin`: whether there is a previous copy whose pieces can be reused.
    Begun { has_previous: bool },
    /// Result of an offer: whether the backup had the piece and reused it. If not, the primary
    /// sends it.
    Taken(bool),
    /// Result of a segment of the log or of a tree: length and checksum of what was written
    /// (REPLICATION-15).
    Written(WrittenSum),
    /// Result of a request for a piece's checksum: length and checksum of the piece on the backup's
    /// disk.
    Piece(OwnPiece),
}

impl ReplicationReply {
    pub(crate) fn encode(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("it is a plain value")
    }

    /// Decodes untrusted bytes. An `Err` is the reason why they are not a reply.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("not a valid reply: {error}"))
    }
}

/// A request. The bytes that it refers to lie in the buffer for trees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ReplicationRequest {
    /// A primary begins to fill the backup; its previous content is discarded.
    Begin {
        version: u32,
        epoch: u64,
        engine: EngineId,
        index: IndexKind,
    },
    /// A log segment of the base.
    LogSegment {
        number: LogNumber,
        end: Option<u32>,
        size_bytes: u32,
    },
    /// The next segment of a tree of the base or of an upcoming edit.
    TreeSegment {
        id: TreeId,
        index: usize,
        size_bytes: u32,
    },
    /// Offers a log segment of the base, whose counted bytes have this checksum (REPLICATION-14).
    LogOffer {
        number: LogNumber,
        end: Option<u32>,
        size_bytes: u32,
        sum: PieceSum,
    },
    /// Offers the next segment of a tree of the base, whose blocks have this checksum
    /// (REPLICATION-14).
    TreeOffer {
        id: TreeId,
        index: usize,
        size_bytes: u32,
        sum: PieceSum,
    },
    /// All segments of a tree of the base were sent.
    Tree {
        level: usize,
        id: TreeId,
        shape: TreeShape,
    },
    /// All of the base was sent.
    Finish(BaseManifest),
    /// An edit of the manifest.
    Edit(InstalledEdit),
    /// Requests the checksum of `size_bytes` bytes of a piece, read from the backup's disk
    /// (REPLICATION-17).
    Piece { name: PieceName, size_bytes: u32 },
}

impl ReplicationRequest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("it has no maps, whose keys might be none of JSON's")
    }

    /// Decodes untrusted bytes. An `Err` is the reason why they are not a request.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("not a valid request: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::fuzzing::run;
    use farleaf_lsm::place::{BlockNumber, LogPosition};
    use farleaf_lsm::tree::BlockRange;

    fn all() -> [(ReplicationRequest, &'static str); 6] {
        let range = |first, count| BlockRange {
            first: BlockNumber(first),
            count,
        };
        let shape = TreeShape {
            root: BlockNumber(2),
            height: 0,
            entry_count: 5,
            block_count: 3,
            filter: range(0, 1),
            references: range(1, 1),
        };
        let shape_text = concat!(
            r#"{"root":2,"height":0,"entry_count":5,"block_count":3,"#,
            r#""filter":{"first":0,"count":1},"references":{"first":1,"count":1}}"#
        );
        assert_eq!(serde_json::to_string(&shape).expect("JSON"), shape_text);
        let begin = ReplicationRequest::Begin {
            version: 3,
            epoch: 7,
            engine: EngineId(u64::MAX),
            index: IndexKind::Sent,
        };
        let log = ReplicationRequest::LogSegment {
            number: LogNumber(3),
            end: Some(40),
            size_bytes: 2 << 20,
        };
        let segment = ReplicationRequest::TreeSegment {
            id: TreeId(9),
            index: 1,
            size_bytes: 4096,
        };
        let tree = ReplicationRequest::Tree {
            level: 2,
            id: TreeId(9),
            shape,
        };
        let finish = ReplicationRequest::Finish(BaseManifest {
            next_log: LogNumber(4),
            read_from: LogPosition(99),
            next_tree: TreeId(10),
            edit_count: 6,
        });
        let edit = ReplicationRequest::Edit(InstalledEdit {
            log_end: LogPosition(1),
            read_from: None,
            removed: vec![TreeId(9)],
            added: Some((1, TreeId(11), shape)),
            freed: vec![LogNumber(0)],
        });
        let golden = [
            r#"{"begin":{"version":3,"epoch":7,"engine":18446744073709551615,"index":"sent"}}"#,
            r#"{"log_segment":{"number":3,"end":40,"size_bytes":2097152}}"#,
            r#"{"tree_segment":{"id":9,"index":1,"size_bytes":4096}}"#,
            concat!(
                r#"{"tree":{"level":2,"id":9,"shape":{"root":2,"height":0,"entry_count":5,"#,
                r#""block_count":3,"filter":{"first":0,"count":1},"#,
                r#""references":{"first":1,"count":1}}}}"#
            ),
            r#"{"finish":{"next_log":4,"read_from":99,"next_tree":10,"edit_count":6}}"#,
            concat!(
                r#"{"edit":{"log_end":1,"read_from":null,"removed":[9],"added":[1,11,"#,
                r#"{"root":2,"height":0,"entry_count":5,"block_count":3,"#,
                r#""filter":{"first":0,"count":1},"references":{"first":1,"count":1}}],"#,
                r#""freed":[0]}}"#
            ),
        ];
        let mut golden = golden.into_iter();
        [begin, log, segment, tree, finish, edit].map(|it| (it, golden.next().expect("as many")))
    }

    fn offers() -> [(ReplicationRequest, &'static str); 2] {
        let sum = PieceSum::of(b"abc");
        let log = ReplicationRequest::LogOffer {
            number: LogNumber(3),
            end: None,
            size_bytes: 2 << 20,
            sum,
        };
        let tree = ReplicationRequest::TreeOffer {
            id: TreeId(9),
            index: 1,
            size_bytes: 4096,
            sum,
        };
        let log_text = concat!(
            r#"{"log_offer":{"number":3,"end":null,"size_bytes":2097152,"#,
            r#""sum":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}}"#
        );
        let tree_text = concat!(
            r#"{"tree_offer":{"id":9,"index":1,"size_bytes":4096,"#,
            r#""sum":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}}"#
        );
        [(log, log_text), (tree, tree_text)]
    }

    fn pieces() -> [(ReplicationRequest, &'static str); 2] {
        let log = ReplicationRequest::Piece {
            name: PieceName::Log {
                number: LogNumber(3),
            },
            size_bytes: 2 << 20,
        };
        let tree = ReplicationRequest::Piece {
            name: PieceName::Tree {
                id: TreeId(9),
                index: 1,
            },
            size_bytes: 4096,
        };
        let log_text = r#"{"piece":{"name":{"log":{"number":3}},"size_bytes":2097152}}"#;
        let tree_text = r#"{"piece":{"name":{"tree":{"id":9,"index":1}},"size_bytes":4096}}"#;
        [(log, log_text), (tree, tree_text)]
    }

    /// Fixes the format of requests: a change needs a new version.
    #[test]
    fn requests_are_golden() {
        for (request, golden) in all().into_iter().chain(offers()).chain(pieces()) {
            assert_eq!(String::from_utf8_lossy(&request.encode()), golden);
            assert_eq!(ReplicationRequest::decode(golden.as_bytes()), Ok(request));
        }
    }

    /// Fixes the format of replies: a change needs a new version.
    #[test]
    fn answers_are_golden() {
        let begun_reply = ReplicationReply::Begun { has_previous: true };
        let found = OwnPiece::Found(WrittenSum {
            size_bytes: u32::MAX,
            crc: u64::MAX,
        });
        let found_text =
            r#"{"piece":{"found":{"size_bytes":4294967295,"crc":18446744073709551615}}}"#;
        for (reply, golden) in [
            (begun_reply, r#"{"begun":{"has_previous":true}}"#),
            (ReplicationReply::Taken(false), r#"{"taken":false}"#),
            (
                ReplicationReply::Written(WrittenSum {
                    size_bytes: u32::MAX,
                    crc: u64::MAX,
                }),
                r#"{"written":{"size_bytes":4294967295,"crc":18446744073709551615}}"#,
            ),
            (ReplicationReply::Piece(found), found_text),
            (
                ReplicationReply::Piece(OwnPiece::Absent),
                r#"{"piece":"absent"}"#,
            ),
            (
                ReplicationReply::Piece(OwnPiece::NotYet),
                r#"{"piece":"not_yet"}"#,
            ),
        ] {
            assert!(golden.len() <= crate::index_connection::REPLY_SIZE_BYTES_MAX);
            assert_eq!(String::from_utf8_lossy(&reply.encode()), golden);
            assert_eq!(ReplicationReply::decode(golden.as_bytes()), Ok(reply));
        }
    }

    /// Any bytes decode to an error, or to a reply that encodes to the same reply again.
    #[test]
    fn bytes_are_answers_or_errors() {
        run("answers of a backup", |random| {
            let reply = [
                ReplicationReply::Begun { has_previous: true },
                ReplicationReply::Taken(true),
                ReplicationReply::Written(WrittenSum::of(b"blocks")),
                ReplicationReply::Piece(OwnPiece::Found(WrittenSum::of(b"blocks"))),
                ReplicationReply::Piece(OwnPiece::Absent),
                ReplicationReply::Piece(OwnPiece::NotYet),
            ];
            let mut bytes = reply[random.index(reply.len())].encode();
            random.mutate(&mut bytes);
            if let Ok(reply) = ReplicationReply::decode(&bytes) {
                assert_eq!(ReplicationReply::decode(&reply.encode()), Ok(reply));
            }
        });
    }

    /// Any bytes decode to an error, or to a request that encodes to the same request again.
    #[test]
    fn bytes_are_requests_or_errors() {
        let all: Vec<_> = all().into_iter().chain(offers()).chain(pieces()).collect();
        run("requests of a primary", |random| {
            let mut bytes = all[random.index(all.len())].0.encode();
            random.mutate(&mut bytes);
            if let Ok(request) = ReplicationRequest::decode(&bytes) {
                assert_eq!(ReplicationRequest::decode(&request.encode()), Ok(request));
            }
        });
    }
}
