//! Requests of clients.
//!
//! ```text
//!  0 tag 'K'   1 version   2 operation   3 flags   4 count (u32)
//!  8 table     16 region   24 epoch      32 incarnation of the table (u128)      48 body
//! ```
//!
//! A string is its length (u32) and its bytes; the length 2^32 - 1 means "no string".

use farleaf_base::limits::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};
use farleaf_cluster::ids::{Epoch, RegionId, TableId, TableIncarnation};

use super::codec::{Malformed, Reader, put_bytes, put_option, put_u32, put_u64};
use super::{COUNT_MAX, TAG, VERSION};

/// Bits of the flags.
const DURABLE: u8 = 1;
const ONE_ENOUGH: u8 = 2;

/// Addressee of a request (CONTROL-21), and required durability of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Table of the request.
    pub table: TableId,
    /// Region of the request.
    pub region: RegionId,
    /// Epoch of the region.
    pub epoch: Epoch,
    /// Incarnation of the table, which tells it apart from earlier tables of the same number.
    pub incarnation: TableIncarnation,
    /// Whether writes are acknowledged only when they are on the disks of all replicas; else when
    /// they are in the memory of all.
    pub is_durable: bool,
    /// Whether a write to a region with one replica may be acknowledged when it is in memory; else
    /// it must be on disk.
    pub is_one_enough: bool,
}

/// Condition of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'b> {
    /// No condition.
    Any,
    /// The key is absent.
    Absent,
    /// The key is present.
    Present,
    /// The key has this value.
    Equals(&'b [u8]),
}

/// Writes or deletes a key if a condition holds, and returns its previous value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange<'b> {
    /// Key to write.
    pub key: &'b [u8],
    /// Condition for the write.
    pub condition: Condition<'b>,
    /// New value; `None` deletes the key.
    pub new: Option<&'b [u8]>,
    /// Whether the reply has the previous value; else only whether there was one.
    pub returns_previous: bool,
}

/// Reads the records from `lower`, inclusive, to `upper`, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan<'b> {
    /// Smallest key of the range.
    pub lower: &'b [u8],
    /// First key behind the range; `None` for no upper bound.
    pub upper: Option<&'b [u8]>,
    /// Whether the scan descends from the largest key.
    pub is_descending: bool,
    /// Largest number of records to return.
    pub count_max: u32,
    /// Whether values are omitted.
    pub keys_only: bool,
}

/// Deletes the keys from `lower`, inclusive, to `upper`, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteRange<'b> {
    /// Smallest key of the range.
    pub lower: &'b [u8],
    /// First key behind the range; `None` for no upper bound.
    pub upper: Option<&'b [u8]>,
    /// Largest number of keys to delete.
    pub count_max: u32,
}

