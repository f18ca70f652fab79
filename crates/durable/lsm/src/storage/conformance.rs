//! One set of tests for all storages: what the engine may rely on with any of them.

use std::io;
use std::sync::Arc;

use super::{
    CrashStorage, DirectoryStorage, Fault, FaultyStorage, Operation, Storage, StorageFile,
};

fn read(file: &dyn StorageFile, offset: u64, size_bytes: usize) -> Vec<u8> {
    // Not zeros: so the test sees it if a read leaves bytes unchanged.
    let mut buffer = vec![0xee; size_bytes];
    file.read_at(&mut buffer, offset).expect("within the file");
    buffer
}

fn failure<T>(result: io::Result<T>) -> Option<io::ErrorKind> {
    result.err().map(|error| error.kind())
}

fn sorted_names(storage: &dyn Storage) -> Vec<String> {
    let mut names = storage.list().expect("its names");
    names.sort();
    names
}

/// Promise: written data reads back, unwritten bytes are zeros, and reads behind the end fail.
fn files_read_back(storage: &dyn Storage) {
    let file = storage.create("content").expect("made");
    assert_eq!(file.size().expect("its size"), 0);
    file.write_at(b"hello", 3).expect("written");
    assert_eq!(read(&*file, 0, 8), b"\0\0\0hello");
    file.write_at(b"far", 5000).expect("written behind the end");
    assert_eq!(file.size().expect("its size"), 5003);
    assert_eq!(read(&*file, 8, 4992), vec![0; 4992]);
    assert_eq!(read(&*file, 4999, 4), b"\0far");
    file.write_at(b"EL", 4).expect("written over");
    file.sync().expect("synced");

    let again = storage.open("content").expect("there");
    assert_eq!(read(&*again, 3, 5), b"hELlo");
    again.write_at(b"J", 3).expect("written");
    assert_eq!(read(&*file, 3, 5), b"JELlo", "another handle sees it");
    let uncached = storage.open_uncached("content").expect("there");
    assert_eq!(read(&*uncached, 3, 5), b"JELlo", "a handle past the cache");
    uncached.write_at(b"H", 3).expect("written");
    assert_eq!(read(&*file, 3, 5), b"HELlo", "others see that, too");
    file.write_at(b"J", 3).expect("written");
    assert_eq!(read(&*uncached, 3, 5), b"JELlo", "and it sees others");
    drop(uncached);

    for (offset, size_bytes) in [(5000, 4), (5003, 1), (9000, 1), (0, 5004)] {
        let mut buffer = vec![0; size_bytes];
        let kind = failure(file.read_at(&mut buffer, offset));
        assert_eq!(kind, Some(io::ErrorKind::UnexpectedEof), "{offset}");
    }
    assert_eq!(read(&*file, 9000, 0), b"", "nothing is everywhere");
    file.write_at(b"", 9000).expect("nothing is written");
    assert_eq!(file.size().expect("its size"), 5003);
    assert!(file.write_at(b"x", u64::MAX).is_err());
    assert!(file.set_size(u64::MAX).is_err());
}

/// Promise: sequential appends are present, together with everything before them, through each
/// handle. This also holds if other handles wrote before, or the file was truncated in between.
fn files_are_appended_to(storage: &dyn Storage) {
    let cached = storage.create("appended").expect("made");
    let uncached = storage.open_uncached("appended").expect("there");
    for file in [&cached, &uncached] {
        let mut content = vec![1; 100];
        file.set_size(0).expect("emptied");
        file.write_at(&content, 0).expect("written");
        for (step, size_bytes) in [7, 5000, 0, 4096, 93, 1, 8192, 3000, 1 << 20, 77, 3_000_000]
            .into_iter()
            .enumerate()
        {
            let bytes = vec![step as u8 + 2; size_bytes];
            let offset = content.len() as u64;
            file.append_at(&bytes, offset).expect("appended");
            content.extend(bytes);
            match step {
                3 => {
                    // Before the next append, but in its block.
                    let last = content.len() - 1;
                    file.write_at(b"w", last as u64).expect("written");
                    content[last] = b'w';
                }
                5 => {
                    content.truncate(content.len() - 50);
                    file.set_size(content.len() as u64).expect("cut");
                }
                8 => {
                    let from = content.len() / 4096 * 4096;
                    file.write_at(&content[from..], from as u64)
                        .expect("written");
                }
                _ => {}
            }
            for reader in [&cached, &uncached] {
                assert!(read(&**reader, 0, content.len()) == content, "step {step}");
            }
        }
        file.sync().expect("synced");
        file.append_at(b"", 1 << 30).expect("nothing is written");
        assert!(file.size().expect("its size") < 1 << 30);
        assert!(file.append_at(b"x", u64::MAX).is_err());
    }
    storage.remove("appended").expect("removed");
}

