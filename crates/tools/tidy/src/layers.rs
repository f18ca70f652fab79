//! Layers: the table of permitted dependencies between crates, and the diagram made from it.

use std::fmt::Write as _;

/// Permitted dependencies of one crate on other crates of the workspace.
#[derive(Debug, Clone, Copy)]
pub struct Layer {
    /// Folder of the crate, relative to `crates/`, such as `memory/fabric`.
    pub folder: &'static str,
    /// Names of the crates that it may use, in the build and in tests.
    pub may_use: &'static [&'static str],
    /// Names of further crates that only its tests, examples and benchmarks may use.
    pub may_use_in_tests: &'static [&'static str],
    /// Whether the crate is outside the default build, and may be absent.
    pub is_optional: bool,
}

impl Layer {
    /// Returns the name of the crate: the last part of its folder.
    pub fn name(&self) -> &'static str {
        name_of_folder(self.folder)
    }
}

const fn layer(folder: &'static str, may_use: &'static [&'static str]) -> Layer {
    Layer {
        folder,
        may_use,
        may_use_in_tests: &[],
        is_optional: false,
    }
}

/// Layers, lowest first: each may use only those above it in this table.
pub const LAYERS: &[Layer] = &[
    layer("base", &[]),
    layer("executor", &[]),
    layer("memory/model", &[]),
    layer("key", &["base"]),
    layer("net", &["base"]),
    layer("durable/lsm", &["base"]),
    layer("tools/tidy", &[]),
    Layer {
        is_optional: true,
        ..layer("tools/book", &[])
    },
    layer("tools/chart", &[]),
    layer("memory/fabric", &["base", "executor", "net"]),
    layer("durable/cluster", &["base", "lsm", "net"]),
    Layer {
        // Backups in other processes.
        may_use_in_tests: &["net"],
        ..layer("durable/replica", &["base", "executor", "fabric", "lsm"])
    },
    layer("durable/client", &["base", "net", "cluster"]),
    layer("tools/trial", &["base", "net", "cluster", "client"]),
    Layer {
        // Clients under load, with checks of their answers.
        may_use_in_tests: &["trial"],
        ..layer(
            "durable/server",
            &[
                "base", "fabric", "net", "lsm", "replica", "cluster", "client",
            ],
        )
    },
    Layer {
        is_optional: true,
        // Servers that use it as coordinator.
        may_use_in_tests: &["base", "net", "lsm", "client", "trial", "server"],
        ..layer("durable/etcd", &["cluster"])
    },
    layer("memory/pool", &["base", "fabric"]),
    layer("memory/leaf", &["base", "executor", "fabric", "pool"]),
    layer(
        "memory/index",
        &["base", "executor", "model", "fabric", "pool", "leaf"],
    ),
    layer(
        "memory/node",
        &[
            "base", "executor", "model", "net", "fabric", "pool", "leaf", "index",
        ],
    ),
    layer(
        "farleaf",
        &[
            "base", "executor", "model", "fabric", "pool", "leaf", "index", "key", "node", "net",
            "cluster", "client", // Behind a feature.
            "etcd",
        ],
    ),
    layer(
        "tools/bench",
        &[
            "base", "executor", "net", "fabric", "lsm", "replica", "cluster", "server", "farleaf",
            "chart",
        ],
    ),
    layer(
        "tools/sim",
        &[
            "base", "executor", "model", "fabric", "pool", "leaf", "index", "node", "farleaf",
            "chart", "bench",
        ],
    ),
    Layer {
        // A test creates a region of another format version, by overwriting its superblock.
        may_use_in_tests: &["fabric"],
        ..layer(
            "cli",
            &[
                "base", "lsm", "net", "cluster", "server", "node", "farleaf", "chart", "bench",
                "sim",
            ],
        )
    },
    Layer {
        is_optional: true,
        ..layer("tools/instruction-gate", UP_TO_FARLEAF)
    },
    Layer {
        is_optional: true,
        ..layer("tools/bench-peers", UP_TO_BENCH)
    },
    Layer {
        is_optional: true,
        ..layer("tools/bench-lsm", &["lsm", "bench"])
    },
];

const UP_TO_FARLEAF: &[&str] = &[
    "base", "executor", "model", "fabric", "pool", "leaf", "index", "node", "farleaf",
];
const UP_TO_BENCH: &[&str] = &[
    "base", "executor", "model", "fabric", "pool", "leaf", "index", "node", "farleaf", "bench",
];

/// Returns the name of a crate's package.
pub fn package_name(name: &str) -> String {
    match name {
        "farleaf" => name.to_owned(),
        _ => format!("farleaf-{name}"),
    }
}

/// Returns the name of the crate in a folder: the folder's last part.
pub fn name_of_folder(folder: &str) -> &str {
    folder.rsplit('/').next().unwrap_or(folder)
}

/// Headings of the diagram's columns, and the folder that each one shows.
const COLUMNS: [(&str, &str); 4] = [
    ("far memory", "memory/"),
    ("shared", ""),
    ("durable", "durable/"),
    ("tools", "tools/"),
];

/// Draws the diagram of the crates: one column per folder of `crates/`, with users above the crates
/// that they use.
///
/// A crate is in the lowest row that is above all crates it may use.
pub fn diagram(layers: &[Layer]) -> String {
    let heights = heights(layers);
    let cell = |height: usize, prefix: &str| -> String {
        let is_here = |layer: &Layer| match prefix {
            "" => !layer.folder.contains('/'),
            _ => layer.folder.starts_with(prefix),
        };
        let here = layers.iter().zip(&heights);
        let here = here.filter(|(layer, it)| **it == height && is_here(layer));
        let names: Vec<_> = here.map(|(layer, _)| layer.name()).collect();
        names.join(" ")
    };
    let top = heights.iter().max().copied().unwrap_or(0);
    let mut rows = vec![COLUMNS.map(|(heading, _)| heading.to_owned())];
    rows.extend(
        (0..=top)
            .rev()
            .map(|height| COLUMNS.map(|(_, prefix)| cell(height, prefix))),
    );
    let widths: [usize; COLUMNS.len()] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(widths);
        let cells: Vec<_> = cells.map(|(it, width)| format!("{it:width$}")).collect();
        let _ = writeln!(text, "{}", cells.join(" | ").trim_end());
        if index == 0 {
            let _ = writeln!(
                text,
                "{}",
                widths.map(|width| "-".repeat(width)).join("-+-")
            );
        }
    }
    text
}

