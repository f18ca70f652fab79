//! Passes the commit of the checkout to the program.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    println!(
        "cargo:rustc-env=FARLEAF_COMMIT={}",
        commit.as_deref().unwrap_or("unknown")
    );
    // HEAD changes with the branch, its log with every commit. Cargo counts a missing file as
    // changed, and would build each time.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", name]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

/// Returns the output of git; `None` without git, outside a repository, and before the first
/// commit.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output
        .status
        .success()
        .then(|| said.trim().to_owned())
        .filter(|said| !said.is_empty())
}
