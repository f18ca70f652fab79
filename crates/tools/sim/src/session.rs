//! Session of one client: the library's own, over the simulated fabric.

mod bytes;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use farleaf::host::{PoolShare, SessionHost};
use farleaf::{
    AsyncByteTable, AsyncSession, AsyncTable, ByteLoadError, Error, ErrorKind, HintCounters,
    Insertion, LoadError, Swap, TableInfo, TableKind, TableOptions, Update,
};
use farleaf_base::OwnerWord;
use farleaf_fabric::message::CallError;
use farleaf_fabric::{BatchErrorKind, ControlError, Endpoint};
use farleaf_leaf::words::LocalLocks;

use self::bytes::ByNumbers;
use crate::check::{Findings, closing};
use crate::fabric::world::ClientId;
use crate::history::{Answer, Operation, Refusal, TableShape};
use crate::node::{Node, TABLE_NAME};
use crate::strings::StringMap;

/// Name of the second table, which clients create and drop.
pub const OTHER_NAME: &str = "other";

/// Client's process, as its session sees it.
pub struct SimHost<E> {
    share: PoolShare,
    node: Rc<Node>,
    client: ClientId,
    findings: Findings,
    /// Whether virtual time stands still for its session.
    is_still: bool,
    endpoint: PhantomData<E>,
}

impl<E> Debug for SimHost<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SimHost").field(&self.client).finish()
    }
}

impl<E> SimHost<E> {
    /// Creates the process of a client, whose session posts as this client. Violations of
    /// the closing session are added to the findings.
    pub fn new(
        node: &Rc<Node>,
        client: ClientId,
        findings: &Findings,
        local_locks: Arc<LocalLocks>,
    ) -> Self {
        let share = PoolShare::new("sim".to_owned(), node.open());
        Self {
            share: share.with_local_locks(local_locks),
            node: Rc::clone(node),
            client,
            findings: Findings::clone(findings),
            is_still: false,
            endpoint: PhantomData,
        }
    }

    /// Lets virtual time stand still for the session.
    #[must_use]
    pub fn still(self) -> Self {
        Self {
            is_still: true,
            ..self
        }
    }
}

impl<E: Endpoint + Debug> SessionHost for SimHost<E> {
    type Endpoint = E;

    /// A client whose tasks are dropped has died.
    const CLOSES_DROPPED_SESSIONS: bool = false;

    fn share(&self) -> &PoolShare {
        &self.share
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        // Before the fence, which cuts off batches in flight.
        if let Some(violation) = closing::not_drained(&self.node, self.client) {
            let mut world = self.node.world.borrow_mut();
            world.note(|| violation.to_string());
            self.findings.borrow_mut().push(violation);
        }
        self.node.fence(self.client, owner);
        Ok(())
    }

    /// The server of calls outlives agents, and with calls the main node is never lost. While
    /// virtual time stands still, a waiting session lets the node do its part here.
    fn is_node_gone(&self, _owner: OwnerWord, _look_count: u32) -> bool {
        if self.is_still {
            self.node.answer_still();
        }
        false
    }
}

/// Session with the table of the run, and the second table.
#[derive(Debug)]
pub struct Session<E: Endpoint + Debug> {
    library: AsyncSession<SimHost<E>>,
    table: SessionTable<E>,
    other: RefCell<Option<SessionTable<E>>>,
    /// Meaning of numbers, if all tables are of byte strings.
    strings: Option<Arc<StringMap>>,
    /// Last value that the session saw of each key of each table.
    last_values: RefCell<BTreeMap<(u32, u64), Option<u64>>>,
    /// Number of operations in progress.
    in_progress_count: Cell<u32>,
}

/// Table that a session has open.
#[derive(Debug)]
enum SessionTable<E: Endpoint + Debug> {
    Words(AsyncTable<SimHost<E>>),
    Bytes(ByNumbers<E>),
}

impl<E: Endpoint + Debug> Clone for SessionTable<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Words(table) => Self::Words(table.clone()),
            Self::Bytes(table) => Self::Bytes(table.clone()),
        }
    }
}

impl<E: Endpoint + Debug> SessionTable<E> {
    fn info(&self) -> &TableInfo {
        match self {
            Self::Words(table) => table.info(),
            Self::Bytes(by_numbers) => by_numbers.table.info(),
        }
    }
}

