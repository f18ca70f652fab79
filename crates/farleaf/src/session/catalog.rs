//! Catalog operations of a session.

use farleaf_base::{OwnerWord, RemoteAddr, SequenceNumber, TableId};
use farleaf_executor::backoff;
use farleaf_fabric::{Batch, Endpoint, OperationKind, ReadSlot};
use farleaf_index::load::{NewTable, create_table};
use farleaf_index::strings::load::{NewByteTable, create_table as create_byte_table};
use farleaf_leaf::words::Critical;
use farleaf_pool::catalog::{
    CatalogEntry, ENTRY_SIZE_WORDS, EntryState, TABLE_COUNT_MAX, TableRecord, dropped_word,
    live_word,
};
use farleaf_pool::part::PartRecord;
use farleaf_pool::session::{self, alive_word};
use farleaf_pool::{PoolError, PoolLayout};

use super::base::SessionCore;
use super::listings::{is_listing, lists};
use crate::begin::OperationGuard;
use crate::host::SessionHost;
use crate::options::{PageOptions, TableInfo, TableKind, TableOptions, check_name};
use crate::{Error, ErrorKind, PartitionError};

/// Torn reads of an entry after which it is considered corrupted, because an entry is written in
/// one batch.
const TORN_ENTRY_COUNT_MAX: u32 = 1000;

/// Number of times that [`SessionCore::create_entry`] checks whether a dropped table's entry is
/// free, and number of backoffs between two checks. The backoffs take about 2 s in all if the
/// thread has nothing else in flight. The memory node checks for dropped tables every few
/// milliseconds.
const ENTRY_CHECK_COUNT_MAX: u32 = 256;
const BACKOFFS_PER_ENTRY_CHECK: u32 = 64;

/// Reads all live tables.
pub(crate) async fn read_catalog<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
) -> Result<Vec<CatalogEntry>, Error> {
    let mut entries = read_entries(endpoint, layout, OwnerWord::FREE).await?;
    entries.retain(|entry| entry.state == EntryState::Live && !is_listing(entry));
    Ok(entries)
}

/// Reads all entries that are not free, on behalf of a session if there is one.
async fn read_entries<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
    owner: OwnerWord,
) -> Result<Vec<CatalogEntry>, Error> {
    let mut batch = Batch::new();
    let mut attempt = 0;
    loop {
        batch.clear();
        let word_count = TABLE_COUNT_MAX as usize * ENTRY_SIZE_WORDS;
        let known = KnownSessionCheck::ask(&mut batch, layout, owner);
        let read = batch.read(layout.catalog_entry(0), word_count);
        let executed = endpoint.execute(&mut batch).await;
        let counters = endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        executed?;
        known.check(&batch)?;
        let entries = batch.words(read).chunks_exact(ENTRY_SIZE_WORDS).enumerate();
        let entries: Result<Vec<_>, PoolError> = entries
            .filter_map(|(index, words)| CatalogEntry::decode(index as u64, words).transpose())
            .collect();
        match entries {
            Ok(entries) => return Ok(entries),
            Err(error) if attempt >= TORN_ENTRY_COUNT_MAX => return Err(error.into()),
            Err(_) => attempt += 1,
        }
    }
}

/// Check whether the memory node still knows the session, in the same batch as the reads that
/// depend on it. A node that restarted has empty memory. Without the check, a client would conclude
/// that there are no tables, or create one in memory that is not set up for it.
pub(crate) struct KnownSessionCheck {
    own: Option<(ReadSlot, u64)>,
}

impl KnownSessionCheck {
    pub(crate) fn ask(batch: &mut Batch, layout: &PoolLayout, owner: OwnerWord) -> Self {
        let own = owner.holder().map(|(session, incarnation)| {
            let word = batch.read(layout.session(session), 1);
            (word, alive_word(incarnation))
        });
        Self { own }
    }

    pub(crate) fn check(&self, batch: &Batch) -> Result<(), Error> {
        match self.own {
            Some((word, alive)) if batch.words(word)[0] != alive => {
                Err(ErrorKind::SessionUnknown.into())
            }
            _ => Ok(()),
        }
    }
}

impl<H: SessionHost> SessionCore<H> {
    /// Returns all live tables except listings of other tables' pages.
    async fn live_tables(&self) -> Result<Vec<CatalogEntry>, Error> {
        let mut entries = self.entries().await?;
        entries.retain(|entry| entry.state == EntryState::Live && !is_listing(entry));
        Ok(entries)
    }

