//! Histories: operations of clients and their answers.

use std::collections::BTreeMap;

use farleaf::PageOptions;
use farleaf_index::LayerKind;

/// One operation on a table, as its client requests it. No two writes of a run write the same
/// value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a key.
    Get(u64),
    /// Reads keys in one batch.
    MultiGet(Vec<u64>),
    /// Writes a key, present or not.
    Put(u64, u64),
    /// Writes a key if it is absent.
    Insert(u64, u64),
    /// Writes a key if it is present.
    Update(u64, u64),
    /// Removes a key.
    Delete(u64),
    /// Gives a key a value (`None` removes it), if its current value is the one that the client saw
    /// last.
    CompareSwap(u64, Option<u64>),
    /// Reads this many records from a key on.
    Scan(u64, usize),
    /// Reads this many records in descending order, below a key, or from the end if the key is
    /// above all.
    ScanReverse(u64, usize),
    /// Removes keys in a range, each by itself; the upper bound stays.
    DeleteRange(u64, u64),
    /// Loads all these records if the table is empty.
    Load(Vec<(u64, u64)>),
    /// Creates and opens the second table with these properties.
    Create(TableShape),
    /// Drops the second table.
    Drop,
    /// Opens the second table.
    Open,
    /// Lists all tables.
    List,
    /// Executes an operation on the second table, as the client has it open.
    Other(Box<Operation>),
}

/// Properties with which a client creates the second table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Search layer of the table.
    pub layer: LayerKind,
    /// Slots of the table's leaves.
    pub slots: u64,
    /// Percentage of a leaf's slots that a load fills.
    pub fill_percent: u8,
    /// Options of its pages, if its keys and values are byte strings.
    pub pages: Option<PageOptions>,
}

impl Operation {
    /// Returns the operation without its table.
    pub fn on_table(&self) -> &Self {
        match self {
            Self::Other(inner) => inner,
            operation => operation,
        }
    }

    /// Returns the key that the operation writes, if any.
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

    /// Returns whether the operation can put a record into an empty table.
    pub fn can_fill(&self) -> bool {
        matches!(
            self,
            Self::Put(..) | Self::Insert(..) | Self::CompareSwap(_, Some(_)) | Self::Load(_)
        )
    }
}

/// Answer of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Values of the keys that were read, in their order.
    Values(Vec<Option<u64>>),
    /// State of a key before and after a write.
    Changed {
        /// State before.
        from: Option<u64>,
        /// State after.
        to: Option<u64>,
    },
    /// Whether a key was present before a write, which does not return its value, and its state
    /// after it.
    Wrote {
        /// Whether the key was present before.
        was_present: bool,
        /// State after.
        to: Option<u64>,
    },
    /// All keys of a range were absent at some moment; this many of them were removed.
    Cleared(u64),
    /// Records of a scan, and whether it stopped at the end of the table.
    Records(Vec<(u64, u64)>, bool),
    /// The table was loaded.
    Loaded,
    /// The table with this number was created.
    Created(u32),
    /// The table already exists.
    Exists,
    /// The table with this number was opened.
    Opened(u32),
    /// The table does not exist.
    Absent,
    /// The table was dropped.
    Dropped,
    /// Names and numbers of all tables, ascending.
    Listed(Vec<(String, u32)>),
    /// The operation was refused without an effect. Two exceptions: a load may have put records
    /// into a table that was dropped meanwhile, and a creation may have created a table that was
    /// dropped before it was open.
    Nothing(Refusal),
    /// The operation failed with an unknown outcome.
    Unknown(String),
    /// The operation needed a lost node: its outcome is unknown, and it has returned no data.
    NodeLost,
}

impl Answer {
    /// Returns whether the outcome of the operation is unknown.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::NodeLost)
    }
}

/// Reason why an operation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The table was dropped.
    TableDropped,
    /// The node does not know the session.
    SessionUnknown,
    /// The session was cut off in the middle of an operation.
    SessionBroken,
    /// The pool is full.
    Full,
    /// A load found a table that is not empty.
    TableNotEmpty,
}

/// Number of the table with which a run begins, and which is never dropped.
pub const MAIN_TABLE: u32 = 1;

/// Client number of the last scan of a run, made by the final check.
pub const FINAL_CHECK: u32 = u32::MAX;

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Event {
    /// Number of the client.
    pub client: u32,
    /// Operation that was called.
    pub operation: Operation,
    /// Number of the operation's table; `None` if it was on the catalog.
    pub table: Option<u32>,
    /// Expected value of a compare-and-swap.
    pub expected: Option<u64>,
    /// Moment of the call: calls and answers of a history are numbered together.
    pub called: u64,
    /// Moment of the answer; `None` if there was none.
    pub answered: Option<u64>,
    /// Answer of the operation.
    pub answer: Option<Answer>,
}

impl Event {
    /// Returns the moment of the answer, or the end of time if there was none.
    pub fn answered_by(&self) -> u64 {
        self.answered.unwrap_or(u64::MAX)
    }

    /// Returns whether the outcome is unknown: there is no answer, or it leaves the outcome open.
    pub fn is_unknown(&self) -> bool {
        self.answer.as_ref().is_none_or(Answer::is_unknown)
    }

    /// Returns whether the operation created the table, or may have created it without an answer.
    pub fn may_have_made(&self, table: u32) -> bool {
        match (&self.operation, &self.answer) {
            (_, Some(Answer::Created(created))) => *created == table,
            (Operation::Create(_), _) if self.is_unknown() => true,
            _ => self.made_what_was_dropped(),
        }
    }

    /// Returns whether the operation was a drop that may have found a table.
    pub fn may_have_dropped(&self) -> bool {
        let is_dropped = self.answer == Some(Answer::Dropped);
        self.operation == Operation::Drop && (is_dropped || self.is_unknown())
    }

    /// Returns whether the operation created a table that was dropped before it was open.
    pub fn made_what_was_dropped(&self) -> bool {
        let is_dropped = self.answer == Some(Answer::Nothing(Refusal::TableDropped));
        matches!(self.operation, Operation::Create(_)) && is_dropped
    }
}

/// Operations in the order of their calls.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Calls, with their answers.
    pub events: Vec<Event>,
    /// Moment of each client's first fault that its session need not survive.
    pub befallen: BTreeMap<u32, u64>,
    /// Moment at which the node lost its memory.
    pub lost: Option<u64>,
    moment: u64,
}

impl History {
    /// Records a call; returns its number, for the answer.
    pub fn call(
        &mut self,
        client: u32,
        operation: Operation,
        table: Option<u32>,
        expected: Option<u64>,
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

    /// Records an answer.
    pub fn answer(&mut self, call: usize, answer: Answer) {
        self.moment += 1;
        let event = &mut self.events[call];
        event.answered = Some(self.moment);
        event.answer = Some(answer);
    }

    /// Records a fault of a client.
    pub fn record_fault(&mut self, client: u32) {
        self.moment += 1;
        self.befallen.entry(client).or_insert(self.moment);
    }

    /// Records that the node loses its memory.
    pub fn lose_node(&mut self) {
        self.moment += 1;
        self.lost.get_or_insert(self.moment);
    }

    /// Returns the numbers of the tables of all operations, ascending.
    pub fn tables(&self) -> Vec<u32> {
        let mut tables: Vec<u32> = self.events.iter().filter_map(|event| event.table).collect();
        tables.sort_unstable();
        tables.dedup();
        tables
    }

    /// Returns the operations on one table, as if it were the only one.
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

    /// Returns the operations as text, one per line.
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
