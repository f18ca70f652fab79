//! Mapping of the control plane's keys to keys in etcd.

use etcd_client::KeyValue;
use farleaf_cluster::coordinator::{CoordinatorError, Entry, LeaseId, Revision};

/// Largest length of a namespace in bytes.
const NAMESPACE_SIZE_BYTES_MAX: usize = 128;

/// Prefix of all keys of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    prefix: String,
}

impl Namespace {
    pub(crate) fn new(name: &str) -> Result<Self, CoordinatorError> {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_graphic());
        if name.is_empty() || !is_plain || name.len() > NAMESPACE_SIZE_BYTES_MAX {
            let what = format!(
                "invalid namespace {name:?}: expected 1 to {NAMESPACE_SIZE_BYTES_MAX} visible \
                 ASCII characters"
            );
            return Err(CoordinatorError::Invalid { what });
        }
        Ok(Self {
            prefix: format!("{name}/"),
        })
    }

    pub(crate) fn key(&self, key: &str) -> Vec<u8> {
        format!("{}{key}", self.prefix).into_bytes()
    }

    /// Returns the first key behind all keys with a prefix.
    pub(crate) fn end_of(&self, prefix: &str) -> Vec<u8> {
        let mut end = self.key(prefix);
        // The last byte is ASCII, so it can be incremented.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        end
    }

    /// Returns the control plane's key for a key in etcd.
    pub(crate) fn own_key(&self, key: &[u8]) -> Option<String> {
        let key = str::from_utf8(key).ok()?;
        key.strip_prefix(&self.prefix).map(str::to_owned)
    }

    pub(crate) fn entry(&self, pair: &KeyValue) -> Option<Entry> {
        let lease = LeaseId(pair.lease() as u64);
        Some(Entry {
            key: self.own_key(pair.key())?,
            value: pair.value().to_vec(),
            create_revision: Revision(pair.create_revision() as u64),
            mod_revision: Revision(pair.mod_revision() as u64),
            lease: (lease.0 != 0).then_some(lease),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: keys are mapped to etcd and back unchanged; keys of other namespaces are not
    /// mapped.
    #[test]
    fn keys_come_back_as_they_were() {
        let namespace = Namespace::new("farleaf/test").expect("it can be");
        let key = namespace.key("region/1");
        assert_eq!(key, b"farleaf/test/region/1");
        assert_eq!(namespace.own_key(&key).as_deref(), Some("region/1"));
        assert_eq!(namespace.own_key(b"farleaf/tess/region/1"), None);
        assert!(namespace.end_of("region/") > namespace.key("region/~"));
    }

    /// Promise: invalid namespaces are rejected.
    #[test]
    fn bad_namespaces_are_refused() {
        for name in ["", "with space", "umlaut\u{fc}", &"x".repeat(129)] {
            assert!(Namespace::new(name).is_err(), "{name:?}");
        }
    }
}
