use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::storage::{DirectoryStorage, Storage, StorageFile};
use crate::tree::random_numbers;

/// Opens a file that bypasses the page cache, if the tests' file system supports that.
fn opened(folder: &tempfile::TempDir) -> Option<Arc<dyn StorageFile>> {
    let storage = DirectoryStorage::open(folder.path()).expect("there");
    let storage = storage.with_direct_io(&["direct"]);
    let file = storage.create("direct").expect("made");
    if let Some(why) = storage.direct_io_refused() {
        eprintln!("skipped: no direct I/O here: {why}");
        return None;
    }
    Some(file)
}

/// Promise: any write, aligned or not, in a block or over many, reads back through the file and
/// through one with the page cache. Surrounding bytes stay.
#[test]
fn a_direct_file_is_what_bytes_are() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let Some(file) = opened(&folder) else {
        return;
    };
    let mut model = Vec::new();
    let mut random = random_numbers(3);
    let mut below = |limit: u64| random.next().expect("without end") % limit;
    for step in 0..150 {
        let size_bytes = match below(4) {
            0 => below(20),
            1 => below(9_000),
            2 => 4096 * below(4),
            _ => below(3 << 20) / (1 + below(4)),
        } as usize;
        let offset = match below(3) {
            0 => 4096 * below(300),
            _ => below(2 << 20),
        } as usize;
        let bytes = vec![step as u8 + 1; size_bytes];
        file.write_at(&bytes, offset as u64).expect("written");
        if size_bytes > 0 {
            let end = offset + size_bytes;
            model.resize(model.len().max(end.next_multiple_of(4096)), 0);
            model[offset..end].copy_from_slice(&bytes);
        }
        let from = below(model.len() as u64 + 1) as usize;
        let mut buffer = vec![0xee; below((model.len() - from) as u64 + 1) as usize];
        file.read_at(&mut buffer, from as u64).expect("within it");
        assert!(buffer == model[from..from + buffer.len()], "step {step}");
    }
    assert_eq!(file.size().expect("its size"), model.len() as u64);
    file.sync().expect("synced");
    let content = fs::read(folder.path().join("direct")).expect("there");
    assert!(content == model, "as others read it");
}

/// Promise: reads end at the end of the file, wherever it was truncated; impossible sizes are
/// errors.
#[test]
fn a_direct_file_has_an_end() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let Some(file) = opened(&folder) else {
        return;
    };
    file.write_at(&[7; 10_000], 0).expect("written");
    file.set_size(9_000).expect("cut");
    let kind = |offset: u64, size_bytes: usize| {
        let read = file.read_at(&mut vec![0; size_bytes], offset);
        read.err().map(|error| error.kind())
    };
    let eof = Some(io::ErrorKind::UnexpectedEof);
    assert_eq!(kind(0, 9_000), None);
    assert_eq!(kind(8_999, 1), None);
    for (offset, size_bytes) in [
        (0, 9_001),
        (8_999, 2),
        (9_000, 1),
        (50_000, 1),
        (8_192, 4_096),
    ] {
        assert_eq!(kind(offset, size_bytes), eof, "{offset} {size_bytes}");
    }
    assert_eq!(kind(50_000, 0), None, "nothing is everywhere");
    file.write_at(&[8; 2], 9_500).expect("written");
    let mut rest = vec![1; 1_000];
    file.read_at(&mut rest, 8_999).expect("there again");
    assert_eq!(rest[0], 7);
    assert!(rest[1..501].iter().all(|it| *it == 0), "it was cut off");
    assert_eq!(rest[501..503], [8, 8]);
    assert!(file.write_at(b"x", u64::MAX).is_err());
    assert!(file.read_at(&mut [0], u64::MAX).is_err());
}

/// Promise: threads that write parts of the same blocks do not undo each other's writes.
#[test]
fn parts_of_a_block_are_written_one_by_one() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let Some(file) = opened(&folder) else {
        return;
    };
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let file = &file;
            scope.spawn(move || {
                for part in 0..40 {
                    let offset = (part * 4 + thread) * 100;
                    let bytes = [thread as u8 + 1; 100];
                    file.write_at(&bytes, offset).expect("written");
                }
            });
        }
    });
    let mut content = vec![0; 16_000];
    file.read_at(&mut content, 0).expect("all of it");
    for (index, part) in content.chunks(100).enumerate() {
        let expected = index as u8 % 4 + 1;
        assert!(part.iter().all(|it| *it == expected), "part {index}");
    }
}

/// Promise: if the file system refuses, the file is used normally, and the reason is returned.
/// Errors of the file itself are errors as for others.
#[test]
fn what_is_refused_is_told() {
    let read = OpenOptions::new().read(true).clone();
    match super::open(&read, Path::new("/proc/self/status")) {
        Ok(Err(why)) => assert!(why.starts_with("it cannot be"), "{why}"),
        other => eprintln!("skipped: what is not on a disk is read all the same: {other:?}"),
    }
    let missing = super::open(&read, Path::new("/proc/self/missing"));
    assert_eq!(
        missing.map_err(|error| error.kind()).err(),
        Some(io::ErrorKind::NotFound)
    );

    let folder = tempfile::tempdir().expect("a folder for the test");
    let storage = DirectoryStorage::open(folder.path()).expect("there");
    let storage = storage.with_direct_io(&["direct"]);
    storage.note_refusal("direct", "it is one of a test");
    storage.note_refusal("other", "it is another one");
    let refused = storage.direct_io_refused();
    assert_eq!(refused, Some("direct: it is one of a test"));
    let file = storage.create("other").expect("made");
    file.write_at(b"abc", 1).expect("written");
    assert_eq!(file.size().expect("its size"), 4, "as others are");
}

/// Promise: an append at the end of the last one reads nothing. It rewrites the previous contents,
/// even if the block was changed through another file. Writes through this file are respected.
#[test]
fn the_block_that_was_appended_to_is_known() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let Some(file) = opened(&folder) else {
        return;
    };
    let other = OpenOptions::new().write(true).clone();
    let other = other.open(folder.path().join("direct")).expect("there");
    let first_byte = || fs::read(folder.path().join("direct")).expect("there")[0];
    file.append_at(b"abc", 0).expect("appended");
    std::os::unix::fs::FileExt::write_all_at(&other, b"X", 0).expect("written");
    assert_eq!(first_byte(), b'X');
    file.append_at(b"def", 3).expect("appended");
    assert_eq!(first_byte(), b'a', "it was not read again");
    file.write_at(b"Y", 0).expect("written");
    file.append_at(b"ghi", 6).expect("appended");
    let content = fs::read(folder.path().join("direct")).expect("there");
    assert_eq!(content[..9], *b"Ybcdefghi");
    assert_eq!(content[9..], [0; 4087]);
    file.append_at(b"!", 5).expect("appended");
    let content = fs::read(folder.path().join("direct")).expect("there");
    assert_eq!(content[..9], *b"Ybcde!\0\0\0", "what is behind is gone");
}
