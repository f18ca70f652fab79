//! Dependencies between the workspace's crates follow the table in [`crate::layers`].

use std::collections::BTreeMap;

use toml::Table;

use crate::layers::{Layer, package_name};
use crate::{SourceTree, Violation};

/// Whether a dependency is built into the crate or only into its tests, examples and benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Build,
    Test,
}

/// Checks every manifest in crates/ against the table, and the table against crates/.
///
/// A crate of the table may be missing on disk only if it is not among the default members.
pub fn check(tree: &SourceTree, layers: &[Layer]) -> Vec<Violation> {
    let root: Table = tree
        .text("Cargo.toml")
        .and_then(|it| it.parse().ok())
        .unwrap_or_default();
    let renamed = renamed_packages(&root);
    let mut violations = missing_crates(tree, &root, layers);
    for (folder, text) in tree.crates() {
        let path = format!("crates/{folder}/Cargo.toml");
        let mut report = |message: String| violations.push(Violation::in_file(&path, message));
        let Ok(manifest) = text.parse::<Table>() else {
            report("is not TOML".to_owned());
            continue;
        };
        let Some(layer) = layers.iter().find(|layer| layer.folder == folder) else {
            report(format!("{folder} is not in the table of layers"));
            continue;
        };
        for (kind, used) in dependencies(&manifest, &renamed) {
            let Some(used) = folder_of_package(&used) else {
                continue;
            };
            let in_build = layer.may_use.contains(&used.as_str());
            // A crate's tests may use the crate itself, with a feature that only tests need.
            let in_tests = kind == Kind::Test
                && (used == folder || layer.may_use_in_tests.contains(&used.as_str()));
            if !in_build && !in_tests {
                let section = match kind {
                    Kind::Build => "dependency",
                    Kind::Test => "dev-dependency",
                };
                report(format!("{folder} may not have {used} as a {section}"));
            }
        }
    }
    violations
}

/// ARCHITECTURE.md names the package of every crate in the table that exists.
pub fn check_architecture_names_crates(tree: &SourceTree, layers: &[Layer]) -> Vec<Violation> {
    const PATH: &str = "ARCHITECTURE.md";
    let Some(text) = tree.text(PATH) else {
        return vec![Violation::in_file(PATH, "does not exist")];
    };
    let is_package_character = |it: char| it.is_alphanumeric() || it == '-' || it == '_';
    let words: Vec<&str> = text.split(|it| !is_package_character(it)).collect();
    let exists = |layer: &&Layer| tree.crates().any(|(folder, _)| folder == layer.folder);
    let names = layers
        .iter()
        .filter(exists)
        .map(|layer| package_name(layer.folder));
    let unnamed = names.filter(|name| !words.contains(&name.as_str()));
    unnamed
        .map(|name| Violation::in_file(PATH, format!("does not name {name}")))
        .collect()
}

fn missing_crates(tree: &SourceTree, root: &Table, layers: &[Layer]) -> Vec<Violation> {
    let default_members = root
        .get("workspace")
        .and_then(|it| it.get("default-members"))
        .and_then(|it| it.as_array());
    let is_default_member = |layer: &Layer| {
        let path = format!("crates/{}", layer.folder);
        default_members.is_some_and(|them| them.iter().any(|it| it.as_str() == Some(&path)))
    };
    let exists = |layer: &Layer| tree.crates().any(|(folder, _)| folder == layer.folder);
    let mut violations = Vec::new();
    for layer in layers {
        if is_default_member(layer) && !exists(layer) {
            let message = format!("{} is a default member and does not exist", layer.folder);
            violations.push(Violation::in_file("Cargo.toml", message));
        }
        if layer.is_optional && is_default_member(layer) {
            let message = format!("{} is optional and so no default member", layer.folder);
            violations.push(Violation::in_file("Cargo.toml", message));
        }
    }
    violations
}

/// Workspace dependencies whose key is not their package: key to package.
fn renamed_packages(root: &Table) -> BTreeMap<String, String> {
    let dependencies = root
        .get("workspace")
        .and_then(|it| it.get("dependencies"))
        .and_then(|it| it.as_table());
    let renamed = |(key, value): (&String, &toml::Value)| {
        let package = value.get("package")?.as_str()?;
        Some((key.clone(), package.to_owned()))
    };
    dependencies
        .into_iter()
        .flatten()
        .filter_map(renamed)
        .collect()
}

