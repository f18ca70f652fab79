//! Clients that know the secret and send the card verbs beyond their rights.

use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::tcp::TcpClient;
use farleaf_fabric::verbs::{VerbsClient, VerbsEndpoint};
use farleaf_fabric::{Batch, BatchError, BatchErrorKind, Control, Endpoint};
use farleaf_net::secret::Rights;

use crate::node::Node;

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}

fn execute(endpoint: &VerbsEndpoint, batch: &mut Batch) -> Result<(), BatchError> {
    block_on(endpoint.execute(batch), endpoint.completions())
}

fn endpoint(client: &VerbsClient) -> VerbsEndpoint {
    let owner = client.register_session().expect("a session");
    client.endpoint(owner).expect("a queue pair")
}

type Post = fn(&mut Batch, WordAddr);

/// The four verbs on one place; all but the first change it.
const POSTS: [Post; 4] = [
    |batch, place| {
        batch.read(place, 2);
    },
    |batch, place| batch.write(place, &[1, 1]),
    |batch, place| {
        batch.compare_swap(place, 0, 1);
    },
    |batch, place| {
        batch.fetch_add(place, 1);
    },
];

/// Posts a verb that the card must refuse between two WRITEs or READs. Checks that the one before
/// it is executed, the one after it is not, and the queue pair is unusable.
fn assert_refused(client: &VerbsClient, post: Post, place: WordAddr, neighbours_write: bool) {
    let endpoint = endpoint(client).unchecked();
    let mut batch = Batch::new();
    if neighbours_write {
        batch.write_word(at(40), 7);
    } else {
        batch.read(at(40), 1);
    }
    post(&mut batch, place);
    if neighbours_write {
        batch.write_word(at(41), 7);
    }
    let error = execute(&endpoint, &mut batch).expect_err("the card must refuse it");
    assert_eq!(error.executed_verb_count(), 1, "{error}");
    let is_refused = matches!(
        error.kind(),
        BatchErrorKind::Refused { .. } | BatchErrorKind::Forbidden { .. }
    );
    assert!(is_refused, "{error}");
    let mut batch = Batch::new();
    batch.read(at(40), 1);
    let error = execute(&endpoint, &mut batch).expect_err("the connection is over");
    let is_lost = matches!(error.kind(), BatchErrorKind::Unreachable { .. });
    assert!(is_lost, "{error}");
    assert_eq!(endpoint.in_flight_count(), 0);
}

/// Promise (FABRIC-7): the card itself executes no verb beyond the memory, of any kind, and nothing
/// after it; other clients continue.
pub(crate) fn the_card_refuses_what_is_outside() {
    let node = Node::start();
    let client = node.client(None);
    let size = node.memory.word_count();
    for place in [size - 1, size, size + (1 << 30)] {
        for (index, post) in POSTS.into_iter().enumerate() {
            if place == size - 1 && index > 1 {
                continue;
            }
            assert_refused(&client, post, at(place), true);
            assert_eq!((node.word(40), node.word(41)), (7, 0));
            node.memory.words()[40].store(0, std::sync::atomic::Ordering::SeqCst);
        }
    }
    assert_eq!(node.word(size as usize - 1), 0, "not even a part of it");
    let honest = endpoint(&client);
    let mut batch = Batch::new();
    batch.write_word(at(8), 5);
    execute(&honest, &mut batch).expect("others go on");
}

/// Promise (FABRIC-7): a reader changes nothing, by any verb; this side refuses before the card
/// does.
pub(crate) fn the_card_refuses_changes_by_readers() {
    let node = Node::start();
    let client = node.client(Some(Rights::Read));
    for post in POSTS.into_iter().skip(1) {
        assert_refused(&client, post, at(64), false);
        let polite = endpoint(&client);
        let mut batch = Batch::new();
        post(&mut batch, at(64));
        let error = execute(&polite, &mut batch).expect_err("it may only read");
        assert!(error.is_forbidden(), "{error}");
        let mut batch = Batch::new();
        let read = batch.read(at(64), 2);
        execute(&polite, &mut batch).expect("it may read, and was not cut off");
        assert_eq!(batch.words(read), [0, 0]);
    }
}

/// Promise (FABRIC-7): a reader that has learned the writers' key cannot use it: neither the key
/// nor the reader's queue pair allows it.
pub(crate) fn a_full_key_is_of_no_use_to_a_reader() {
    let node = Node::start();
    let (reader, writer) = (node.client(Some(Rights::Read)), node.client(None));
    let owner = writer.register_session().expect("a session");
    let writer = writer.endpoint(owner).expect("a queue pair");
    for post in POSTS {
        let thief = endpoint(&reader).unchecked().with_key_of(&writer);
        let mut batch = Batch::new();
        post(&mut batch, at(64));
        let error = execute(&thief, &mut batch).expect_err("a key of another domain");
        assert_eq!(error.executed_verb_count(), 0, "{error}");
    }
    assert_eq!((node.word(64), node.word(65)), (0, 0));
}

/// Promise (FABRIC-4): if the card changes words, nothing else does. A writing session by `tcp` is
/// refused with a hint, a reading one is admitted, and the process's own connection can change
/// nothing.
pub(crate) fn words_are_changed_by_the_card_alone() {
    let node = Node::start();
    for rights in [Rights::Admin, Rights::Write] {
        let options = Node::connect_options(Some(rights));
        let client = TcpClient::connect(&node.address, &options).expect("it listens");
        let owner = client.register_session().expect("a session");
        let error = client.endpoint(Some(owner)).expect_err("it could write");
        assert!(error.to_string().contains("verbs:HOST:PORT"), "{error}");
        let process = client.endpoint(None).expect("a connection");
        for post in POSTS.into_iter().skip(1) {
            let mut batch = Batch::new();
            post(&mut batch, at(64));
            let executed = block_on(process.execute(&mut batch), process.completions());
            assert!(executed.expect_err("not its own").is_forbidden());
        }
    }
    let options = Node::connect_options(Some(Rights::Read));
    let client = TcpClient::connect(&node.address, &options).expect("it listens");
    let owner = client.register_session().expect("a session");
    client.endpoint(Some(owner)).expect("it only reads");
    assert_eq!(node.word(64), 0);
}
