//! Tests of the messages' bytes, and of invalid messages.

use super::*;
use farleaf_base::{Incarnation, SessionId};
use proptest::prelude::*;

fn owner() -> OwnerWord {
    OwnerWord::new(SessionId::new(7).expect("not 0"), Incarnation::new(99))
}

fn parameters() -> QueueParameters {
    QueueParameters {
        number: 0x12_3456,
        first_packet: 0xAB_CDEF,
        mtu_bytes: 1024,
        answered_reads_max: 16,
        lid: 7,
        gid: core::array::from_fn(|index| index as u8 + 1),
    }
}

fn node_queue() -> NodeQueue {
    NodeQueue {
        parameters: parameters(),
        memory_addr: 0x7F00_0000_1000,
        memory_key: 0x0BAD_CAFE,
    }
}

fn join() -> JoinRequest {
    JoinRequest {
        memory_id: 77,
        size_bytes: 1 << 40,
        wanted: NodeId(2),
        address: "a.b:7470".to_owned(),
        serves_verbs: true,
    }
}

/// Promise: the bytes of messages about queue pairs are these.
#[test]
fn frames_of_queue_pairs_are_golden() {
    let words = |frame: &Frame, range: core::ops::Range<usize>| -> Vec<u64> {
        range.map(|index| word(frame, index)).collect()
    };
    let frame = ControlRequest::Queue(parameters()).encode();
    let numbers = [7, 0x12_3456, 0xAB_CDEF, 1024, 16, 7, 0];
    assert_eq!(words(&frame, 1..8), numbers);
    assert_eq!(frame[64..80], parameters().gid);
    assert_eq!(words(&frame, 10..32), [0; 22]);
    let frame = ControlReply::Queue(node_queue()).encode();
    assert_eq!(words(&frame, 1..8), numbers);
    assert_eq!(words(&frame, 12..15), [0x7F00_0000_1000, 0x0BAD_CAFE, 0]);
}

/// Promise: the bytes of messages are these; a change needs a new version.
#[test]
fn frames_are_golden() {
    let frame = ControlRequest::Close(owner()).encode();
    assert_eq!(frame[..8], [5, 0, 0, 0x50, 0x43, 0x54, 0x4C, 0x46]);
    assert_eq!((word(&frame, 1), word(&frame, 2)), (4, owner().word()));
    let (owner, pass) = (owner(), Pass([8; 16]));
    let frame = ControlReply::Session { owner, pass }.encode();
    assert_eq!((word(&frame, 1), word(&frame, 2)), (3, owner.word()));
    assert_eq!(
        (frame[111], frame[112], frame[127], frame[128]),
        (0, 8, 8, 0)
    );
    let frame = ControlRequest::Join(join()).encode();
    let numbers: Vec<u64> = (1..9).map(|index| word(&frame, index)).collect();
    let text = u64::from_le_bytes(*b"a.b:7470");
    assert_eq!(numbers, [9, 77, 1 << 40, 2, 1, 0, 8, text]);
    let frame = ControlReply::Member(MemberReply {
        state: 1,
        pool_id: 77,
        answered_count: 5,
    });
    let frame = frame.encode();
    let numbers: Vec<u64> = (1..6).map(|index| word(&frame, index)).collect();
    assert_eq!(numbers, [10, 1, 77, 5, 0]);
    assert_eq!(word(&ControlReply::UnderWay.encode(), 1), 11);
    let frame = ControlReply::Refused("no".to_owned()).encode();
    assert_eq!((frame[8], frame[56], &frame[64..67]), (0, 2, &b"no\0"[..]));
}

/// Promise: a request is decoded as encoded.
#[test]
fn requests_survive_the_way() {
    for request in [
        ControlRequest::Register,
        ControlRequest::Close(owner()),
        ControlRequest::Life(owner()),
        ControlRequest::Fence(owner()),
        ControlRequest::MainNode,
        ControlRequest::Join(join()),
        ControlRequest::SetMember {
            node: NodeId(200),
            state: 2,
        },
        ControlRequest::Member(NodeId(3)),
        ControlRequest::Queue(parameters()),
    ] {
        assert_eq!(ControlRequest::decode(&request.encode()), Ok(request));
    }
}

/// Promise: a reply is decoded as encoded; too long a text is cut off.
#[test]
fn replies_survive_the_way() {
    for reply in [
        ControlReply::Session {
            owner: owner(),
            pass: Pass([8; 16]),
        },
        ControlReply::UnderWay,
        ControlReply::Closed,
        ControlReply::Life(Some(0)),
        ControlReply::Life(Some(4_000_000)),
        ControlReply::Life(None),
        ControlReply::Fenced,
        ControlReply::MainNode(String::new()),
        ControlReply::MainNode("10.0.0.5:7470".to_owned()),
        ControlReply::Joined(Joined {
            node: None,
            pool_id: 5,
        }),
        ControlReply::Joined(Joined {
            node: Some(NodeId(9)),
            pool_id: u64::MAX,
        }),
        ControlReply::Member(MemberReply {
            state: 4,
            pool_id: 77,
            answered_count: 1 << 40,
        }),
        ControlReply::Queue(node_queue()),
        ControlReply::Refused("full".to_owned()),
    ] {
        assert_eq!(ControlReply::decode(&reply.encode()), Ok(reply));
    }
    let long = "ä".repeat(200);
    let cut = ControlReply::decode(&ControlReply::Refused(long.clone()).encode());
    let Ok(ControlReply::Refused(cut)) = cut else {
        panic!("a long reason is still a refusal");
    };
    assert!(long.starts_with(&cut) && cut.len() > 180, "{cut}");
}

/// Promise: a lock word with the handover flag is not accepted as a session.
#[test]
fn a_flagged_owner_is_refused() {
    let reply = ControlReply::Session {
        owner: owner().handed(),
        pass: Pass([8; 16]),
    };
    assert!(ControlReply::decode(&reply.encode()).is_err());
}

#[test]
fn another_version_is_named() {
    let mut frame = ControlRequest::Register.encode();
    frame[0] = 9;
    let Err(Malformed(text)) = ControlRequest::decode(&frame) else {
        panic!("must be refused")
    };
    assert!(text.contains("version 9"), "{text}");
}

proptest! {
    /// Promise: decoding of arbitrary bytes returns a message or an error, and never panics.
    #[test]
    fn any_bytes_decode_or_are_refused(
        random in proptest::collection::vec(any::<u8>(), FRAME_SIZE_BYTES),
        ours: bool,
        number in 0..13_u8,
    ) {
        let mut frame = [0; FRAME_SIZE_BYTES];
        frame.copy_from_slice(&random);
        if ours {
            frame[..8].copy_from_slice(&MAGIC.to_le_bytes());
            frame[8..16].copy_from_slice(&u64::from(number).to_le_bytes());
        }
        let _ = ControlRequest::decode(&frame);
        let _ = ControlReply::decode(&frame);
    }
}