    pub(super) async fn entries(&self) -> Result<Vec<CatalogEntry>, Error> {
        read_entries(&self.endpoint, self.layout(), self.owner).await
    }

    pub(crate) async fn find_table(&self, name: &str) -> Result<CatalogEntry, Error> {
        let entries = self.live_tables().await?;
        let found = entries.into_iter().find(|entry| entry.record.name == name);
        found.ok_or_else(|| self.not_found(name))
    }

    pub(super) fn not_found(&self, name: &str) -> Error {
        ErrorKind::TableNotFound {
            name: name.to_owned(),
            pool: self.share().address.clone(),
        }
        .into()
    }

    /// Returns an error if a part of a table over several pools was found instead of an ordinary
    /// table.
    pub(crate) fn check_whole(&self, record: &TableRecord) -> Result<(), Error> {
        let Some(part) = record.part else {
            return Ok(());
        };
        Err(PartitionError::IsPart {
            name: record.name.clone(),
            pool: self.share().address.clone(),
            number: part.number,
            count: part.count,
        }
        .into())
    }

    /// Returns the properties of the table of this name, if it exists.
    pub(super) async fn look_up(&self, name: &str) -> Result<Option<TableInfo>, Error> {
        let entries = self.live_tables().await?;
        let found = entries.iter().find(|entry| entry.record.name == name);
        found
            .map(|entry| TableInfo::from_record(&entry.record))
            .transpose()
    }

    /// Creates the catalog entry of a new table. If all entries are used, some of them by dropped
    /// tables, it waits for one of those. Clients that create and drop tables faster than the
    /// memory node frees entries are thus delayed instead of failing. The session has no unfinished
    /// operation while it waits, or it would itself keep the entries from becoming free.
    pub(crate) async fn create_entry(
        &self,
        name: &str,
        options: &TableOptions,
        part: Option<PartRecord>,
    ) -> Result<(CatalogEntry, OperationGuard<'_>), Error> {
        check_name(name)?;
        options.check()?;
        // Checked before creating a table that the session could not open.
        self.options.budget_for(options.layer)?;
        if part.is_some() && options.kind != TableKind::Words {
            return Err(ErrorKind::BadOption {
                option: "kind",
                given: options.kind.name().to_owned(),
                allowed: "expected 'words' for a table over several pools".to_owned(),
            }
            .into());
        }
        let mut poll_count = 0;
        loop {
            let guard = self.begin().await?;
            poll_count += 1;
            match self.try_create_entry(name, options, part).await {
                Err(error) if poll_count < ENTRY_CHECK_COUNT_MAX && error.awaits_free_entry() => {}
                outcome => return Ok((outcome?, guard)),
            }
            drop(guard);
            for _ in 0..BACKOFFS_PER_ENTRY_CHECK {
                backoff(u32::MAX).await;
            }
        }
    }

    async fn try_create_entry(
        &self,
        name: &str,
        options: &TableOptions,
        part: Option<PartRecord>,
    ) -> Result<CatalogEntry, Error> {
        self.with_catalog_lock(async {
            let mut entries = self.entries().await?;
            if self.drop_orphans(&entries).await? {
                entries = self.entries().await?;
            }
            let known = entries
                .iter()
                .find(|entry| entry.state == EntryState::Live && entry.record.name == name);
            if let Some(known) = known {
                let difference = difference(&known.record, options);
                return Err(ErrorKind::TableExists {
                    name: name.to_owned(),
                    difference,
                }
                .into());
            }
            let is_free = |index: &u64| entries.iter().all(|entry| entry.index != *index);
            let mut free = (0..TABLE_COUNT_MAX).filter(is_free);
            let mut next_free = || free.next().ok_or_else(|| full(&entries));
            let index = next_free()?;
            let listing = options.has_listing().then(&mut next_free).transpose()?;
            let mut batch = Batch::new();
            let count = 1 + u64::from(options.has_listing());
            let slot = batch.fetch_add(self.layout().table_num(), count);
            self.control(&mut batch).await?;
            let id = TableId(batch.previous(slot) as u32 + 1);
            let Some(listing) = listing else {
                let written = self.write_entry(index, id, name, options, part);
                return written.await;
            };
            self.write_listing(listing, id).await?;
            let written = self.write_entry(index, id, name, options, part).await;
            if written.is_err() {
                let is_other = |listing: &CatalogEntry| !lists(listing, id);
                self.new_listings.borrow_mut().retain(is_other);
            }
            if matches!(&written, Err(error) if !error.is_fabric_error()) {
                self.drop_orphans(&self.entries().await?).await?;
            }
            written
        })
        .await
    }

