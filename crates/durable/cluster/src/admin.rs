//! Operations of administrators: create a cluster, create and drop tables, drain servers, request
//! splits and moves. None of them needs a master at that moment; requests are executed when there
//! is one.

use farleaf_base::limits::KEY_SIZE_BYTES_MAX;

use crate::coordinator::{
    Compare, Coordinator, Entry, Revision, TRANSACTION_PART_COUNT_MAX, Transaction,
    TransactionOutcome,
};
use crate::error::ClusterError;
use crate::ids::{ClusterId, RegionId, ServerId, TableId, TableIncarnation};
use crate::record::region::Key;
use crate::record::start::REFUSAL_PREFIX;
use crate::record::table::check_name;
use crate::record::{
    AdminReply, AdminRequest, AdminRequestKind, CLUSTER_KEY, Cluster, Drain, FORMAT_VERSION,
    IDS_KEY, Ids, NUMBER_END, Record, RegionRecord, TableName, TableRecord, admin_request_key,
    drain_key, name_key, table_key,
};
use crate::view::{RevisionedRecord, View};

/// Largest number of regions of a new table: one transaction creates them, with three more records.
/// Splits can create more.
pub const FIRST_REGION_COUNT_MAX: usize = TRANSACTION_PART_COUNT_MAX - 3;

/// Number of attempts of a transaction that conflicts with others.
const TRY_COUNT: usize = 16;

fn random_number() -> Result<u64, ClusterError> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags)
        .map_err(|error| ClusterError::NoRandomId(error.into()))?;
    Ok(u64::from_le_bytes(bytes) % NUMBER_END)
}

/// Reads one record, if it exists. Costs one round trip.
///
/// # Errors
/// The errors of the coordinator, and [`ClusterError::Record`].
pub fn read<R: Record>(
    coordinator: &impl Coordinator,
    key: &str,
) -> Result<Option<RevisionedRecord<R>>, ClusterError> {
    record_of(&coordinator.range(key)?.entries, key)
}

fn record_of<R: Record>(
    entries: &[Entry],
    key: &str,
) -> Result<Option<RevisionedRecord<R>>, ClusterError> {
    let entry = entries.iter().find(|entry| entry.key == key);
    Ok(entry.map(RevisionedRecord::decode).transpose()?)
}

/// Creates a cluster. Costs at most two round trips.
///
/// # Errors
/// [`ClusterError::ClusterExists`], and those of the coordinator.
pub fn create_cluster(coordinator: &impl Coordinator) -> Result<ClusterId, ClusterError> {
    let drawn = ClusterId::draw().map_err(ClusterError::NoRandomId)?;
    let cluster = Cluster::new(drawn, None);
    let transaction = Transaction::new()
        .when(Compare::Created(CLUSTER_KEY.to_owned(), Revision::NEVER))
        .put(CLUSTER_KEY, cluster.encode())
        .put(IDS_KEY, Ids::default().encode());
    match coordinator.transact(&transaction)? {
        TransactionOutcome::Committed(_) => Ok(cluster.cluster),
        TransactionOutcome::Refused | TransactionOutcome::LeaseGone => {
            Err(ClusterError::ClusterExists(cluster_id(coordinator)?))
        }
    }
}

/// Returns the coordinator's cluster id. Costs one round trip.
///
/// # Errors
/// [`ClusterError::NoCluster`], and those of the coordinator.
pub fn cluster_id(coordinator: &impl Coordinator) -> Result<ClusterId, ClusterError> {
    Ok(cluster(coordinator)?.cluster)
}

/// Returns the record of the coordinator's cluster. Costs one round trip.
///
/// # Errors
/// [`ClusterError::NoCluster`], and those of the coordinator.
pub fn cluster(coordinator: &impl Coordinator) -> Result<Cluster, ClusterError> {
    let cluster = read::<Cluster>(coordinator, CLUSTER_KEY)?;
    Ok(cluster.ok_or(ClusterError::NoCluster)?.record)
}

/// Gives a cluster that an older version created a 128-bit identifier, after giving its tables
/// their incarnations. Servers whose directories have the legacy number then adopt the identifier.
/// After an interruption, call it again.
///
/// # Errors
/// [`ClusterError::AdoptedAlready`], [`NoCluster`](ClusterError::NoCluster),
/// [`Contended`](ClusterError::Contended), and those of the coordinator.
pub fn adopt(coordinator: &impl Coordinator) -> Result<Cluster, ClusterError> {
    let current = read::<Cluster>(coordinator, CLUSTER_KEY)?.ok_or(ClusterError::NoCluster)?;
    let formerly = current.record.cluster;
    if !formerly.is_legacy() {
        return Err(ClusterError::AdoptedAlready(formerly));
    }
    adopt_tables(coordinator)?;
    let drawn = ClusterId::draw().map_err(ClusterError::NoRandomId)?;
    let adopted = Cluster::new(drawn, Some(formerly));
    let transaction = Transaction::new()
        .when(Compare::Modified(CLUSTER_KEY.to_owned(), current.modified))
        .put(CLUSTER_KEY, adopted.encode());
    match coordinator.transact(&transaction)? {
        TransactionOutcome::Committed(_) => Ok(adopted),
        TransactionOutcome::Refused | TransactionOutcome::LeaseGone => Err(ClusterError::Contended),
    }
}

