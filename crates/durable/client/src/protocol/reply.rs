//! Replies to clients.
//!
//! ```text
//!  0 status   1 code   2 zero (u16)   4 count (u32)   8 body
//! ```

use farleaf_cluster::client::Stale;
use farleaf_cluster::ids::Epoch;

use super::codec::{Malformed, Reader, put_bytes, put_option, put_u32, put_u64};

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was done, and the body says what it came to.
    Done,
    /// CP21: it came to the wrong server, or too early, and nothing was done.
    Stale(Stale),
    /// ID4: the request is for another table, which had the same number; nothing was done.
    OtherTable,
    /// Nothing was done; later it may be.
    NotNow(String),
    /// Nothing was done, nor will be; or the disk is full (RS10).
    Refused(String),
    /// It failed, and changed nothing, or may have, which is told.
    Failed {
        /// What it changes may be there, or not.
        is_unknown: bool,
        /// Why.
        how: String,
    },
}

/// A reply, of which the body is still to be read.
#[derive(Clone, Debug)]
pub struct Reply<'b> {
    /// What came of it.
    pub status: Status,
    /// Of a scan and a range that goes: there may be more. Of an exchange: it took place.
    pub code: u8,
    /// Of how many things the body tells.
    pub count: u32,
    body: Reader<'b>,
}

/// Where the count and the code of a reply are, which are known last.
const CODE: usize = 1;
const COUNT: usize = 4;

/// Begins the reply to what was done.
pub fn begin(out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[0; 8]);
}

/// Ends it.
pub fn end(out: &mut [u8], code: u8, count: u32) {
    out[CODE] = code;
    out[COUNT..COUNT + 4].copy_from_slice(&count.to_le_bytes());
}

/// A value, or that there is none.
pub fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    put_option(out, value);
}

/// A record.
pub fn put_record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    put_bytes(out, key);
    put_bytes(out, value);
}

impl Status {
    /// The reply that says so; [`begin`] is for what was done.
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
    /// Of bytes that may be anything.
    ///
    /// # Errors
    /// Why they are none.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let (status, code) = (reader.u8()?, reader.u8()?);
        if (reader.u8()?, reader.u8()?) != (0, 0) {
            return Err(Malformed("a reply's spare bytes are not 0".to_owned()));
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
                    "there is no reply {status} with the code {code}"
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

    /// The next value, or that there is none.
    ///
    /// # Errors
    /// The reply ends before.
    pub fn value(&mut self) -> Result<Option<&'b [u8]>, Malformed> {
        self.body.option()
    }

    /// The next record.
    ///
    /// # Errors
    /// The reply ends before.
    pub fn record(&mut self) -> Result<(&'b [u8], &'b [u8]), Malformed> {
        Ok((self.body.bytes()?, self.body.bytes()?))
    }

    /// That the whole reply was read.
    ///
    /// # Errors
    /// Something is left over.
    pub fn end(&self) -> Result<(), Malformed> {
        self.body.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::fuzzing::run;

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

    /// The format: a later version that changes it must say so
    /// ([`VERSION`](super::super::VERSION)).
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

    /// Promise: what was encoded is decoded as it was, and a body is read as it was written.
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

    /// Promise: bytes that are no reply are an error, and no panic, however they are read.
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