/// Reason why an operation has no answer.
#[derive(Debug)]
enum OperationFailure {
    Failed(Error),
    Unexpected(Unexpected),
}

impl From<Error> for OperationFailure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Operation in progress; dropped with it, however it ends.
struct InProgressGuard<'a>(&'a Cell<u32>);

impl<'a> InProgressGuard<'a> {
    fn begin(count: &'a Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for InProgressGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<E: Endpoint + Debug> Session<E> {
    /// Opens the run's table in a session. `strings`: meaning of numbers, if the tables are of byte
    /// strings.
    ///
    /// # Errors
    /// The table does not exist, or its directory cannot be read.
    pub async fn open(
        session: AsyncSession<SimHost<E>>,
        strings: Option<Arc<StringMap>>,
    ) -> Result<Self, Error> {
        let table = open_table(&session, TABLE_NAME, strings.as_ref()).await?;
        Ok(Self {
            library: session,
            table,
            strings,
            other: RefCell::default(),
            last_values: RefCell::default(),
            in_progress_count: Cell::default(),
        })
    }

    /// Returns how often hints were wrong on the table of the run, and how its operations got
    /// locks.
    pub fn hint_counters(&self) -> HintCounters {
        match &self.table {
            SessionTable::Words(table) => table.hint_counters(),
            SessionTable::Bytes(by_numbers) => by_numbers.table.hint_counters(),
        }
    }

    /// Returns whether its tables are of byte strings.
    pub fn is_of_bytes(&self) -> bool {
        self.strings.is_some()
    }

    /// Returns its endpoint.
    pub fn endpoint(&self) -> &E {
        self.library.endpoint()
    }

    /// Returns whether it must stop (FABRIC-6).
    pub fn is_broken(&self) -> bool {
        self.library.is_broken()
    }

    /// Returns whether an operation is in progress.
    pub fn is_busy(&self) -> bool {
        self.in_progress_count.get() > 0
    }

    /// Returns leased memory and closes the session.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn close(&self) -> Result<(), Error> {
        self.library.close().await
    }

    /// Returns whether an operation needs the second table, and the session has none open.
    pub fn must_open(&self, operation: &Operation) -> bool {
        matches!(operation, Operation::Other(_)) && self.other.borrow().is_none()
    }

    /// Returns the number of the table of an operation; `None` if it is on the catalog.
    pub fn table_of(&self, operation: &Operation) -> Option<u32> {
        match operation {
            Operation::Create(_) | Operation::Drop | Operation::Open | Operation::List => None,
            Operation::Other(_) => Some(self.other.borrow().as_ref()?.info().id),
            _ => Some(self.table.info().id),
        }
    }

    /// Returns the expected value of a compare-and-swap: the last one that the session saw of the
    /// key.
    pub fn expected(&self, operation: &Operation) -> Option<u64> {
        let table = self.table_of(operation)?;
        match operation.on_table() {
            Operation::CompareSwap(key, _) => {
                let last_values = self.last_values.borrow();
                last_values.get(&(table, *key)).copied().flatten()
            }
            _ => None,
        }
    }

    /// Executes an operation and returns its answer.
    ///
    /// # Errors
    /// The operation failed with an error that is not permitted.
    pub async fn perform(
        &self,
        operation: &Operation,
        expected: Option<u64>,
    ) -> Result<Answer, Unexpected> {
        let _under_way = InProgressGuard::begin(&self.in_progress_count);
        let result = match operation {
            Operation::Create(shape) => self.create(shape).await,
            Operation::List => self.list().await,
            Operation::Drop => {
                let dropped = self.library.drop_table(OTHER_NAME).await;
                dropped.map_err(OperationFailure::from).map(|()| {
                    self.other.take();
                    Answer::Dropped
                })
            }
            Operation::Open => self.open_other().await,
            Operation::Other(inner) => {
                let table = self.other.borrow().clone();
                let Some(table) = table else {
                    let text = "the table that comes and goes is not open".to_owned();
                    return Err(Unexpected::Failed(text));
                };
                let result = self.perform_on(&table, inner, expected).await;
                if matches!(&result, Err(OperationFailure::Failed(error)) if is_dropped(error)) {
                    self.forget(table.info().id);
                }
                result
            }
            _ => self.perform_on(&self.table, operation, expected).await,
        };
        result.or_else(|trouble| match trouble {
            OperationFailure::Failed(error) => classify(&error),
            OperationFailure::Unexpected(what) => Err(what),
        })
    }

