use super::*;
use farleaf_base::{Incarnation, SessionId};
use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_index::rpc::bytes::{ByteChange, ByteCondition, ReplyCapacity, RequestHead, SentValue};
use farleaf_index::rpc::{BadWords, Change};
use farleaf_pool::catalog::TableRecord;

use crate::sessions::format_memory;

/// Employer without sessions: no request here needs a worker.
struct NoSessions;

impl SessionFactory for NoSessions {
    type Endpoint = MappedEndpoint;

    fn open_worker_session(&self) -> Result<(MappedEndpoint, OwnerWord), String> {
        Err("there is nobody".to_owned())
    }

    fn end_worker_session(&self, _owner: OwnerWord) {}
}

/// Memory of a node whose catalog contains these tables.
struct Scene {
    endpoint: MappedEndpoint,
    layout: PoolLayout,
    server: TableServer,
}

const WORDS: TableId = TableId(1);
const STRINGS: TableId = TableId(2);
const PAGES: TableId = TableId(3);

impl Scene {
    fn new() -> Self {
        let memory = Arc::new(MappedMemory::anonymous(4 << 20).expect("memory"));
        let layout = PoolLayout::from(format_memory(&memory).expect("large enough"));
        let endpoint = MappedEndpoint::new(memory);
        let bytes = TableKind::Bytes {
            page_size_blocks: 16,
            inline_value_size_bytes: 128,
        };
        // No test reads what the root names.
        let root = RemoteAddr::from_word(1);
        for (index, (id, kind, layer)) in (0..).zip([
            (WORDS, TableKind::Words { slots: 8 }, LayerKind::Rpc),
            (STRINGS, bytes, LayerKind::Rpc),
            (PAGES, bytes, LayerKind::Learned),
        ]) {
            let record = TableRecord {
                id,
                name: format!("t{}", id.0),
                kind,
                search_layer: layer.number(),
                fill_percent: 75,
                epsilon_milli: 16_000,
                first_leaf: root,
                part: None,
            };
            let entry = layout.catalog_entry(index);
            let mut batch = Batch::new();
            batch.write(entry.offset(1), &record.encode_body(root));
            batch.write_word(entry, live_word(id));
            block_on(endpoint.execute(&mut batch), || 0).expect("inside the memory");
        }
        Self {
            endpoint,
            layout,
            server: TableServer::new(1 << 20),
        }
    }

    fn serve(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        let tables = Arc::clone(self.server.leaves());
        let worker = Worker::new(NoSessions, self.layout.clone(), tables);
        let session = SessionId::new(1).expect("a number");
        let session = OwnerWord::new(session, Incarnation::new(1));
        let served = self
            .server
            .serve(&self.endpoint, &self.layout, &worker, session, request);
        block_on(served, || 0)
    }

    fn ask(&self, table: TableId, request: &WordRequest) -> WordReply {
        let mut bytes = Vec::new();
        request.encode(table, &mut bytes);
        let reply = self.serve(&bytes).expect("a reply");
        WordReply::decode(&reply).expect("a reply about words")
    }

    fn ask_bytes(&self, table: TableId, request: &ByteRequest<'_>) -> Vec<u8> {
        self.ask_behind(table, 1, request)
    }

    /// Sends a request of a session that has no transfer below this number.
    fn ask_behind(&self, table: TableId, lowest_open: u64, request: &ByteRequest<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        request.encode(RequestHead { table, lowest_open }, &mut bytes);
        self.serve(&bytes).expect("a reply")
    }
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> ByteRequest<'a> {
    let change = ByteChange {
        key,
        condition: ByteCondition::Always,
        value: Some(SentValue::Here(value)),
        wants_previous: false,
    };
    let capacity = ReplyCapacity {
        number: 1,
        size_bytes: 16,
    };
    ByteRequest::Change { change, capacity }
}

