//! Memory of a server's requests and replies: a limit for all clients, and one for each.
//!
//! A connection reserves the memory of a large request before it reads it, all at once, and waits
//! without reading if it gets none. It holds nothing while it waits, so no two connections wait for
//! each other. A reply exists before its size is known: it is counted without waiting, and later
//! requests wait until its client is within its limits again.
//!
//! - The requests of one client get memory in the order of their arrival.
//! - A client that uses most of its limit, and waits, does not delay the others.
//! - Of several clients, those within an equal share of the total go first, whatever else waits. So
//!   a client that uses more than its share waits until the others have theirs. Then the client
//!   that uses least is next, and memory that is too little for it is not given to the others.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use thiserror::Error;

/// Largest sums of the sizes of requests and replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimits {
    /// Bytes of all clients.
    pub(crate) total_bytes_max: usize,
    /// Bytes of one client.
    pub(crate) client_bytes_max: usize,
}

impl MemoryLimits {
    /// Returns limits of this total, but at least two of the largest requests, and of half of it
    /// for each client. So any request fits, and no client can take all.
    pub(crate) fn of_total(total_bytes_max: usize, request_size_bytes_max: usize) -> Self {
        let total_bytes_max = total_bytes_max.max(request_size_bytes_max.saturating_mul(2));
        Self {
            total_bytes_max,
            client_bytes_max: total_bytes_max / 2,
        }
    }
}

/// Reason why a request got no memory; it was not executed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum MemoryRefusal {
    /// Requests and replies of the same client use too much.
    #[error(
        "the server's memory for requests of {client} is in use: {used_bytes} of {bytes_max} \
         bytes, and this request of {size_bytes} bytes has waited {time:?}; send fewer large \
         requests at once and read replies faster, or start the server with a larger \
         --request-memory-max, half of which is for one client"
    )]
    Client {
        client: IpAddr,
        used_bytes: usize,
        bytes_max: usize,
        size_bytes: usize,
        time: Duration,
    },
    /// Requests and replies of all clients use too much.
    #[error(
        "the server's memory for requests is in use: {used_bytes} of {bytes_max} bytes by all \
         clients, and this request of {size_bytes} bytes has waited {time:?}; retry later, or \
         start the server with a larger --request-memory-max"
    )]
    Total {
        used_bytes: usize,
        bytes_max: usize,
        size_bytes: usize,
        time: Duration,
    },
    /// The server stops.
    #[error("the server is stopping")]
    Stopping,
}

/// Memory that all connections of a server share.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    limits: MemoryLimits,
    /// Whether replies have exceeded a limit, so that small requests must look for that of their
    /// client.
    is_exceeded: AtomicBool,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    used_bytes: usize,
    used_bytes_peak: usize,
    /// Clients that use memory or wait for it.
    clients: HashMap<IpAddr, ClientUse>,
    next_number: u64,
    /// Threads of small requests that wait for their client to be within its limits.
    small_waiting: Vec<Thread>,
    is_stopping: bool,
}

#[derive(Debug, Default)]
struct ClientUse {
    used_bytes: usize,
    /// Large requests, in the order of their arrival.
    waiting: VecDeque<WaitingRequest>,
}

#[derive(Debug)]
struct WaitingRequest {
    /// Numbers ascend in the order of arrival.
    number: u64,
    size_bytes: usize,
    thread: Thread,
}

/// The oldest waiting request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    used_bytes: usize,
    number: u64,
    size_bytes: usize,
    client: IpAddr,
}

/// Memory of one request or reply, until it is dropped. Drop it after the memory.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<MemoryBudget>,
    client: IpAddr,
    size_bytes: usize,
}

impl MemoryBudget {
    pub(crate) fn new(limits: MemoryLimits) -> Self {
        Self {
            limits,
            is_exceeded: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the largest sum that was in use so far.
    pub(crate) fn used_bytes_peak(&self) -> usize {
        self.lock().used_bytes_peak
    }

    /// Lets all waiting threads fail, and all later ones.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.is_stopping = true;
        let waiting = state.clients.values().flat_map(|it| &it.waiting);
        waiting.for_each(|it| it.thread.unpark());
        state.small_waiting.drain(..).for_each(|it| it.unpark());
    }

    /// Reserves the memory of a request, all of it at once, and waits for it up to `time`. The
    /// caller must hold no other reservation: others may wait for that.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        client: IpAddr,
        size_bytes: usize,
        time: Duration,
    ) -> Result<Reservation, MemoryRefusal> {
        let mut state = self.lock();
        let number = state.next_number;
        state.next_number += 1;
        let request = WaitingRequest {
            number,
            size_bytes,
            thread: thread::current(),
        };
        let of_client = state.clients.entry(client).or_default();
        of_client.waiting.push_back(request);
        state.grant(self.limits);
        let until = Instant::now() + time;
        while state.is_waiting(client, number) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.is_stopping {
                let refusal = state.refusal(self.limits, client, size_bytes, time);
                state.give_up(client, number);
                // This request may have been the one that others waited for.
                state.grant(self.limits);
                return Err(refusal);
            }
            drop(state);
            thread::park_timeout(left);
            state = self.lock();
        }
        Ok(self.reservation(client, size_bytes))
    }

    /// Counts the memory of a reply, without waiting, also beyond the limits.
    pub(crate) fn count_reply(self: &Arc<Self>, client: IpAddr, size_bytes: usize) -> Reservation {
        let mut state = self.lock();
        state.use_bytes(client, size_bytes);
        self.note_exceeded(&state);
        self.reservation(client, size_bytes)
    }

    /// Returns whether replies have exceeded a limit. Costs one load of a flag.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }

    /// Waits up to `time` until the client's replies are within the limits again. Small requests
    /// do this before they are executed, if a limit [is exceeded](Self::is_exceeded).
    pub(crate) fn wait_within_limits(
        &self,
        client: IpAddr,
        size_bytes: usize,
        time: Duration,
    ) -> Result<(), MemoryRefusal> {
        let until = Instant::now() + time;
        let mut state = self.lock();
        while state.has_exceeded(self.limits, client) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.is_stopping {
                return Err(state.refusal(self.limits, client, size_bytes, time));
            }
            state.small_waiting.push(thread::current());
            drop(state);
            thread::park_timeout(left);
            state = self.lock();
            let own = thread::current().id();
            state.small_waiting.retain(|it| it.id() != own);
        }
        Ok(())
    }

    fn reservation(self: &Arc<Self>, client: IpAddr, size_bytes: usize) -> Reservation {
        Reservation {
            budget: Arc::clone(self),
            client,
            size_bytes,
        }
    }

    fn note_exceeded(&self, state: &BudgetState) {
        let mut clients = state.clients.values();
        let is_exceeded = state.used_bytes > self.limits.total_bytes_max
            || clients.any(|it| it.used_bytes > self.limits.client_bytes_max);
        self.is_exceeded.store(is_exceeded, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.used_bytes -= self.size_bytes;
        if let Some(of_client) = state.clients.get_mut(&self.client) {
            of_client.used_bytes -= self.size_bytes;
        }
        state.forget_if_unused(self.client);
        state.grant(self.budget.limits);
        if self.budget.is_exceeded() {
            self.budget.note_exceeded(&state);
            state.small_waiting.drain(..).for_each(|it| it.unpark());
        }
    }
}

