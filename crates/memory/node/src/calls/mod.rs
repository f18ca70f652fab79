//! Calls: requests of sessions that the node executes (`farleaf_fabric::message` defines the rings;
//! see also docs/explanation/calls.md).
//!
//! | module | contents |
//! |---|---|
//! | [`ring_registry`] | registry of the sessions that have rings |
//! | [`ring_assigner`] | the agent's part: assigns rings to sessions, and takes them back |
//! | [`dispatcher`] | reads the requests of all sessions |
//! | [`server`] | tables in the node's own memory |
//! | `records` | the records of one of them |
//! | `byte_server` | requests about tables of byte strings |
//! | `byte_records` | the records of one of them |
//! | `transfers` | values and loads in several parts |
//! | `memory_limit` | memory limit of all these tables |
//! | `to_caller` | writes replies to the memory or to windows (FABRIC-10) |
//! | [`threads`] | the spinning thread, and workers with private queues (Talos, section 3.6) |
//!
//! - **Assignment.** Only the agent assigns chunks to sessions as rings and takes them back. It
//!   claims them in its own session, in which the node does nothing else at the same time. A sweep
//!   leaves them alone.
//! - **Fencing.** Rings are registered while their session is alive. One thread reads the
//!   mailboxes. A thread that reads a mailbox, or still has a reply to write, holds the rings
//!   ([`ring_registry::SessionRings`]). When the session is fenced (FABRIC-6), its rings are
//!   unregistered. They are zeroed and freed when no thread holds them any more.
//! - **Queues.** A request goes to the first running worker whose queue has space; if there is
//!   none, a sleeping worker is woken. When all queues are full, requests wait in their rings.
//!   Without workers, the thread that reads requests executes them.
//! - **Crash of the agent.** An agent may die between claiming a chunk and registering it as rings.
//!   The next agent registers the assignments that were reported to their sessions, and frees
//!   unreported rings.
//! - **Words.** The records of a table of words have one lock. Reads, and changes of the value of
//!   an existing key, share it: a value is one word, changed in place by a compare-and-swap from
//!   the value on which the change was decided. Inserts and deletes hold the lock alone, and decide
//!   again.
//! - **Tables.** A table is created at its first request, if the catalog contains it, and removed
//!   when the catalog no longer does.
//! - **Byte strings.** A table of byte strings also has one lock. Values never change and are
//!   reference-counted, so readers share the lock only while they look up a value. A write holds
//!   the lock alone, decides by the current value, and replaces it. The old value is freed after
//!   the lock is released.
//! - **Transfers.** Data that is too long for a message is sent in parts, under a number that the
//!   session assigns. A staged value or load belongs to its session until a request names it as a
//!   whole. If a reply contains only the beginning of a value, that value is held, and its later
//!   parts come from it regardless of new writes. A transfer ends when the session releases it or
//!   is fenced, when its table is dropped, or when the session has more transfers than it can need;
//!   then the least recently used one ends. A later request for it gets an error.
//! - **Memory limit.** All tables share a limit in bytes. A record of words counts as 64 bytes, one
//!   of byte strings as its key, its value and 160. Every holder of a value keeps its share, which
//!   is released with the last one. A staged value reserves its whole size before its first part is
//!   kept. A request that exceeds the limit is refused and changes nothing.
//! - **Transfer numbers.** A session's transfer numbers ascend. Each request about byte strings
//!   states the lowest number under which its session has, or will have, a transfer. The node
//!   remembers the highest such statement of each session, drops lower transfers before it executes
//!   the request, and refuses to begin lower ones. So a dropped operation leaves nothing after the
//!   session's next request, however late its own requests are executed; if another operation has
//!   an older transfer, nothing after the end of that one. Released transfers end at once.

mod byte_records;
mod byte_server;
pub mod dispatcher;
mod memory_limit;
mod records;
pub mod ring_assigner;
pub mod ring_registry;
pub mod server;
pub mod threads;
mod to_caller;
mod transfers;

pub use dispatcher::{Dispatcher, Task};
pub use ring_assigner::RingAssigner;
pub use ring_registry::RingRegistry;
pub use server::TableServer;
pub use threads::{CallOptions, CallThreads};