/// Gives an incarnation to each table without one, after its regions, which carry it, too, in
/// parts.
fn adopt_tables(coordinator: &impl Coordinator) -> Result<(), ClusterError> {
    const PART_COUNT: usize = 100;
    let all = coordinator.range("")?;
    let view = View::of(all.revision, &all.entries);
    if let Some(error) = view.damaged.into_values().next() {
        return Err(error.into());
    }
    for table in view.tables.values() {
        let number = table.record.table;
        if table.record.incarnation.is_some() {
            continue;
        }
        let drawn = TableIncarnation::draw().map_err(ClusterError::NoRandomId)?;
        let incarnation = Some(drawn);
        let regions = view.regions.values().filter(|it| it.record.table == number);
        let regions = regions.map(|it| {
            let mut record = it.record.clone();
            record.incarnation = incarnation;
            (it.modified, record.key(), record.encode())
        });
        let record = TableRecord {
            version: TableRecord::VERSION,
            incarnation,
            ..table.record.clone()
        };
        let own = (table.modified, table_key(number), record.encode());
        let writes: Vec<_> = regions.chain([own]).collect();
        for part in writes.chunks(PART_COUNT) {
            let mut transaction = Transaction::new();
            for (modified, key, value) in part {
                let compare = Compare::Modified(key.clone(), *modified);
                transaction = transaction.when(compare).put(key.clone(), value.clone());
            }
            if !matches!(
                coordinator.transact(&transaction)?,
                TransactionOutcome::Committed(_)
            ) {
                return Err(ClusterError::Contended);
            }
        }
    }
    Ok(())
}

/// Creates a table whose regions are cut at these keys, with this number of replicas each. Costs
/// two round trips without conflicts; one of them reads everything. A region is served when a
/// master has assigned it to a server.
///
/// # Errors
/// [`ClusterError::TableExists`], [`BadTable`](ClusterError::BadTable),
/// [`NotAdopted`](ClusterError::NotAdopted), [`RecordsRefused`](ClusterError::RecordsRefused),
/// [`UnknownCopy`](ClusterError::UnknownCopy), [`Contended`](ClusterError::Contended), and those of
/// the coordinator.
pub fn create_table(
    coordinator: &impl Coordinator,
    name: &str,
    replica_count: usize,
    split_keys: &[Key],
) -> Result<TableRecord, ClusterError> {
    check_name(name).map_err(ClusterError::BadTable)?;
    check_split_keys(split_keys)?;
    for _ in 0..TRY_COUNT {
        let all = coordinator.range("")?;
        if record_of::<TableName>(&all.entries, &name_key(name))?.is_some() {
            return Err(ClusterError::TableExists(name.to_owned()));
        }
        let ids: RevisionedRecord<Ids> =
            record_of::<Ids>(&all.entries, IDS_KEY)?.ok_or(ClusterError::NoCluster)?;
        let view = View::of(all.revision, &all.entries);
        check_changes(&view)?;
        if let Some((region, server)) = view.blocking_copies().pop_first() {
            return Err(ClusterError::UnknownCopy { region, server });
        }
        let incarnation = TableIncarnation::draw().map_err(ClusterError::NoRandomId)?;
        let table = TableRecord {
            version: TableRecord::VERSION,
            table: ids.record.next_table,
            incarnation: Some(incarnation),
            name: name.to_owned(),
            replica_count,
            dropping: false,
        };
        (table.check(&table_key(table.table))).map_err(ClusterError::BadTable)?;
        let transaction = table_transaction(&table, &ids, split_keys);
        if let TransactionOutcome::Committed(_) = coordinator.transact(&transaction)? {
            return Ok(table);
        }
    }
    Err(ClusterError::Contended)
}

/// Refuses changes of tables that the cluster's servers would not follow.
fn check_changes(view: &View) -> Result<(), ClusterError> {
    if let Some(cluster) = view.cluster.as_ref().filter(|_| view.is_unadopted()) {
        return Err(ClusterError::NotAdopted(cluster.record.cluster));
    }
    match view.refusals.keys().next() {
        Some(server) => Err(ClusterError::RecordsRefused { server: *server }),
        None => Ok(()),
    }
}

fn check_split_keys(split_keys: &[Key]) -> Result<(), ClusterError> {
    let bad = |what: String| Err(ClusterError::BadTable(what));
    if split_keys.len() >= FIRST_REGION_COUNT_MAX {
        return bad(format!(
            "{} split keys give more than {FIRST_REGION_COUNT_MAX} regions; split some later",
            split_keys.len()
        ));
    }
    let mut before = &Key::default();
    for key in split_keys {
        if key <= before || key.0.len() > KEY_SIZE_BYTES_MAX {
            return bad(format!(
                "invalid split key {key}: expected keys in ascending order, of 1 to \
                 {KEY_SIZE_BYTES_MAX} bytes"
            ));
        }
        before = key;
    }
    Ok(())
}

