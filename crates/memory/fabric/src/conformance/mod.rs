//! The conformance suite: programs that check the contract's rules on every backend.
//!
//! A backend implements [`Backend`] in its own crate's tests and calls [`run_all`]. Each [`Case`]
//! gets a fresh memory and names the rule that it checks. A case consists of a few [`Client`]s,
//! each an `async` program with its own endpoint. The backend runs them concurrently, as threads
//! ([`run_on_threads`]) or as tasks in virtual time.
//!
//! The suite checks promises only. It neither requires nor forbids the freedoms of a backend
//! (FABRIC-2: an unfenced WRITE that overtakes a READ; FABRIC-3: the order of words in a READ), and
//! it does not report whether a backend uses them.
//!
//! | module | rules |
//! |---|---|
//! | `batches` | FABRIC-1: a batch is one round trip, whatever its verbs are |
//! | `order` | FABRIC-2: order in which the verbs of a batch take effect |
//! | `tearing` | FABRIC-3: words are never torn |
//! | `atomics` | FABRIC-4: CAS and FAA lose no updates |
//! | `refusal` | FABRIC-5, FABRIC-7: invalid verbs, and the effects of the rest of their batch |
//! | `visibility` | FABRIC-8: complete means visible |
//! | `counting` | FABRIC-9: costs |
//! | `sequence` | FABRIC-1, FABRIC-2, FABRIC-5, FABRIC-9: random batches against a model |

mod atomics;
mod batches;
mod counting;
mod order;
mod refusal;
mod sequence;
mod steps;
mod tearing;
mod threads;
mod visibility;

use core::future::Future;
use core::pin::Pin;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use farleaf_base::{NodeId, WordAddr};

use crate::Endpoint;

pub use threads::run_on_threads;

/// Size in words of the smallest memory that the suite can use.
pub const MEMORY_WORD_COUNT_MIN: u64 = 32 * 1024;

/// A pool whose node 0 has a fresh memory of zeros.
pub trait Backend {
    /// Endpoint of a client.
    type Endpoint: Endpoint + 'static;

    /// Divisor for the rounds of long cases, for backends whose round trips take long.
    const ROUND_DIVISOR: u64 = 1;

    /// Returns the size of node 0's memory in words, at least [`MEMORY_WORD_COUNT_MIN`] and small
    /// enough to be read with one verb. There is no node 255.
    fn memory_word_count(&self) -> u64;

    /// Runs the clients concurrently, each with a new endpoint, until all have ended. Panics if one
    /// does.
    ///
    /// A client that reads in a loop until another has written something must not hang for ever.
    fn run(&self, clients: Vec<Client<'_, Self::Endpoint>>);
}

/// A program that uses one endpoint.
///
/// The program is sent to a thread and called there; its future stays on that thread.
pub type Client<'a, E> = Box<dyn FnOnce(Rc<E>) -> ClientFuture<'a> + Send + 'a>;

/// Future of a running client.
pub type ClientFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A promise of the contract, with the program that detects its violation.
pub struct Case<B> {
    /// Numbers of the rules in the contract.
    pub rules: &'static str,
    /// Text of the promise.
    pub promise: &'static str,
    run: fn(&B),
}

impl<B> Case<B> {
    const fn new(rules: &'static str, promise: &'static str, run: fn(&B)) -> Self {
        Self {
            rules,
            promise,
            run,
        }
    }

    /// Runs the case on a fresh backend. Panics if the promise is broken.
    pub fn run(&self, backend: &B) {
        (self.run)(backend);
    }
}

/// Returns all cases, in the order of the rules.
pub fn cases<B: Backend>() -> Vec<Case<B>> {
    [
        batches::cases(),
        order::cases(),
        tearing::cases(),
        atomics::cases(),
        refusal::cases(),
        visibility::cases(),
        counting::cases(),
        sequence::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Runs every case on its own backend, created by `make`. Panics at the end and names all failed
/// cases.
pub fn run_all<B: Backend>(mut make: impl FnMut() -> B) {
    let mut failed = Vec::new();
    for case in cases::<B>() {
        let backend = make();
        assert!(
            backend.memory_word_count() >= MEMORY_WORD_COUNT_MIN,
            "the suite needs a memory of at least {MEMORY_WORD_COUNT_MIN} words"
        );
        // A case owns its backend, so inconsistent state after a panic is not used again.
        if catch_unwind(AssertUnwindSafe(|| case.run(&backend))).is_err() {
            failed.push(format!("\n  {}: {}", case.rules, case.promise));
        }
    }
    assert!(
        failed.is_empty(),
        "the backend breaks the fabric contract:{}",
        failed.concat()
    );
}

/// Makes a client from an `async` closure.
fn client<'a, E, F>(program: F) -> Client<'a, E>
where
    E: 'a,
    F: AsyncFnOnce(Rc<E>) + Send + 'a,
{
    Box::new(move |endpoint| Box::pin(async move { program(endpoint).await }))
}

/// Returns the address of word number `index` of node 0.
fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}
