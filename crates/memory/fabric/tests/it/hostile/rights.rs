//! Verbs and requests beyond a session's rights.

use farleaf_base::{Incarnation, OwnerWord, SessionId};
use farleaf_fabric::{Batch, BatchErrorKind, Control, ControlError, SessionLife};
use farleaf_net::secret::Rights;

use super::raw::{
    ADMIN, DONE, FORBIDDEN, MAGIC, OUT_OF_REGION, READ, Raw, compare_swap, fetch_add, frame,
    message, read, refusal, word, write,
};
use super::{Honest, at, execute};
use crate::network::NetworkNode;

/// Index from which on writers may write, as in [`NetworkNode`]'s service.
const WRITERS_START: u64 = 16 * 1024;

/// Returns a batch for each kind of verb that changes the word.
fn changes(index: u64) -> [Batch; 3] {
    let mut write = Batch::new();
    write.write_word(at(index), 99);
    let mut swap = Batch::new();
    swap.compare_swap(at(index), 0, 99);
    let mut add = Batch::new();
    add.fetch_add(at(index), 99);
    [write, swap, add]
}

/// Promise (FABRIC-7): no verb reaches beyond the memory, of any kind and with any overflow of its
/// address. Verbs before it are executed, those after it are not, and the connection remains
/// usable.
#[test]
fn verbs_outside_of_the_region_are_refused() {
    let node = NetworkNode::start();
    let honest = Honest::of(node.client());
    let (_client, ticket) = Raw::log_in(&node.address, ADMIN);
    let mut data = Raw::open_data(&node.address, ADMIN, ticket, 0);
    let size = node.memory.word_count();
    let outside = [
        read(size, 1),
        read(size - 1, 2),
        read(0, 1 << 15),
        read((1 << 48) - 1, 1 << 15),
        write(size, &[1]),
        write(size - 1, &[1, 1]),
        write((1 << 48) - 1, &[1]),
        compare_swap(size, 0, 1),
        compare_swap((1 << 48) - 1, 0, 1),
        fetch_add(size, 1),
        fetch_add((1 << 48) - 1, 1),
    ];
    let fits = 1 << 15 <= size;
    for (number, verb) in (1..).zip(outside) {
        if fits && verb == read(0, 1 << 15) {
            continue;
        }
        let verbs = [write(40, &[number]), verb.clone(), write(41, &[number])];
        data.send(&frame(number, false, &verbs));
        let reply = data.receive_frame().expect("an answer");
        let said = (reply.tag, reply.status, reply.executed_verb_count);
        assert_eq!(said, (number, OUT_OF_REGION, 1), "{verb:?}");
        assert_eq!((node.word(40), node.word(41)), (number, 0), "{verb:?}");
    }
    assert_eq!(node.word(size as usize - 1), 0, "nothing of them was done");
    data.send(&frame(99, false, &[read(40, 1)]));
    assert_eq!(data.receive_frame().expect("an answer").status, DONE);
    honest.works(0);
}

/// Promise (FABRIC-7): a reader can read everything, and change only the words of its own session,
/// and only while the session is its own.
#[test]
fn readers_change_nothing() {
    let node = NetworkNode::start();
    let reader = Honest::of(node.client_with(Some(Rights::Read)));
    let writer = Honest::of(node.client());
    writer.works(WRITERS_START);
    for index in [0, 1000, WRITERS_START, node.memory.word_count() - 1] {
        let before = node.word(index as usize);
        for mut batch in changes(index) {
            let error = execute(&reader.endpoint, &mut batch).expect_err("it may only read");
            let kind = error.kind();
            assert!(matches!(kind, BatchErrorKind::Forbidden { .. }), "{kind:?}");
            assert_eq!(error.executed_verb_count(), 0);
        }
        let mut batch = Batch::new();
        let seen = batch.read(at(index), 1);
        execute(&reader.endpoint, &mut batch).expect("it may read");
        assert_eq!(batch.words(seen), [before], "changed by who may read");
    }
    // The reader registered first, so these are the words of session 1.
    let mut batch = Batch::new();
    batch.write(at(4), &[1, 2, 3, 4]);
    execute(&reader.endpoint, &mut batch).expect("its own");
    let process = reader.client.endpoint(None).expect("a connection");
    reader.client.close_session(reader.owner).expect("its own");
    let mut batch = Batch::new();
    batch.write(at(4), &[9]);
    let error = execute(&process, &mut batch).expect_err("not its own any more");
    assert!(matches!(error.kind(), BatchErrorKind::Forbidden { .. }));
    assert_eq!(node.word(4), 1);
}