/// Every dependency of a manifest by its package's name, for all targets.
fn dependencies(manifest: &Table, renamed: &BTreeMap<String, String>) -> Vec<(Kind, String)> {
    let targets = manifest.get("target").and_then(|it| it.as_table());
    let mut sections = vec![manifest];
    sections.extend(
        targets
            .into_iter()
            .flatten()
            .filter_map(|(_, target)| target.as_table()),
    );
    let mut found = Vec::new();
    for section in sections {
        for (key, kind) in [
            ("dependencies", Kind::Build),
            ("build-dependencies", Kind::Build),
            ("dev-dependencies", Kind::Test),
        ] {
            let Some(entries) = section.get(key).and_then(|it| it.as_table()) else {
                continue;
            };
            for (name, value) in entries {
                let inherits = value.get("workspace").is_some();
                let package = value.get("package").and_then(|it| it.as_str());
                let inherited = renamed.get(name).filter(|_| inherits).map(String::as_str);
                found.push((kind, package.or(inherited).unwrap_or(name).to_owned()));
            }
        }
    }
    found
}

/// The folder in crates/ of one of the workspace's packages; `None` for somebody else's.
fn folder_of_package(package: &str) -> Option<String> {
    match package {
        "farleaf" => Some("store".to_owned()),
        _ => package.strip_prefix("farleaf-").map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Layer] = &[
        Layer {
            folder: "low",
            may_use: &[],
            may_use_in_tests: &[],
            is_optional: false,
        },
        Layer {
            folder: "aid",
            may_use: &[],
            may_use_in_tests: &[],
            is_optional: true,
        },
        Layer {
            folder: "high",
            may_use: &["low"],
            may_use_in_tests: &["aid"],
            is_optional: false,
        },
    ];

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        let tree = SourceTree::planted(files.iter().copied());
        check(&tree, TABLE)
            .into_iter()
            .map(|it| it.message)
            .collect()
    }

    const HIGH: &str = "crates/high/Cargo.toml";
    const LOW: &str = "crates/low/Cargo.toml";

    /// What the table allows passes, and other people's crates are no matter of the table.
    #[test]
    fn allowed_dependencies_pass() {
        let manifest = "[dependencies]\nfarleaf-low.workspace = true\nserde = \"1\"\n\
                        [dev-dependencies]\nfarleaf-aid.workspace = true";
        assert_eq!(messages(&[(HIGH, manifest)]), Vec::<String>::new());
    }

    /// A dependency upwards is found in every section that can hold one.
    #[test]
    fn an_upward_dependency_is_found_in_every_section() {
        for section in [
            "dependencies",
            "build-dependencies",
            "target.'cfg(unix)'.dependencies",
        ] {
            let manifest = format!("[{section}]\nfarleaf-high.workspace = true");
            assert_eq!(
                messages(&[(LOW, &manifest)]),
                ["low may not have high as a dependency"]
            );
        }
        let manifest = "[dev-dependencies]\nfarleaf.workspace = true";
        assert_eq!(
            messages(&[(LOW, manifest)]),
            ["low may not have store as a dev-dependency"]
        );
    }

    /// What only tests may use is refused in the build.
    #[test]
    fn a_test_only_dependency_is_refused_in_the_build() {
        let manifest = "[dependencies]\nfarleaf-aid.workspace = true";
        assert_eq!(
            messages(&[(HIGH, manifest)]),
            ["high may not have aid as a dependency"]
        );
    }

    /// A dependency under another name is found, renamed here or in the workspace.
    #[test]
    fn a_renamed_dependency_is_found() {
        let here = "[dependencies]\nx = { path = \"../high\", package = \"farleaf-high\" }";
        assert_eq!(messages(&[(LOW, here)]).len(), 1);
        let root = "[workspace.dependencies]\nx = { path = \"a\", package = \"farleaf-high\" }";
        let inherited = "[dependencies]\nx.workspace = true";
        assert_eq!(messages(&[("Cargo.toml", root), (LOW, inherited)]).len(), 1);
    }

    /// A crate outside the table, and a default member without a folder, are found.
    #[test]
    fn crates_outside_the_table_and_missing_members_are_found() {
        let unknown = messages(&[("crates/odd/Cargo.toml", "")]);
        assert_eq!(unknown, ["odd is not in the table of layers"]);
        let root = "[workspace]\ndefault-members = [\"crates/low\", \"crates/aid\"]";
        let files = [
            ("Cargo.toml", root),
            ("crates/aid/Cargo.toml", ""),
            (HIGH, ""),
        ];
        assert_eq!(
            messages(&files),
            [
                "low is a default member and does not exist",
                "aid is optional and so no default member"
            ]
        );
        assert_eq!(messages(&[(LOW, "[broken")]), ["is not TOML"]);
    }

    /// The architecture must name each crate by its whole name.
    #[test]
    fn a_crate_that_the_architecture_does_not_name_is_found() {
        let check = |text| {
            let tree = SourceTree::planted([("ARCHITECTURE.md", text), (HIGH, ""), (LOW, "")]);
            check_architecture_names_crates(&tree, TABLE).len()
        };
        assert_eq!(check("`farleaf-low` and farleaf-high."), 0);
        assert_eq!(check("`farleaf-lower` and farleaf-high."), 1);
        assert_eq!(
            check_architecture_names_crates(&SourceTree::planted([]), TABLE).len(),
            1
        );
    }
}
