//! Pool file `pool.toml`, which lists the nodes of a pool.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::failure::BadArgument;
use farleaf_bench::quantity::parse_size;

/// Size limit of a node's address in the pool's member table, in bytes.
const ADDRESS_SIZE_BYTES_MAX: usize = farleaf::NODE_ADDRESS_SIZE_BYTES_MAX;

/// Pool of several nodes, as its operator describes it. The first node is the main node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolFile {
    pub(crate) name: String,
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) lost_after: Duration,
    pub(crate) nodes: Vec<NodeEntry>,
}

/// Node of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeEntry {
    /// Address under which others reach the node.
    pub(crate) address: String,
    /// Address on which the node listens.
    pub(crate) listen: SocketAddr,
    pub(crate) size_bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default = "default_name")]
    name: String,
    secret_file: Option<PathBuf>,
    #[serde(default = "default_lost_after")]
    lost_after_seconds: u64,
    #[serde(default)]
    node: Vec<WrittenNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNode {
    address: String,
    listen: Option<String>,
    size: String,
}

fn default_name() -> String {
    "pool".to_owned()
}

fn default_lost_after() -> u64 {
    10
}

impl PoolFile {
    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read or contains invalid settings.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let bad = |what: String| BadArgument(format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
        let mut file = Self::from_text(&text).map_err(bad)?;
        // A relative path is relative to the folder of the file.
        if let (Some(secret), Some(folder)) = (&mut file.secret_file, path.parent()) {
            *secret = folder.join(&secret);
        }
        Ok(file)
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let written = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text[..start].lines().count().max(1);
            format!("line {line}: {}", error.message())
        })?;
        Self::from_written(written)
    }

    fn from_written(written: Written) -> Result<Self, String> {
        if !(1..=3600).contains(&written.lost_after_seconds) {
            return Err(format!(
                "expected lost_after_seconds from 1 to 3600, found {}",
                written.lost_after_seconds
            ));
        }
        if written.node.is_empty() {
            return Err(
                "missing [[node]]; add one with `address` and `size` for each node".to_owned(),
            );
        }
        let nodes = written.node.iter().enumerate();
        let nodes = nodes.map(|(number, node)| {
            NodeEntry::from_written(node).map_err(|what| format!("node {number}: {what}"))
        });
        let nodes: Vec<NodeEntry> = nodes.collect::<Result<_, _>>()?;
        for (number, node) in nodes.iter().enumerate() {
            if let Some(before) = nodes[..number]
                .iter()
                .position(|it| it.address == node.address)
            {
                let address = &node.address;
                return Err(format!(
                    "nodes {before} and {number} have the same address, '{address}'"
                ));
            }
        }
        Ok(Self {
            name: written.name,
            secret_file: written.secret_file,
            lost_after: Duration::from_secs(written.lost_after_seconds),
            nodes,
        })
    }

    /// Returns a node by its position in the file.
    ///
    /// # Errors
    /// The file has fewer nodes.
    pub(crate) fn node(&self, number: usize) -> Result<&NodeEntry, BadArgument> {
        let last = self.nodes.len() - 1;
        self.nodes.get(number).ok_or_else(|| {
            BadArgument(format!(
                "--node {number}: the file has the nodes 0 to {last}"
            ))
        })
    }
}

