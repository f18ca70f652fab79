//! Part of a table to which a client's key is limited.
//!
//! ```text
//!  0 table     8 incarnation of the table (u128)     24 prefix of the keys
//! ```
//!
//! Integers are little-endian.

use farleaf_cluster::ids::{TableId, TableIncarnation};
use farleaf_net::request::Caller;
use farleaf_net::secret::{Rights, SCOPE_SIZE_BYTES_MAX, Scope};

use crate::protocol::request::{Body, Request};

const PREFIX_START_BYTES: usize = 24;

/// Size of the longest prefix in bytes.
pub const KEY_PREFIX_SIZE_BYTES_MAX: usize = SCOPE_SIZE_BYTES_MAX - PREFIX_START_BYTES;

/// Table, and prefix of the keys in it, to which a key is limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableScope {
    /// The table.
    pub table: TableId,
    /// Tells the table apart from another one that gets the same number later.
    pub incarnation: TableIncarnation,
    /// Prefix of the keys; empty: all keys of the table.
    pub prefix: Vec<u8>,
}

impl TableScope {
    /// Encodes the scope; `None` if the prefix is longer than [`KEY_PREFIX_SIZE_BYTES_MAX`].
    pub fn encode(&self) -> Option<Scope> {
        let mut bytes = self.table.0.to_le_bytes().to_vec();
        bytes.extend(self.incarnation.0.to_le_bytes());
        bytes.extend_from_slice(&self.prefix);
        Scope::new(&bytes)
    }

    /// Decodes a scope; `None` if it is not valid.
    pub fn decode(scope: &Scope) -> Option<Self> {
        let (table, rest) = scope.bytes().split_first_chunk()?;
        let (incarnation, prefix) = rest.split_first_chunk()?;
        Some(Self {
            table: TableId(u64::from_le_bytes(*table)),
            incarnation: TableIncarnation(u128::from_le_bytes(*incarnation)),
            prefix: prefix.to_vec(),
        })
    }

    fn has_range(&self, lower: &[u8], upper: Option<&[u8]>) -> bool {
        // Behind the keys with the prefix comes the prefix with its last byte incremented.
        let Some(last) = self.prefix.iter().rposition(|byte| *byte < u8::MAX) else {
            return lower >= &self.prefix[..];
        };
        let mut end = self.prefix[..=last].to_vec();
        end[last] += 1;
        lower >= &self.prefix[..] && upper.is_some_and(|upper| upper <= &end[..])
    }

    fn has_keys(&self, body: &Body<'_>) -> bool {
        let has = |key: &[u8]| key.starts_with(&self.prefix);
        match body {
            Body::Get(keys) => keys.iter().all(|key| has(key)),
            Body::Write(records) => records.iter().all(|(key, _)| has(key)),
            Body::Exchange(exchange) => has(exchange.key),
            Body::Scan(scan) => self.has_range(scan.lower, scan.upper),
            Body::DeleteRange(range) => self.has_range(range.lower, range.upper),
        }
    }
}

/// Checks that a client's key permits a request.
///
/// # Errors
/// The key does not permit it; the text names the missing right, or the limit of the key.
pub fn check_permission(caller: &Caller, request: &Request<'_>) -> Result<(), String> {
    let needed = if request.body.is_read() {
        Rights::Read
    } else {
        Rights::Write
    };
    let (has, key) = (caller.rights, caller.key);
    if has < needed {
        return Err(format!(
            "permission denied: the right '{needed}' is required, and key {key} grants '{has}'"
        ));
    }
    if caller.scope.is_everything() {
        return Ok(());
    }
    let Some(scope) = TableScope::decode(&caller.scope) else {
        return Err(format!(
            "permission denied: the limit of key {key} is invalid"
        ));
    };
    let header = request.header;
    if (scope.table, scope.incarnation) != (header.table, header.incarnation) {
        return Err(format!(
            "permission denied: key {key} is limited to another table"
        ));
    }
    if scope.has_keys(&request.body) {
        return Ok(());
    }
    let prefix = scope.prefix.escape_ascii();
    Err(format!(
        "permission denied: key {key} is limited to keys that begin with '{prefix}'"
    ))
}

