//! Files that bypass the page cache (`O_DIRECT`).
//!
//! The device accepts whole blocks at block offsets, in aligned memory. Other requests go through
//! an aligned buffer. A partially written block is read first, unless the write is an append.
//! Threads that write parts of the same block wait for each other.

#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

/// Block size in bytes; no device requires more.
const BLOCK_SIZE_BYTES: usize = 4096;
/// Size in bytes of an aligned buffer, and so of each transfer through one.
const BUFFER_SIZE_BYTES: usize = 1 << 20;
/// Maximum number of idle buffers, shared by all files of the process. Only few of its files are
/// written at a time, and first use of new memory costs more than the copy.
const BUFFER_COUNT_MAX: usize = 8;

static BUFFERS: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

const _: () = assert!(BUFFER_SIZE_BYTES.is_multiple_of(BLOCK_SIZE_BYTES));

/// Opens a file that bypasses the page cache. Returns `Ok(Err(reason))` if its file system refuses.
///
/// # Errors
/// Errors of opening the file.
pub(super) fn open(options: &OpenOptions, path: &Path) -> io::Result<Result<DirectFile, String>> {
    let mut options = options.clone();
    let opened = options
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(path);
    let file = match opened {
        Err(error) if is_refusal(&error) => {
            return Ok(Err(format!("it cannot be opened directly: {error}")));
        }
        opened => DirectFile {
            file: opened?,
            last: Mutex::default(),
        },
    };
    // Some file systems accept the flag but refuse the blocks.
    let mut buffer = Buffer::new();
    match file
        .file
        .read_at(&mut buffer.blocks()[..BLOCK_SIZE_BYTES], 0)
    {
        Err(error) if is_refusal(&error) => Ok(Err(format!("it cannot be read directly: {error}"))),
        read => read.map(|_| Ok(file)),
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}

/// Memory aligned to a block.
#[derive(Debug)]
struct Buffer(Vec<u8>);

impl Buffer {
    fn new() -> Self {
        Self(vec![0; BUFFER_SIZE_BYTES + BLOCK_SIZE_BYTES])
    }

    fn blocks(&mut self) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(BLOCK_SIZE_BYTES);
        &mut self.0[start..start + BUFFER_SIZE_BYTES]
    }

    /// Calls a function with an idle buffer, or a new one.
    fn with<R>(then: impl FnOnce(&mut [u8]) -> R) -> R {
        let idle_buffer = buffers().pop();
        let mut buffer = idle_buffer.unwrap_or_else(Self::new);
        let result = then(buffer.blocks());
        let mut buffers = buffers();
        if buffers.len() < BUFFER_COUNT_MAX {
            buffers.push(buffer);
        }
        result
    }
}

fn buffers() -> MutexGuard<'static, Vec<Buffer>> {
    BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if a range can be read or written without a buffer.
fn is_aligned(bytes: &[u8], offset: u64) -> bool {
    bytes.as_ptr().align_offset(BLOCK_SIZE_BYTES) == 0
        && bytes.len().is_multiple_of(BLOCK_SIZE_BYTES)
        && offset.is_multiple_of(BLOCK_SIZE_BYTES as u64)
}

/// File that bypasses the page cache.
///
/// Such a file behaves like any other, except that it ends on a block boundary. Bytes between the
/// last written byte and that boundary read as zeros.
#[derive(Debug)]
pub(super) struct DirectFile {
    file: File,
    /// Locked for writing a part of a block, and for forgetting the last block.
    last: Mutex<LastBlock>,
}

/// Treatment of the bytes behind a write in its last block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BytesBehind {
    /// Keep the bytes.
    Stays,
    /// Overwrite the bytes with zeros: they do not count.
    Nothing,
}

/// Block in which the last append ended, as on the device, so that the next append need not read
/// it.
#[derive(Debug, Default)]
struct LastBlock {
    /// Offset of the block in the file; `None` if it is not known.
    start: Option<u64>,
    /// Contents of the block; allocated at first use.
    bytes: Vec<u8>,
}