fn table_transaction(
    table: &TableRecord,
    ids: &RevisionedRecord<Ids>,
    split_keys: &[Key],
) -> Transaction {
    let mut next_region = ids.record.next_region;
    let named = TableName {
        version: FORMAT_VERSION,
        table: table.table,
    };
    let mut transaction = Transaction::new()
        .when(Compare::Created(name_key(&table.name), Revision::NEVER))
        .when(Compare::Modified(IDS_KEY.to_owned(), ids.modified))
        .put(name_key(&table.name), named.encode())
        .put(table_key(table.table), table.encode());
    let from = std::iter::once(Key::default()).chain(split_keys.iter().cloned());
    let to = split_keys.iter().cloned().map(Some).chain([None]);
    for (from, to) in from.zip(to) {
        let mut region = RegionRecord::new(table.table, next_region, from, to);
        region.incarnation = table.incarnation;
        next_region = RegionId(next_region.0 + 1);
        transaction = transaction.put(region.key(), region.encode());
    }
    let ids = Ids {
        next_table: TableId(table.table.0 + 1),
        next_region,
        ..ids.record.clone()
    };
    transaction.put(IDS_KEY, ids.encode())
}

/// Returns the table with a name. Costs one round trip.
///
/// # Errors
/// [`ClusterError::NoTable`], and those of the coordinator.
pub fn table_named(coordinator: &impl Coordinator, name: &str) -> Result<TableId, ClusterError> {
    check_name(name).map_err(ClusterError::BadTable)?;
    let table = read::<TableName>(coordinator, &name_key(name))?;
    Ok(table
        .ok_or_else(|| ClusterError::NoTable(name.to_owned()))?
        .record
        .table)
}

/// Drops a table: its regions are removed, and then its name. Costs four round trips.
///
/// # Errors
/// [`ClusterError::NotAdopted`], [`RecordsRefused`](ClusterError::RecordsRefused),
/// [`NoTableNumbered`](ClusterError::NoTableNumbered), [`Contended`](ClusterError::Contended), and
/// those of the coordinator.
pub fn drop_table(coordinator: &impl Coordinator, table: TableId) -> Result<(), ClusterError> {
    for _ in 0..TRY_COUNT {
        let cluster = coordinator.range(CLUSTER_KEY)?;
        let refusals = coordinator.range(REFUSAL_PREFIX)?;
        let entries: Vec<Entry> = cluster
            .entries
            .into_iter()
            .chain(refusals.entries)
            .collect();
        check_changes(&View::of(refusals.revision, &entries))?;
        let current = read::<TableRecord>(coordinator, &table_key(table))?;
        let current = current.ok_or(ClusterError::NoTableNumbered(table))?;
        let dropped = TableRecord {
            dropping: true,
            ..current.record
        };
        let transaction = Transaction::new()
            .when(Compare::Modified(table_key(table), current.modified))
            .put(table_key(table), dropped.encode());
        if let TransactionOutcome::Committed(_) = coordinator.transact(&transaction)? {
            return Ok(());
        }
    }
    Err(ClusterError::Contended)
}

/// Starts or ends draining a server, which then gets no replicas. Costs one round trip.
///
/// # Errors
/// The errors of the coordinator.
pub fn set_drain(
    coordinator: &impl Coordinator,
    server: ServerId,
    drains: bool,
) -> Result<(), ClusterError> {
    let drain = Drain {
        version: FORMAT_VERSION,
    };
    let transaction = if drains {
        Transaction::new().put(drain_key(server), drain.encode())
    } else {
        Transaction::new().delete(drain_key(server))
    };
    coordinator.transact(&transaction)?;
    Ok(())
}

/// Number of a pending request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminRequestNumber(pub u64);

/// Records a request for the master. Costs one round trip. [`answer`] returns the result.
///
/// # Errors
/// The errors of the coordinator.
pub fn admin_request(
    coordinator: &impl Coordinator,
    kind: AdminRequestKind,
) -> Result<AdminRequestNumber, ClusterError> {
    let admin_request = AdminRequest {
        version: FORMAT_VERSION,
        kind,
        answer: None,
    };
    for _ in 0..TRY_COUNT {
        let number = random_number()?;
        let transaction = Transaction::new()
            .when(Compare::Created(admin_request_key(number), Revision::NEVER))
            .put(admin_request_key(number), admin_request.encode());
        if let TransactionOutcome::Committed(_) = coordinator.transact(&transaction)? {
            return Ok(AdminRequestNumber(number));
        }
    }
    Err(ClusterError::Contended)
}

/// Returns the result of a request, if a master has decided it, and deletes the request. Costs two
/// round trips.
///
/// # Errors
/// The errors of the coordinator.
pub fn answer(
    coordinator: &impl Coordinator,
    number: AdminRequestNumber,
) -> Result<Option<AdminReply>, ClusterError> {
    let key = admin_request_key(number.0);
    let request = read::<AdminRequest>(coordinator, &key)?;
    let Some(answer) = request.and_then(|it| it.record.answer) else {
        return Ok(None);
    };
    coordinator.transact(&Transaction::new().delete(key))?;
    Ok(Some(answer))
}