/// Operation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body<'b> {
    /// Reads the values of keys.
    Get(Vec<&'b [u8]>),
    /// Writes or deletes (`None`) keys, in order.
    Write(Vec<(&'b [u8], Option<&'b [u8]>)>),
    /// Writes or deletes a key if a condition holds.
    Exchange(Exchange<'b>),
    /// Reads the records of a range.
    Scan(Scan<'b>),
    /// Deletes the keys of a range.
    DeleteRange(DeleteRange<'b>),
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'b> {
    /// Addressee and durability.
    pub header: Header,
    /// Operation.
    pub body: Body<'b>,
}

impl Body<'_> {
    fn operation(&self) -> u8 {
        match self {
            Self::Get(_) => 1,
            Self::Write(_) => 2,
            Self::Exchange(_) => 3,
            Self::Scan(_) => 4,
            Self::DeleteRange(_) => 5,
        }
    }

    fn count(&self) -> u32 {
        match self {
            Self::Get(keys) => keys.len() as u32,
            Self::Write(records) => records.len() as u32,
            Self::Exchange(_) => 1,
            Self::Scan(scan) => scan.count_max,
            Self::DeleteRange(range) => range.count_max,
        }
    }

    /// Returns whether the operation changes nothing, so that it can be retried.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Get(_) | Self::Scan(_))
    }
}

impl Request<'_> {
    /// Encodes the request and replaces the buffer's contents by it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Header {
            table,
            region,
            epoch,
            incarnation,
            is_durable,
            is_one_enough,
        } = self.header;
        out.clear();
        let operation = self.body.operation();
        let flags = u8::from(is_durable) * DURABLE | u8::from(is_one_enough) * ONE_ENOUGH;
        out.extend_from_slice(&[TAG, VERSION, operation, flags]);
        put_u32(out, self.body.count());
        for number in [table.0, region.0, epoch.0] {
            put_u64(out, number);
        }
        out.extend_from_slice(&incarnation.0.to_le_bytes());
        match &self.body {
            Body::Get(keys) => keys.iter().for_each(|key| put_bytes(out, key)),
            Body::Write(records) => {
                for (key, value) in records {
                    put_bytes(out, key);
                    put_option(out, *value);
                }
            }
            Body::Exchange(exchange) => {
                put_bytes(out, exchange.key);
                put_option(out, exchange.new);
                out.push(u8::from(exchange.returns_previous));
                let (kind, expected) = match exchange.condition {
                    Condition::Any => (0, None),
                    Condition::Absent => (1, None),
                    Condition::Present => (2, None),
                    Condition::Equals(expected) => (3, Some(expected)),
                };
                out.push(kind);
                put_option(out, expected);
            }
            Body::Scan(scan) => {
                put_bytes(out, scan.lower);
                put_option(out, scan.upper);
                out.extend([u8::from(scan.is_descending), u8::from(scan.keys_only)]);
            }
            Body::DeleteRange(range) => {
                put_bytes(out, range.lower);
                put_option(out, range.upper);
            }
        }
    }
}

fn check_key(key: &[u8]) -> Result<&[u8], Malformed> {
    if key.len() <= KEY_SIZE_BYTES_MAX {
        return Ok(key);
    }
    Err(Malformed(format!(
        "the key has {} bytes; the limit is {KEY_SIZE_BYTES_MAX}",
        key.len()
    )))
}

fn check_value(value: Option<&[u8]>) -> Result<Option<&[u8]>, Malformed> {
    match value {
        Some(value) if value.len() > VALUE_SIZE_BYTES_MAX => Err(Malformed(format!(
            "the value has {} bytes; the limit is {VALUE_SIZE_BYTES_MAX}",
            value.len()
        ))),
        other => Ok(other),
    }
}

impl<'b> Request<'b> {
    /// Decodes arbitrary bytes.
    ///
    /// # Errors
    /// The bytes are not a valid request.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let (tag, version) = (reader.u8()?, reader.u8()?);
        if tag != TAG {
            return Err(Malformed(format!("unknown request tag {tag}")));
        }
        if version != VERSION {
            return Err(Malformed(format!(
                "the request has version {version}, but this server supports version {VERSION}; \
                 use a client and a server of the same version"
            )));
        }
        let operation = reader.u8()?;
        let flags = reader.u8()?;
        if flags & !(DURABLE | ONE_ENOUGH) != 0 {
            return Err(Malformed(format!("unknown request flags {flags}")));
        }
        let count = reader.u32()?;
        if count > COUNT_MAX {
            return Err(Malformed(format!(
                "the request is for {count} records; the limit is {COUNT_MAX}"
            )));
        }
        let header = Header {
            table: TableId(reader.u64()?),
            region: RegionId(reader.u64()?),
            epoch: Epoch(reader.u64()?),
            incarnation: TableIncarnation(reader.u128()?),
            is_durable: flags & DURABLE != 0,
            is_one_enough: flags & ONE_ENOUGH != 0,
        };
        let body = decode_body(operation, count, &mut reader)?;
        reader.end()?;
        Ok(Self { header, body })
    }
}

