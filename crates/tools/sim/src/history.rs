//! What clients did and saw.

use std::collections::BTreeMap;

use farleaf::PageOptions;
use farleaf_index::LayerKind;

/// One operation on a table, as a client means it. Values are drawn so that no two writes of a run
/// write the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a key.
    Get(u64),
    /// Reads keys with one batch.
    MultiGet(Vec<u64>),
    /// Writes a key whether present or not.
    Put(u64, u64),
    /// Writes a key if absent.
    Insert(u64, u64),
    /// Writes a key if present.
    Update(u64, u64),
    /// Removes a key.
    Delete(u64),
    /// Gives a key a value (`None`: removes it) if it is what the client saw of it last.
    CompareSwap(u64, Option<u64>),
    /// Reads so many records from a key on.
    Scan(u64, usize),
    /// Reads so many records below a key, downwards; below the end, if the key is above all.
    ScanReverse(u64, usize),
    /// Removes keys, each by itself, from one on to another, which stays.
    DeleteRange(u64, u64),
    /// Fills the table, if it is empty, with all these.
    Load(Vec<(u64, u64)>),
    /// Makes the table that comes and goes, like this, and opens it.
    Create(TableShape),
    /// Drops the table that comes and goes.
    Drop,
    /// Opens the table that comes and goes.
    Open,
    /// Lists all tables.
    List,
    /// The same on the table that comes and goes, as the client has it open.
    Other(Box<Operation>),
}

/// How a client makes the table that comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Its search layer.
    pub layer: LayerKind,
    /// Slots of its leaves.
    pub slots: u64,
    /// How full a load makes them.
    pub fill_percent: u8,
    /// What its pages are like, if its keys and values are byte strings.
    pub pages: Option<PageOptions>,
}

impl Operation {
    /// What it does, whichever table it is on.
    pub fn on_table(&self) -> &Self {
        match self {
            Self::Other(inner) => inner,
            operation => operation,
        }
    }

    /// The key that it writes, if it writes one.
    pub fn written_key(&self) -> Option<u64> {
        match self {
            Self::Put(key, _)
            | Self::Insert(key, _)
            | Self::Update(key, _)
            | Self::Delete(key)
            | Self::CompareSwap(key, _) => Some(*key),
            _ => None,
        }
    }

    /// Whether it can put something into an empty table.
    pub fn can_fill(&self) -> bool {
        matches!(
            self,
            Self::Put(..) | Self::Insert(..) | Self::CompareSwap(_, Some(_)) | Self::Load(_)
        )
    }
}

/// What an operation told its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Values of the keys that were read, in their order.
    Values(Vec<Option<u64>>),
    /// What was there before a write, and what is there after it.
    Changed {
        /// Before.
        from: Option<u64>,
        /// After.
        to: Option<u64>,
    },
    /// Whether something was there before a write, which does not say what; and what is there
    /// after it.
    Wrote {
        /// Before.
        was_present: bool,
        /// After.
        to: Option<u64>,
    },
    /// All keys of a range were absent once; so many of them because they were removed.
    Cleared(u64),
    /// Records of a scan, and whether it stopped at the end of the table.
    Records(Vec<(u64, u64)>, bool),
    /// The table was filled.
    Loaded,
    /// The table with this number was made.
    Created(u32),
    /// There was one already.
    Exists,
    /// The table with this number was opened.
    Opened(u32),
    /// There was none.
    Absent,
    /// The table is gone.
    Dropped,
    /// Names and numbers of all tables, ascending.
    Listed(Vec<(String, u32)>),
    /// It was refused, and nothing has changed; but for a load, of which something may be in the
    /// table that was dropped meanwhile, and for a creation of a table that was dropped before it
    /// was open.
    Nothing(Refusal),
    /// It failed, and nobody knows what it did.
    Unknown(String),
    /// It met a node that is lost (U4): nobody knows what it did, and it has told nothing.
    NodeLost,
}

impl Answer {
    /// Whether nobody knows what the operation did.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::NodeLost)
    }
}

/// Why an operation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The table was dropped.
    TableDropped,
    /// The node does not know the session.
    SessionUnknown,
    /// The session was cut off in the middle of something.
    SessionBroken,
    /// The pool has no room.
    Full,
    /// A load met a table that has something in it.
    TableNotEmpty,
}

