//! The suite that every backend passes: what the contract's rules mean, as programs.
//!
//! A backend implements [`Backend`] in its own crate's tests and calls [`run_all`]. Each [`Case`]
//! gets a fresh region and names the rule that it checks. A case is a few [`Client`]s, each an
//! `async` program with an endpoint of its own; how they come to run at the same time is the
//! backend's business: threads ([`run_on_threads`]), or tasks in virtual time.
//!
//! The suite checks promises only. Freedoms that a backend may or may not use (F2: an unfenced
//! WRITE that overtakes a READ; F3: the order of words in a READ) are neither required nor
//! forbidden, and whether they were used cannot be seen here.
//!
//! | module | rules |
//! |---|---|
//! | `batches` | F1: a batch is one round trip, whatever is in it |
//! | `order` | F2: what the verbs of one batch see of each other, and others of them |
//! | `tearing` | F3: words are never torn |
//! | `atomics` | F4: CAS and FAA lose nothing |
//! | `refusal` | F5, F7: bad verbs, and what is left of their batch |
//! | `visibility` | F8: complete means visible |
//! | `counting` | F9: costs |
//! | `sequence` | F1, F2, F5, F9: random batches against a model |

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

use farleaf_types::{NodeId, WordAddr};

use crate::Endpoint;

pub use threads::run_on_threads;

/// The smallest region that the suite can work with, in words.
pub const REGION_WORD_COUNT_MIN: u64 = 32 * 1024;

/// A pool whose node 0 has a fresh region, all zeros.
pub trait Backend {
    /// What one client uses.
    type Endpoint: Endpoint + 'static;

    /// Cases of many rounds do so many times fewer: for a backend whose round trips take long.
    const ROUND_DIVISOR: u64 = 1;

    /// Size of node 0's region in words, at least [`REGION_WORD_COUNT_MIN`] and small enough to be
    /// read with one verb. There is no node 255.
    fn region_word_count(&self) -> u64;

    /// Runs the clients at the same time, each with a new endpoint, until all have ended. Panics
    /// when one does.
    ///
    /// A client that reads in a loop until another has written something must not hang for ever.
    fn run(&self, clients: Vec<Client<'_, Self::Endpoint>>);
}

/// A program that uses one endpoint.
///
/// It is sent to the thread that runs it, where it is called; what it returns stays there.
pub type Client<'a, E> = Box<dyn FnOnce(Rc<E>) -> ClientFuture<'a> + Send + 'a>;

/// A client at work.
pub type ClientFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// One promise of the contract, and the program that would see it broken.
pub struct Case<B> {
    /// The rules, as the contract numbers them.
    pub rules: &'static str,
    /// What is promised.
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

    /// Runs the case, which needs a backend of its own. Panics when the promise is broken.
    pub fn run(&self, backend: &B) {
        (self.run)(backend);
    }
}

/// All cases, in the order of the rules.
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

/// Runs every case on a backend that `make` makes for it. Panics at the end, naming all cases that
/// failed.
pub fn run_all<B: Backend>(mut make: impl FnMut() -> B) {
    let mut failed = Vec::new();
    for case in cases::<B>() {
        let backend = make();
        assert!(
            backend.region_word_count() >= REGION_WORD_COUNT_MIN,
            "the suite needs a region of at least {REGION_WORD_COUNT_MIN} words"
        );
        // A case owns its backend, so whatever a panic leaves half done is not looked at again.
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

/// A client out of an `async` closure.
fn client<'a, E, F>(program: F) -> Client<'a, E>
where
    E: 'a,
    F: AsyncFnOnce(Rc<E>) + Send + 'a,
{
    Box::new(move |endpoint| Box::pin(async move { program(endpoint).await }))
}

/// Word number `index` of node 0.
fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}
