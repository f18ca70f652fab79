//! Regression tests of the library's sessions, for bugs that the simulator and reviewers found.
//! Each controls the completions of a session one by one.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use farleaf::host::{Barrier, SequencePublisher, SessionHost};
use farleaf::{AsyncSession, Error, ErrorKind, TableOptions};
use farleaf_base::random::Random;
use farleaf_base::{NodeId, OwnerWord, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint};
use farleaf_node::sweep::MemoryMaintainer;
use farleaf_pool::ChunkIndex;
use farleaf_pool::chunk::{CHUNK_ENTRY_SIZE_WORDS, ChunkEntry, ChunkPurpose};
use farleaf_sim::check::{Findings, closing, sweeping};
use farleaf_sim::fabric::Freedoms;
use farleaf_sim::fabric::SharedWorld;
use farleaf_sim::fabric::endpoint::StillEndpoint;
use farleaf_sim::node::{Node, REGION_SIZE_BYTES};
use farleaf_sim::session::SimHost;

/// Gate that decides which batches are reported complete. Batches take effect when they are posted.
#[derive(Debug, Default)]
struct Gate {
    is_open: bool,
    /// Address of the first verb of each batch, and its number of words.
    posted: Vec<(WordAddr, u32)>,
    released: BTreeSet<usize>,
}

#[derive(Debug)]
struct GatedEndpoint {
    inner: StillEndpoint,
    gate: Rc<RefCell<Gate>>,
}

impl Endpoint for GatedEndpoint {
    async fn execute<'a>(&'a self, batch: &'a mut Batch) -> Result<(), BatchError> {
        let (verbs, ..) = batch.parts_mut();
        let Some(first) = verbs.first().copied() else {
            return Ok(());
        };
        let executed = self.inner.execute(batch).await;
        let number = {
            let mut gate = self.gate.borrow_mut();
            gate.posted.push((first.addr, first.word_count));
            gate.posted.len()
        };
        poll_fn(|_| {
            let gate = self.gate.borrow();
            if gate.is_open || gate.released.contains(&number) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        executed
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.inner.memory_word_count(node)
    }
}

/// Client: its session, whose batches pass a gate, and the task that is elsewhere its process's
/// thread.
struct Client {
    session: AsyncSession<SimHost<GatedEndpoint>>,
    process: SequencePublisher<GatedEndpoint>,
    owner: OwnerWord,
    gate: Rc<RefCell<Gate>>,
    process_gate: Rc<RefCell<Gate>>,
    findings: Findings,
}

impl Client {
    /// Creates a client with both gates open.
    fn new(node: &Rc<Node>) -> Self {
        let endpoint = || {
            let (inner, gate) = (StillEndpoint::new(&node.world), Rc::default());
            let endpoint = GatedEndpoint {
                inner,
                gate: Rc::clone(&gate),
            };
            gate.borrow_mut().is_open = true;
            (endpoint, gate)
        };
        let ((own, gate), (process, process_gate)) = (endpoint(), endpoint());
        let findings = Findings::default();
        let client = own.inner.client();
        let owner = node.register(client);
        let host = SimHost::new(node, client, &findings, Arc::default());
        let process = SequencePublisher::new(process, host.share(), Barrier::OneThread);
        Self {
            session: AsyncSession::new(host, own, owner),
            process,
            owner,
            gate,
            process_gate,
            findings,
        }
    }

    fn hold(&self) {
        self.gate.borrow_mut().is_open = false;
    }

    fn open_gate(&self) {
        self.gate.borrow_mut().is_open = true;
    }

    /// Completes the batch that was posted last.
    fn release_last(&self) {
        let mut gate = self.gate.borrow_mut();
        let last = gate.posted.len();
        gate.released.insert(last);
    }

    fn posted_count(&self) -> usize {
        self.gate.borrow().posted.len()
    }

    fn release(&self, number: usize) {
        self.gate.borrow_mut().released.insert(number);
    }

    fn tick(&self) {
        now(self.process.tick()).expect("a tick");
    }