/// Returns the length of the longest chain of dependencies below each crate.
fn heights(layers: &[Layer]) -> Vec<usize> {
    let mut heights: Vec<usize> = Vec::with_capacity(layers.len());
    for layer in layers {
        let used = layers.iter().zip(&heights);
        let used = used.filter(|(below, _)| layer.may_use.contains(&below.name()));
        let height = used.map(|(_, height)| height + 1).max().unwrap_or(0);
        heights.push(height);
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the table has no cycle: each crate uses, also in tests, only crates above it in the
    /// table.
    #[test]
    fn each_layer_uses_only_those_above_it_in_the_table() {
        for (position, layer) in LAYERS.iter().enumerate() {
            for used in layer.may_use.iter().chain(layer.may_use_in_tests) {
                let above = LAYERS[..position].iter().any(|it| it.name() == *used);
                assert!(
                    above,
                    "{} may use {used}, which is not above it",
                    layer.folder
                );
            }
        }
    }

    /// Promise: far-memory crates use no durable crate, and vice versa, except that replication
    /// writes its log through the fabric.
    #[test]
    fn the_halves_meet_only_where_replication_uses_the_fabric() {
        let folder = |name: &str| {
            let layer = LAYERS.iter().find(|layer| layer.name() == name);
            layer.map_or("", |layer| layer.folder)
        };
        for layer in LAYERS {
            for used in layer.may_use.iter().map(|name| folder(name)) {
                let upward = layer.folder.starts_with("memory/") && used.starts_with("durable/");
                assert!(!upward, "{} uses {used}", layer.folder);
                let across = layer.folder.starts_with("durable/") && used.starts_with("memory/");
                let is_fabric = used == "memory/fabric";
                assert!(!across || is_fabric, "{} uses {used}", layer.folder);
            }
        }
    }

    /// Promise: no crate uses the programs at the top.
    #[test]
    fn nothing_uses_the_programs_at_the_top() {
        for end in [
            "cli",
            "bench-peers",
            "bench-lsm",
            "tidy",
            "instruction-gate",
        ] {
            assert!(
                LAYERS.iter().any(|layer| layer.name() == end),
                "{end} is not in the table"
            );
            for layer in LAYERS {
                let used = layer.may_use.iter().chain(layer.may_use_in_tests);
                assert!(
                    !used.into_iter().any(|it| *it == end),
                    "{} uses {end}",
                    layer.folder
                );
            }
        }
    }

    /// Promise: the diagram puts each crate into its folder's column, above all that it uses.
    #[test]
    fn the_diagram_puts_users_above_the_used() {
        let layers = [
            layer("base", &[]),
            layer("memory/fabric", &["base"]),
            layer("durable/lsm", &[]),
            layer("farleaf", &["fabric", "lsm"]),
        ];
        let wanted = "\
far memory | shared  | durable | tools
-----------+---------+---------+------
           | farleaf |         |
fabric     |         |         |
           | base    | lsm     |
";
        assert_eq!(diagram(&layers), wanted);
    }
}
