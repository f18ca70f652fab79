//! Encoding of little-endian integers and length-prefixed byte strings.

use thiserror::Error;

/// Length that means "no string".
const NONE: u32 = u32::MAX;

/// Invalid bytes, with the reason.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Malformed(pub String);

pub(super) fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Writes a string, or the mark for no string.
pub(super) fn put_option(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    put_u32(out, bytes.map_or(NONE, |bytes| bytes.len() as u32));
    out.extend_from_slice(bytes.unwrap_or_default());
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_option(out, Some(bytes));
}

/// Bytes that are still to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'b>(pub(super) &'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, size_bytes: usize) -> Result<&'b [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(size_bytes).ok_or_else(|| {
            Malformed(format!(
                "expected {size_bytes} more bytes, found {}",
                self.0.len()
            ))
        })?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Malformed(format!("invalid flag {other}: expected 0 or 1"))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let bytes = self.take(N)?;
        Ok(bytes.try_into().expect("N bytes were taken"))
    }

    pub(super) fn u128(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn option(&mut self) -> Result<Option<&'b [u8]>, Malformed> {
        match self.u32()? {
            NONE => Ok(None),
            size_bytes => self.take(size_bytes as usize).map(Some),
        }
    }

    pub(super) fn bytes(&mut self) -> Result<&'b [u8], Malformed> {
        self.option()?
            .ok_or_else(|| Malformed("a string is missing".to_owned()))
    }

    /// Checks that no bytes are left.
    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(Malformed(format!(
            "{} unexpected bytes at the end",
            self.0.len()
        )))
    }
}
