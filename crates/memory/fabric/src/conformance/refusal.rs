//! Tests of FABRIC-7 (every verb is checked) and FABRIC-5 (effects of a refused batch).

use farleaf_base::{NodeId, WordAddr};

use crate::conformance::steps::read;
use crate::conformance::{Backend, Case, at, client};
use crate::{Batch, BatchError, BatchErrorKind, Endpoint};

const NO_NODE: NodeId = NodeId(255);

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    vec![
        Case::new(
            "FABRIC-7",
            "verbs outside of the memory are refused by every kind",
            every_kind,
        ),
        Case::new(
            "FABRIC-7",
            "places whose sum overflows are refused",
            overflow,
        ),
        Case::new(
            "FABRIC-7",
            "verbs to a node that is not there are refused",
            unknown_node,
        ),
        Case::new(
            "FABRIC-5",
            "verbs before a refused one took effect, none after it did",
            prefix,
        ),
        Case::new(
            "FABRIC-5",
            "a refused WRITE writes no word, not even those inside",
            nothing_of_it,
        ),
    ]
}

/// Executes a batch whose verb number `index` must be refused.
async fn refused<E: Endpoint>(endpoint: &E, batch: &mut Batch, index: usize) -> BatchError {
    let verb = batch.verbs()[index];
    let Err(error) = endpoint.execute(batch).await else {
        panic!("{verb:?} must be refused")
    };
    assert_eq!(error.executed_verb_count(), index, "{error}");
    assert_eq!(
        *error.kind(),
        BatchErrorKind::Refused {
            addr: verb.addr,
            word_count: verb.word_count.into(),
            memory_word_count: endpoint.memory_word_count(verb.addr.node()),
        },
        "{error}"
    );
    let text = error.to_string();
    let node = verb.addr.node().to_string();
    let offset = format!("{:#x}", verb.addr.index() * 8);
    let length = (u64::from(verb.word_count) * 8).to_string();
    for part in [node, offset, length] {
        assert!(text.contains(&part), "'{text}' does not name {part}");
    }
    error
}

/// Executes the four verbs on one place, all of which must be refused.
async fn refused_by_every_kind<E: Endpoint>(endpoint: &E, place: WordAddr) {
    let posts: [fn(&mut Batch, WordAddr); 4] = [
        |batch, place| {
            batch.read(place, 1);
        },
        |batch, place| batch.write_word(place, 1),
        |batch, place| {
            batch.compare_swap(place, 0, 1);
        },
        |batch, place| {
            batch.fetch_add(place, 1);
        },
    ];
    for post in posts {
        let mut batch = Batch::new();
        post(&mut batch, place);
        refused(endpoint, &mut batch, 0).await;
    }
}

fn every_kind<B: Backend>(backend: &B) {
    let end = backend.memory_word_count();
    backend.run(vec![client(async |endpoint| {
        let endpoint: &B::Endpoint = &endpoint;
        refused_by_every_kind(endpoint, at(end)).await;
        refused_by_every_kind(endpoint, at(end + 1)).await;
        for (first, word_count) in [(end - 1, 2), (0, end + 1), (end - 7, 8), (end + 1, 0)] {
            let mut batch = Batch::new();
            batch.read(at(first), word_count as usize);
            refused(endpoint, &mut batch, 0).await;
            let mut batch = Batch::new();
            batch.write(at(first), &vec![1; word_count as usize]);
            refused(endpoint, &mut batch, 0).await;
        }
        let whole = read(endpoint, 0, end as usize).await;
        assert!(
            whole.iter().all(|word| *word == 0),
            "a refused verb wrote something"
        );
    })]);
}

fn overflow<B: Backend>(backend: &B) {
    backend.run(vec![client(async |endpoint| {
        let endpoint: &B::Endpoint = &endpoint;
        // Indexes that become valid if a byte offset, or a 32-bit or 56-bit sum, overflows.
        for index in [(1 << 56) - 1, 1 << 55, 1 << 53, 1 << 48, 1 << 40] {
            refused_by_every_kind(endpoint, at(index)).await;
            let mut batch = Batch::new();
            batch.read(at(index), 3);
            refused(endpoint, &mut batch, 0).await;
            let mut batch = Batch::new();
            batch.write(at(index), &[1, 2, 3]);
            refused(endpoint, &mut batch, 0).await;
        }
        assert_eq!(
            read(endpoint, 0, 8).await,
            [0; 8],
            "a refused verb wrote something"
        );
    })]);
}

fn unknown_node<B: Backend>(backend: &B) {
    backend.run(vec![client(async |endpoint| {
        let endpoint: &B::Endpoint = &endpoint;
        assert_eq!(endpoint.memory_word_count(NO_NODE), None);
        refused_by_every_kind(endpoint, WordAddr::new(NO_NODE, 8)).await;
        assert_eq!(
            read(endpoint, 8, 1).await,
            [0],
            "a verb to another node was executed here"
        );
    })]);
}

fn prefix<B: Backend>(backend: &B) {
    let end = backend.memory_word_count();
    backend.run(vec![client(async |endpoint| {
        let mut batch = Batch::new();
        batch.write(at(10), &[1, 2]);
        let swap = batch.compare_swap(at(20), 0, 3);
        let add = batch.fetch_add(at(30), 4);
        let image = batch.read(at(10), 2);
        batch.write_word(at(end), 5);
        batch.write(at(11), &[6, 7]);
        let late_swap = batch.compare_swap(at(40), 0, 8);
        batch.fetch_add(at(30), 9);
        refused(&*endpoint, &mut batch, 4).await;
        assert_eq!((batch.previous(swap), batch.previous(add)), (0, 0));
        assert_eq!(batch.words(image), [1, 2]);
        assert_ne!(
            batch.previous(late_swap),
            0,
            "a CAS that was not executed looks like one"
        );
    })]);
    // Another client checks the memory after the failed batch has ended.
    backend.run(vec![client(async |endpoint| {
        let endpoint: &B::Endpoint = &endpoint;
        assert_eq!(read(endpoint, 10, 3).await, [1, 2, 0]);
        assert_eq!(read(endpoint, 20, 1).await, [3]);
        assert_eq!(read(endpoint, 30, 1).await, [4]);
        assert_eq!(read(endpoint, 40, 1).await, [0]);
    })]);
}

fn nothing_of_it<B: Backend>(backend: &B) {
    let end = backend.memory_word_count();
    backend.run(vec![client(async |endpoint| {
        let mut batch = Batch::new();
        batch.write(at(end - 4), &[1; 5]);
        refused(&*endpoint, &mut batch, 0).await;
    })]);
    backend.run(vec![client(async |endpoint| {
        assert_eq!(read(&*endpoint, end - 4, 4).await, [0; 4]);
    })]);
}