/// Promise: a file has the size that was set, and truncated data does not come back.
fn sizes_are_set(storage: &dyn Storage) {
    let file = storage.create("sized").expect("made");
    file.write_at(&[7; 3000], 0).expect("written");
    file.set_size(1000).expect("cut");
    assert_eq!(file.size().expect("its size"), 1000);
    let mut buffer = [0; 2];
    let kind = failure(file.read_at(&mut buffer, 999));
    assert_eq!(kind, Some(io::ErrorKind::UnexpectedEof));
    file.set_size(4000).expect("longer");
    let content = read(&*file, 0, 4000);
    assert_eq!(content[..1000], [7; 1000]);
    assert_eq!(content[1000..], [0; 3000]);

    let file = storage.create("sized").expect("made empty");
    assert_eq!(file.size().expect("its size"), 0);
    file.set_size(600).expect("longer");
    assert_eq!(read(&*file, 0, 600), [0; 600]);
}

/// Promise: a name refers to the file that got it last.
fn names_lead_to_files(storage: &dyn Storage) {
    let one = storage.create("one").expect("made");
    one.write_at(b"1", 0).expect("written");
    let two = storage.create("two").expect("made");
    two.write_at(b"2", 0).expect("written");
    storage.rename("one", "two").expect("renamed");
    storage.rename("two", "two").expect("nothing to do");
    storage.sync_names().expect("synced");
    assert_eq!(failure(storage.open("one")), Some(io::ErrorKind::NotFound));
    let found = storage.open("two").expect("there");
    assert_eq!(read(&*found, 0, 1), b"1");
    assert_eq!(read(&*two, 0, 1), b"2", "replaced, but open");
    one.write_at(b"!", 1).expect("written under the new name");
    assert_eq!(read(&*found, 0, 2), b"1!");

    storage.create("three").expect("made");
    assert_eq!(sorted_names(storage), ["content", "sized", "three", "two"]);
    storage.remove("three").expect("removed");
    storage.remove("two").expect("removed");
    assert_eq!(sorted_names(storage), ["content", "sized"]);
    storage.sync_names().expect("synced");
    found.write_at(b"?", 1).expect("removed, but open");
    assert_eq!(read(&*one, 0, 2), b"1?");
    let new = storage.create("two").expect("made");
    assert_eq!(new.size().expect("its size"), 0, "another file");
    storage.remove("two").expect("removed");

    let not_found = Some(io::ErrorKind::NotFound);
    assert_eq!(failure(storage.remove("two")), not_found);
    assert_eq!(failure(storage.rename("two", "content")), not_found);
    assert_eq!(sorted_names(storage), ["content", "sized"]);
}

/// Promise: no name refers to anything outside the directory.
fn names_are_plain(storage: &dyn Storage) {
    for name in ["", ".", "..", "a/b", "/a", "../a", "a\0"] {
        let invalid = Some(io::ErrorKind::InvalidInput);
        assert_eq!(failure(storage.create(name)), invalid, "{name:?}");
        assert_eq!(failure(storage.open(name)), invalid, "{name:?}");
        assert_eq!(failure(storage.remove(name)), invalid, "{name:?}");
        assert_eq!(failure(storage.lock(name)), invalid, "{name:?}");
        assert_eq!(failure(storage.rename(name, "b")), invalid, "{name:?}");
        let renamed = storage.rename("content", name);
        assert_eq!(failure(renamed), invalid, "{name:?}");
    }
    storage.open("content").expect("still there");
}

/// Promise: one opener holds the lock until it drops it.
fn locks_exclude(storage: &dyn Storage, other: &dyn Storage) {
    let lock = storage.lock("LOCK").expect("no failure").expect("free");
    assert!(storage.lock("LOCK").expect("no failure").is_none());
    assert!(other.lock("LOCK").expect("no failure").is_none());
    assert!(other.lock("LOCK2").expect("no failure").is_some());
    drop(lock);
    let lock = other.lock("LOCK").expect("no failure").expect("free");
    assert!(storage.lock("LOCK").expect("no failure").is_none());
    drop(lock);
    assert!(storage.list().expect("names").contains(&"LOCK".to_owned()));
}

