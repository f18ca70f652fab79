//! Tests of promised locks, with writes of other sessions between two verbs.

use core::cell::RefCell;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};

use farleaf_base::{Incarnation, NodeId, SessionId, TableId};
use farleaf_executor::RestScope;
use farleaf_fabric::{BatchError, Counters, VerbKind};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::session::{alive_word, fenced_word};
use farleaf_pool::{NodeLayout, PoolLayout, Superblock};

use super::*;
use crate::words::LeafGeometry;

/// Words of a node's memory with one chunk.
const WORD_COUNT: usize = 3 << 17;
/// Number of polls that suffices unless an operation waits forever.
const POLL_COUNT: u32 = 100_000;

/// Writes of other sessions (words and values), and the word before whose first read they happen.
type Others = (u64, Vec<(u64, u64)>);

/// Memory that other sessions write to at one moment.
struct Scripted {
    words: RefCell<Vec<u64>>,
    counters: Counters,
    others: RefCell<Option<Others>>,
}

impl Endpoint for Scripted {
    async fn execute<'a>(&'a self, batch: &'a mut Batch) -> Result<(), BatchError> {
        let memory = &mut *self.words.borrow_mut();
        let (verbs, words, _) = batch.parts_mut();
        for verb in verbs {
            let at = verb.addr.index() as usize;
            let (start, count) = (verb.start as usize, verb.word_count as usize);
            let mut others = self.others.borrow_mut();
            if let Some((_, writes)) = others.take_if(|(when, _)| *when as usize == at) {
                for (word, value) in writes {
                    memory[word as usize] = value;
                }
            }
            match verb.kind {
                VerbKind::Read => {
                    words[start..start + count].copy_from_slice(&memory[at..at + count]);
                }
                VerbKind::Write => {
                    memory[at..at + count].copy_from_slice(&words[start..start + count]);
                }
                VerbKind::CompareSwap => {
                    words[start + 2] = memory[at];
                    if memory[at] == words[start] {
                        memory[at] = words[start + 1];
                    }
                }
                VerbKind::FetchAdd => unreachable!("locks need none"),
            }
        }
        Ok(())
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn memory_word_count(&self, _: NodeId) -> Option<u64> {
        Some(WORD_COUNT as u64)
    }
}

fn session(number: u16) -> SessionId {
    SessionId::new(number).expect("a number")
}

fn owner(number: u16) -> OwnerWord {
    OwnerWord::new(session(number), Incarnation::new(u64::from(number)))
}

/// One leaf, and the live sessions 1 to 3.
struct Stage {
    endpoint: Scripted,
    layout: PoolLayout,
    addr: RemoteAddr,
}

impl Stage {
    fn new(lock: OwnerWord) -> Self {
        let superblock = Superblock::new(WORD_COUNT as u64 * 8, 1).expect("large enough");
        let layout = PoolLayout::from(NodeLayout {
            node: NodeId(0),
            superblock,
        });
        let addr = layout.chunk_start(ChunkIndex(0));
        let mut memory = vec![0; WORD_COUNT];
        let mut leaf = LeafBuffer::new(geometry(), 0, u64::MAX, RemoteAddr::NULL);
        leaf.set_record(0, 5, 50);
        leaf.seal(addr, TableId(1));
        let (words, size) = leaf.leaf_words();
        let at = geometry().lock(addr).index() as usize;
        memory[at..at + size].copy_from_slice(&words[..size]);
        memory[at] = lock.word();
        for number in 1..=3 {
            let life = layout.session(session(number)).index() as usize;
            memory[life] = alive_word(Incarnation::new(u64::from(number)));
        }
        let endpoint = Scripted {
            words: RefCell::new(memory),
            counters: Counters::default(),
            others: RefCell::default(),
        };
        Self {
            endpoint,
            layout,
            addr,
        }
    }

    fn lock(&self) -> u64 {
        geometry().lock(self.addr).index()
    }

