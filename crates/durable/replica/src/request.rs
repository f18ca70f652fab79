//! What a primary asks of a backup by messages (RP3), as JSON.

use farleaf_lsm::follow::{BaseEnd, IndexKind, InstalledEdit, OwnPiece, PieceSum};
use farleaf_lsm::log::record::EngineId;
use farleaf_lsm::place::{LogNumber, TreeId};
use farleaf_lsm::scrub::PieceName;
use farleaf_lsm::tree::TreeShape;
use farleaf_lsm::written::WrittenSum;
use serde::{Deserialize, Serialize};

/// The version of all that is said here, and of [`Layout`](crate::Layout).
pub(crate) const VERSION: u32 = 3;
/// So many log segments are freed by one request at the most: it has to fit into the ring.
pub(crate) const FREED_COUNT_MAX: usize = 512;

/// An answer to a request that asks for something; others are answered by nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Reply {
    /// To the one that begins: whether there is a copy of which pieces can be taken.
    Begun { has_previous: bool },
    /// To an offer: whether it is there, and was taken. Else it has to come.
    Taken(bool),
    /// To a segment of the log or of a tree: what was written of it (RP15).
    Written(WrittenSum),
    /// To a request for a piece's checksum: what the backup's disk has of it.
    Piece(OwnPiece),
}

impl Reply {
    pub(crate) fn encode(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("it is a plain value")
    }

    /// Of bytes that may be anything; `Err`: why they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("it is no answer: {error}"))
    }
}

/// A request. The bytes that it is about lie in the buffer for trees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// A primary comes: everything that was here is to go.
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
    /// The next segment of a tree, of the base or of an edit to come.
    TreeSegment {
        id: TreeId,
        index: usize,
        size_bytes: u32,
    },
    /// RP14: a log segment of the base, whose first bytes have this sum. Is it there?
    LogOffer {
        number: LogNumber,
        end: Option<u32>,
        size_bytes: u32,
        sum: PieceSum,
    },
    /// RP14: the next segment of a tree of the base, whose blocks have this sum. Is it there?
    TreeOffer {
        id: TreeId,
        index: usize,
        size_bytes: u32,
        sum: PieceSum,
    },
    /// A tree of the base is whole.
    Tree {
        level: usize,
        id: TreeId,
        shape: TreeShape,
    },
    /// The base is whole.
    Finish(BaseEnd),
    /// An edit.
    Edit(InstalledEdit),
    /// RP17: the checksum of so many bytes of a piece, as read from the backup's disk.
    Piece { name: PieceName, size_bytes: u32 },
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("it has no maps, whose keys might be none of JSON's")
    }

    /// Of bytes that may be anything; `Err`: why they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("it is no request: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::fuzzing::run;
    use farleaf_lsm::place::{BlockNumber, LogPosition};
    use farleaf_lsm::tree::BlockRange;

    fn all() -> [(Request, &'static str); 6] {
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
        let begin = Request::Begin {
            version: 3,
            epoch: 7,
            engine: EngineId(u64::MAX),
            index: IndexKind::Sent,
        };
        let log = Request::LogSegment {
            number: LogNumber(3),
            end: Some(40),
            size_bytes: 2 << 20,
        };
        let segment = Request::TreeSegment {
            id: TreeId(9),
            index: 1,
            size_bytes: 4096,
        };
        let tree = Request::Tree {
            level: 2,
            id: TreeId(9),
            shape,
        };
        let finish = Request::Finish(BaseEnd {
            next_log: LogNumber(4),
            read_from: LogPosition(99),
            next_tree: TreeId(10),
            edit_count: 6,
        });
        let edit = Request::Edit(InstalledEdit {
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

    fn offers() -> [(Request, &'static str); 2] {
        let sum = PieceSum::of(b"abc");
        let log = Request::LogOffer {
            number: LogNumber(3),
            end: None,
            size_bytes: 2 << 20,
            sum,
        };
        let tree = Request::TreeOffer {
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

    fn pieces() -> [(Request, &'static str); 2] {
        let log = Request::Piece {
            name: PieceName::Log {
                number: LogNumber(3),
            },
            size_bytes: 2 << 20,
        };
        let tree = Request::Piece {
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

    /// The format: a later version that changes it must say so.
    #[test]
    fn requests_are_golden() {
        for (request, golden) in all().into_iter().chain(offers()).chain(pieces()) {
            assert_eq!(String::from_utf8_lossy(&request.encode()), golden);
            assert_eq!(Request::decode(golden.as_bytes()), Ok(request));
        }
    }

    /// The format of answers, as well.
    #[test]
    fn answers_are_golden() {
        let begun = Reply::Begun { has_previous: true };
        let found = OwnPiece::Found(WrittenSum {
            size_bytes: u32::MAX,
            crc: u64::MAX,
        });
        let found_text =
            r#"{"piece":{"found":{"size_bytes":4294967295,"crc":18446744073709551615}}}"#;
        for (reply, golden) in [
            (begun, r#"{"begun":{"has_previous":true}}"#),
            (Reply::Taken(false), r#"{"taken":false}"#),
            (
                Reply::Written(WrittenSum {
                    size_bytes: u32::MAX,
                    crc: u64::MAX,
                }),
                r#"{"written":{"size_bytes":4294967295,"crc":18446744073709551615}}"#,
            ),
            (Reply::Piece(found), found_text),
            (Reply::Piece(OwnPiece::Absent), r#"{"piece":"absent"}"#),
            (Reply::Piece(OwnPiece::NotYet), r#"{"piece":"not_yet"}"#),
        ] {
            assert!(golden.len() <= crate::index_way::REPLY_SIZE_BYTES_MAX);
            assert_eq!(String::from_utf8_lossy(&reply.encode()), golden);
            assert_eq!(Reply::decode(golden.as_bytes()), Ok(reply));
        }
    }

    /// Promise: bytes that are no answer are an error, and what is one is said again as it was.
    #[test]
    fn bytes_are_answers_or_errors() {
        run("answers of a backup", |random| {
            let reply = [
                Reply::Begun { has_previous: true },
                Reply::Taken(true),
                Reply::Written(WrittenSum::of(b"blocks")),
                Reply::Piece(OwnPiece::Found(WrittenSum::of(b"blocks"))),
                Reply::Piece(OwnPiece::Absent),
                Reply::Piece(OwnPiece::NotYet),
            ];
            let mut bytes = reply[random.index(reply.len())].encode();
            random.mutate(&mut bytes);
            if let Ok(reply) = Reply::decode(&bytes) {
                assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
            }
        });
    }

    /// Promise: bytes that are no request are an error, and what is one is said again as it was.
    #[test]
    fn bytes_are_requests_or_errors() {
        let all: Vec<_> = all().into_iter().chain(offers()).chain(pieces()).collect();
        run("requests of a primary", |random| {
            let mut bytes = all[random.index(all.len())].0.encode();
            random.mutate(&mut bytes);
            if let Ok(request) = Request::decode(&bytes) {
                assert_eq!(Request::decode(&request.encode()), Ok(request));
            }
        });
    }
}