/// Promise: discarding zeros bytes of the range or leaves them, and changes nothing else.
fn discarding_stays_in_its_range(storage: &dyn Storage) {
    let file = storage.create("discarded").expect("made");
    file.write_at(&vec![7; 20_000], 0).expect("written");
    file.discard(5000, 9000).expect("discarded");
    file.discard(5000, 0).expect("nothing to discard");
    file.discard(19_000, 9000).expect("over the end");
    file.discard(50_000, 9000).expect("behind the end");
    assert_eq!(file.size().expect("its size"), 20_000);
    let content = read(&*file, 0, 20_000);
    assert!(content.iter().all(|byte| matches!(byte, 0 | 7)));
    assert!(content[..5000].iter().all(|byte| *byte == 7));
    assert!(content[14_000..19_000].iter().all(|byte| *byte == 7));
    file.write_at(&[8; 9000], 5000).expect("written again");
    assert_eq!(read(&*file, 5000, 9000), vec![8; 9000]);
}

/// Promise: a linked file is one file under both names, and each name can be removed separately.
fn links_are_one_file(storage: &dyn Storage, elsewhere: &dyn Storage) {
    let file = storage.create("linked").expect("made");
    file.write_at(b"here", 0).expect("written");
    let origin = storage.origin("linked").expect("it can be");
    elsewhere.link(&origin, "other").expect("linked");
    elsewhere.sync_names().expect("synced");
    let twice = failure(elsewhere.link(&origin, "other"));
    assert_eq!(twice, Some(io::ErrorKind::AlreadyExists));
    let other = elsewhere.open("other").expect("there");
    assert_eq!(read(&*other, 0, 4), b"here");
    other.write_at(b"T", 0).expect("written");
    assert_eq!(read(&*file, 0, 4), b"Tere");
    storage.remove("linked").expect("removed");
    assert_eq!(
        read(&*elsewhere.open("other").expect("there"), 0, 4),
        b"Tere"
    );
    assert!(elsewhere.link(&origin, "gone").is_err());
    assert!(
        elsewhere
            .list()
            .expect("its names")
            .contains(&"other".to_owned())
    );
    assert!(
        !storage
            .list()
            .expect("its names")
            .contains(&"other".to_owned())
    );
}

#[test]
fn links_conform() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let open = |name| DirectoryStorage::open(folder.path().join(name)).expect("made");
    let (one, two) = (open("one"), open("two"));
    links_are_one_file(&one, &two);
    let (crash, faulty) = (CrashStorage::new(3), |it| FaultyStorage::new(Arc::new(it)));
    links_are_one_file(&crash, &crash.beside(1));
    links_are_one_file(&faulty(crash.beside(2)), &faulty(crash.beside(3)));
    crash.create("here").expect("made");
    let origin = crash.origin("here").expect("it can be");
    let kind = failure(CrashStorage::new(4).link(&origin, "far"));
    assert_eq!(kind, Some(io::ErrorKind::CrossesDevices));
    assert_eq!(
        failure(one.link(&origin, "far")),
        Some(io::ErrorKind::Unsupported)
    );
}

/// Runs all tests; both storages are the same, empty directory.
fn conforms(storage: &dyn Storage, other: &dyn Storage) {
    files_read_back(storage);
    files_are_appended_to(storage);
    sizes_are_set(storage);
    names_lead_to_files(storage);
    names_are_plain(storage);
    locks_exclude(storage, other);
    discarding_stays_in_its_range(storage);
    assert_eq!(sorted_names(storage), sorted_names(other));
}

#[test]
fn a_directory_conforms() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let open = || DirectoryStorage::open(folder.path()).expect("there");
    conforms(&open(), &open());
}

#[test]
fn a_directory_with_direct_files_conforms() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    // Sizes differ: such files end on a block boundary.
    let open = || {
        let storage = DirectoryStorage::open(folder.path()).expect("there");
        storage.with_direct_io(&["one", "two", "three"])
    };
    conforms(&open(), &open());
}

#[test]
fn a_directory_in_memory_conforms() {
    for seed in 0..20 {
        let storage = CrashStorage::new(seed);
        conforms(&storage, &storage.clone());
    }
}

#[test]
fn a_storage_with_faults_conforms_without_any() {
    let storage = FaultyStorage::new(Arc::new(CrashStorage::new(1)));
    conforms(&storage, &storage.clone());
    let folder = tempfile::tempdir().expect("a folder for the test");
    let directory = DirectoryStorage::open(folder.path()).expect("there");
    let storage = FaultyStorage::new(Arc::new(directory));
    let fault = storage.set(Fault::Fail {
        operations: Operation::ALL,
        file: None,
        nth: 1,
        times: u64::MAX,
    });
    assert!(storage.lift(fault));
    conforms(&storage, &storage.clone());
}
