//! Memory mappings, lent as atomic words.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::mapped::host;

/// Size in bytes of the huge pages that are requested.
const HUGE_PAGE_SIZE_BYTES: u64 = 2 << 20;

/// Kind of pages of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Reserved huge pages of 2 MiB.
    Huge,
    /// Ordinary pages.
    Ordinary,
}

/// Words that this process, and perhaps others, read and write at any time.
///
/// The memory is only ever lent as `&[AtomicU64]`. It is unmapped when the value is dropped.
#[derive(Debug)]
pub struct MappedMemory {
    base: NonNull<AtomicU64>,
    word_count: usize,
}

// SAFETY: this value alone owns the mapping (it is unmapped only in `drop`). The mapping is valid
// in every thread of the process, and is only accessed through atomics, which may be shared and
// sent.
unsafe impl Send for MappedMemory {}
// SAFETY: as above; `&MappedMemory` gives access only to `&[AtomicU64]`.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Allocates zeroed memory of this process alone, rounded up to whole huge pages. Transparent
    /// huge pages are requested but not required.
    ///
    /// # Errors
    /// The host does not have enough memory or address space.
    pub fn anonymous(size_bytes: u64) -> io::Result<Self> {
        let length = round_up(size_bytes, HUGE_PAGE_SIZE_BYTES)?;
        host::check_available(length as u64)?;
        let memory = Self::map_private(length, MapFlags::NORESERVE)?;
        // Failure is harmless: without transparent huge pages the memory works, only slower.
        let _ = memory.advise(Advice::LinuxHugepage);
        Ok(memory)
    }

    /// Allocates zeroed memory of this process alone, in whole pages, for a network card to read
    /// and write. Children created by `fork` do not inherit it.
    ///
    /// # Errors
    /// The host does not have enough memory or address space.
    pub(crate) fn for_card(size_bytes: u64) -> io::Result<Self> {
        let length = round_up(size_bytes, rustix::param::page_size() as u64)?;
        let memory = Self::map_private(length, MapFlags::empty())?;
        // If a child shared the pages, a write would give this process a copy that is not the
        // card's.
        memory.advise(Advice::LinuxDontFork)?;
        Ok(memory)
    }

    /// Maps zeroed memory of this process alone.
    fn map_private(length: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | flags;
        // SAFETY: with a null hint the kernel chooses an address range that is not in use.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, protection, flags) }?;
        Self::from_mapping(base, length)
    }

    /// Creates memory for other processes to map: a sealed memfd of `size_bytes`.
    ///
    /// All of it is allocated at once, so that a full host causes an error now instead of a signal
    /// later. It uses huge pages if the host has reserved enough.
    ///
    /// # Errors
    /// The host does not have enough memory, or memfd is not supported.
    pub fn create_shared(name: &str, size_bytes: u64) -> io::Result<(OwnedFd, u64, PageKind)> {
        let length = round_up(size_bytes, HUGE_PAGE_SIZE_BYTES)? as u64;
        let huge = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        if let Ok(descriptor) = Self::create_memfd(name, length, huge) {
            return Ok((descriptor, length, PageKind::Huge));
        }
        host::check_available(length)?;
        let descriptor = Self::create_memfd(name, length, MemfdFlags::empty())?;
        Ok((descriptor, length, PageKind::Ordinary))
    }

    fn create_memfd(name: &str, length: u64, pages: MemfdFlags) -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
        let descriptor = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&descriptor, length)?;
        rustix::fs::fallocate(&descriptor, rustix::fs::FallocateFlags::empty(), 0, length)?;
        // If a peer could shrink the file, loads of every reader would cause SIGBUS.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&descriptor, seals)?;
        Ok(descriptor)
    }

    /// Maps memory from [`create_shared`](Self::create_shared), in this or another process. The
    /// file must be sealed against shrinking and have exactly `size_bytes`.
    ///
    /// # Errors
    /// The descriptor is not such a file ([`io::ErrorKind::InvalidData`], with a text that says
    /// what it is), or the system cannot map it.
    pub fn map_shared(descriptor: impl AsFd, size_bytes: u64) -> io::Result<Self> {
        let actual = rustix::fs::fstat(&descriptor)?.st_size;
        if u64::try_from(actual).ok() != Some(size_bytes) || size_bytes == 0 {
            return Err(invalid(format!(
                "the pool's memory has {actual} bytes, expected {size_bytes}"
            )));
        }
        // A partial word could not be addressed, and `drop` would not unmap its page.
        if !size_bytes.is_multiple_of(size_of::<AtomicU64>() as u64) {
            return Err(invalid(format!(
                "the pool's memory has {size_bytes} bytes, which is not a multiple of the word size"
            )));
        }
        let seals = rustix::fs::fcntl_get_seals(&descriptor)
            .map_err(|_| invalid("the pool's memory is not a memfd".to_owned()))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(invalid(
                "the pool's memory is not sealed against shrinking".to_owned(),
            ));
        }
        let length = usize::try_from(size_bytes).map_err(|_| too_large(size_bytes))?;
        // SAFETY: with a null hint the kernel chooses an address range that is not in use. The file
        // cannot shrink (the seal was checked), so the pages stay backed as long as they are
        // mapped.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                descriptor,
                0,
            )
        }?;
        let memory = Self::from_mapping(base, length)?;
        // FABRIC-6: a forked child must not be able to post verbs of its parent's sessions.
        memory.advise(Advice::LinuxDontFork)?;
        Ok(memory)
    }

    fn from_mapping(base: *mut c_void, length: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast::<AtomicU64>()).ok_or_else(|| {
            invalid("the system mapped the pool's memory at address 0".to_owned())
        })?;
        Ok(Self {
            base,
            word_count: length / size_of::<AtomicU64>(),
        })
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        let length = self.word_count * size_of::<AtomicU64>();
        // SAFETY: the range is this value's mapping, and neither piece of advice used in this
        // module (huge pages, no inheritance by fork) changes the content of the memory.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), length, advice) }?;
        Ok(())
    }

    /// Returns the number of words.
    #[inline]
    pub fn word_count(&self) -> u64 {
        self.word_count as u64
    }

    /// Returns all words.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` points to `word_count` words that stay mapped while `self` lives (mmap
        // returns page-aligned memory, so they are aligned; the kernel zeroed them, so they are
        // initialized). Other threads and processes write them concurrently, which `AtomicU64`
        // allows.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.word_count) }
    }

    /// Prefetches the cache line of a word. Only a hint.
    #[inline]
    pub fn prefetch(word: &AtomicU64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of a valid reference's address has no effect that a program can
        // observe; SSE is part of every x86_64 target.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(
                ptr::from_ref(word).cast(),
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = word;
    }

    /// Copies words out, each by an atomic load that later loads do not overtake.
    #[inline]
    pub fn copy_out(from: &[AtomicU64], to: &mut [u64]) {
        for (word, out) in from.iter().zip(to) {
            *out = word.load(Ordering::Acquire);
        }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        let length = self.word_count * size_of::<AtomicU64>();
        // SAFETY: this value owns the mapping, and `&mut self` proves that no slice of it is lent
        // any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), length) };
        debug_assert!(unmapped.is_ok(), "the mapping was whole and ours");
    }
}

fn round_up(size_bytes: u64, unit: u64) -> io::Result<usize> {
    size_bytes
        .max(1)
        .checked_next_multiple_of(unit)
        .and_then(|length| usize::try_from(length).ok())
        .ok_or_else(|| too_large(size_bytes))
}

fn too_large(size_bytes: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("a pool of {size_bytes} bytes exceeds this machine's address space"),
    )
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
