//! Records of several fields, as in YCSB, adjacent in one value: an update changes one.
//!
//! Each field begins with a header of three parts: the word of the write that wrote it, the number
//! of that change of the record (4 bytes), and a check (4 bytes). The check covers all headers as
//! that change left them. The rest of the field are bytes derived from the word and the field's
//! index. The word of a record is that of its newest field. A record is therefore valid only as one
//! of the writes has put it: headers or fillings reveal a mixture of two.

use super::strings::filling;

/// Size of a header: word, number of the change, and check.
const HEAD_SIZE_BYTES: usize = 16;

/// Size of the shortest fields: only a header.
pub(super) const FIELD_SIZE_BYTES_MIN: usize = HEAD_SIZE_BYTES;

/// Division of a record into fields of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) count: usize,
    pub(super) size_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Head {
    word: u64,
    /// Number of the change; 0: the record was written whole.
    change_number: u32,
    check: u32,
}

impl Head {
    fn of(field: &[u8]) -> Option<Self> {
        let (word, rest) = field.split_first_chunk()?;
        let (change_number, rest) = rest.split_first_chunk()?;
        let (check, _) = rest.split_first_chunk()?;
        Some(Self {
            word: u64::from_le_bytes(*word),
            change_number: u32::from_le_bytes(*change_number),
            check: u32::from_le_bytes(*check),
        })
    }

    fn write(&self, index: usize, field: &mut [u8]) {
        let (head, rest) = field.split_at_mut(HEAD_SIZE_BYTES);
        head[..8].copy_from_slice(&self.word.to_le_bytes());
        head[8..12].copy_from_slice(&self.change_number.to_le_bytes());
        head[12..].copy_from_slice(&self.check.to_le_bytes());
        rest.fill(filling(self.word.wrapping_add(index as u64)));
    }
}

impl Fields {
    fn heads(&self, record: &[u8]) -> Vec<Head> {
        let fields = record.chunks_exact(self.size_bytes);
        fields.filter_map(Head::of).collect()
    }

    /// Fills the buffer with a record whose fields all come from this write.
    pub(super) fn write(&self, word: u64, record: &mut Vec<u8>) {
        let mut heads = vec![Head::default(); self.count];
        for head in &mut heads {
            head.word = word;
        }
        heads[0].check = check(&heads, 0);
        record.clear();
        record.resize(self.count * self.size_bytes, 0);
        let fields = record.chunks_exact_mut(self.size_bytes);
        for (index, (field, head)) in fields.zip(&heads).enumerate() {
            head.write(index, field);
        }
    }

    /// Changes one field of a record, chosen by a hash of the word.
    pub(super) fn change(&self, word: u64, record: &mut [u8]) {
        let mut heads = self.heads(record);
        let index = (scrambled(word) >> 32) as usize % self.count;
        // No run changes a record four billion times.
        let change_number = heads[newest(&heads)].change_number + 1;
        heads[index] = Head {
            word,
            change_number,
            check: 0,
        };
        heads[index].check = check(&heads, index);
        let field = &mut record[index * self.size_bytes..][..self.size_bytes];
        heads[index].write(index, field);
    }

    /// Returns the word of the last write to a record; `None` if it does not consist of writes
    /// whose words are `good`.
    pub(super) fn word(&self, record: &[u8], good: impl Fn(u64) -> bool) -> Option<u64> {
        if record.len() != self.count * self.size_bytes {
            return None;
        }
        let heads = self.heads(record);
        let index = newest(&heads);
        let fields = record.chunks_exact(self.size_bytes);
        let mut fields = fields.zip(&heads).enumerate();
        let is_right = heads[index].check == check(&heads, index)
            && fields.all(|(index, (field, head))| {
                let byte = filling(head.word.wrapping_add(index as u64));
                good(head.word) && field[HEAD_SIZE_BYTES..].iter().all(|it| *it == byte)
            });
        is_right.then_some(heads[index].word)
    }
}

/// Returns the field that was changed last; the first one of a record that was written whole.
fn newest(heads: &[Head]) -> usize {
    let newest = heads.iter().enumerate().rev();
    let newest = newest.max_by_key(|(_, head)| head.change_number);
    newest.map_or(0, |(index, _)| index)
}

/// Returns a hash of all headers, without the check of one of them.
fn check(heads: &[Head], without: usize) -> u32 {
    let heads = heads.iter().enumerate();
    let hash = heads.fold(0, |hash: u64, (index, head)| {
        let check = if index == without { 0 } else { head.check };
        let numbers = u64::from(head.change_number) << 32 | u64::from(check);
        scrambled(scrambled(hash ^ head.word) ^ numbers)
    });
    (hash >> 32) as u32
}

const fn scrambled(word: u64) -> u64 {
    let word = (word ^ (word >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    word ^ (word >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: Fields = Fields {
        count: 10,
        size_bytes: 100,
    };

    /// Promise: a record is decoded to its last write. An update changes one field of a hundred
    /// bytes and leaves the others, and every field is updated at times.
    #[test]
    fn an_update_changes_one_field() {
        let mut record = Vec::new();
        FIELDS.write(7, &mut record);
        assert_eq!(record.len(), 1000);
        assert_eq!(FIELDS.word(&record, |word| word == 7), Some(7));
        let mut changed_counts = [0; 10];
        for word in 100..400 {
            let before = record.clone();
            FIELDS.change(word, &mut record);
            assert_eq!(FIELDS.word(&record, |_| true), Some(word));
            let fields = before.chunks(100).zip(record.chunks(100)).enumerate();
            let changed = fields.filter(|(_, (before, after))| before != after);
            let changed: Vec<usize> = changed.map(|(index, _)| index).collect();
            assert_eq!(changed.len(), 1, "{changed:?}");
            changed_counts[changed[0]] += 1;
        }
        assert!(
            changed_counts.iter().all(|count| (10..60).contains(count)),
            "{changed_counts:?}"
        );
        assert_eq!(FIELDS.word(&record, |word| word != 399), None);
    }

    /// Promise: a record with any changed byte, of another size, or mixed from two writes is
    /// invalid.
    #[test]
    fn what_nobody_has_put_is_no_record() {
        let mut record = Vec::new();
        FIELDS.write(7, &mut record);
        let mut states = vec![record.clone()];
        for word in 100..140 {
            FIELDS.change(word, &mut record);
            states.push(record.clone());
        }
        for index in 0..record.len() {
            let mut damaged = record.clone();
            damaged[index] ^= 0x10;
            assert_eq!(FIELDS.word(&damaged, |_| true), None, "byte {index}");
        }
        assert_eq!(FIELDS.word(&record[..900], |_| true), None);
        assert_eq!(FIELDS.word(&[], |_| true), None);
        for cut in (0..record.len()).step_by(50) {
            for state in &states {
                let mixed = [&state[..cut], &record[cut..]].concat();
                let is_one = FIELDS.word(&mixed, |_| true).is_some();
                assert_eq!(is_one, states.contains(&mixed), "cut at {cut}");
            }
        }
    }
}