impl NodeEntry {
    fn from_written(written: &WrittenNode) -> Result<Self, String> {
        let address = &written.address;
        let port = address
            .rsplit_once(':')
            .map(|(host, port)| (host, port.parse::<u16>()));
        match port {
            Some((host, Ok(1..))) if !host.is_empty() => {}
            _ => return Err(format!("expected HOST:PORT, found '{address}'")),
        }
        let host = address.parse::<SocketAddr>().map(|address| address.ip());
        if host.is_ok_and(|host| host.is_unspecified()) {
            return Err(format!(
                "'{address}' is an address to listen on, not one that other hosts can connect to; \
                 set `address` to an address of this host, and add `listen = \"{address}\"`"
            ));
        }
        if address.len() > ADDRESS_SIZE_BYTES_MAX {
            return Err(format!(
                "'{address}' is longer than {ADDRESS_SIZE_BYTES_MAX} bytes, the maximum for an \
                 address"
            ));
        }
        let listen = written.listen.as_ref().unwrap_or(address);
        let listen = listen.parse().map_err(|_| {
            format!(
                "'{listen}' is not a valid IP:PORT to listen on; if `address` is a host name, set \
                 `listen` to an IP:PORT"
            )
        })?;
        let size_bytes = parse_size(&written.size).map_err(|error| format!("size: {error}"))?;
        Ok(Self {
            address: address.clone(),
            listen,
            size_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::fuzzing::run;

    fn read(text: &str) -> Result<PoolFile, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pool.toml");
        std::fs::write(&path, text).expect("written");
        PoolFile::read(&path).map_err(|error| error.to_string())
    }

    /// Promise: all settings are read, and omitted ones have their defaults.
    #[test]
    fn a_pool_is_read() {
        let text = "secret_file = 's'\n[[node]]\naddress = '10.0.0.5:7470'\nsize = '4GiB'\n\
                    [[node]]\naddress = 'far:7471'\nlisten = '0.0.0.0:7471'\nsize = '64MiB'\n";
        let file = read(text).expect("good");
        assert_eq!(
            (file.name.as_str(), file.lost_after.as_secs()),
            ("pool", 10)
        );
        assert!(file.secret_file.expect("given").is_absolute());
        assert_eq!(file.nodes[0].listen.to_string(), "10.0.0.5:7470");
        assert_eq!(file.nodes[1].listen.to_string(), "0.0.0.0:7471");
        assert_eq!(
            (file.nodes[0].size_bytes, file.nodes[1].size_bytes),
            (4 << 30, 64 << 20)
        );
    }

    /// Promise: any file is either rejected with a reason, or describes a pool that can be served.
    #[test]
    fn fuzz_pool_files() {
        let honest = "name = 'p'\nsecret_file = 's'\nlost_after_seconds = 7\n\
                      [[node]]\naddress = '10.0.0.5:7470'\nsize = '4GiB'\n\
                      [[node]]\naddress = 'far:7471'\nlisten = '[::]:7471'\nsize = '64MiB'\n";
        run("pool files", |random| {
            let mut bytes = honest.as_bytes().to_vec();
            random.mutate(&mut bytes);
            // Invalid UTF-8 already fails when the file is read.
            let text = String::from_utf8_lossy(&bytes);
            match PoolFile::from_text(&text) {
                Ok(file) => {
                    assert!((1..=3600).contains(&file.lost_after.as_secs()));
                    assert!(file.node(0).is_ok() && file.node(file.nodes.len()).is_err());
                    for (number, node) in file.nodes.iter().enumerate() {
                        assert!(node.address.len() <= ADDRESS_SIZE_BYTES_MAX);
                        let others = &file.nodes[..number];
                        assert!(others.iter().all(|other| other.address != node.address));
                    }
                }
                Err(reason) => assert!(!reason.is_empty()),
            }
        });
    }

    /// Promise: invalid settings are rejected with their place and the reason.
    #[test]
    fn bad_pools_are_refused() {
        let node = "[[node]]\naddress = '10.0.0.5:7470'\nsize = '4GiB'\n";
        for (text, reason) in [
            (String::new(), "missing [[node]]"),
            (format!("nme = 'x'\n{node}"), "unknown field `nme`"),
            (format!("lost_after_seconds = 0\n{node}"), "from 1 to 3600"),
            (
                format!("{node}{node}"),
                "nodes 0 and 1 have the same address",
            ),
            (
                node.replace("7470", "0"),
                "node 0: expected HOST:PORT, found '10.0.0.5:0'",
            ),
            (
                node.replace("10.0.0.5", "far"),
                "is not a valid IP:PORT to listen on",
            ),
            (
                node.replace("10.0.0.5", "0.0.0.0"),
                "not one that other hosts can connect to",
            ),
            (node.replace("4GiB", "4 apples"), "node 0: size: "),
            (node.replace("size", "sise"), "unknown field `sise`"),
            (
                node.replace("10.0.0.5", &"h".repeat(90)),
                "longer than 88 bytes",
            ),
        ] {
            let error = read(&text).expect_err(&text);
            assert!(
                error.contains("pool.toml") && error.contains(reason),
                "{error}"
            );
        }
    }
}