    pub(super) async fn write_entry(
        &self,
        index: u64,
        id: TableId,
        name: &str,
        options: &TableOptions,
        part: Option<PartRecord>,
    ) -> Result<CatalogEntry, Error> {
        let layout = self.layout();
        let mut batch = Batch::new();
        self.chunk_owner_count.update(|count| count + 1);
        let created = self.create_first_leaf(id, options).await;
        if matches!(&created, Err(error) if !error.is_fabric_error()) {
            self.chunk_owner_count.update(|count| count - 1);
        }
        let first_leaf = created?;
        let record = TableRecord {
            id,
            name: name.to_owned(),
            kind: options.record_kind(),
            search_layer: options.layer.number(),
            fill_percent: options.fill_percent,
            epsilon_milli: options.epsilon_milli(),
            first_leaf: first_leaf.addr(),
            part,
        };
        let entry = layout.catalog_entry(index);
        batch.clear();
        batch.write(entry.offset(1), &record.encode_body(first_leaf.root()));
        batch.write_word(entry, live_word(id));
        // If the outcome is unknown (FABRIC-5), the sweep cleans up after the session has ended.
        self.control(&mut batch).await?;
        let root = first_leaf.root();
        self.return_first_leaf(id, options, first_leaf).await?;
        self.chunk_owner_count.update(|count| count - 1);
        Ok(CatalogEntry {
            index,
            state: EntryState::Live,
            record,
            dropped_at: SequenceNumber::default(),
            root,
            underfull_count: 0,
            pending_root: RemoteAddr::NULL,
        })
    }

    /// Creates the first leaf of a table and its tree, if any. Nothing refers to them yet.
    async fn create_first_leaf(
        &self,
        id: TableId,
        options: &TableOptions,
    ) -> Result<FirstTableLeaf, Error> {
        Ok(match options.kind {
            TableKind::Words => {
                let access = self.access_to(options.leaf_geometry()?, id);
                FirstTableLeaf::Words(create_table(&access, &options.load_plan()).await?)
            }
            TableKind::Bytes(pages) => {
                let access = self.page_access(options.page_geometry(pages)?, id);
                FirstTableLeaf::Bytes(create_byte_table(&access).await?)
            }
        })
    }

    /// Transfers the chunks of a table's first leaf to the table.
    async fn return_first_leaf(
        &self,
        id: TableId,
        options: &TableOptions,
        first_leaf: FirstTableLeaf,
    ) -> Result<(), Error> {
        match (first_leaf, options.kind) {
            (FirstTableLeaf::Bytes(table), TableKind::Bytes(pages)) => {
                let access = self.page_access(options.page_geometry(pages)?, id);
                table.give_back(&access, true).await?;
            }
            (FirstTableLeaf::Words(table), _) => {
                let access = self.access_to(options.leaf_geometry()?, id);
                table.give_back(&access, true).await?;
            }
            (FirstTableLeaf::Bytes(_), TableKind::Words) => {
                unreachable!("it was created with these options")
            }
        }
        Ok(())
    }

    /// Drops the table of this name, unless `check` returns an error.
    pub(super) async fn drop_entry(
        &self,
        name: &str,
        check: impl FnOnce(&TableRecord) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.with_catalog_lock(async {
            let entry = self.find_table(name).await?;
            check(&entry.record)?;
            let mut batch = Batch::new();
            let place = self.layout().catalog_entry(entry.index);
            batch.write_word(place, dropped_word(entry.record.id));
            self.control(&mut batch).await?;
            self.drop_orphans(&self.entries().await?).await.map(drop)
        })
        .await
    }

    pub(super) async fn list(&self) -> Result<Vec<TableInfo>, Error> {
        let entries = self.live_tables().await?;
        entries
            .iter()
            .map(|entry| TableInfo::from_record(&entry.record))
            .collect()
    }

