//! Limits, order and fairness of a budget.

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

const PATIENT: Duration = Duration::from_secs(30);
const IMPATIENT: Duration = Duration::from_millis(20);

fn client(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

/// Returns a budget of 100 bytes, 50 for each client.
fn budget() -> Arc<MemoryBudget> {
    Arc::new(MemoryBudget::new(MemoryLimits::of_total(100, 40)))
}

/// A thread that reserves memory, and keeps it until it is let go.
struct Holder {
    got: Receiver<Result<(), MemoryRefusal>>,
    _release: Sender<()>,
}

impl Holder {
    /// Starts a thread, and waits until its request waits or has memory.
    fn start(budget: &Arc<MemoryBudget>, client: IpAddr, size_bytes: usize) -> Self {
        let number = budget.lock().next_number;
        let (report, got) = channel();
        let (release, released) = channel();
        let own = Arc::clone(budget);
        thread::spawn(move || {
            let reserved = own.reserve(client, size_bytes, PATIENT);
            let sent = report.send(reserved.as_ref().map(|_| ()).map_err(Clone::clone));
            // The test may have ended.
            drop(sent);
            let _ = released.recv();
        });
        while budget.lock().next_number == number {
            thread::yield_now();
        }
        Self {
            got,
            _release: release,
        }
    }

    fn waits(&self) -> bool {
        self.got.recv_timeout(IMPATIENT).is_err()
    }

    fn is_served(&self) -> bool {
        self.got.recv_timeout(PATIENT) == Ok(Ok(()))
    }
}

/// Promise: the total is at least two of the largest requests, so that each client can send one.
#[test]
fn limits_fit_the_largest_request() {
    let limits = MemoryLimits::of_total(10, 65);
    assert_eq!((limits.total_bytes_max, limits.client_bytes_max), (130, 65));
    let limits = MemoryLimits::of_total(512, 65);
    assert_eq!(limits.client_bytes_max, 256);
}

/// Promise: neither a client nor all of them exceed their limit. The error after too long a wait
/// says which limit it was, how much is in use, and which option raises it.
#[test]
fn limits_hold() {
    let budget = budget();
    let reserve = |number, size_bytes| budget.reserve(client(number), size_bytes, IMPATIENT);
    let first = reserve(1, 40).expect("memory");
    let text = reserve(1, 11).expect_err("too much").to_string();
    assert!(text.contains("of 10.0.0.1 is in use: 40 of 50"), "{text}");
    assert!(text.contains("--request-memory-max"), "{text}");
    let others = [2, 3].map(|it| reserve(it, 25).expect("memory"));
    let text = reserve(4, 11).expect_err("too much").to_string();
    assert!(text.contains("90 of 100 bytes by all clients"), "{text}");
    assert!(text.contains("--request-memory-max"), "{text}");
    let last = reserve(4, 10).expect("memory");
    assert_eq!(budget.used_bytes_peak(), 100);
    drop((first, others, last));
    assert_eq!(budget.lock().used_bytes, 0);
    assert!(budget.lock().clients.is_empty(), "all are forgotten");
    assert_eq!(budget.used_bytes_peak(), 100);
}

/// Promise: requests of one client are served in order, and a client that has reached its limit
/// delays no other, however many of its requests wait.
#[test]
fn a_client_at_its_limit_delays_no_other() {
    let budget = budget();
    let first = Holder::start(&budget, client(1), 40);
    assert!(first.is_served());
    let large = Holder::start(&budget, client(1), 30);
    let small = Holder::start(&budget, client(1), 1);
    let many: Vec<_> = (0..20)
        .map(|_| Holder::start(&budget, client(1), 40))
        .collect();
    assert!(large.waits() && small.waits(), "it comes after the large");
    assert!(Holder::start(&budget, client(2), 40).is_served());
    drop(first);
    assert!(large.is_served() && small.is_served());
    assert!(many.iter().all(Holder::waits));
}

/// Promise: a client within an equal share is served although another one waits for more than
/// there is, and that other one is served before a client that uses more than it.
#[test]
fn clients_within_their_share_go_first() {
    let budget = budget();
    let holders = [(1, 40), (2, 40)].map(|(number, size_bytes)| {
        let holder = Holder::start(&budget, client(number), size_bytes);
        assert!(holder.is_served());
        holder
    });
    let wants_more = Holder::start(&budget, client(3), 40);
    assert!(wants_more.waits(), "20 bytes are left");
    let within_share = Holder::start(&budget, client(4), 5);
    assert!(within_share.is_served());
    // The share of four clients is 25 bytes.
    let greedy = Holder::start(&budget, client(2), 10);
    assert!(greedy.waits(), "15 bytes are left, but client 3 uses less");
    let [first, _second] = holders;
    drop(first);
    assert!(wants_more.is_served());
    assert!(greedy.is_served());
}

/// Promise: replies are counted beyond the limits, and then requests of their client wait, large
/// and small, and those of others do not.
#[test]
fn replies_delay_the_requests_of_their_client() {
    let budget = budget();
    let wait = |number| budget.wait_within_limits(client(number), 7, IMPATIENT);
    let reply = budget.count_reply(client(1), 60);
    let text = wait(1).expect_err("too much").to_string();
    assert!(text.contains("60 of 50 bytes"), "{text}");
    assert!(text.contains("this request of 7 bytes"), "{text}");
    assert_eq!(wait(2), Ok(()));
    assert!(Holder::start(&budget, client(2), 40).is_served());
    let more = budget.count_reply(client(1), 60);
    assert_eq!(wait(2), Ok(()), "it has less than its share");
    let waiting = {
        let budget = Arc::clone(&budget);
        thread::spawn(move || budget.wait_within_limits(client(1), 7, PATIENT))
    };
    drop(reply);
    assert!(wait(1).is_err(), "60 are left");
    drop(more);
    assert_eq!(waiting.join().expect("no panic"), Ok(()));
    assert!(!budget.is_exceeded.load(Ordering::Relaxed));
}

/// Promise: when the server stops, threads that wait end at once.
#[test]
fn a_stop_ends_all_waits() {
    let budget = budget();
    let first = Holder::start(&budget, client(1), 40);
    assert!(first.is_served());
    let second = Holder::start(&budget, client(1), 40);
    let reply = budget.count_reply(client(2), 60);
    let small = {
        let budget = Arc::clone(&budget);
        thread::spawn(move || budget.wait_within_limits(client(2), 1, PATIENT))
    };
    while budget.lock().small_waiting.is_empty() {
        thread::yield_now();
    }
    budget.stop();
    let ended = second.got.recv_timeout(PATIENT);
    assert_eq!(ended, Ok(Err(MemoryRefusal::Stopping)));
    assert_eq!(
        small.join().expect("no panic"),
        Err(MemoryRefusal::Stopping)
    );
    drop(reply);
}

/// Promise: many threads of many clients, with requests of all sizes and some that give up, never
/// exceed a limit and never wait for each other for ever; at the end nothing is in use.
#[test]
fn nobody_waits_for_ever() {
    const ROUND_COUNT: usize = 300;
    let budget = budget();
    let by_client: [AtomicUsize; 4] = Default::default();
    let served_count = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..24_usize {
            let (budget, by_client, served_count) = (&budget, &by_client, &served_count);
            scope.spawn(move || {
                for round in 0..ROUND_COUNT {
                    let size_bytes = 1 + (number * 7 + round * 13) % 50;
                    let own = &by_client[number % 4];
                    let gives_up = (number + round) % 5 == 0;
                    let time = if gives_up { Duration::ZERO } else { PATIENT };
                    let client = client((number % 4) as u8);
                    let Ok(reserved) = budget.reserve(client, size_bytes, time) else {
                        assert!(gives_up, "{number} has waited for ever");
                        continue;
                    };
                    let used = own.fetch_add(size_bytes, Ordering::SeqCst) + size_bytes;
                    assert!(used <= 50, "{used}");
                    served_count.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    own.fetch_sub(size_bytes, Ordering::SeqCst);
                    drop(reserved);
                }
            });
        }
    });
    assert!(served_count.into_inner() >= 24 * ROUND_COUNT * 4 / 5);
    assert!(budget.used_bytes_peak() <= 100);
    assert!(budget.lock().clients.is_empty());
}
