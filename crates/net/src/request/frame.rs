//! Header of frames, with which every request and reply begins.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..4 | size of the payload behind the header, in bytes |
//! | 4..8 | kind: `FLrq` request, `FLan` reply; `FLno` refusal and `FLbu` busy, with a text |
//!
//! Integers are little-endian.

/// Size of a header in bytes.
pub(crate) const HEADER_SIZE_BYTES: usize = 8;

/// Largest payload of a frame in bytes.
pub const FRAME_SIZE_BYTES_MAX: usize = 256 << 20;

const _: () = assert!(FRAME_SIZE_BYTES_MAX <= u32::MAX as usize);

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Request of a client.
    Request,
    /// Reply to the oldest unanswered request.
    Answer,
    /// Reason why the server closes the connection.
    Refusal,
    /// The same, and no request without a reply was or will be executed.
    Busy,
}

impl Kind {
    const fn tag(self) -> [u8; 4] {
        match self {
            Self::Request => *b"FLrq",
            Self::Answer => *b"FLan",
            Self::Refusal => *b"FLno",
            Self::Busy => *b"FLbu",
        }
    }

    fn of_tag(tag: [u8; 4]) -> Option<Self> {
        let kinds = [Self::Request, Self::Answer, Self::Refusal, Self::Busy];
        kinds.into_iter().find(|kind| kind.tag() == tag)
    }
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) size_bytes: usize,
}

impl Header {
    /// Encodes the header.
    ///
    /// # Panics
    /// If the payload is larger than a frame can be; the caller must have checked that.
    pub(crate) fn encode(self) -> [u8; HEADER_SIZE_BYTES] {
        assert!(self.size_bytes <= FRAME_SIZE_BYTES_MAX);
        let mut bytes = [0; HEADER_SIZE_BYTES];
        bytes[..4].copy_from_slice(&(self.size_bytes as u32).to_le_bytes());
        bytes[4..].copy_from_slice(&self.kind.tag());
        bytes
    }

    /// Decodes a header. If the bytes are invalid, or the payload is larger than `size_bytes_max`,
    /// the error is a text that completes "the peer sent ...".
    pub(crate) fn decode(
        bytes: [u8; HEADER_SIZE_BYTES],
        size_bytes_max: usize,
    ) -> Result<Self, String> {
        let [s0, s1, s2, s3, tag @ ..] = bytes;
        let kind = Kind::of_tag(tag)
            .ok_or_else(|| format!("an invalid frame header '{}'", bytes.escape_ascii()))?;
        let size_bytes = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
        let size_bytes_max = size_bytes_max.min(FRAME_SIZE_BYTES_MAX);
        if size_bytes > size_bytes_max {
            return Err(format!(
                "a frame of {size_bytes} bytes, above the limit of {size_bytes_max}"
            ));
        }
        Ok(Self { kind, size_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: headers have these bytes, so that programs of one version understand each other.
    #[test]
    fn headers_are_golden() {
        let cases: [(Kind, usize, &[u8; 8]); 4] = [
            (Kind::Request, 0, b"\0\0\0\0FLrq"),
            (Kind::Busy, 1, b"\x01\0\0\0FLbu"),
            (Kind::Answer, 0x0001_0203, b"\x03\x02\x01\0FLan"),
            (Kind::Refusal, FRAME_SIZE_BYTES_MAX, b"\0\0\0\x10FLno"),
        ];
        for (kind, size_bytes, bytes) in cases {
            let header = Header { kind, size_bytes };
            assert_eq!(&header.encode(), bytes);
            assert_eq!(Header::decode(*bytes, FRAME_SIZE_BYTES_MAX), Ok(header));
        }
    }

    /// Promise: invalid headers are rejected, and so are frames that are too large for the
    /// receiver.
    #[test]
    fn other_headers_are_refused() {
        let limit = FRAME_SIZE_BYTES_MAX;
        let error = Header::decode(*b"GET / HT", limit).expect_err("no header");
        assert!(error.contains("GET / HT"), "{error}");
        let error = Header::decode(*b"\x01\0\0\x10FLan", usize::MAX).expect_err("too large");
        assert!(error.contains("268435457 bytes"), "{error}");
        let error = Header::decode(*b"\x05\0\0\0FLrq", 4).expect_err("too large");
        assert!(error.contains("5 bytes, above the limit of 4"), "{error}");
    }
}
