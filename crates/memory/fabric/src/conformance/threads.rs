//! Clients as threads, for backends that work in real time.

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::thread::ScopedJoinHandle;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Endpoint;
use crate::conformance::Client;

/// Runs each client on its own thread, with an endpoint that `make_endpoint` creates there. After
/// all have ended, panics as the first panicked client did.
pub fn run_on_threads<E: Endpoint>(
    make_endpoint: impl Fn() -> E + Sync,
    clients: Vec<Client<'_, E>>,
) {
    let start = |(index, client): (usize, Client<'_, E>)| {
        keep_apart(index);
        let endpoint = Rc::new(make_endpoint());
        drive(&*endpoint, client(Rc::clone(&endpoint)));
    };
    let start = &start;
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|client| scope.spawn(move || start(client)))
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(ScopedJoinHandle::join).collect();
        if let Some(panic) = outcomes.into_iter().find_map(Result::err) {
            resume_unwind(panic);
        }
    });
}

/// Pins the thread of client number `index` to its own processor while there are enough. Otherwise
/// threads of a few milliseconds mostly run one after the other on the processor that started them,
/// and races between two running threads are never observed.
fn keep_apart(index: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let processors = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
    let count = allowed.count().max(1) as usize;
    let mut own = CpuSet::new();
    processors
        .skip(index % count)
        .take(1)
        .for_each(|number| own.set(number));
    // Failure is harmless: the suite then detects fewer races.
    let _ = sched_setaffinity(None, &own);
}

/// Polls without pause, so that no completion waits, and the suite needs no executor.
fn drive<E: Endpoint>(endpoint: &E, future: impl Future<Output = ()>) {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    while future.as_mut().poll(&mut context) == Poll::Pending {
        if endpoint.poll_completions() == 0 {
            std::thread::yield_now();
        }
    }
}
