//! Operations that lesser rights do not allow, and that must not break sessions.

use farleaf::{ConnectOptions, ErrorKind, Pool, Secret, Session, TableOptions};
use farleaf_base::NodeId;
use farleaf_executor::block_on;
use farleaf_fabric::tcp::TcpClient;
use farleaf_fabric::{Batch, BatchErrorKind, Control, Endpoint};
use farleaf_node::{ShmNode, TcpListenOptions};
use farleaf_pool::catalog::root_addr;
use farleaf_pool::layout::SUPERBLOCK_SIZE_WORDS;
use farleaf_pool::{NodeLayout, Superblock};

const SECRET: &str = "the secret of the rights";

/// Starts a node with a table in it, and returns its address.
fn node(name: &str) -> (ShmNode, String) {
    let name = format!("{name}-{}", std::process::id());
    let mut node = ShmNode::start(&name, 32 << 20, None).expect("a node");
    let mut options = TcpListenOptions::at("127.0.0.1:0".parse().expect("an address"));
    options.secret = Some(Secret::from_text(SECRET).expect("long enough"));
    let address = node.listen(&options).expect("a free port").to_string();
    let session = open(&address, "admin");
    let table = session
        .create_table("t", &TableOptions::default())
        .expect("a table");
    table.insert(1, 10).expect("an insert");
    (node, address)
}

/// Returns options with a key that grants these rights.
fn options(rights: &str) -> ConnectOptions {
    let secret = Secret::from_text(SECRET).expect("long enough");
    let rights = rights.parse().expect("rights");
    let text = secret.derived_text(rights);
    let derived = text.map(|text| Secret::from_text(&text).expect("a derived key"));
    ConnectOptions {
        secret: Some(derived.unwrap_or(secret)),
        ..ConnectOptions::default()
    }
}

fn open(address: &str, rights: &str) -> Session {
    let pool = Pool::open_with(&format!("tcp:{address}"), &options(rights)).expect("it listens");
    pool.session().expect("a session")
}

/// Promise (FABRIC-7): a rejected change of the catalog changes nothing and does not break the
/// session: allowed operations continue.
#[test]
fn a_refused_table_change_leaves_the_session_as_it_was() {
    let (_node, address) = node("refused");
    for rights in ["read", "write"] {
        let session = open(&address, rights);
        let table = session.open_table("t").expect("it is there");
        for _ in 0..2 {
            let made = session.create_table("u", &TableOptions::default());
            let dropped = session.drop_table("t");
            for error in [made.err(), dropped.err()].map(|error| error.expect("refused")) {
                let is_forbidden = matches!(error.kind(), ErrorKind::Fabric(failure)
                    if failure.is_forbidden());
                assert!(is_forbidden, "{rights}: {error}");
            }
            assert_eq!(table.get(1).expect("a get"), Some(10));
        }
        assert_eq!(session.list_tables().expect("a list").len(), 1);
        assert_eq!(table.put(1, 10).is_ok(), rights == "write");
    }
}

/// Promise (FABRIC-7): a client with only the right `write` cannot drop or create a table by its
/// own verbs, bypassing the lock. It can swap a table's root, because loads do that.
#[test]
fn writers_do_not_reach_the_catalog() {
    let (node, address) = node("catalog");
    let client = TcpClient::connect(&address, &options("write")).expect("it listens");
    let owner = client.register_session().expect("a session");
    let endpoint = client.endpoint(Some(owner)).expect("a connection");
    let run = |batch: &mut Batch| block_on(endpoint.execute(batch), endpoint.completions());
    let mut batch = Batch::new();
    let read = batch.read(
        NodeLayout::superblock_addr(NodeId(0)),
        SUPERBLOCK_SIZE_WORDS,
    );
    run(&mut batch).expect("a read");
    let words = batch.words(read).try_into().expect("whole");
    let superblock = Superblock::decode(&words, node.size_bytes()).expect("a superblock");
    let layout = NodeLayout {
        node: NodeId(0),
        superblock,
    };
    for (entry, word) in [(0, 0), (0, 2), (0, 15), (1, 0), (255, 15)] {
        batch.clear();
        batch.write_word(layout.catalog_entry(entry).offset(word), 0);
        let error = run(&mut batch).expect_err("it must be refused");
        assert!(
            matches!(error.kind(), BatchErrorKind::Forbidden { .. }),
            "{error}"
        );
    }
    batch.clear();
    let swap = batch.compare_swap(root_addr(&layout, 0), 3, 4);
    run(&mut batch).expect("a root may be swapped");
    assert_ne!(batch.previous(swap), 3, "it was another");
    assert_eq!(
        open(&address, "read")
            .open_table("t")
            .expect("there")
            .get(1)
            .expect("got"),
        Some(10)
    );
}