/// Number of the table that a run begins with, which nobody drops.
pub const MAIN_TABLE: u32 = 1;

/// Whose the last scan of a run is: the judge's.
pub const FINAL_CHECK: u32 = u32::MAX;

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Event {
    /// Whose.
    pub client: u32,
    /// What.
    pub operation: Operation,
    /// The number of the table that it was on; `None`: it was on the catalog.
    pub table: Option<u32>,
    /// What a compare-and-swap compared with.
    pub expected: Option<u64>,
    /// When it was called: events of a history are numbered, calls and answers alike.
    pub called: u64,
    /// When it was answered; `None`: never.
    pub answered: Option<u64>,
    /// With what.
    pub answer: Option<Answer>,
}

impl Event {
    /// Whether it made a table, or may have and was not told.
    pub fn may_have_made(&self, table: u32) -> bool {
        match (&self.operation, &self.answer) {
            (_, Some(Answer::Created(created))) => *created == table,
            (Operation::Create(_), None | Some(Answer::Unknown(_) | Answer::NodeLost)) => true,
            _ => self.made_what_was_dropped(),
        }
    }

    /// Whether it made a table, and was told that somebody has dropped it before it was open.
    pub fn made_what_was_dropped(&self) -> bool {
        let is_dropped = self.answer == Some(Answer::Nothing(Refusal::TableDropped));
        matches!(self.operation, Operation::Create(_)) && is_dropped
    }
}

/// Operations in the order of their calls.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The operations.
    pub events: Vec<Event>,
    /// When something first befell a client that its session need not survive.
    pub befallen: BTreeMap<u32, u64>,
    /// When the node lost its memory.
    pub lost: Option<u64>,
    moment: u64,
}

impl History {
    /// Notes a call; returns its number, for the answer.
    pub fn call(
        &mut self,
        client: u32,
        operation: Operation,
        (table, expected): (Option<u32>, Option<u64>),
    ) -> usize {
        self.moment += 1;
        self.events.push(Event {
            client,
            operation,
            table,
            expected,
            called: self.moment,
            answered: None,
            answer: None,
        });
        self.events.len() - 1
    }

    /// Notes an answer.
    pub fn answer(&mut self, call: usize, answer: Answer) {
        self.moment += 1;
        let event = &mut self.events[call];
        event.answered = Some(self.moment);
        event.answer = Some(answer);
    }

    /// Notes that something befalls a client.
    pub fn befall(&mut self, client: u32) {
        self.moment += 1;
        self.befallen.entry(client).or_insert(self.moment);
    }

    /// Notes that the node loses its memory.
    pub fn lose_node(&mut self) {
        self.moment += 1;
        self.lost.get_or_insert(self.moment);
    }

    /// Numbers of the tables that operations were on, ascending.
    pub fn tables(&self) -> Vec<u32> {
        let mut tables: Vec<u32> = self.events.iter().filter_map(|event| event.table).collect();
        tables.sort_unstable();
        tables.dedup();
        tables
    }

    /// The operations on one table, as if there were no other.
    #[must_use]
    pub fn of_table(&self, table: u32) -> Self {
        let on_it = self
            .events
            .iter()
            .filter(|event| event.table == Some(table));
        let events = on_it.map(|event| Event {
            operation: event.operation.on_table().clone(),
            ..event.clone()
        });
        Self {
            events: events.collect(),
            befallen: self.befallen.clone(),
            ..*self
        }
    }

    /// The operations for a reader, one per line.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.events.iter().map(|event| {
            let answered = event
                .answered
                .map_or("-".to_owned(), |moment| moment.to_string());
            let answer = match &event.answer {
                Some(answer) => format!("{answer:x?}"),
                None => "no answer".to_owned(),
            };
            let table = match (&event.operation, event.table) {
                (Operation::Other(_), Some(table)) => format!(" on table {table}"),
                _ => String::new(),
            };
            let expected = match event.operation.on_table() {
                Operation::CompareSwap(..) => format!(" expecting {:x?}", event.expected),
                _ => String::new(),
            };
            let client = match event.client {
                FINAL_CHECK => "final check".to_owned(),
                client => format!("client {client}"),
            };
            format!(
                "{:>4}..{answered:<4} {client} {:x?}{table}{expected} -> {answer}",
                event.called, event.operation,
            )
        })
    }
}