fn decode_body<'b>(
    operation: u8,
    count: u32,
    reader: &mut Reader<'b>,
) -> Result<Body<'b>, Malformed> {
    Ok(match operation {
        1 => {
            let mut keys = Vec::new();
            for _ in 0..count {
                keys.push(check_key(reader.bytes()?)?);
            }
            Body::Get(keys)
        }
        2 => {
            let mut records = Vec::new();
            for _ in 0..count {
                let key = check_key(reader.bytes()?)?;
                records.push((key, check_value(reader.option()?)?));
            }
            Body::Write(records)
        }
        3 if count == 1 => {
            let key = check_key(reader.bytes()?)?;
            let new = check_value(reader.option()?)?;
            let returns_previous = reader.flag()?;
            let kind = reader.u8()?;
            let condition = match (kind, reader.option()?) {
                (0, None) => Condition::Any,
                (1, None) => Condition::Absent,
                (2, None) => Condition::Present,
                (3, Some(expected)) => Condition::Equals(expected),
                _ => return Err(Malformed(format!("invalid condition {kind}"))),
            };
            Body::Exchange(Exchange {
                key,
                condition,
                new,
                returns_previous,
            })
        }
        4 => Body::Scan(Scan {
            lower: check_key(reader.bytes()?)?,
            upper: reader.option()?,
            is_descending: reader.flag()?,
            keys_only: reader.flag()?,
            count_max: count,
        }),
        5 => Body::DeleteRange(DeleteRange {
            lower: check_key(reader.bytes()?)?,
            upper: reader.option()?,
            count_max: count,
        }),
        other => return Err(Malformed(format!("unknown or invalid operation {other}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::fuzzing::run;

    const HEADER: Header = Header {
        table: TableId(1),
        region: RegionId(2),
        epoch: Epoch(3),
        incarnation: TableIncarnation(4),
        is_durable: true,
        is_one_enough: false,
    };

    fn all() -> Vec<Request<'static>> {
        let exchange = |condition, new| {
            Body::Exchange(Exchange {
                key: b"k",
                condition,
                new,
                returns_previous: new.is_none(),
            })
        };
        let bodies = [
            Body::Get(vec![b"one", b""]),
            Body::Write(vec![(b"k", Some(b"value")), (b"gone", None)]),
            exchange(Condition::Any, None),
            exchange(Condition::Absent, Some(&b"new"[..])),
            exchange(Condition::Present, Some(&b""[..])),
            exchange(Condition::Equals(b"old"), Some(&b"new"[..])),
            Body::Scan(Scan {
                lower: b"a",
                upper: Some(b"b"),
                is_descending: true,
                count_max: 9,
                keys_only: false,
            }),
            Body::DeleteRange(DeleteRange {
                lower: b"",
                upper: None,
                count_max: 5,
            }),
        ];
        let of = |body| Request {
            header: HEADER,
            body,
        };
        bodies.into_iter().map(of).collect()
    }

    /// Pins the format: a change requires a new [`VERSION`].
    #[test]
    fn requests_are_golden() {
        let mut bytes = Vec::new();
        all()[1].encode(&mut bytes);
        let head = b"K\x02\x02\x01\x02\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        let body = b"\x01\0\0\0k\x05\0\0\0value\x04\0\0\0gone\xff\xff\xff\xff";
        assert_eq!(bytes, [&head[..], &body[..]].concat());
        all()[6].encode(&mut bytes);
        assert_eq!(&bytes[..8], b"K\x02\x04\x01\x09\0\0\0");
        assert_eq!(&bytes[48..], b"\x01\0\0\0a\x01\0\0\0b\x01\0");
    }

    /// Promise: decoding returns what was encoded.
    #[test]
    fn requests_come_back() {
        let mut bytes = Vec::new();
        for request in all() {
            request.encode(&mut bytes);
            assert_eq!(Request::decode(&bytes).as_ref(), Ok(&request));
        }
    }

    /// Promise: arbitrary bytes give an error or a request that encodes to the same bytes.
    #[test]
    fn bytes_are_requests_or_errors() {
        let all = all();
        run("requests of clients", |random| {
            let mut bytes = Vec::new();
            all[random.index(all.len())].encode(&mut bytes);
            random.mutate(&mut bytes);
            if let Ok(request) = Request::decode(&bytes) {
                let mut again = Vec::new();
                request.encode(&mut again);
                assert_eq!(again, bytes);
            }
        });
    }
}
