//! Replies to clients.
//!
//! ```text
//!  0 status   1 code   2 zero (u16)   4 count (u32)   8 body
//! ```

use farleaf_cluster::client::Stale;
use farleaf_cluster::ids::Epoch;

use super::codec::{Malformed, Reader, put_bytes, put_option, put_u32, put_u64};

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The request was executed; the body has the result.
    Done,
    /// The request reached the wrong server, or arrived too early; nothing was done (CONTROL-21).
    Stale(Stale),
    /// The request is for an earlier table that had the same number; nothing was done.
    OtherTable,
    /// Nothing was done; the request can be retried.
    NotNow(String),
    /// Nothing was done, and a retry will not help; or the disk is full.
    Refused(String),
    /// The request failed.
    Failed {
        /// Whether a write may have taken effect; if not, nothing was changed.
        is_unknown: bool,
        /// Cause of the failure.
        how: String,
    },
}

/// Reply whose body is still to be read.
#[derive(Clone, Debug)]
pub struct Reply<'b> {
    /// Result of the request.
    pub status: Status,
    /// For scans and range deletions: nonzero if the region may have more records. For exchanges:
    /// nonzero if the condition held.
    pub code: u8,
    /// Number of items in the body.
    pub count: u32,
    body: Reader<'b>,
}

/// Positions of the code and the count in a reply; both are known last.
const CODE: usize = 1;
const COUNT: usize = 4;

/// Begins the reply to an executed request.
pub fn begin(out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[0; 8]);
}

/// Ends the reply, and fills in its code and count.
pub fn end(out: &mut [u8], code: u8, count: u32) {
    out[CODE] = code;
    out[COUNT..COUNT + 4].copy_from_slice(&count.to_le_bytes());
}

/// Appends a value, or the mark for an absent one.
pub fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    put_option(out, value);
}

/// Appends a record.
pub fn put_record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    put_bytes(out, key);
    put_bytes(out, value);
}

impl Status {
    /// Encodes a reply without a result; [`begin`] begins those with one.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        let (status, code, text) = match self {
            Self::Done => (0, 0, ""),
            Self::Stale(stale) => (1, u8::from(stale.epoch.is_some()), ""),
            Self::OtherTable => (5, 0, ""),
            Self::NotNow(how) => (2, 0, how.as_str()),
            Self::Refused(how) => (3, 0, how.as_str()),
            Self::Failed { is_unknown, how } => (4, u8::from(*is_unknown), how.as_str()),
        };
        out.extend_from_slice(&[status, code, 0, 0]);
        put_u32(out, 0);
        match self {
            Self::Stale(Stale { epoch: Some(epoch) }) => put_u64(out, epoch.0),
            _ => out.extend_from_slice(text.as_bytes()),
        }
    }
}

impl<'b> Reply<'b> {
    /// Decodes arbitrary bytes.
    ///
    /// # Errors
    /// The bytes are not a valid reply.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let (status, code) = (reader.u8()?, reader.u8()?);
        if (reader.u8()?, reader.u8()?) != (0, 0) {
            return Err(Malformed(
                "reserved bytes of the reply are not 0".to_owned(),
            ));
        }
        let count = reader.u32()?;
        let text = || String::from_utf8_lossy(reader.0).into_owned();
        let status = match (status, code) {
            (0, _) => Status::Done,
            (1, 0) => Status::Stale(Stale { epoch: None }),
            (1, 1) => Status::Stale(Stale {
                epoch: Some(Epoch(Reader(reader.0).u64()?)),
            }),
            (5, 0) => Status::OtherTable,
            (2, 0) => Status::NotNow(text()),
            (3, 0) => Status::Refused(text()),
            (4, 0 | 1) => Status::Failed {
                is_unknown: code == 1,
                how: text(),
            },
            _ => {
                return Err(Malformed(format!(
                    "unknown reply status {status} with code {code}"
                )));
            }
        };
        Ok(Self {
            status,
            code,
            count,
            body: reader,
        })
    }

    /// Reads the next value; `None` if it is absent.
    ///
    /// # Errors
    /// The reply is too short.
    pub fn value(&mut self) -> Result<Option<&'b [u8]>, Malformed> {
        self.body.option()
    }

    /// Reads the next record.
    ///
    /// # Errors
    /// The reply is too short.
    pub fn record(&mut self) -> Result<(&'b [u8], &'b [u8]), Malformed> {
        Ok((self.body.bytes()?, self.body.bytes()?))
    }

    /// Checks that the whole reply was read.
    ///
    /// # Errors
    /// Bytes are left over.
    pub fn end(&self) -> Result<(), Malformed> {
        self.body.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::fuzzing::run;

    fn statuses() -> [Status; 8] {
        let failed = |is_unknown| Status::Failed {
            is_unknown,
            how: "the disk".to_owned(),
        };
        [
            Status::Done,
            Status::Stale(Stale { epoch: None }),
            Status::Stale(Stale {
                epoch: Some(Epoch(7)),
            }),
            Status::NotNow("soon".to_owned()),
            Status::Refused("no".to_owned()),
            failed(true),
            failed(false),
            Status::OtherTable,
        ]
    }

    /// Pins the format: a change requires a new [`VERSION`](super::super::VERSION).
    #[test]
    fn replies_are_golden() {
        let mut bytes = Vec::new();
        begin(&mut bytes);
        put_value(&mut bytes, None);
        put_record(&mut bytes, b"k", b"v");
        end(&mut bytes, 1, 2);
        assert_eq!(
            bytes,
            b"\0\x01\0\0\x02\0\0\0\xff\xff\xff\xff\x01\0\0\0k\x01\0\0\0v"
        );
        statuses()[2].encode(&mut bytes);
        assert_eq!(bytes, b"\x01\x01\0\0\0\0\0\0\x07\0\0\0\0\0\0\0");
        statuses()[5].encode(&mut bytes);
        assert_eq!(bytes, b"\x04\x01\0\0\0\0\0\0the disk");
        statuses()[7].encode(&mut bytes);
        assert_eq!(bytes, b"\x05\0\0\0\0\0\0\0");
    }

    /// Promise: decoding returns what was encoded, and a body is read as written.
    #[test]
    fn replies_come_back() {
        let mut bytes = Vec::new();
        for status in statuses() {
            status.encode(&mut bytes);
            assert_eq!(Reply::decode(&bytes).expect("a reply").status, status);
        }
        begin(&mut bytes);
        put_value(&mut bytes, Some(b""));
        put_record(&mut bytes, b"k", b"v");
        end(&mut bytes, 0, 2);
        let mut reply = Reply::decode(&bytes).expect("a reply");
        assert_eq!((reply.code, reply.count), (0, 2));
        assert_eq!(reply.value(), Ok(Some(&b""[..])));
        assert_eq!(reply.record(), Ok((&b"k"[..], &b"v"[..])));
        assert_eq!(reply.end(), Ok(()));
    }

    /// Promise: arbitrary bytes give a reply or an error, never a panic, in whatever order they are
    /// read.
    #[test]
    fn bytes_are_replies_or_errors() {
        run("replies to clients", |random| {
            let mut bytes = Vec::new();
            begin(&mut bytes);
            put_record(&mut bytes, b"key", b"value");
            put_value(&mut bytes, Some(b"value"));
            end(&mut bytes, 0, 2);
            random.mutate(&mut bytes);
            if let Ok(mut reply) = Reply::decode(&bytes) {
                while reply.record().is_ok() {}
                while reply.value().is_ok() {}
            }
        });
    }
}