/// Promise (FABRIC-7): a writer can change exactly the words that its rights allow.
#[test]
fn writers_stay_in_their_grant() {
    let node = NetworkNode::start();
    let writer = Honest::of(node.client_with(Some(Rights::Write)));
    for index in [0, 8, WRITERS_START - 1] {
        for mut batch in changes(index) {
            let error = execute(&writer.endpoint, &mut batch).expect_err("not open to it");
            assert!(matches!(error.kind(), BatchErrorKind::Forbidden { .. }));
        }
        assert_eq!(node.word(index as usize), 0);
    }
    let mut batch = Batch::new();
    batch.write_word(at(WRITERS_START + 8), 1);
    batch.write(at(WRITERS_START - 1), &[7, 7]);
    batch.write_word(at(WRITERS_START + 9), 1);
    let error = execute(&writer.endpoint, &mut batch).expect_err("half of it is not open");
    let expected = BatchErrorKind::Forbidden {
        addr: at(WRITERS_START - 1),
        word_count: 2,
    };
    assert_eq!((error.kind(), error.executed_verb_count()), (&expected, 1));
    let words = [-1, 0, 8, 9].map(|offset| node.word((WRITERS_START as i64 + offset) as usize));
    assert_eq!(words, [0, 0, 1, 0]);
    for mut batch in changes(WRITERS_START) {
        execute(&writer.endpoint, &mut batch).expect("open to it");
    }
}

/// Promise: a fence request without the right `admin` returns an error and fences nothing.
#[test]
fn only_administrators_fence() {
    let node = NetworkNode::start();
    let victim = Honest::of(node.client());
    for rights in [Rights::Read, Rights::Write] {
        let client = node.client_with(Some(rights));
        let fenced = client.fence_session(victim.owner, &mut |_| {});
        let Err(ControlError::Refused { reason, .. }) = fenced else {
            panic!("must be refused: {fenced:?}");
        };
        assert!(reason.contains("right 'admin'"), "{reason}");
        victim.works(0);
    }
}

/// Promise: no client can close another's session, or one that never existed, whatever its rights.
#[test]
fn sessions_of_others_are_not_closed() {
    let node = NetworkNode::start();
    let victim = Honest::of(node.client());
    let (mut raw, _) = Raw::log_in(&node.address, ADMIN);
    let own = raw.register();
    for owner in [victim.owner.word(), own + 1, 0, 1, u64::MAX] {
        let answer = raw.ask(&message(&[MAGIC, 4, owner]));
        let text = refusal(&answer);
        assert!(text.contains("not a session of this client"), "{text}");
    }
    victim.works(0);
    assert_eq!(word(&raw.ask(&message(&[MAGIC, 4, own])), 1), 4, "closed");
    let again = refusal(&raw.ask(&message(&[MAGIC, 4, own])));
    assert!(again.contains("not a session of this client"), "{again}");
}

/// Promise: an invalid request on a control connection is refused, and the next request is
/// answered.
#[test]
fn bad_requests_do_not_end_a_client() {
    let node = NetworkNode::start();
    let (mut raw, _) = Raw::log_in(&node.address, READ);
    let cases: [(&[u64], &str); 6] = [
        (&[MAGIC, 1, 1, 3], "unknown request number 1"),
        (&[MAGIC, 2], "unknown request number 2"),
        (&[MAGIC, 0], "unknown request number 0"),
        (&[MAGIC, u64::MAX], "unknown request number"),
        (&[MAGIC + 1, 3], "version 6"),
        (&[u64::MAX; 32], "not in Farleaf's protocol"),
    ];
    for (words, said) in cases {
        let text = refusal(&raw.ask(&message(words)));
        assert!(text.contains(said), "{text}");
    }
    for owner in [0, 1, u64::MAX, 1 << 48] {
        let answer = raw.ask(&message(&[MAGIC, 5, owner]));
        let said = (word(&answer, 1), word(&answer, 2));
        assert_eq!(said, (5, 0), "a session that never was is fenced");
    }
    raw.register();
}