    fn is_closed(&self, node: &Node) -> bool {
        assert_eq!(*self.findings.borrow(), []);
        closing::not_fenced(node, self.owner).is_none()
    }
}

fn node() -> Rc<Node> {
    let size_words = REGION_SIZE_BYTES as usize / 8;
    Node::new(&SharedWorld::new(
        &[size_words],
        Freedoms::CALM,
        Random::new(1),
    ))
}

/// Returns the node's agent, which the test runs step by step.
fn keeper(node: &Node) -> MemoryMaintainer<StillEndpoint> {
    let endpoint = StillEndpoint::new(&node.world);
    let owner = node.register(endpoint.client());
    node.keeper(endpoint, owner)
}

fn now<F: Future>(future: F) -> F::Output {
    block_on(future, || 0)
}

fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

fn is_dropped<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(error) if matches!(error.kind(), ErrorKind::TableDropped { .. }))
}

/// Returns a node on which `maker` has created table `t`, and a client that has not learned of it
/// yet.
fn scene() -> (Rc<Node>, Client, Client) {
    let node = node();
    let (maker, client) = (Client::new(&node), Client::new(&node));
    let options = TableOptions::default();
    let table = now(maker.session.create_table("t", &options)).expect("there is room");
    now(table.put(1, 10)).expect("a put");
    (node, maker, client)
}

/// Drops `t`, and lets the client's process see it; then another future of the client follows.
fn drop_and_follow(keeper: &MemoryMaintainer<StillEndpoint>, maker: &Client, client: &Client) {
    now(maker.session.drop_table("t")).expect("it is there");
    now(keeper.reclaim()).expect("its number is drawn");
    maker.tick();
    client.tick();
    let mut list = pin!(client.session.list_tables());
    assert!(poll(&mut list).is_pending());
    client.release_last();
    let Poll::Ready(listed) = poll(&mut list) else {
        panic!("the catalog has been read");
    };
    assert_eq!(listed.expect("a list"), []);
    client.tick();
    let freed_count = now(keeper.reclaim()).expect("a step");
    assert_eq!(freed_count, 0, "somebody opens it");
}

/// Regression test for a bug that the simulator found. One future of a session finds a table,
/// another follows to the number of its drop, and then the first opens it. No other code would
/// check whether the table was dropped, so the future that opens it must.
#[test]
fn a_table_that_is_opened_past_its_drop_is_dropped() {
    let (node, maker, client) = scene();
    let keeper = keeper(&node);
    client.hold();
    let mut opening = pin!(client.session.open_table("t"));
    assert!(poll(&mut opening).is_pending(), "it reads the catalog");
    drop_and_follow(&keeper, &maker, &client);
    client.open_gate();
    let opened = now(opening).expect("it was there when it was looked for");
    assert!(is_dropped(&now(opened.get(1))));
    client.tick();
    assert!(
        now(keeper.reclaim()).expect("a step") > 0,
        "nobody works on it"
    );
}

/// Regression test for the same case in a session that already has the table open: another future
/// has opened it meanwhile, and has not checked yet.
#[test]
fn a_table_that_another_future_opened_past_its_drop_is_dropped() {
    let (node, maker, client) = scene();
    let keeper = keeper(&node);
    client.hold();
    let mut first = pin!(client.session.open_table("t"));
    let mut second = pin!(client.session.open_table("t"));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    assert_eq!(client.posted_count(), 2, "both read the catalog");
    drop_and_follow(&keeper, &maker, &client);
    // The first opens it, up to its check whether the table was dropped.
    client.release(1);
    let look = (node.layout.catalog_entry(0), 1);
    loop {
        assert!(poll(&mut first).is_pending(), "it must look");
        if client.gate.borrow().posted.last() == Some(&look) {
            break;
        }
        client.release_last();
    }
    let before = client.posted_count();
    client.release(2);
    assert!(poll(&mut second).is_pending(), "it must look, too");
    assert_eq!(client.posted_count(), before + 1);
    client.release_last();
    let Poll::Ready(opened) = poll(&mut second) else {
        panic!("it has looked");
    };
    let opened = opened.expect("it was there when it was looked for");
    // The first still waits for its check.
    assert!(is_dropped(&now(opened.get(1))));
    client.open_gate();
    let opened = now(first).expect("it was there when it was looked for");
    assert!(is_dropped(&now(opened.get(1))));
}