impl BudgetState {
    fn use_bytes(&mut self, client: IpAddr, size_bytes: usize) {
        self.used_bytes += size_bytes;
        self.used_bytes_peak = self.used_bytes_peak.max(self.used_bytes);
        self.clients.entry(client).or_default().used_bytes += size_bytes;
    }

    fn is_waiting(&self, client: IpAddr, number: u64) -> bool {
        let of_client = self.clients.get(&client);
        of_client.is_some_and(|it| it.waiting.iter().any(|it| it.number == number))
    }

    fn give_up(&mut self, client: IpAddr, number: u64) {
        if let Some(of_client) = self.clients.get_mut(&client) {
            of_client.waiting.retain(|it| it.number != number);
        }
        self.forget_if_unused(client);
    }

    fn forget_if_unused(&mut self, client: IpAddr) {
        let of_client = self.clients.get(&client);
        if of_client.is_some_and(|it| it.used_bytes == 0 && it.waiting.is_empty()) {
            self.clients.remove(&client);
        }
    }

    /// Returns an equal part of the total for each client that uses memory or waits for it.
    fn share_bytes(&self, limits: MemoryLimits) -> usize {
        limits.total_bytes_max / self.clients.len().max(1)
    }

    /// Returns whether replies to this client have exceeded a limit.
    fn has_exceeded(&self, limits: MemoryLimits, client: IpAddr) -> bool {
        let used_bytes = self.clients.get(&client).map_or(0, |it| it.used_bytes);
        let is_total_exceeded = self.used_bytes > limits.total_bytes_max;
        used_bytes > limits.client_bytes_max
            || is_total_exceeded && used_bytes > self.share_bytes(limits)
    }

    /// Gives memory to waiting requests, as long as there is enough for the next one. Costs one
    /// pass over the clients that use memory or wait for it, for each request.
    fn grant(&mut self, limits: MemoryLimits) {
        while let Some(next) = self.next(limits) {
            let of_client = self.clients.get_mut(&next.client);
            if let Some(request) = of_client.and_then(|it| it.waiting.pop_front()) {
                request.thread.unpark();
            }
            self.use_bytes(next.client, next.size_bytes);
        }
    }

    /// Returns the request that gets memory next, if there is enough for it.
    fn next(&self, limits: MemoryLimits) -> Option<Candidate> {
        let share_bytes = self.share_bytes(limits);
        let candidates = self.clients.iter().filter_map(|(client, it)| {
            let oldest = it.waiting.front()?;
            let candidate = Candidate {
                used_bytes: it.used_bytes,
                number: oldest.number,
                size_bytes: oldest.size_bytes,
                client: *client,
            };
            (candidate.sum_bytes() <= limits.client_bytes_max).then_some(candidate)
        });
        let fits = |it: &Candidate| self.used_bytes + it.size_bytes <= limits.total_bytes_max;
        let within_share = candidates.clone();
        let within_share = within_share.filter(|it| it.sum_bytes() <= share_bytes && fits(it));
        within_share.min().or_else(|| candidates.min().filter(fits))
    }

    /// Returns why a request does not get memory now.
    fn refusal(
        &self,
        limits: MemoryLimits,
        client: IpAddr,
        size_bytes: usize,
        time: Duration,
    ) -> MemoryRefusal {
        let used_bytes = self.clients.get(&client).map_or(0, |it| it.used_bytes);
        if self.is_stopping {
            MemoryRefusal::Stopping
        } else if used_bytes + size_bytes > limits.client_bytes_max {
            MemoryRefusal::Client {
                client,
                used_bytes,
                bytes_max: limits.client_bytes_max,
                size_bytes,
                time,
            }
        } else {
            MemoryRefusal::Total {
                used_bytes: self.used_bytes,
                bytes_max: limits.total_bytes_max,
                size_bytes,
                time,
            }
        }
    }
}

impl Candidate {
    fn sum_bytes(&self) -> usize {
        self.used_bytes + self.size_bytes
    }
}

#[cfg(test)]
mod tests;