    fn life(&self, number: u16) -> u64 {
        self.layout.session(session(number)).index()
    }

    /// Schedules writes of other sessions before the first read of a word.
    fn before_read_of(&self, word: u64, writes: &[(u64, u64)]) {
        *self.endpoint.others.borrow_mut() = Some((word, writes.to_vec()));
    }

    fn owner(&self) -> OwnerWord {
        OwnerWord::from_word(self.endpoint.words.borrow()[self.lock() as usize])
    }

    /// Returns the outcome for session 2 of a promise by session 1; `None` if it still waits after
    /// all polls.
    fn asked(&self, broken: &Cell<bool>) -> Option<Result<(), LeafError>> {
        let access = LeafAccess {
            endpoint: &self.endpoint,
            layout: &self.layout,
            geometry: geometry(),
            table: TableId(1),
            owner: owner(2),
        };
        let (mut batch, mut leaf) = (Batch::new(), access.blank());
        let mut asked =
            pin!(access.lock_promised(&mut batch, self.addr, owner(1), &mut leaf, broken));
        let _scope = RestScope::enter();
        for _ in 0..POLL_COUNT {
            let polled = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(done) = polled {
                return Some(done);
            }
        }
        None
    }
}

fn geometry() -> LeafGeometry {
    LeafGeometry::new(8).expect("allowed")
}

const fn fenced(number: u16) -> u64 {
    fenced_word(Incarnation::new(number as u64))
}

/// Promise: a kept promise is the session's lock, with the flag.
#[test]
fn a_promise_that_was_kept_is_a_lock() {
    let stage = Stage::new(owner(2).handed());
    let broken = Cell::new(false);
    assert!(matches!(stage.asked(&broken), Some(Ok(()))));
    assert_eq!((stage.owner(), broken.get()), (owner(2).handed(), false));
}

/// Promise: the lock of a fenced promiser whose batch never took effect is recovered.
#[test]
fn a_promise_that_dies_with_its_session_is_void() {
    for word in [owner(1), owner(1).handed()] {
        let stage = Stage::new(word);
        let life = stage.life(1);
        stage.before_read_of(life, &[(life, fenced(1))]);
        let broken = Cell::new(false);
        assert!(matches!(stage.asked(&broken), Some(Ok(()))));
        assert_eq!((stage.owner(), broken.get()), (owner(2), false));
    }
}

/// Promise: a batch that takes effect between a read of the lock word and the end of its session
/// keeps the promise. (The next session once took it for void, and waited forever for itself.)
#[test]
fn a_promise_that_is_kept_at_the_last_moment_is_a_lock() {
    let stage = Stage::new(owner(1));
    let life = stage.life(1);
    let landed = (stage.lock(), owner(2).handed().word());
    stage.before_read_of(life, &[landed, (life, fenced(1))]);
    let broken = Cell::new(false);
    assert!(matches!(stage.asked(&broken), Some(Ok(()))));
    assert_eq!((stage.owner(), broken.get()), (owner(2).handed(), false));
}

/// Promise: a broken session waits for no promise, nor for its own lock that is never released. (It
/// once waited forever, and could not be closed.)
#[test]
fn a_broken_session_does_not_wait() {
    for word in [owner(1), owner(2), owner(3)] {
        let stage = Stage::new(word);
        let broken = Cell::new(true);
        let asked = stage.asked(&broken);
        assert!(
            matches!(asked, Some(Err(LeafError::SessionBroken))),
            "{word}: {asked:?}"
        );
    }
}

/// Promise: interrupting an operation breaks its session if the promiser's batch may still take
/// effect, but not if it waits for another owner.
#[test]
fn only_an_open_promise_is_critical() {
    for (word, is_critical) in [(owner(1), true), (owner(3), false)] {
        let stage = Stage::new(word);
        let broken = Cell::new(false);
        assert!(stage.asked(&broken).is_none(), "{word} is alive");
        assert_eq!(broken.get(), is_critical, "{word}");
    }
}
