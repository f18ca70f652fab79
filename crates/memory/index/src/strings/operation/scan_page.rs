//! Takes the records of one page for a scan, including strings outside the page.

use crate::hint::Hint;
use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::strings::{Fence, Outside, PageBuffer, Reference, Stored, StoredFence, Value};
use farleaf_leaf::words::LeafCheck;

use super::cursor::ScanCursor;
use super::read::CoveringPage;
use super::records::{Record, RecordBuffer};
use super::{ByteIndex, PageVerdict};
use crate::strings::error::ByteIndexError;

/// Maximum bytes of outside values per batch, unless a single value is larger.
const VALUE_BATCH_SIZE_BYTES_MAX: usize = 4 << 20;

/// Records of a page for a scan.
pub(super) struct PageRecords {
    /// Records, ascending; those with outside values have empty values.
    pub(super) records: Vec<(Record, Option<Reference>)>,
    /// Upper fence of the page.
    pub(super) high: Fence,
}

/// Outside values of a scan: index of the record, the page, and the reference to the value.
pub(super) type PendingValues = Vec<(usize, RemoteAddr, Reference)>;

/// Records that a scan has found.
pub(super) struct ScanOutput<'a> {
    pub(super) records: &'a mut RecordBuffer,
    /// Number of records at which the scan ends.
    pub(super) end: usize,
    /// Values that are still to be read.
    pub(super) pending: PendingValues,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Takes the records of a page that covers the cursor, and moves the cursor after the page, or
    /// after the last wanted record.
    pub(super) async fn take_page(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        addr: RemoteAddr,
        page: &PageBuffer,
        output: &mut ScanOutput<'_>,
    ) -> Result<(), ByteIndexError> {
        let from = cursor.next_key.clone().unwrap_or_default();
        let found = self
            .records_of(batch, addr, page, &from, cursor.has_values)
            .await?;
        let Some(found) = found else {
            // The page is stale: the page that covers the key now has the records.
            return Box::pin(self.take_newer(batch, cursor, addr, output)).await;
        };
        take_records(cursor, addr, found, output);
        Ok(())
    }

    #[cold]
    async fn take_newer(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        addr: RemoteAddr,
        output: &mut ScanOutput<'_>,
    ) -> Result<(), ByteIndexError> {
        let from = cursor.next_key.clone().unwrap_or_default();
        let stale = Hint { addr, parent: 0 };
        let mut stale_count = 0;
        loop {
            let torn = PageVerdict::LeafCheck(LeafCheck::Torn);
            let CoveringPage { hint, page, .. } = self.walk(batch, &from, stale, torn).await?;
            let found = self.records_of(batch, hint.addr, &page, &from, cursor.has_values);
            if let Some(found) = found.await? {
                take_records(cursor, hint.addr, found, output);
                return Ok(());
            }
            self.note_stale(hint.addr, &mut stale_count)?;
        }
    }

    /// Returns the records of a page, and its upper fence; `None` if it is stale. `covered` is a
    /// key that the page covers.
    pub(super) async fn records_of(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        page: &PageBuffer,
        covered: &[u8],
        has_values: bool,
    ) -> Result<Option<PageRecords>, ByteIndexError> {
        let mut outside = Outside::new();
        if !self.fetch_strings(batch, addr, page, &mut outside).await? {
            return Ok(None);
        }
        let image = page.image();
        let prefix = covered.get(..image.prefix_size_bytes());
        let prefix = prefix.ok_or_else(|| self.damaged(addr))?;
        let slots = image.sorted_slots(&outside);
        let slots = slots.map_err(|_| self.damaged(addr))?;
        let mut found = Vec::with_capacity(slots.len());
        for slot in slots {
            let suffix = image.whole_suffix(slot, &outside);
            let suffix = suffix.map_err(|_| self.damaged(addr))?;
            let key = [prefix, suffix].concat();
            let (value, reference) = match image.value(slot) {
                _ if !has_values => (Vec::new(), None),
                Value::Inline(value) => (value.to_vec(), None),
                Value::Outside(reference) => (Vec::new(), Some(reference)),
            };
            found.push((Record { key, value }, reference));
        }
        let high = self.fence_of(addr, prefix, image.high(), &outside)?;
        Ok(Some(PageRecords {
            records: found,
            high,
        }))
    }

    /// Returns a fence of a page whose prefix is known.
    fn fence_of(
        &self,
        addr: RemoteAddr,
        prefix: &[u8],
        fence: StoredFence<'_>,
        outside: &Outside,
    ) -> Result<Fence, ByteIndexError> {
        let whole = |stored: Stored<'_>| match stored {
            Stored::Inline(suffix) => Ok([prefix, suffix].concat()),
            Stored::Outside { reference, .. } => {
                let string = outside.get(reference);
                string.map(<[u8]>::to_vec).map_err(|_| self.damaged(addr))
            }
        };
        Ok(match fence {
            StoredFence::Before(stored) => Fence::Before(whole(stored)?),
            StoredFence::Behind(stored) => Fence::Behind(whole(stored)?),
            StoredFence::End => Fence::End,
        })
    }

    /// Reads outside values, in batches of limited size. A record that was changed in the meantime
    /// is read like a get; one that was deleted is omitted.
    pub(super) async fn fill_values(
        &self,
        batch: &mut Batch,
        records: &mut RecordBuffer,
        pending: PendingValues,
    ) -> Result<(), ByteIndexError> {
        let mut gone = Vec::new();
        let mut rest = &pending[..];
        while !rest.is_empty() {
            let mut size_bytes = 0;
            let fits = |(_, _, reference): &&(usize, RemoteAddr, Reference)| {
                size_bytes += reference.size_bytes as usize;
                size_bytes <= VALUE_BATCH_SIZE_BYTES_MAX
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (part, after) = rest.split_at(count);
            rest = after;
            let strings: Vec<_> = part.iter().map(|(_, addr, it)| (*addr, *it)).collect();
            let values = self.read_strings(batch, &strings).await?;
            for ((index, ..), value) in part.iter().zip(values) {
                if let Some(value) = value {
                    records.set_value(*index, &value);
                    continue;
                }
                let (key, _) = records.get(*index).expect("it waits for its value");
                let key = key.to_vec();
                let got = Box::pin(self.get(batch, &key, |value| value.map(<[u8]>::to_vec)));
                match got.await? {
                    Some(value) => records.set_value(*index, &value),
                    None => gone.push(*index),
                }
            }
        }
        for index in gone.into_iter().rev() {
            records.remove(index);
        }
        Ok(())
    }
}

/// Takes the records of a page within the cursor's range, and moves the cursor after the page, or
/// after the last wanted record.
fn take_records(
    cursor: &mut ScanCursor,
    addr: RemoteAddr,
    found: PageRecords,
    output: &mut ScanOutput<'_>,
) {
    let (records, pending) = (&mut *output.records, &mut output.pending);
    let from = cursor.next_key.clone().unwrap_or_default();
    for (record, value) in found.records {
        if record.key < from || !cursor.is_wanted(&record.key) {
            continue;
        }
        if records.len() == output.end {
            let (last, _) = records.last().expect("at least one was wanted");
            cursor.pass_key(last);
            return;
        }
        if let Some(reference) = value {
            pending.push((records.len(), addr, reference));
        }
        records.push(&record.key, &record.value);
    }
    cursor.pass(&found.high);
}
