//! Requests of one thread: a few are generated ahead, so that the timed part does not include their
//! generation.

use std::ops::Range;

use crate::distribution::fnv_hash;
use crate::runner::Strings;
use crate::verify::{WriterId, is_value_of, loaded_value, written_value};
use crate::workload::{Operation, OperationKind};

/// Number of requests that are generated ahead.
pub(super) const AHEAD_COUNT: u64 = 64;

/// Request, whose key and value are bytes of its [`Requests`].
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) kind: OperationKind,
    /// Number of which its key is formed.
    pub(super) number: u64,
    pub(super) region: usize,
    key: Range<usize>,
    value: Range<usize>,
    /// Index of an insert that is to be acknowledged.
    pub(super) insert_index: Option<u64>,
}

/// Requests of one thread.
#[derive(Debug)]
pub(super) struct Requests {
    strings: Strings,
    region_count: usize,
    writer: WriterId,
    write_count: u32,
    queue: Vec<Request>,
    bytes: Vec<u8>,
    buffer: Vec<u8>,
}

/// Returns the number of which a record's key is formed.
pub(super) fn number_of(record: u64) -> u64 {
    fnv_hash(record)
}

/// Returns the region of a key: hashes have 63 bits, and regions are ranges of equal size.
pub(super) fn region_of(number: u64, region_count: usize) -> usize {
    let region = (u128::from(number) * region_count as u128) >> 63;
    (region as usize).min(region_count - 1)
}

impl Requests {
    pub(super) fn new(strings: Strings, region_count: usize, writer: WriterId) -> Self {
        Self {
            strings,
            region_count,
            writer,
            write_count: 0,
            queue: Vec::new(),
            bytes: Vec::new(),
            buffer: Vec::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.bytes.clear();
    }

    /// Adds the put of a loaded record.
    pub(super) fn load(&mut self, record: u64) {
        let number = number_of(record);
        self.push(
            OperationKind::Insert,
            None,
            number,
            Some(loaded_value(number)),
        );
    }

    /// Adds a request of a workload on this many loaded records.
    ///
    /// # Panics
    /// The operation is a scan or a read-modify-write.
    pub(super) fn push_operation(&mut self, operation: Operation, loaded_count: u64) {
        let (record, insert_index) = match operation {
            Operation::Read(index) | Operation::Update(index) => (index, None),
            Operation::Insert(index) => (loaded_count + index, Some(index)),
            Operation::Scan { .. } | Operation::ReadModifyWrite(_) => {
                unreachable!("workloads A to D have none")
            }
        };
        let number = number_of(record);
        let word = (operation.kind() != OperationKind::Read).then(|| {
            self.write_count = self.write_count.wrapping_add(1);
            written_value(number, self.writer, self.write_count)
        });
        self.push(operation.kind(), insert_index, number, word);
    }

    fn push(
        &mut self,
        kind: OperationKind,
        insert_index: Option<u64>,
        number: u64,
        word: Option<u64>,
    ) {
        let strings = self.strings;
        strings.key(number, &mut self.buffer);
        let key = self.append();
        self.buffer.clear();
        if let Some(word) = word {
            strings.value(number, word, &mut self.buffer);
        }
        let value = self.append();
        self.queue.push(Request {
            kind,
            number,
            region: region_of(number, self.region_count),
            key,
            value,
            insert_index,
        });
    }

    fn append(&mut self) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&self.buffer);
        start..self.bytes.len()
    }

    /// Returns all generated requests, in their order.
    pub(super) fn all(&self) -> &[Request] {
        &self.queue
    }

    pub(super) fn key(&self, request: &Request) -> &[u8] {
        &self.bytes[request.key.clone()]
    }

    pub(super) fn value(&self, request: &Request) -> &[u8] {
        &self.bytes[request.value.clone()]
    }
}

/// Returns whether a value was put under this key: its word says so, all of its bytes follow from
/// that, and its size is the key's.
pub(super) fn is_value(strings: &Strings, number: u64, value: &[u8]) -> bool {
    let word = strings.word(number, value);
    word.is_some_and(|word| is_value_of(number, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: regions are ranges of keys, all used about equally, whatever their number.
    #[test]
    fn regions_are_ranges_of_keys() {
        for region_count in [2, 6, 32] {
            let mut counts = vec![0_u32; region_count];
            let mut numbers: Vec<u64> = (0..20_000).map(number_of).collect();
            numbers.sort_unstable();
            let regions: Vec<usize> = numbers
                .iter()
                .map(|it| region_of(*it, region_count))
                .collect();
            assert!(regions.is_sorted());
            for region in &regions {
                counts[*region] += 1;
            }
            let mean = 20_000.0 / region_count as f64;
            assert!(
                counts
                    .iter()
                    .all(|it| (0.7..1.3).contains(&(f64::from(*it) / mean)))
            );
        }
        assert_eq!(region_of(1 << 63, 32), 31);
    }

    /// Promise: the value of a put is recognized as its key's and as no other key's; a value with a
    /// changed byte is not recognized.
    #[test]
    fn values_are_known() {
        for size in ["S", "L", "SD"] {
            let strings = Strings {
                value_size: size.parse().expect("a size"),
                ..Strings::default()
            };
            let mut requests = Requests::new(strings, 2, WriterId::thread(3).expect("few"));
            requests.load(1);
            requests.push_operation(Operation::Update(1), 5);
            requests.push_operation(Operation::Insert(2), 5);
            requests.push_operation(Operation::Read(1), 5);
            let all = requests.all().to_vec();
            assert_eq!(all[2].number, number_of(7));
            for request in &all[..3] {
                let value = requests.value(request);
                assert!(is_value(&strings, request.number, value));
                let mut torn = value.to_vec();
                *torn.last_mut().expect("bytes") ^= 1;
                assert!(!is_value(&strings, request.number, &torn));
            }
            assert!(!is_value(&strings, number_of(7), requests.value(&all[0])));
            assert!(requests.value(&all[3]).is_empty());
            assert_eq!(requests.key(&all[3]), requests.key(&all[0]));
        }
    }
}
