//! The layers: the one table of which crate may depend on which.

use std::fmt::Write as _;

/// What one crate may depend on, of the workspace's crates.
#[derive(Debug, Clone, Copy)]
pub struct Layer {
    /// The folder in crates/.
    pub folder: &'static str,
    /// What it may use, in the build and in tests; folders.
    pub may_use: &'static [&'static str],
    /// What only its tests, examples and benchmarks may use besides; folders.
    pub may_use_in_tests: &'static [&'static str],
    /// Whether the crate may be absent although it is in this table.
    pub is_optional: bool,
}

const fn layer(folder: &'static str, may_use: &'static [&'static str]) -> Layer {
    Layer {
        folder,
        may_use,
        may_use_in_tests: &[],
        is_optional: false,
    }
}

/// The layers, lowest first: each may use only what stands above it in this table.
pub const LAYERS: &[Layer] = &[
    layer("types", &[]),
    layer("executor", &[]),
    layer("model", &[]),
    layer("key", &[]),
    layer("lsm", &[]),
    layer("tidy", &[]),
    layer("chart", &[]),
    layer("fabric", &["types", "executor"]),
    layer("wire", &["types", "executor", "fabric"]),
    Layer {
        // How decoders are fuzzed.
        may_use_in_tests: &["fabric"],
        ..layer("cluster", &["lsm", "wire"])
    },
    layer("message", &["types", "executor", "fabric"]),
    layer(
        "replica",
        &["types", "executor", "fabric", "message", "lsm"],
    ),
    Layer {
        // How decoders are fuzzed.
        may_use_in_tests: &["fabric"],
        ..layer("client", &["wire", "cluster"])
    },
    layer("trial", &["wire", "cluster", "client"]),
    Layer {
        // Clients under load, and what is checked of them.
        may_use_in_tests: &["trial"],
        ..layer(
            "server",
            &[
                "types", "fabric", "wire", "lsm", "replica", "cluster", "client",
            ],
        )
    },
    Layer {
        is_optional: true,
        // Servers whose coordinator it is.
        may_use_in_tests: &["wire", "lsm", "client", "trial", "server"],
        ..layer("etcd", &["cluster"])
    },
    layer("region", &["types", "fabric"]),
    layer("leaf", &["types", "executor", "fabric", "region"]),
    layer("block", &["types", "executor", "fabric", "region"]),
    layer(
        "page",
        &["types", "executor", "fabric", "region", "leaf", "block"],
    ),
    layer(
        "index",
        &["types", "executor", "model", "fabric", "region", "leaf"],
    ),
    layer(
        "byte-index",
        &[
            "types", "executor", "model", "fabric", "region", "leaf", "block", "page", "index",
        ],
    ),
    layer(
        "node",
        &[
            "types",
            "executor",
            "model",
            "fabric",
            "message",
            "region",
            "leaf",
            "block",
            "page",
            "index",
            "byte-index",
        ],
    ),
    layer(
        "store",
        &[
            "types",
            "executor",
            "model",
            "fabric",
            "message",
            "region",
            "leaf",
            "block",
            "page",
            "index",
            "byte-index",
            "key",
            "node",
            "wire",
            "cluster",
            "client",
            // Behind a feature.
            "etcd",
        ],
    ),
    layer(
        "bench",
        &[
            "types", "executor", "fabric", "lsm", "replica", "cluster", "server", "store", "chart",
        ],
    ),
    layer(
        "sim",
        &[
            "types",
            "executor",
            "model",
            "fabric",
            "message",
            "region",
            "leaf",
            "block",
            "page",
            "index",
            "byte-index",
            "node",
            "store",
            "chart",
            "bench",
        ],
    ),
    Layer {
        // A test makes a region of another format version, by writing over its superblock.
        may_use_in_tests: &["fabric"],
        ..layer(
            "cli",
            &[
                "types", "lsm", "wire", "cluster", "server", "node", "store", "chart", "bench",
                "sim",
            ],
        )
    },
    Layer {
        is_optional: true,
        ..layer("instruction-gate", UP_TO_STORE)
    },
    Layer {
        is_optional: true,
        ..layer("bench-peers", UP_TO_BENCH)
    },
    Layer {
        is_optional: true,
        ..layer("bench-lsm", &["lsm", "bench"])
    },
];

const UP_TO_STORE: &[&str] = &[
    "types", "executor", "model", "fabric", "region", "leaf", "index", "node", "store",
];
const UP_TO_BENCH: &[&str] = &[
    "types", "executor", "model", "fabric", "region", "leaf", "index", "node", "store", "bench",
];

/// The name of the package in a folder of crates/.
pub fn package_name(folder: &str) -> String {
    match folder {
        "store" => "farleaf".to_owned(),
        _ => format!("farleaf-{folder}"),
    }
}

/// The table as text: one line a crate, what it may use behind it.
pub fn picture(layers: &[Layer]) -> String {
    let width = layers
        .iter()
        .map(|layer| package_name(layer.folder).len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for layer in layers {
        let used: Vec<_> = layer
            .may_use
            .iter()
            .map(|folder| package_name(folder))
            .collect();
        let used = if used.is_empty() {
            "-".to_owned()
        } else {
            used.join(", ")
        };
        let _ = writeln!(text, "{:width$} -> {used}", package_name(layer.folder));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table has no circle: everything used, in tests too, stands above its user.
    #[test]
    fn each_layer_uses_only_those_above_it_in_the_table() {
        for (position, layer) in LAYERS.iter().enumerate() {
            for used in layer.may_use.iter().chain(layer.may_use_in_tests) {
                let above = LAYERS[..position].iter().any(|it| it.folder == *used);
                assert!(
                    above,
                    "{} may use {used}, which is not above it",
                    layer.folder
                );
            }
        }
    }

    /// The ends of the graph stay ends.
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
                LAYERS.iter().any(|layer| layer.folder == end),
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

    /// The picture names the user and the used by their packages.
    #[test]
    fn the_picture_names_packages() {
        let text = picture(&[layer("types", &[]), layer("store", &["types"])]);
        assert_eq!(text, "farleaf-types -> -\nfarleaf       -> farleaf-types\n");
    }
}