/// Regression test for a bug that a reviewer found (FABRIC-6): closing was cut off, and closing
/// again did nothing. The node counted the session as alive, and its locks were never recovered.
#[test]
fn closing_that_is_cut_off_is_done_again() {
    let (node, maker, client) = scene();
    let keeper = keeper(&node);
    let options = TableOptions::default();
    now(maker.session.create_table("u", &options)).expect("there is room");
    let open = |name| now(client.session.open_table(name)).expect("it is there");
    let tables = ["t", "u"].map(open);
    for table in &tables {
        for key in 0..40 {
            now(table.put(key, key)).expect("a put");
        }
    }
    client.hold();
    {
        let mut close = pin!(client.session.close());
        assert!(
            poll(&mut close).is_pending(),
            "it gives the leaves of one table back"
        );
    }
    assert!(!client.is_closed(&node));
    client.open_gate();
    let refused = now(tables[0].get(1)).expect_err("it is broken");
    assert!(matches!(refused.kind(), ErrorKind::SessionBroken));
    assert!(
        client.is_closed(&node),
        "whoever calls a broken session closes it"
    );
    now(client.session.close()).expect("it is closed");
    let swept = now(keeper.sweep()).expect("a sweep");
    assert!(swept.chunk_count > 0, "what it could not give back");
    now(client.session.close()).expect("closing twice is closing once");
}

/// Promise (FABRIC-6): an operation that closes a broken session may be cut off, too, while the
/// process's thread writes its words. Closing the session works even so, and others recover what it
/// held.
#[test]
fn closing_a_broken_session_is_done_again() {
    let (node, maker, client) = scene();
    let table = now(client.session.open_table("t")).expect("it is there");
    client.hold();
    {
        let mut put = pin!(table.put(1, 78));
        assert!(poll(&mut put).is_pending(), "it locks the leaf");
    }
    assert!(client.session.is_broken());
    client.process_gate.borrow_mut().is_open = false;
    let mut tick = pin!(client.process.tick());
    assert!(poll(&mut tick).is_pending());
    client.process_gate.borrow_mut().released.insert(1);
    assert!(
        poll(&mut tick).is_pending(),
        "it writes the session's words"
    );
    {
        let mut get = pin!(table.get(1));
        assert!(poll(&mut get).is_pending(), "it closes the session");
    }
    assert!(!client.is_closed(&node));
    client.process_gate.borrow_mut().is_open = true;
    assert!(poll(&mut tick).is_ready());
    client.open_gate();
    now(client.session.close()).expect("it needs no fabric");
    assert!(client.is_closed(&node));
    let table = now(maker.session.open_table("t")).expect("it is there");
    assert_eq!(
        now(table.put(1, 12)).expect("the lock is recovered"),
        Some(10)
    );
}

/// Regression test for a bug that a reviewer found (FABRIC-6): a session was closed during a put,
/// which continued and wrote when others counted the session as dead. Closing is now refused
/// without an effect.
#[test]
fn closing_is_refused_while_an_operation_is_under_way() {
    let (node, _maker, client) = scene();
    let table = now(client.session.open_table("t")).expect("it is there");
    client.hold();
    let mut put = pin!(table.put(1, 77));
    assert!(poll(&mut put).is_pending());
    let refused = now(client.session.close()).expect_err("a put is under way");
    assert!(
        matches!(refused.kind(), ErrorKind::SessionBusy),
        "{refused}"
    );
    assert!(!client.is_closed(&node) && !client.session.is_broken());
    client.open_gate();
    assert_eq!(now(put).expect("a put"), Some(10));
    assert_eq!(now(table.get(1)).expect("a get"), Some(77));
    now(client.session.close()).expect("nothing is under way");
    assert!(client.is_closed(&node));
}

