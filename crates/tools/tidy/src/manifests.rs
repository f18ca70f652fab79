//! Checks that every crate has a description in its manifest and documentation at its root, and
//! uses the workspace's lints.

use toml::{Table, Value};

use crate::layers::{name_of_folder, package_name};
use crate::{SourceTree, Violation};

/// Checks manifest and root file of every crate in crates/.
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (folder, text) in tree.crates() {
        let path = format!("crates/{folder}/Cargo.toml");
        match text.parse::<Table>() {
            Ok(manifest) => violations
                .extend(manifest_faults(folder, &manifest).map(|it| Violation::in_file(&path, it))),
            Err(_) => violations.push(Violation::in_file(&path, "invalid TOML; correct it")),
        }
        violations.extend(undocumented_roots(tree, folder));
    }
    violations
}

fn manifest_faults(folder: &str, manifest: &Table) -> impl Iterator<Item = String> {
    let package = |key| {
        manifest
            .get("package")
            .and_then(|it| it.get(key))
            .and_then(Value::as_str)
    };
    let lints = manifest
        .get("lints")
        .and_then(|it| it.get("workspace"))
        .and_then(Value::as_bool);
    let name = package_name(name_of_folder(folder));
    let described = package("description").is_some_and(|it| !it.trim().is_empty());
    let named = package("name") == Some(name.as_str());
    let linted = lints == Some(true);
    let faults = [
        (!described).then(|| "`description` is missing or empty; add one".to_owned()),
        (!named).then(|| format!("package name does not match the folder; name it '{name}'")),
        (!linted).then(|| "workspace lints are off; add `[lints] workspace = true`".to_owned()),
    ];
    faults.into_iter().flatten()
}

fn undocumented_roots(tree: &SourceTree, folder: &str) -> Vec<Violation> {
    let paths = ["lib.rs", "main.rs"].map(|file| format!("crates/{folder}/src/{file}"));
    let mut roots = paths
        .iter()
        .filter_map(|it| Some((it, tree.text(it)?)))
        .peekable();
    if roots.peek().is_none() {
        let folder = format!("crates/{folder}/src");
        return vec![Violation::in_file(
            &folder,
            "crate has neither lib.rs nor main.rs; add one",
        )];
    }
    roots
        .filter(|(_, text)| !text.trim_start().starts_with("//!"))
        .map(|(path, _)| {
            Violation::in_file(
                path,
                "crate documentation is missing; begin the file with `//!`",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "[package]\nname = \"farleaf-a\"\ndescription = \"A\"\n[lints]\nworkspace = true";

    fn messages(manifest: &str, roots: &[(&str, &str)]) -> Vec<String> {
        let files = [("crates/a/Cargo.toml", manifest)];
        let tree = SourceTree::planted(files.into_iter().chain(roots.iter().copied()));
        check(&tree).into_iter().map(|it| it.message).collect()
    }

    /// Promise: a complete crate passes.
    #[test]
    fn a_complete_crate_passes() {
        let roots = [
            ("crates/a/src/lib.rs", "\n//! A.\n"),
            ("crates/a/src/main.rs", "//! B."),
        ];
        assert_eq!(messages(GOOD, &roots), Vec::<String>::new());
    }

    /// Promise: each missing part of a manifest is found.
    #[test]
    fn a_bare_manifest_is_found() {
        let root = [("crates/a/src/lib.rs", "//! A.")];
        let wanted = [
            "`description` is missing or empty; add one",
            "package name does not match the folder; name it 'farleaf-a'",
            "workspace lints are off; add `[lints] workspace = true`",
        ];
        assert_eq!(messages("", &root), wanted);
        let hollow = GOOD.replace("\"A\"", "\" \"").replace("= true", "= false");
        assert_eq!(messages(&hollow, &root), [wanted[0], wanted[2]]);
        assert_eq!(messages("[broken", &root), ["invalid TOML; correct it"]);
    }

    /// Promise: a root without documentation, and a crate without a root, are found.
    #[test]
    fn an_undocumented_root_is_found() {
        let bare = [
            ("crates/a/src/lib.rs", "//! A."),
            ("crates/a/src/main.rs", "// B.\nfn main"),
        ];
        assert_eq!(
            messages(GOOD, &bare),
            ["crate documentation is missing; begin the file with `//!`"]
        );
        assert_eq!(
            messages(GOOD, &[]),
            ["crate has neither lib.rs nor main.rs; add one"]
        );
    }
}