#[cfg(test)]
mod tests {
    use farleaf_cluster::ids::{Epoch, RegionId};

    use super::*;
    use crate::protocol::request::{DeleteRange, Header, Scan};

    fn scope(prefix: &[u8]) -> TableScope {
        TableScope {
            table: TableId(0x0201),
            incarnation: TableIncarnation(0x0403),
            prefix: prefix.to_vec(),
        }
    }

    fn is_permitted(rights: Rights, scope: &Scope, body: Body<'_>) -> bool {
        let secret = farleaf_net::secret::Secret::random().expect("randomness").0;
        let caller = Caller {
            peer: ([127, 0, 0, 1], 1).into(),
            rights,
            scope: scope.clone(),
            key: secret.key_id(),
        };
        let header = Header {
            table: TableId(0x0201),
            region: RegionId(1),
            epoch: Epoch(1),
            incarnation: TableIncarnation(0x0403),
            is_durable: false,
            is_one_enough: false,
        };
        check_permission(&caller, &Request { header, body }).is_ok()
    }

    fn scan<'b>(lower: &'b [u8], upper: Option<&'b [u8]>) -> Body<'b> {
        Body::Scan(Scan {
            lower,
            upper,
            is_descending: false,
            count_max: 1,
            keys_only: false,
        })
    }

    /// Promise: scopes have these bytes, so that keys remain valid in later versions.
    #[test]
    fn scopes_are_golden() {
        let mut golden = vec![1, 2, 0, 0, 0, 0, 0, 0, 3, 4];
        golden.extend([0; 14]);
        golden.extend(b"user:");
        let encoded = scope(b"user:").encode().expect("short");
        assert_eq!(encoded.bytes(), golden);
        assert_eq!(TableScope::decode(&encoded), Some(scope(b"user:")));
        assert!(scope(&[1; KEY_PREFIX_SIZE_BYTES_MAX]).encode().is_some());
        assert!(
            scope(&[1; KEY_PREFIX_SIZE_BYTES_MAX + 1])
                .encode()
                .is_none()
        );
        let short = Scope::new(&golden[..23]).expect("short");
        assert_eq!(TableScope::decode(&short), None);
        assert!(!is_permitted(Rights::Admin, &short, Body::Get(vec![])));
    }

    /// Promise: a key permits what its rights, its table and its prefix include, and nothing else.
    #[test]
    fn a_key_permits_what_it_includes() {
        use Rights::{Read, Write};
        let write = || Body::Write(vec![(&b"user:1"[..], None)]);
        let everything = Scope::default();
        assert!(is_permitted(Write, &everything, write()));
        assert!(!is_permitted(Read, &everything, write()));
        assert!(is_permitted(Read, &everything, scan(b"", None)));
        let users = scope(b"user:").encode().expect("short");
        assert!(is_permitted(Write, &users, write()));
        assert!(!is_permitted(Read, &users, write()));
        assert!(is_permitted(Read, &users, Body::Get(vec![b"user:"])));
        assert!(!is_permitted(
            Read,
            &users,
            Body::Get(vec![b"user:1", b"use"])
        ));
        for (lower, upper, may) in [
            (&b"user:"[..], Some(&b"user;"[..]), true),
            (b"user:1", Some(b"user:2"), true),
            (b"user:1", None, false),
            (b"user:", Some(b"user;0"), false),
            (b"usee", Some(b"user;"), false),
        ] {
            assert_eq!(is_permitted(Read, &users, scan(lower, upper)), may);
            let range = DeleteRange {
                lower,
                upper,
                count_max: 1,
            };
            assert_eq!(is_permitted(Write, &users, Body::DeleteRange(range)), may);
        }
        let last = scope(b"\xFF\xFF").encode().expect("short");
        assert!(is_permitted(Read, &last, scan(b"\xFF\xFF", None)));
        assert!(!is_permitted(Read, &last, scan(b"\xFF", None)));
        let mut other = scope(b"");
        other.incarnation.0 += 1;
        let other = other.encode().expect("short");
        assert!(!is_permitted(Read, &other, Body::Get(vec![b"user:1"])));
    }
}