    /// Another future of the session may have opened the next table meanwhile.
    fn forget(&self, table: u32) {
        let mut other = self.other.borrow_mut();
        if other.as_ref().is_some_and(|open| open.info().id == table) {
            *other = None;
        }
    }

    async fn list(&self) -> Result<Answer, OperationFailure> {
        let tables = self.library.list_tables().await?.into_iter();
        let mut tables: Vec<(String, u32)> = tables.map(|info| (info.name, info.id)).collect();
        tables.sort_unstable();
        Ok(Answer::Listed(tables))
    }

    async fn create(&self, shape: &TableShape) -> Result<Answer, OperationFailure> {
        let options = TableOptions {
            kind: shape.pages.map_or(TableKind::Words, TableKind::Bytes),
            slots: shape.slots,
            layer: shape.layer,
            fill_percent: shape.fill_percent,
            ..TableOptions::default()
        };
        let created = match &self.strings {
            None => {
                let created = self.library.create_table(OTHER_NAME, &options).await;
                created.map(SessionTable::Words)
            }
            Some(strings) => {
                let created = self.library.create_byte_table(OTHER_NAME, &options).await;
                created.map(|table| by_numbers(table, strings))
            }
        };
        match created {
            Ok(table) => {
                let id = table.info().id;
                self.other.replace(Some(table));
                Ok(Answer::Created(id))
            }
            Err(error) if matches!(error.kind(), ErrorKind::TableExists { .. }) => {
                Ok(Answer::Exists)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn open_other(&self) -> Result<Answer, OperationFailure> {
        let table = open_table(&self.library, OTHER_NAME, self.strings.as_ref()).await?;
        let id = table.info().id;
        self.other.replace(Some(table));
        Ok(Answer::Opened(id))
    }

    async fn perform_on(
        &self,
        table: &SessionTable<E>,
        operation: &Operation,
        expected: Option<u64>,
    ) -> Result<Answer, OperationFailure> {
        let answer = match table {
            SessionTable::Words(table) => perform_on_words(table, operation, expected).await?,
            SessionTable::Bytes(table) => table.perform(operation, expected).await?,
        };
        self.remember(table.info().id, operation, &answer);
        Ok(answer)
    }

    fn remember(&self, table: u32, operation: &Operation, answer: &Answer) {
        let mut last_values = self.last_values.borrow_mut();
        match (operation, answer) {
            (Operation::Get(key), Answer::Values(values)) => {
                last_values.insert((table, *key), values[0]);
            }
            (Operation::MultiGet(keys), Answer::Values(values)) => {
                let keys = keys.iter().map(|key| (table, *key));
                last_values.extend(keys.zip(values.iter().copied()));
            }
            (operation, Answer::Changed { to, .. } | Answer::Wrote { to, .. }) => {
                if let Some(key) = operation.written_key() {
                    last_values.insert((table, key), *to);
                }
            }
            _ => {}
        }
    }
}

/// Opens a table by name.
async fn open_table<E: Endpoint + Debug>(
    session: &AsyncSession<SimHost<E>>,
    name: &str,
    strings: Option<&Arc<StringMap>>,
) -> Result<SessionTable<E>, Error> {
    Ok(match strings {
        None => SessionTable::Words(session.open_table(name).await?),
        Some(strings) => by_numbers(session.open_byte_table(name).await?, strings),
    })
}

fn by_numbers<E: Endpoint + Debug>(
    table: AsyncByteTable<SimHost<E>>,
    strings: &Arc<StringMap>,
) -> SessionTable<E> {
    let strings = Arc::clone(strings);
    SessionTable::Bytes(ByNumbers { table, strings })
}

async fn perform_on_words<E: Endpoint + Debug>(
    table: &AsyncTable<SimHost<E>>,
    operation: &Operation,
    expected: Option<u64>,
) -> Result<Answer, Error> {
    let changed = |from: Option<u64>, to: Option<u64>| Answer::Changed { from, to };
    Ok(match operation {
        Operation::Get(key) => Answer::Values(vec![table.get(*key).await?]),
        Operation::MultiGet(keys) => Answer::Values(table.multi_get(keys).await?),
        Operation::Put(key, value) => changed(table.put(*key, *value).await?, Some(*value)),
        Operation::Insert(key, value) => match table.insert(*key, *value).await? {
            Insertion::Inserted => changed(None, Some(*value)),
            Insertion::AlreadyPresent(found) => changed(Some(found), Some(found)),
        },
        Operation::Update(key, value) => match table.update(*key, *value).await? {
            Update::Updated(found) => changed(Some(found), Some(*value)),
            Update::Absent => changed(None, None),
        },
        Operation::Delete(key) => changed(table.delete(*key).await?, None),
        Operation::CompareSwap(key, new) => {
            match table.compare_and_swap(*key, expected, *new).await? {
                Swap::Swapped => changed(expected, *new),
                Swap::Differs(found) => changed(found, found),
            }
        }
        Operation::Scan(from, limit) => {
            let mut records = Vec::new();
            table.scan_into(*from, *limit, &mut records).await?;
            // Fewer than requested means that there are no more.
            let is_end = records.len() < *limit;
            Answer::Records(records, is_end)
        }
        Operation::ScanReverse(to, limit) => {
            let mut records = Vec::new();
            if let Some(from) = to.checked_sub(1) {
                table.scan_reverse_into(from, *limit, &mut records).await?;
            }
            let is_end = records.len() < *limit;
            Answer::Records(records, is_end)
        }
        Operation::Load(records) => {
            table.bulk_load(records.iter().copied(), |_| ()).await?;
            Answer::Loaded
        }
        Operation::Create(_)
        | Operation::Drop
        | Operation::Open
        | Operation::List
        | Operation::Other(_)
        | Operation::DeleteRange(..) => unreachable!("these are on no table of words"),
    })
}

fn is_dropped(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::TableDropped { .. })
}

/// Error with which an operation must not end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unexpected {
    /// The node refused the operation, and may have executed it: permitted only if the node has
    /// lost a session of its own.
    #[error("{0}")]
    Refused(String),
    /// Never permitted.
    #[error("{0}")]
    Failed(String),
}

/// Returns the answer that an error means for a history.
///
/// # Errors
/// The error is not permitted in every run.
fn classify(error: &Error) -> Result<Answer, Unexpected> {
    let text = error.to_string();
    let failure = match error.kind() {
        ErrorKind::Fabric(failure) => Some(failure),
        ErrorKind::Index(error) | ErrorKind::Load(LoadError::Index(error)) => {
            error.fabric_failure()
        }
        ErrorKind::Bytes(error) | ErrorKind::ByteLoad(ByteLoadError::Index(error)) => {
            error.fabric_failure()
        }
        _ => None,
    };
    if let Some(failure) = failure {
        return match failure.kind() {
            BatchErrorKind::NodeLost { .. } => Ok(Answer::NodeLost),
            BatchErrorKind::Unknown { .. } => Ok(Answer::Unknown(text)),
            _ => Err(Unexpected::Failed(text)),
        };
    }
    let refusal = match error.kind() {
        ErrorKind::Call(CallError::Unanswered) | ErrorKind::PreviousLost { .. } => {
            return Ok(Answer::Unknown(text));
        }
        ErrorKind::Call(CallError::Refused { .. }) => return Err(Unexpected::Refused(text)),
        ErrorKind::NodeLost { .. } => return Ok(Answer::NodeLost),
        ErrorKind::TableNotFound { .. } => return Ok(Answer::Absent),
        ErrorKind::TableDropped { .. } => Refusal::TableDropped,
        ErrorKind::SessionBroken => Refusal::SessionBroken,
        ErrorKind::SessionUnknown => Refusal::SessionUnknown,
        ErrorKind::Full(_) | ErrorKind::PoolFullForLeaf { .. } => Refusal::Full,
        ErrorKind::Bytes(error) | ErrorKind::ByteLoad(ByteLoadError::Index(error))
            if error.is_full() =>
        {
            Refusal::Full
        }
        ErrorKind::Load(LoadError::TableNotEmpty)
        | ErrorKind::ByteLoad(ByteLoadError::TableNotEmpty) => Refusal::TableNotEmpty,
        _ => return Err(Unexpected::Failed(text)),
    };
    Ok(Answer::Nothing(refusal))
}