    /// Runs `work` with the catalog's lock. If it is cancelled, or the fabric fails, the session
    /// may hold the lock and is therefore marked as broken.
    async fn with_catalog_lock<R>(
        &self,
        work: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Error> {
        let lock = self.layout().catalog_lock();
        let mut batch = Batch::new();
        let mut expected = OwnerWord::FREE;
        for attempt in 0.. {
            batch.clear();
            let critical = Critical::enter(&self.broken);
            let swap = batch.compare_swap(lock, expected.word(), self.owner.word());
            if let Err(error) = self.control(&mut batch).await {
                if error.is_forbidden() {
                    // The batch has one verb, which had no effect (FABRIC-7).
                    critical.passed();
                }
                return Err(error.into());
            }
            let previous = OwnerWord::from_word(batch.previous(swap));
            if previous == expected {
                // Nothing is awaited before the next critical section begins.
                critical.passed();
                break;
            }
            critical.passed();
            let fenced = !previous.is_free() && self.is_fenced(previous).await?;
            expected = if fenced { previous } else { OwnerWord::FREE };
            backoff(attempt).await;
            if self.is_broken() {
                return Err(ErrorKind::SessionBroken.into());
            }
        }
        let critical = Critical::enter(&self.broken);
        let result = work.await;
        batch.clear();
        batch.write_word(lock, OwnerWord::FREE.word());
        self.control(&mut batch).await?;
        critical.passed();
        result
    }

    async fn is_fenced(&self, owner: OwnerWord) -> Result<bool, Error> {
        let mut batch = Batch::new();
        let fenced = session::is_owner_fenced(&self.endpoint, self.layout(), &mut batch, owner);
        let fenced = fenced.await;
        let counters = self.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        Ok(fenced?)
    }
}

/// First leaf of a new table of any kind.
enum FirstTableLeaf {
    Words(NewTable),
    Bytes(NewByteTable),
}

impl FirstTableLeaf {
    fn addr(&self) -> RemoteAddr {
        match self {
            Self::Words(table) => table.first_leaf,
            Self::Bytes(table) => table.first_page,
        }
    }

    fn root(&self) -> RemoteAddr {
        match self {
            Self::Words(table) => table.root,
            Self::Bytes(table) => table.root,
        }
    }
}

fn full(entries: &[CatalogEntry]) -> PoolError {
    let is_dropped = |entry: &&CatalogEntry| entry.state == EntryState::Dropped;
    PoolError::CatalogFull {
        table_count_max: TABLE_COUNT_MAX,
        dropped_count: entries.iter().filter(is_dropped).count() as u64,
    }
}

/// Describes how an existing table differs from the requested options.
fn difference(record: &TableRecord, options: &TableOptions) -> String {
    let Ok(known) = TableInfo::from_record(record) else {
        return "created by another version of Farleaf".to_owned();
    };
    let known = known.options;
    let differs = |name: &str, known: String, requested: String| {
        (known != requested).then(|| format!("{name} {known} instead of the requested {requested}"))
    };
    if known.kind.name() != options.kind.name() {
        let (known, requested) = (known.kind.name(), options.kind.name());
        return format!("with kind {known} instead of the requested {requested}");
    }
    let pages = |options: &TableOptions| match options.kind {
        TableKind::Bytes(pages) => pages,
        TableKind::Words => PageOptions::default(),
    };
    let [known_pages, pages] = [&known, options].map(pages);
    let differences: Vec<String> = [
        differs(
            "page size",
            format!("{} bytes", known_pages.page_size_bytes),
            format!("{} bytes", pages.page_size_bytes),
        ),
        differs(
            "inline value size",
            known_pages.inline_value_size_bytes.to_string(),
            pages.inline_value_size_bytes.to_string(),
        ),
        differs("slots", known.slots.to_string(), options.slots.to_string()),
        differs(
            "search layer",
            known.layer.to_string(),
            options.layer.to_string(),
        ),
        differs(
            "fill",
            known.fill_percent.to_string(),
            options.fill_percent.to_string(),
        ),
        differs(
            "epsilon",
            known.epsilon_keys.to_string(),
            options.epsilon_keys.to_string(),
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    if differences.is_empty() {
        "with the same options; nothing was changed".to_owned()
    } else {
        format!("with {}", differences.join(", "))
    }
}