impl DirectFile {
    /// Returns the underlying file, for operations that do not concern blocks.
    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// Fills a buffer from an offset.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] behind the end, or errors of the operating system.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if is_aligned(buffer, offset) {
            let count = self.read_blocks(buffer, offset)?;
            return check_all_read(count, buffer.len());
        }
        Buffer::with(|blocks| {
            for_each_run(offset, buffer.len(), |run| {
                let blocks = &mut blocks[..run.size_bytes];
                let count = self.read_blocks(blocks, run.start)?;
                check_all_read(count, run.to)?;
                buffer[run.place..][..run.to - run.from].copy_from_slice(&blocks[run.from..run.to]);
                Ok(())
            })
        })
    }

    /// Reads blocks up to the end of the file; returns the number of bytes read.
    fn read_blocks(&self, blocks: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut count = 0;
        while count < blocks.len() {
            match self
                .file
                .read_at(&mut blocks[count..], offset + count as u64)
            {
                Ok(0) => break,
                Ok(more) => count += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // Only the last block of a file can be partial.
            if !count.is_multiple_of(BLOCK_SIZE_BYTES) {
                break;
            }
        }
        Ok(count)
    }

    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], or errors of the operating system. A part may have been
    /// written.
    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(bytes, offset, BytesBehind::Stays)
    }

    /// Writes all bytes at an offset, and zeros behind them, up to the end of their block. Reads
    /// nothing if it continues the last append.
    ///
    /// # Errors
    /// Same as [`write_at`](Self::write_at).
    pub(super) fn append_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(bytes, offset, BytesBehind::Nothing)
    }

    fn write(&self, bytes: &[u8], offset: u64, behind: BytesBehind) -> io::Result<()> {
        let mut last = self.last();
        let known = last.start.take().filter(|_| behind == BytesBehind::Nothing);
        if is_aligned(bytes, offset) {
            drop(last);
            return self.write_blocks(bytes, offset);
        }
        if offset.checked_add(bytes.len() as u64).is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Buffer::with(|blocks| {
            for_each_run(offset, bytes.len(), |run| {
                let blocks = &mut blocks[..run.size_bytes];
                let last_start = run.size_bytes - BLOCK_SIZE_BYTES;
                if run.from > 0 && known == Some(run.start) {
                    blocks[..BLOCK_SIZE_BYTES].copy_from_slice(&last.bytes);
                } else if run.from > 0 {
                    self.read_part(&mut blocks[..BLOCK_SIZE_BYTES], run.start)?;
                }
                if behind == BytesBehind::Nothing {
                    blocks[run.to..].fill(0);
                } else if run.to < run.size_bytes && (last_start > 0 || run.from == 0) {
                    self.read_part(&mut blocks[last_start..], run.start + last_start as u64)?;
                }
                blocks[run.from..run.to].copy_from_slice(&bytes[run.place..][..run.to - run.from]);
                self.write_blocks(blocks, run.start)?;
                if behind == BytesBehind::Nothing && run.to < run.size_bytes {
                    last.bytes.clear();
                    last.bytes.extend_from_slice(&blocks[last_start..]);
                    last.start = Some(run.start + last_start as u64);
                }
                Ok(())
            })
        })
    }

    /// Forgets the last block, because the next operation may change it.
    pub(super) fn forget_last(&self) {
        self.last().start = None;
    }

    fn last(&self) -> MutexGuard<'_, LastBlock> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a block that is overwritten in part; bytes behind the end of the file are zeros.
    fn read_part(&self, block: &mut [u8], offset: u64) -> io::Result<()> {
        let count = self.read_blocks(block, offset)?;
        block[count..].fill(0);
        Ok(())
    }

    fn write_blocks(&self, mut blocks: &[u8], mut offset: u64) -> io::Result<()> {
        while !blocks.is_empty() {
            let count = match self.file.write_at(blocks, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            // A block that was written in part is written again as a whole.
            let whole = count - count % BLOCK_SIZE_BYTES;
            if whole == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            blocks = &blocks[whole..];
            offset += whole as u64;
        }
        Ok(())
    }
}

fn check_all_read(count: usize, wanted: usize) -> io::Result<()> {
    if count < wanted {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Consecutive blocks of the file, and the requested part of them.
struct BlockRun {
    /// Offset of the first block in the file.
    start: u64,
    /// Size of all blocks in bytes.
    size_bytes: usize,
    /// Start of the requested part, in bytes from the first block; `to` is its end.
    from: usize,
    to: usize,
    /// Offset of that part in the caller's buffer.
    place: usize,
}

/// Splits a range of the file into runs of as many blocks as a buffer has.
fn for_each_run(
    offset: u64,
    size_bytes: usize,
    mut then: impl FnMut(BlockRun) -> io::Result<()>,
) -> io::Result<()> {
    let mut place = 0;
    while place < size_bytes {
        let at = offset
            .checked_add(place as u64)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let from = (at % BLOCK_SIZE_BYTES as u64) as usize;
        let to = (from + size_bytes - place).min(BUFFER_SIZE_BYTES);
        then(BlockRun {
            start: at - from as u64,
            size_bytes: to.next_multiple_of(BLOCK_SIZE_BYTES),
            from,
            to,
            place,
        })?;
        place += to - from;
    }
    Ok(())
}
