//! Random operations, and what a power failure may leave of them.

use proptest::prelude::*;

use super::tests::{SECTOR, content, with_durable};
use crate::storage::{PowerLoss, Storage};

#[derive(Clone, Debug)]
enum Step {
    Write { offset: usize, size_bytes: usize },
    SetSize(usize),
    Sync,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_usize..3000, 1_usize..1500)
            .prop_map(|(offset, size_bytes)| Step::Write { offset, size_bytes }),
        2 => (0_usize..4000).prop_map(Step::SetSize),
        1 => Just(Step::Sync),
    ];
    prop::collection::vec(step, 1..20)
}

/// Returns a sector of contents that may be shorter, padded with zeros.
fn sector_of(content: &[u8], sector: usize) -> [u8; SECTOR] {
    std::array::from_fn(|index| content.get(sector * SECTOR + index).copied().unwrap_or(0))
}

proptest! {
    /// Promise: a file reads like a vector of bytes. After a power failure it has one of the sizes.
    /// Each sector below the synced size has its contents from some moment since the sync.
    #[test]
    fn a_file_is_like_a_vector(steps in steps(), seed in any::<u64>()) {
        let (storage, file) = with_durable("a", b"", seed);
        let mut model: Vec<u8> = Vec::new();
        // The synced contents, and all versions since.
        let mut versions = vec![model.clone()];
        for (step, byte) in steps.iter().zip(1..) {
            match *step {
                Step::Write { offset, size_bytes } => {
                    let end = offset + size_bytes;
                    file.write_at(&vec![byte; size_bytes], offset as u64).expect("written");
                    model.resize(model.len().max(end), 0);
                    model[offset..end].fill(byte);
                }
                Step::SetSize(size_bytes) => {
                    file.set_size(size_bytes as u64).expect("set");
                    model.resize(size_bytes, 0);
                }
                Step::Sync => {
                    file.sync().expect("synced");
                    versions.clear();
                }
            }
            versions.push(model.clone());
            let read = content(&storage, "a");
            prop_assert_eq!(read.as_ref(), Some(&model));
        }
        for _ in 0..10 {
            let left = content(&storage.lose_power(PowerLoss::Any), "a").expect("there");
            let is_a_size = versions.iter().any(|it| it.len() == left.len());
            let longest = versions.iter().map(Vec::len).max().unwrap_or_default();
            prop_assert!(is_a_size || left.len().is_multiple_of(SECTOR) && left.len() <= longest);
            let synced_size_bytes = versions[0].len();
            for sector in 0..left.len().min(synced_size_bytes).div_ceil(SECTOR) {
                let size_bytes = SECTOR.min(left.len() - sector * SECTOR);
                let found = sector_of(&left, sector);
                let is_known = versions
                    .iter()
                    .any(|it| sector_of(it, sector)[..size_bytes] == found[..size_bytes]);
                prop_assert!(is_known, "sector {sector}");
            }
        }
    }

    /// Promise: a file with a durable name is lost only if it was removed or replaced, whatever
    /// else was done with names.
    #[test]
    fn renames_lose_no_file(
        steps in prop::collection::vec((0_usize..4, 0_usize..4), 1..12),
        seed in any::<u64>(),
    ) {
        let names = ["a", "b", "c", "d"];
        let (storage, _) = with_durable("a", b"kept", seed);
        let mut at = 0;
        for (from, to) in steps {
            // The file under test moves from name to name; other files are created and removed
            // around it.
            if from == at {
                storage.rename(names[from], names[to]).expect("renamed");
                at = to;
            } else if to != at && storage.rename(names[from], names[to]).is_err() {
                storage.create(names[to]).expect("made");
            }
        }
        for _ in 0..10 {
            let left = storage.lose_power(PowerLoss::Any);
            let expected = Some(b"kept".to_vec());
            prop_assert!(names.iter().any(|name| content(&left, name) == expected));
        }
    }
}
