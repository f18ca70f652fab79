//! `farleaf completions` and `farleaf man`, and the help of commands.

use crate::pool::Place;

/// Promise: a completion script names the commands, for each shell, and needs no server.
#[test]
fn completions_are_printed_for_each_shell() {
    let place = Place::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = place.farleaf(&["completions", shell]).quietly();
        assert!(
            script.contains("farleaf") && script.contains("compare"),
            "{shell}"
        );
        // `figures rolex --output` is hidden: it names the option that replaced it.
        let figures = place.farleaf(&["figures", "rolex", "--help"]).quietly();
        assert!(!figures.contains("--output") && figures.contains("--to"));
        assert!(!script.contains("The option that"), "{shell}");
        assert!(script.contains("secret-file"), "{shell}");
    }
    let wrong = place.farleaf(&["completions", "tcsh"]);
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("bash, elvish, fish"), "{wrong:?}");
}

/// Promise: there is a manual page for each command, in a folder that is created; a folder that
/// cannot be created is named.
#[test]
fn manual_pages_are_written() {
    let place = Place::new();
    let output = place.farleaf(&["man", "--to", "pages/man1"]).quietly();
    assert!(output.contains("pages/man1/farleaf.1"), "{output}");
    for (name, option) in [
        ("farleaf.1", "FARLEAF_SECRET"),
        ("farleaf-put.1", "durability"),
    ] {
        let page = std::fs::read_to_string(place.path().join("pages/man1").join(name));
        let page = page.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            page.starts_with(".ie") && page.contains(option),
            "{name}: {page}"
        );
    }
    for page in std::fs::read_dir(place.path().join("pages/man1")).expect("written") {
        let name = page.expect("an entry").file_name();
        assert!(!name.to_string_lossy().contains("-help"), "{name:?}");
    }
    place.file("file", "");
    let refused = place.farleaf(&["man", "--to", "file/man1"]);
    assert_eq!(refused.status, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("cannot create folder 'file/man1'"),
        "{refused:?}"
    );
}

/// Promise: the help of a command has its own options and no global ones, which `farleaf --help`
/// lists.
#[test]
fn global_options_are_listed_once() {
    let place = Place::new();
    let put = place.farleaf(&["put", "--help"]).quietly();
    assert!(
        put.contains("--value-file") && !put.contains("--secret-file <FILE>"),
        "{put}"
    );
    assert!(put.contains("see `farleaf --help`"), "{put}");
    let all = place.farleaf(&["--help"]).quietly();
    assert!(
        all.contains("Global options:") && all.contains("--secret-file <FILE>"),
        "{all}"
    );
}