/// Regression test for a bug that profile `node-loss` found: sessions created tables in the
/// unformatted memory of a node that had restarted, and reported that there were none.
#[test]
fn a_node_that_restarted_knows_no_session() {
    let (node, _maker, client) = scene();
    node.world.lose_node(NodeId(0));
    let session = &client.session;
    let options = TableOptions::default();
    let errors = [
        now(session.create_table("u", &options)).err(),
        now(session.open_table("t")).err(),
        now(session.list_tables()).err(),
        now(session.drop_table("t")).err(),
    ];
    for (index, error) in errors.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("call {index} was answered"));
        assert!(
            matches!(error.kind(), ErrorKind::SessionUnknown),
            "{index}: {error}"
        );
    }
    let word_count = REGION_SIZE_BYTES as usize / 8;
    let world = node.world.borrow();
    let words = world.words(WordAddr::new(NodeId(0), 0), word_count);
    assert!(
        words.iter().all(|word| *word == 0),
        "nothing was made there"
    );
}

/// Polls a change until it leases a chunk of value blocks, and stops it there.
fn stop_with_a_lease<F: Future>(node: &Node, client: &Client, change: &mut Pin<&mut F>) {
    let is_leased = |chunk| {
        let world = node.world.borrow();
        let place = node.layout.chunk_entry(ChunkIndex::new(NodeId(0), chunk));
        let entry = ChunkEntry::decode(world.words(place, CHUNK_ENTRY_SIZE_WORDS));
        let is_of_blocks = matches!(entry.purpose, Some(ChunkPurpose::Blocks { .. }));
        entry.owner == client.owner && is_of_blocks
    };
    let chunk_count = node.layout.superblock.chunk_count;
    while !(0..chunk_count).any(is_leased) {
        client.release_last();
        assert!(poll(change).is_pending(), "it has to lease value blocks");
    }
}

/// Regression test for a bug that profile `bytes` found. A load failed while another session leased
/// the chunk of its value blocks; it could not return them, and forgot them. Its session then
/// reported that it held nothing, and 64 pieces had no holder. Now the session keeps holding them.
/// If the other session continues in time, it returns them when it closes; otherwise it does not
/// report "drained".
#[test]
fn what_a_load_cannot_give_back_its_session_holds() {
    for goes_on_in_time in [true, false] {
        let node = node();
        let keeper = keeper(&node);
        let (loader, other) = (Client::new(&node), Client::new(&node));
        let options = TableOptions::bytes();
        let table = now(loader.session.create_byte_table("t", &options)).expect("there is room");
        let of_other = now(other.session.open_byte_table("t")).expect("it is there");
        // Of a size of which a chunk has more pieces than one session leases at once.
        let value = [7; 300];
        other.hold();
        let mut put = pin!(of_other.put(b"c", &value));
        // The second value makes the load fail, when it holds a piece for the first one.
        let records = [b"b", b"a"].into_iter().map(|key| {
            if key == b"a" {
                assert!(poll(&mut put).is_pending());
                stop_with_a_lease(&node, &other, &mut put);
            }
            (key, &value)
        });
        let refused = now(table.bulk_load(records, |_| {})).expect_err("keys do not ascend");
        assert!(
            matches!(refused.kind(), ErrorKind::ByteLoad(_)),
            "{refused}"
        );
        other.open_gate();
        if goes_on_in_time {
            now(put.as_mut()).expect("a put");
        }
        now(loader.session.close()).expect("nothing is under way");
        let holding_count = u64::from(!goes_on_in_time);
        assert_eq!(node.holding_count(), holding_count, "{goes_on_in_time}");
        if !goes_on_in_time {
            now(put).expect("a put");
        }
        now(other.session.close()).expect("nothing is under way");
        let swept = now(keeper.sweep()).expect("a sweep");
        let left = sweeping::check_blocks(&swept, node.holding_count());
        assert_eq!(left, None);
        assert_eq!(swept.block_count, if goes_on_in_time { 0 } else { 64 });
    }
}
