//! Calls: sessions whose requests the node answers (S5; `farleaf-message` has the rules of rings).
//!
//! | module | what it holds |
//! |---|---|
//! | [`desk`] | which sessions have rings |
//! | [`receptionist`] | the agent's part: gives rings to sessions, and takes them back |
//! | [`dispatcher`] | reads all mailboxes |
//! | [`server`] | the tables that the node holds in memory of its own |
//! | `records` | the records of one of them |
//! | `byte_server` | the same of byte strings: requests about them |
//! | `byte_records` | the records of one of them |
//! | `transfers` | what sessions send and fetch in parts |
//! | `room` | how much memory all of them may take |
//! | `to_caller` | the way of replies, into the region or into windows (F10) |
//! | [`threads`] | the spinning thread, and workers with private queues (Talos, section 3.6) |
//!
//! - **J1.** The agent alone gives chunks to sessions as rings (S5) and takes them back: it claims
//!   in its own name, and nothing else of the node does at the same time. A sweep leaves them.
//! - **J2.** Rings are on the desk while their session is alive. One thread reads mailboxes; who
//!   reads one, or still has a reply to write, holds the rings ([`desk::Line`]). When the session
//!   is fenced (F6) they are taken off the desk, and when nobody holds them any more they are
//!   zeroed and free (E9).
//! - **J3.** Requests go to the first running worker whose queue has room; if none has, a sleeping
//!   one is woken. When all queues are full, requests stay in their rings until there is room.
//!   Without workers the thread that reads them answers them.
//! - **J4.** An agent may die between claiming a chunk and putting it on the desk. The next one
//!   puts what the session was told there, and frees rings that nobody was told of.
//! - **J5.** A table's records have one lock. Who reads, or changes the value of a key that is
//!   present, shares it: a value is one word, and is changed in place by a compare-and-swap from
//!   the value that the change was decided on. Who adds a key or removes one has it alone, and
//!   decides again.
//! - **J6.** A table is made when the first request for it comes and the catalog says that it is
//!   there; it is forgotten when the catalog says that it is not.
//! - **J7.** A table of byte strings has one lock, too. A value never changes and is held by
//!   whoever needs it, so those who read share the lock for as long as it takes to find it. Who
//!   changes a key has the lock alone, decides by the value that is there, and puts another one in
//!   its place. What goes is freed behind the lock.
//! - **J8.** What is too long for a message goes in parts, under a number that its session gives
//!   it. A value or a load that comes in parts belongs to its session until a request names it as
//!   a whole. A value of which a reply had only the beginning is held as it was found; its parts
//!   are of that value, whatever is written meanwhile. What is under way of a session goes when the
//!   session says so, or is fenced, when its table is dropped, or when it has more than it can
//!   need: then what it used least lately. Who asks for it is told so.
//! - **J9.** Room is counted in bytes, for all tables: a record of words as 64 of them, one of byte
//!   strings as its key, its value and 160. Whoever holds a value has its share, so it is given
//!   back when the last one lets go; a value that comes in parts has all of its room before the
//!   first one is kept. What there is no room for is refused, and has changed nothing.
//! - **J10.** A session's numbers ascend. Each request about byte strings says which is the lowest
//!   one under which its session has something open, or will have. The node remembers the highest
//!   that a session has said: what is below it goes before the request is looked at, and nothing
//!   begins below it any more. So an operation that was dropped leaves nothing behind the next
//!   request, however late what it had sent is executed; where another operation has something
//!   older open, nothing behind the end of that one. What is named (J8) goes at once.

mod byte_records;
mod byte_server;
pub mod desk;
pub mod dispatcher;
pub mod receptionist;
mod records;
mod room;
pub mod server;
pub mod threads;
mod transfers;

mod to_caller;

pub use desk::Desk;
pub use dispatcher::{Dispatcher, Task};
pub use receptionist::Receptionist;
pub use server::TableServer;
pub use threads::{CallOptions, CallThreads};