/// Promise (FABRIC-6): after an administrator has fenced a session, none of its verbs takes effect,
/// and it gets an error.
#[test]
fn a_fenced_session_changes_nothing() {
    let node = NetworkNode::start();
    let victim = Honest::of(node.client());
    victim.works(0);
    let admin = Honest::of(node.client());
    let fenced = admin.client.fence_session(victim.owner, &mut |_| {});
    fenced.expect("an administrator");
    let life = admin.client.session_life(victim.owner).expect("served");
    assert_eq!(life, SessionLife::Fenced);
    let before = node.word(1);
    let mut batch = Batch::new();
    batch.fetch_add(at(1), 1);
    let error = execute(&victim.endpoint, &mut batch).expect_err("fenced");
    let kind = error.kind();
    assert!(
        matches!(
            kind,
            BatchErrorKind::Fenced | BatchErrorKind::Unknown { .. }
        ),
        "{kind:?}"
    );
    let error = execute(&victim.endpoint, &mut batch).expect_err("fenced");
    let kind = error.kind();
    assert!(
        matches!(kind, BatchErrorKind::Unreachable { .. }),
        "{kind:?}"
    );
    assert_eq!(node.word(1), before);
    let reopened = victim
        .client
        .endpoint(Some(victim.owner))
        .expect_err("fenced");
    assert!(
        reopened
            .to_string()
            .contains("not a session of this client")
    );
    admin.works(0);
}

/// Promise (FABRIC-6): the same holds for a session that sends without pause: when the
/// administrator receives the reply, the session's last verb has been executed.
#[test]
fn fencing_ends_a_stream_of_verbs() {
    const WORD: usize = 5000;
    let node = NetworkNode::start();
    let admin = node.client();
    for _ in 0..20 {
        let (mut control, ticket) = Raw::log_in(&node.address, ADMIN);
        let owner = OwnerWord::from_word(control.register());
        let mut data = Raw::open_data(&node.address, ADMIN, ticket, owner.word());
        let before = node.word(WORD);
        let adding = std::thread::spawn(move || {
            let verbs = vec![fetch_add(WORD as u64, 1); 64];
            let frames = frame(0, false, &verbs).repeat(16);
            loop {
                data.send(&frames);
                for _ in 0..16 {
                    match data.receive_frame() {
                        Some(reply) if reply.status == DONE => {}
                        _ => return,
                    }
                }
            }
        });
        while node.word(WORD) == before {
            std::thread::yield_now();
        }
        let fenced = admin.fence_session(owner, &mut |_| {});
        fenced.expect("an administrator");
        let after = node.word(WORD);
        adding.join().expect("no panic");
        assert_eq!(
            node.word(WORD),
            after,
            "a verb was executed after the fence"
        );
    }
}

/// Promise: a session that never existed counts as fenced, so a request to fence it succeeds.
#[test]
fn fencing_nobody_harms_nobody() {
    let node = NetworkNode::start();
    let honest = Honest::of(node.client());
    let nobody = OwnerWord::new(SessionId::new(999).expect("not 0"), Incarnation::new(5));
    for owner in [nobody, OwnerWord::FREE, OwnerWord::from_word(u64::MAX)] {
        let fenced = honest.client.fence_session(owner, &mut |_| {});
        fenced.expect("it is fenced");
    }
    honest.works(0);
    let (mut reader, ticket) = Raw::log_in(&node.address, READ);
    let owner = reader.register();
    let mut data = Raw::open_data(&node.address, READ, ticket, owner);
    data.send(&frame(1, false, &[write(0, &[1])]));
    assert_eq!(data.receive_frame().expect("served").status, FORBIDDEN);
}
