//! Descriptors that can be mapped, and inheritance of mappings by `fork`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use farleaf_fabric::mapped::MappedMemory;
use rustix::fs::{MemfdFlags, SealFlags};

const SIZE_BYTES: u64 = 2 << 20;

fn memfd(size_bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("test", flags).expect("a memfd");
    rustix::fs::ftruncate(&memory, size_bytes).expect("its size");
    rustix::fs::fcntl_add_seals(&memory, seals).expect("its seals");
    memory
}

fn refusal(memory: impl AsFd, size_bytes: u64) -> String {
    let error = MappedMemory::map_shared(memory, size_bytes).expect_err("must be refused");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    error.to_string()
}

/// Promise: only a sealed memfd of the announced size is mapped. Loads from a file that shrinks
/// would cause SIGBUS.
#[test]
fn only_a_sealed_memfd_of_the_announced_size_is_mapped() {
    let good = memfd(SIZE_BYTES, SealFlags::SHRINK);
    assert!(refusal(&good, SIZE_BYTES / 2).contains("2097152 bytes, expected 1048576"));
    assert!(refusal(&good, SIZE_BYTES * 2).contains("2097152 bytes"));
    assert!(refusal(&good, u64::MAX).contains("2097152 bytes"));
    assert_eq!(
        MappedMemory::map_shared(&good, SIZE_BYTES)
            .expect("good")
            .word_count(),
        262_144
    );

    assert!(refusal(memfd(0, SealFlags::SHRINK), 0).contains("0 bytes"));
    assert!(refusal(memfd(SIZE_BYTES, SealFlags::empty()), SIZE_BYTES).contains("not sealed"));
    assert!(refusal(memfd(SIZE_BYTES, SealFlags::GROW), SIZE_BYTES).contains("not sealed"));
    assert!(refusal(memfd(4097, SealFlags::SHRINK), 4097).contains("multiple of the word size"));

    let file = tempfile::tempfile().expect("a file");
    file.set_len(SIZE_BYTES).expect("its size");
    let text = refusal(&file, SIZE_BYTES);
    // A file in memory could be sealed like a memfd, but is not.
    assert!(
        text.contains("not a memfd") || text.contains("not sealed"),
        "{text}"
    );
    refusal(File::open("/dev/zero").expect("a device"), SIZE_BYTES);
    refusal(io::stdin(), SIZE_BYTES);
}

#[test]
fn shared_memory_cannot_be_resized_by_anyone() {
    let (memory, size_bytes, _) = MappedMemory::create_shared("test", 1).expect("memory");
    assert_eq!(size_bytes % SIZE_BYTES, 0, "whole huge pages");
    for size in [0, size_bytes - 4096, size_bytes + SIZE_BYTES] {
        let resized = rustix::fs::ftruncate(&memory, size);
        assert_eq!(resized.expect_err("sealed"), rustix::io::Errno::PERM);
    }
    let more_seals = rustix::fs::fcntl_add_seals(&memory, SealFlags::WRITE);
    assert_eq!(more_seals.expect_err("sealed"), rustix::io::Errno::PERM);
}

#[test]
fn sizes_beyond_the_host_are_errors() {
    // `fallocate` would start to allocate the last size, page by page.
    for size_bytes in [u64::MAX, u64::MAX - SIZE_BYTES, 1 << 62] {
        MappedMemory::anonymous(size_bytes).expect_err("too large");
        MappedMemory::create_shared("test", size_bytes).expect_err("too large");
    }
}

/// Promise (FABRIC-6): a forked child cannot post verbs of its parent's sessions. The kernel shows
/// `MADV_DONTFORK` as the flag `dc` of the mapping.
#[test]
fn a_shared_mapping_is_not_inherited_by_fork() {
    let (memory, size_bytes, _) =
        MappedMemory::create_shared("fork-test", SIZE_BYTES).expect("memory");
    let memory = MappedMemory::map_shared(&memory, size_bytes).expect("a mapping");
    let start = format!("{:x}-", memory.words().as_ptr().addr());
    let mappings = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
    let mut lines = mappings
        .lines()
        .skip_while(|line| !line.starts_with(&start));
    let name = lines.next().expect("it is mapped");
    assert!(name.contains("fork-test"), "{name}");
    let flags = lines
        .find(|line| line.starts_with("VmFlags:"))
        .expect("every mapping has flags");
    assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
}

/// Promise: dropping a memory unmaps it.
#[test]
fn a_dropped_region_is_unmapped() {
    let (memory, size_bytes, _) =
        MappedMemory::create_shared("drop-test", SIZE_BYTES).expect("memory");
    let is_mapped = || {
        std::fs::read_to_string("/proc/self/maps")
            .expect("Linux")
            .contains("memfd:drop-test")
    };
    let memory = MappedMemory::map_shared(&memory, size_bytes).expect("a mapping");
    assert!(is_mapped());
    drop(memory);
    assert!(!is_mapped());
}
