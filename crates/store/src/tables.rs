//! The catalog, from a session's side (rules C1 to C3).

use farleaf_executor::{backoff, block_on};
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_index::load::create_table;
use farleaf_leaf::LeafAccess;
use farleaf_region::catalog::{
    CatalogEntry, ENTRY_SIZE_WORDS, EntryState, TABLE_COUNT_MAX, TableRecord, dropped_word,
    live_word,
};
use farleaf_region::session;
use farleaf_region::{RegionError, RegionLayout};
use farleaf_types::{OwnerWord, RemoteAddr, SequenceNumber, TableId};

use crate::options::{TableInfo, TableOptions, check_name};
use crate::session::SessionCore;
use crate::{Error, ErrorKind};

/// An entry is written in one batch; whoever reads it torn so often has met damage.
const TORN_ENTRY_COUNT_MAX: u32 = 1000;

/// All live tables.
pub(crate) fn read_catalog(
    endpoint: &MappedEndpoint,
    layout: &RegionLayout,
) -> Result<Vec<CatalogEntry>, Error> {
    let mut entries = read_entries(endpoint, layout)?;
    entries.retain(|entry| entry.state == EntryState::Live);
    Ok(entries)
}

/// All entries that are not free.
fn read_entries(
    endpoint: &MappedEndpoint,
    layout: &RegionLayout,
) -> Result<Vec<CatalogEntry>, Error> {
    let mut batch = Batch::new();
    let mut attempt = 0;
    loop {
        batch.clear();
        let word_count = TABLE_COUNT_MAX as usize * ENTRY_SIZE_WORDS;
        let read = batch.read(layout.catalog_entry(0), word_count);
        block_on(endpoint.execute(&mut batch), || 0)?;
        endpoint
            .counters()
            .record(OperationKind::Control, &batch.take_cost());
        let entries = batch.words(read).chunks_exact(ENTRY_SIZE_WORDS).enumerate();
        let entries: Result<Vec<_>, RegionError> = entries
            .filter_map(|(index, words)| CatalogEntry::decode(index as u64, words).transpose())
            .collect();
        match entries {
            Ok(entries) => return Ok(entries),
            Err(error) if attempt >= TORN_ENTRY_COUNT_MAX => return Err(error.into()),
            Err(_) => attempt += 1,
        }
    }
}

impl SessionCore {
    pub(crate) fn find_table(&self, name: &str) -> Result<CatalogEntry, Error> {
        let entries = read_catalog(&self.endpoint, &self.pool.0.layout)?;
        let found = entries.into_iter().find(|entry| entry.record.name == name);
        found.ok_or_else(|| {
            ErrorKind::TableNotFound {
                name: name.to_owned(),
                pool: self.pool.0.address.clone(),
            }
            .into()
        })
    }

    /// C2.
    pub(crate) fn create_entry(
        &self,
        name: &str,
        options: &TableOptions,
    ) -> Result<CatalogEntry, Error> {
        check_name(name)?;
        options.check()?;
        self.with_catalog_lock(|| {
            let entries = read_entries(&self.endpoint, &self.pool.0.layout)?;
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
            let index = (0..TABLE_COUNT_MAX)
                .find(is_free)
                .ok_or(RegionError::CatalogFull {
                    table_count_max: TABLE_COUNT_MAX,
                })?;
            self.write_entry(index, name, options)
        })
    }

    fn write_entry(
        &self,
        index: u64,
        name: &str,
        options: &TableOptions,
    ) -> Result<CatalogEntry, Error> {
        let layout = &self.pool.0.layout;
        let mut batch = Batch::new();
        let slot = batch.fetch_add(layout.table_num(), 1);
        self.control(&mut batch)?;
        let id = TableId(batch.previous(slot) as u32 + 1);
        let access = LeafAccess {
            endpoint: &self.endpoint,
            layout,
            geometry: options.check()?,
            table: id,
            owner: self.owner,
        };
        self.owns_chunks.set(true);
        let table = self.drive(create_table(&access))?;
        let record = TableRecord {
            id,
            name: name.to_owned(),
            slots: access.geometry.slots(),
            search_layer: options.layer.number(),
            fill_percent: options.fill_percent,
            epsilon_milli: options.epsilon_milli(),
            first_leaf: table.first_leaf,
        };
        let entry = layout.catalog_entry(index);
        batch.clear();
        batch.write(entry.offset(1), &record.encode_body(table.root));
        batch.write_word(entry, live_word(id));
        // F5: an unknown outcome is left to the sweep, when the session has ended.
        self.control(&mut batch)?;
        self.drive(table.give_back(&access, true))?;
        self.owns_chunks.set(false);
        Ok(CatalogEntry {
            index,
            state: EntryState::Live,
            record,
            dropped_at: SequenceNumber::default(),
            root: table.root,
            pending_root: RemoteAddr::NULL,
        })
    }

    /// C3.
    pub(crate) fn drop_entry(&self, name: &str) -> Result<(), Error> {
        self.with_catalog_lock(|| {
            let entry = self.find_table(name)?;
            let mut batch = Batch::new();
            let place = self.pool.0.layout.catalog_entry(entry.index);
            batch.write_word(place, dropped_word(entry.record.id));
            Ok(self.control(&mut batch)?)
        })
    }

    pub(crate) fn list(&self) -> Result<Vec<TableInfo>, Error> {
        let entries = read_catalog(&self.endpoint, &self.pool.0.layout)?;
        entries
            .iter()
            .map(|entry| TableInfo::from_record(&entry.record))
            .collect()
    }

    /// C1.
    fn with_catalog_lock<R>(&self, work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        let lock = self.pool.0.layout.catalog_lock();
        let mut batch = Batch::new();
        let mut expected = OwnerWord::FREE;
        for attempt in 0.. {
            batch.clear();
            let swap = batch.compare_swap(lock, expected.word(), self.owner.word());
            self.control(&mut batch)?;
            let previous = OwnerWord::from_word(batch.previous(swap));
            if previous == expected {
                break;
            }
            let fenced = !previous.is_free() && self.is_fenced(previous)?;
            expected = if fenced { previous } else { OwnerWord::FREE };
            self.drive(backoff(attempt));
        }
        let result = work();
        batch.clear();
        batch.write_word(lock, OwnerWord::FREE.word());
        self.control(&mut batch)?;
        result
    }

    fn is_fenced(&self, owner: OwnerWord) -> Result<bool, Error> {
        let (layout, mut batch) = (&self.pool.0.layout, Batch::new());
        let fenced = session::is_owner_fenced(&self.endpoint, layout, &mut batch, owner);
        let fenced = self.drive(fenced);
        let counters = self.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        Ok(fenced?)
    }
}

/// How a table that exists differs from what was asked for.
fn difference(record: &TableRecord, options: &TableOptions) -> String {
    let Ok(known) = TableInfo::from_record(record) else {
        return "made by another version of farleaf".to_owned();
    };
    let known = known.options;
    let differs = |name: &str, known: String, asked: String| {
        (known != asked).then(|| format!("{name} {known} where {asked} was asked for"))
    };
    let differences: Vec<String> = [
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
        "with the same options; open it".to_owned()
    } else {
        format!("with {}", differences.join(", "))
    }
}
