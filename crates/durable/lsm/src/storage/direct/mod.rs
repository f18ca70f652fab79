//! Reading and writing a file past the system's page cache (`O_DIRECT`).
//!
//! The device takes whole blocks at block offsets, from memory that is aligned to a block. What a
//! caller asks for mostly is not, so it goes through a buffer that is; a block that is written in
//! part is read first, unless it is appended to. Of two who write parts of one block one waits for
//! the other.

#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

/// No device asks for more.
const BLOCK_SIZE_BYTES: usize = 4096;
/// So much is read or written at a time, if it has to go through a buffer.
const BUFFER_SIZE_BYTES: usize = 1 << 20;
/// So many buffers are kept for those who come next, whichever file they have: a process has many
/// files of which few are written at a time, and memory that is used for the first time costs more
/// than the copy into it.
const BUFFER_COUNT_MAX: usize = 8;

static BUFFERS: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

const _: () = assert!(BUFFER_SIZE_BYTES.is_multiple_of(BLOCK_SIZE_BYTES));

/// Opens a file past the page cache. `Ok(Err(why))`: its file system does not do that.
///
/// # Errors
/// Those of opening it.
pub(super) fn open(options: &OpenOptions, path: &Path) -> io::Result<Result<DirectFile, String>> {
    let mut options = options.clone();
    let opened = options
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(path);
    let file = match opened {
        Err(error) if is_refusal(&error) => {
            return Ok(Err(format!("it cannot be opened so: {error}")));
        }
        opened => DirectFile {
            file: opened?,
            last: Mutex::default(),
        },
    };
    // Some take the flag and refuse the blocks.
    let mut buffer = Buffer::new();
    match file
        .file
        .read_at(&mut buffer.blocks()[..BLOCK_SIZE_BYTES], 0)
    {
        Err(error) if is_refusal(&error) => Ok(Err(format!("it cannot be read so: {error}"))),
        read => read.map(|_| Ok(file)),
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}

/// Memory that begins at a block's multiple.
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

    /// Lends one that is kept, or a new one.
    fn with<R>(then: impl FnOnce(&mut [u8]) -> R) -> R {
        let kept = buffers().pop();
        let mut buffer = kept.unwrap_or_else(Self::new);
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

/// Whether a range can be read or written as it is.
fn is_aligned(bytes: &[u8], offset: u64) -> bool {
    bytes.as_ptr().align_offset(BLOCK_SIZE_BYTES) == 0
        && bytes.len().is_multiple_of(BLOCK_SIZE_BYTES)
        && offset.is_multiple_of(BLOCK_SIZE_BYTES as u64)
}

/// A file that is read and written past the page cache.
///
/// It is as others are, but that it is as long as all blocks that were written, in part or whole:
/// what is behind the last byte that was written reads as zeros up to there.
#[derive(Debug)]
pub(super) struct DirectFile {
    file: File,
    /// Held by who writes a part of a block, or forgets what is known of one.
    last: Mutex<LastBlock>,
}

/// What becomes of the rest of a block in which a write ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// It is as it was.
    Stays,
    /// It counts for nothing, and is zeros.
    Nothing,
}

/// The block in which what was appended last ends, as it is on the device: who goes on there need
/// not read it.
#[derive(Debug, Default)]
struct LastBlock {
    /// Where it begins in the file; `None`: it is not known.
    start: Option<u64>,
    /// Memory for one, once there was one.
    bytes: Vec<u8>,
}

impl DirectFile {
    /// The file itself, for what has nothing to do with blocks.
    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// Fills a buffer from this offset on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] behind the end, or the operating system's.
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

    /// Reads blocks up to the end of the file; how many bytes there were.
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
            // The rest of a block is there only at the end.
            if !count.is_multiple_of(BLOCK_SIZE_BYTES) {
                break;
            }
        }
        Ok(count)
    }

    /// Writes all of it from this offset on.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], or the operating system's: some of it may be there.
    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(bytes, offset, Behind::Stays)
    }

    /// Writes all of it from this offset on; what is behind, up to the end of its block, is zeros
    /// then. Nothing is read, if this goes on where the last one ended.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at).
    pub(super) fn append_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(bytes, offset, Behind::Nothing)
    }

    fn write(&self, bytes: &[u8], offset: u64, behind: Behind) -> io::Result<()> {
        let mut last = self.last();
        let known = last.start.take().filter(|_| behind == Behind::Nothing);
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
                if behind == Behind::Nothing {
                    blocks[run.to..].fill(0);
                } else if run.to < run.size_bytes && (last_start > 0 || run.from == 0) {
                    self.read_part(&mut blocks[last_start..], run.start + last_start as u64)?;
                }
                blocks[run.from..run.to].copy_from_slice(&bytes[run.place..][..run.to - run.from]);
                self.write_blocks(blocks, run.start)?;
                if behind == Behind::Nothing && run.to < run.size_bytes {
                    last.bytes.clear();
                    last.bytes.extend_from_slice(&blocks[last_start..]);
                    last.start = Some(run.start + last_start as u64);
                }
                Ok(())
            })
        })
    }

    /// What is done next may change the block that was appended to last.
    pub(super) fn forget_last(&self) {
        self.last().start = None;
    }

    fn last(&self) -> MutexGuard<'_, LastBlock> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a block of which a part stays: behind the end of the file it is zeros.
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
            // Of a block that was written in part, all is written again: the rest of one cannot be.
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

/// Some blocks of the file, and the part of them that somebody wants.
struct Run {
    /// Where the first block begins in the file.
    start: u64,
    /// Of all of them.
    size_bytes: usize,
    /// The wanted part of them.
    from: usize,
    to: usize,
    /// Where that part begins in what the caller has.
    place: usize,
}

/// Goes through a range of the file, as many blocks at a time as a buffer has.
fn for_each_run(
    offset: u64,
    size_bytes: usize,
    mut then: impl FnMut(Run) -> io::Result<()>,
) -> io::Result<()> {
    let mut place = 0;
    while place < size_bytes {
        let at = offset
            .checked_add(place as u64)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let from = (at % BLOCK_SIZE_BYTES as u64) as usize;
        let to = (from + size_bytes - place).min(BUFFER_SIZE_BYTES);
        then(Run {
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