/// Promise: a request about words to a table of byte strings, the reverse, and a request to a table
/// that the node does not hold all get an error, in any order. Valid requests still work.
#[test]
fn tables_of_another_kind_are_told() {
    for strings_come_first in [false, true] {
        let scene = Scene::new();
        let failed = |failure| Ok(ByteReply::Failed(failure));
        let put_words = WordRequest::Change(5, Change::Put(6));
        if strings_come_first {
            scene.ask_bytes(STRINGS, &put(b"key", b"value"));
        }
        for request in [
            &put_words,
            &WordRequest::Count,
            &WordRequest::LoadDrop { load: 1 },
        ] {
            let reply = scene.ask(STRINGS, request);
            assert_eq!(
                reply,
                WordReply::Failed(Failure::OfOtherKind),
                "{request:?}"
            );
            let reply = scene.ask(PAGES, request);
            assert_eq!(reply, WordReply::Failed(Failure::OfLeaves));
            let reply = scene.ask(TableId(9), request);
            assert_eq!(reply, WordReply::Failed(Failure::Dropped));
        }
        scene.ask(WORDS, &put_words);
        for request in [put(b"key", b"value"), ByteRequest::Forget { number: 1 }] {
            let reply = scene.ask_bytes(WORDS, &request);
            assert_eq!(ByteReply::decode(&reply), failed(Failure::OfOtherKind));
            let reply = scene.ask_bytes(PAGES, &request);
            assert_eq!(ByteReply::decode(&reply), failed(Failure::OfLeaves));
            let reply = scene.ask_bytes(TableId(9), &request);
            assert_eq!(ByteReply::decode(&reply), failed(Failure::Dropped));
        }
        scene.ask_bytes(STRINGS, &put(b"key", b"value"));
        let count = scene.ask_bytes(STRINGS, &ByteRequest::Count);
        assert_eq!(ByteReply::decode(&count), Ok(ByteReply::Count(1)));
        assert_eq!(
            scene.ask(WORDS, &WordRequest::Get(5)),
            WordReply::Found(Some(6))
        );
    }
}

/// Promise: an invalid request gets an error message.
#[test]
fn what_is_no_request_is_refused() {
    let scene = Scene::new();
    for first in [0_u64, 31, 32, 35, 41, 0xFF] {
        let refused = scene.serve(&first.to_le_bytes()).expect_err("no request");
        assert!(
            refused.starts_with("invalid request from the session: "),
            "{refused}"
        );
    }
    let text = |bad: BadWords| format!("invalid request from the session: {}", bad.text());
    let bad = WordRequest::decode(&[]).expect_err("nothing");
    assert_eq!(scene.serve(&[]), Err(text(bad)));
}

/// Promise: data staged by a dropped operation takes no memory after the session's next request,
/// whichever table that is about. A part of it that is executed later is refused and takes no
/// memory. The same holds for a value that was held for reading.
#[test]
fn dropped_operations_leave_no_space_taken() {
    let scene = Scene::new();
    let size_bytes = || scene.server.memory_limit.size_bytes();
    let stage = |number| ByteRequest::Stage {
        number,
        offset: 0,
        whole_size_bytes: 10_000,
        part: &[7; 5_000],
    };
    let refused = Ok(ByteReply::Failed(Failure::Unsound));
    for table in [STRINGS, WORDS, PAGES, TableId(9)] {
        // Each round is another session, whose numbers begin anew.
        let scene_session = SessionId::new(1).expect("a number");
        let session = OwnerWord::new(scene_session, Incarnation::new(1));
        scene.server.drop_session(session);
        scene.ask_behind(STRINGS, 1, &stage(1));
        scene.ask_behind(STRINGS, 1, &stage(2));
        assert_eq!(size_bytes(), 20_000);
        scene.ask_behind(table, 2, &ByteRequest::Count);
        assert_eq!(size_bytes(), 10_000, "the second one is open");
        scene.ask_behind(table, 3, &ByteRequest::Count);
        assert_eq!(size_bytes(), 0);
        let late = scene.ask_behind(STRINGS, 1, &stage(1));
        assert_eq!(
            (ByteReply::decode(&late), size_bytes()),
            (refused.clone(), 0)
        );
    }
    scene.ask_behind(STRINGS, 3, &put(b"key", &[7; 1_000]));
    let taken_bytes = size_bytes();
    let get = |number| ByteRequest::Get {
        keys: vec![b"key"],
        capacity: ReplyCapacity {
            number,
            size_bytes: 100,
        },
    };
    scene.ask_behind(STRINGS, 3, &get(3));
    scene.ask_behind(STRINGS, 4, &put(b"key", &[8; 1_000]));
    assert_eq!(size_bytes(), taken_bytes, "nobody holds the old one");
    let late = scene.ask_behind(STRINGS, 3, &get(3));
    assert!(matches!(ByteReply::decode(&late), Ok(ByteReply::Values(_))));
    scene.ask_behind(STRINGS, 4, &put(b"key", &[9; 1_000]));
    assert_eq!(size_bytes(), taken_bytes);
}
