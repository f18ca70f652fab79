//! Invalid input: every message says what is wrong, where, and what to do; nothing panics.

use std::io::Write;
use std::process::Stdio;

use flate2::{Compression, write::GzEncoder};

use crate::errors_page::write_row;
use crate::pool::{Place, Ran};

/// Invalid command, with its complete expected stderr and exit status.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) arguments: &'static [&'static str],
    pub(crate) status: i32,
    fragments: &'static [&'static str],
}

pub(crate) const fn case(
    arguments: &'static [&'static str],
    status: i32,
    fragments: &'static [&'static str],
) -> Case {
    Case {
        arguments,
        status,
        fragments,
    }
}

/// End of the message for unknown bugs, which names the command that lists them.
const PLANTS: &str = "is not a bug that can be planted; `farleaf sim check --help` lists them";

/// Invalid arguments that are rejected without a pool.
#[rustfmt::skip]
pub(crate) const ARGUMENTS: &[Case] = &[
    case(&["serve", "--size", "5"], 2, &["--size", "5 bytes is too small", "2097152", "64MiB"]),
    case(&["serve", "--size", "900TiB"], 1, &["shm:default", "memory", "serve a smaller pool"]),
    case(&["serve", "--size", "1GB"], 2, &["'1GB'", "2GiB"]),
    case(&["serve", "--size", "-1"], 2, &["'-1'", "--size", "64MiB"]),
    case(&["serve", "--retrain-threads", "2"], 2, &["--retrain-threads is 2", "1, or 0"]),
    case(&["serve", "--name", "a/b"], 2, &["--name", "'a/b' is not a valid pool name", "A-Z"]),
    case(&["--pool", "shm:x", "serve"], 2, &["--pool cannot be used here", "--name NAME"]),
    case(&["bench", "--pool", "shm:x"], 2, &["--pool cannot be used here", "--fabric"]),
    case(&["--pool", "shm:x", "sim", "check"], 2, &["--pool cannot be used here", "`sim`"]),
    case(&["--pool", "shm:x", "figures", "rolex"], 2, &["--pool cannot be used", "`figures`"]),
    case(&["figures", "rolex", "--experiments", "none.toml"], 1, &["none.toml", "No such file"]),
    case(&["sim", "network", "--profile", "cx9"], 2, &["'cx9'", "No such file"]),
    case(&["sim", "check", "--threads", "5000"], 2, &["'5000'", "--threads", "at most 1024"]),
    case(&["sim", "check", "--runs", "0"], 2, &["'0'", "--runs", "at least one"]),
    case(&["sim", "check", "--seed", "-1"], 2, &["'-1'", "--seed", "whole number from 0"]),
    case(&["sim", "check", "--profile", "mild"], 2, &["'mild'", "'calm'", "'node-loss'", "'all'"]),
    case(
        &["sim", "check", "--profile", "all", "--plant", "moved-at-once"],
        2,
        &["--profile all cannot be used with --plant", "'retraining'", "leave --profile out"],
    ),
    case(&["sim", "check", "--plant", "moth"], 2, &["'moth'", PLANTS]),
    case(&["sim", "messages", "--plant", "moth"], 2, &["'moth'", "'tag-first', 'place-reused-early'"]),
    case(
        &["sim", "check", "--seed", "18446744073709551615", "--runs", "2"],
        2,
        &["--seed 18446744073709551615 is too large for 2 runs", "fewer --runs"],
    ),
    case(&["--pool", "tcp:h:1", "stats"], 1, &["tcp:h:1 cannot be reached", "farleaf serve"]),
    case(&["--pool", "tcp:127.0.0.1:1", "stats"], 1, &["tcp:127.0.0.1:1 cannot be reached", "refused"]),
    case(&["--pool", "tcp:", "stats"], 2, &["cannot use pool address 'tcp:'", "HOST:PORT"]),
    case(&["--pool", "tcp:host", "stats"], 2, &["cannot use pool address 'tcp:host'", "HOST:PORT"]),
    case(&["--pool", "tcp::80", "stats"], 2, &["cannot use pool address 'tcp::80'", "HOST:PORT"]),
    case(&["--pool", "tcp:h:0", "stats"], 2, &["cannot use pool address 'tcp:h:0'", "from 1 to 65535"]),
    case(&["--pool", "tcp:h:65536", "stats"], 2, &["cannot use pool address 'tcp:h:65536'", "from 1 to 65535"]),
    case(&["--pool", "udp:h:1", "stats"], 2, &["cannot use pool address 'udp:h:1'", "'tcp:HOST:PORT'"]),
    case(&["--pool", "default", "stats"], 2, &["cannot use pool address 'default'", "'shm:NAME'"]),
    case(&["--pool", "shm:", "stats"], 2, &["cannot use pool address 'shm:'"]),
    case(&["--pool", "mem:", "get", "1"], 2, &["'mem:' pool exists only in the process", "farleaf serve"]),
    case(
        &["--pool", "shm:none", "get", "1"],
        1,
        &["shm:none cannot be reached", "/run/none.sock", "FARLEAF_RUNTIME_DIR", "farleaf serve"],
    ),
    case(&["frobnicate"], 2, &["'frobnicate'", "--help"]),
    case(&["get"], 2, &["<KEY>"]),
    case(&["put", "1"], 2, &["<VALUE>"]),
    case(&["scan", "--limit", "some"], 2, &["'some'", "--limit", "250000"]),
    case(&["load", "f", "--slots", "16"], 2, &["--slots cannot be used without --create", "existing table"]),
    case(&["load", "f", "--index", "rolex"], 2, &["--index cannot be used without --create"]),
    case(&["load", "f", "--fill", "50"], 2, &["--fill cannot be used without --create"]),
    case(&["load", "f", "--epsilon", "8"], 2, &["--epsilon cannot be used without --create"]),
    case(&["table", "create", "t", "--slots", "9"], 2, &["'9'", "--slots", "8, 12 or 16"]),
    case(&["table", "create", "t", "--fill", "101"], 2, &["'101'", "--fill", "25 to 100"]),
    case(&["table", "create", "t", "--epsilon", "0"], 2, &["'0'", "--epsilon", "0.5 to 1024"]),
    case(&["table", "create", "t", "--epsilon", "NaN"], 2, &["'NaN'", "0.5 to 1024"]),
    case(&["table", "create", "t", "--index", "btree"], 2, &["'btree'", "'sherman', 'cell', 'xstore' or 'rpc'"]),
];

#[rustfmt::skip]
pub(crate) const BENCH: &[Case] = &[
    case(&["bench", "replication", "--kind", "send"], 2, &["`send`", "--kind", "none, sent or built"]),
    case(&["bench", "replication", "--workload", "E"], 2, &["--workload is E", "A to D"]),
    case(&["bench", "replication", "--workload", "Z"], 2, &["`Z`", "A to F"]),
    case(&["bench", "replication", "--regions", "0"], 2, &["--regions is 0", "1 to 64"]),
    case(&["bench", "replication", "--regions", "-1"], 2, &["'-1'", "--regions"]),
    case(&["bench", "replication", "--records", "0"], 2, &["'0'", "--records", "at least one"]),
    case(&["bench", "replication", "--threads", "1k"], 2, &["--threads is 1000", "1 to 256"]),
    case(&["bench", "replication", "--background", "17"], 2, &["--background is 17", "1 to 16"]),
    case(&["bench", "replication", "--value-size", "XL"], 2, &["'XL'", "SD, MD or LD"]),
    case(&["bench", "replication", "--value-size", "7"], 2, &["--value-size is 7", "8 to 1048576"]),
    case(&["bench", "replication", "--growth-factor", "1"], 2, &["--growth-factor is 1", "2 to"]),
    case(&["bench", "replication", "--promise", "disk"], 2, &["`disk`", "memory or sync"]),
    case(&["bench", "replication", "--fabric", "shm"], 2, &["`shm`", "mem or tcp"]),
    case(&["bench", "replication", "--rounds", "0"], 2, &["--rounds is 0", "1 to 100"]),
    case(&["bench", "replication", "--directory", "no"], 2, &["--directory is no", "an existing directory"]),
    case(&["bench", "replication", "--rdma-port", "1"], 2, &["--rdma-port cannot be used here"]),
    case(&["figures", "talos", "--directory", "no"], 2, &["--directory is no", "an existing directory"]),
    case(&["figures", "talos", "--regions", "65"], 2, &["--regions is 65", "1 to 64"]),
    case(&["bench", "ycsb", "--records", "0"], 2, &["'0'", "--records", "at least one"]),
    case(&["bench", "ycsb", "--operations", "0"], 2, &["'0'", "--operations", "at least one"]),
    case(&["bench", "ycsb", "--records", "1e6"], 2, &["'1e6'", "10_000_000"]),
    case(&["bench", "ycsb", "--records", "900G"], 2, &["records", "900000000000"]),
    case(&["bench", "ycsb", "--threads", "100000"], 2, &["threads", "100000", "from 1 to 1000"]),
    case(&["bench", "ycsb", "--threads", "0"], 2, &["'0'", "--threads", "at least one"]),
    case(&["bench", "ycsb", "--in-flight", "0"], 2, &["'0'", "--in-flight", "at least one"]),
    case(&["bench", "ycsb", "--in-flight", "5k"], 2, &["--in-flight", "5000", "1 to 4096"]),
    case(&["bench", "ycsb", "--threads", "-4"], 2, &["'-4'", "--threads", "expected a count"]),
    case(&["bench", "ycsb", "--slots", "9"], 2, &["'9'", "--slots", "8, 12 or 16"]),
    case(&["bench", "ycsb", "--workload", "G"], 2, &["`G`", "A to F"]),
    case(&["bench", "ycsb", "--fabric", "ib"], 2, &["'ib'", "--fabric", "mem", "shm"]),
    case(&["bench", "ycsb", "--dataset", "files"], 2, &["`files`", "uniform", "keys:FILE"]),
    case(&["bench", "ycsb", "--distribution", "flat"], 2, &["flat", "uniform", "zipfian"]),
    case(&["bench", "ycsb", "--keys", "k", "--dataset", "normal"], 2, &["--keys", "--dataset"]),
    case(&["bench", "ycsb", "--output", "xml"], 2, &["'xml'", "text", "json"]),
    case(&["bench", "ycsb", "--keys", "none.txt", "--records", "9"], 1, &["none.txt", "No such"]),
    case(&["bench", "ycsb", "--keys", "bad.txt", "--records", "1"], 1, &["bad.txt:3", "three"]),
    case(&["bench", "ycsb", "--keys", "two.txt", "--records", "9"], 1, &["two.txt", "2", "9"]),
    case(&["bench", "ycsb", "--link-count-max", "-1"], 2, &["'-1'", "--link-count-max", "from 0"]),
    case(
        &["bench", "ycsb", "--index", "rf-tree,fg", "--link-count-max", "1"],
        2,
        &["--link-count-max is given with --index fg", "rf-tree, whose clients cache the whole tree"],
    ),
    case(&["bench", "costs", "--index", "btree"], 2, &["'btree' is not a search layer", "--index"]),
    case(
        &["bench", "costs", "--records", "1k"],
        2,
        &["--operations is 100000", "at most --records (1000)"],
    ),
];

/// Invalid arguments of `bench budget`.
#[rustfmt::skip]
pub(crate) const BUDGETS: &[Case] = &[
    case(&["bench", "ycsb", "--metadata-budget", "1023"], 2, &["--metadata-budget is 1023 bytes", "at least 1024 bytes"]),
    case(&["bench", "ycsb", "--metadata-budget", "1MB"], 2, &["'1MB'", "--metadata-budget", "64MiB"]),
    case(
        &["bench", "ycsb", "--index", "rolex", "--metadata-budget", "1GiB"],
        2,
        &["--metadata-budget is given with --index rolex", "learned, sherman or cell"],
    ),
    case(&["bench", "budget", "--budgets", "50,0"], 2, &["--budgets is 0", "above 0"]),
    case(&["bench", "budget", "--budgets", "-5"], 2, &["--budgets is -5", "above 0"]),
    case(&["bench", "budget", "--budgets", "half"], 2, &["'half'", "--budgets", "such as 25"]),
    case(&["bench", "budget", "--distribution", "latest"], 2, &["--distribution is latest", "uniform or zipfian"]),
    case(
        &["bench", "budget", "--records", "1k", "--operations", "1", "--fabric", "mem"],
        1,
        &["--budgets is", "at least 1024 bytes"],
    ),
    case(&["bench", "budget", "--to", "thesis"], 1, &["folder 'thesis'", "ch1.tex"]),
];

/// Invalid arguments of `bench timeline`.
#[rustfmt::skip]
pub(crate) const TIMELINE: &[Case] = &[
    case(&["bench", "timeline", "--pattern", "spiral"], 2, &["`spiral`", "--pattern", "window or shrink"]),
    case(
        &["bench", "timeline", "--to", "9k"],
        2,
        &["--to names the folder for the files", "use --last-keys 9k", "--to ./9k"],
    ),
    case(
        &["bench", "timeline", "--first-keys", "10k", "--last-keys", "9k"],
        2,
        &["--last-keys is 9000: it must be above --first-keys (10000)"],
    ),
    case(&["bench", "timeline", "--last-keys", "900G"], 2, &["--last-keys is 900000000000", "at most 4294967296"]),
    case(&["bench", "timeline", "--last-keys", "4G"], 1, &["4000000000 keys need", "--size"]),
    case(
        &["bench", "timeline", "--pattern", "window", "--last-keys", "5"],
        2,
        &["--last-keys cannot be used with --pattern window, which takes --keys and --inserts"],
    ),
    case(&["bench", "timeline", "--keys", "5"], 2, &["--keys cannot be used with --pattern uniform"]),
    case(
        &["bench", "timeline", "--pattern", "shrink", "--delete", "100"],
        2,
        &["--delete is 100: it must be from 1 to 99 (percent)"],
    ),
    case(&["bench", "timeline", "--pattern", "shrink", "--first-keys", "1"], 2, &["--first-keys is 1", "at least 2"]),
    case(&["bench", "timeline", "--interval", "0"], 2, &["--interval is 0", "from 0.1 to 3600"]),
    case(&["bench", "timeline", "--interval", "-1"], 2, &["'-1'", "--interval", "0 seconds or more"]),
    case(&["bench", "timeline", "--settle", "soon"], 2, &["'soon'", "--settle", "such as 1 or 0.5"]),
    case(&["bench", "timeline", "--reads", "100"], 2, &["--reads is 100", "from 0 to 99"]),
    case(&["bench", "timeline", "--threads", "100000"], 2, &["--threads is 100000", "from 1 to 1000"]),
    case(&["bench", "timeline", "--retrain-threads", "2"], 2, &["--retrain-threads is 2", "from 0 to 1"]),
    case(&["bench", "timeline", "--size", "1GB"], 2, &["'1GB'", "2GiB"]),
    case(
        &["bench", "timeline", "--pattern", "shrink", "--size", "4MiB"],
        1,
        &["the store failed while loading", "full"],
    ),
    case(
        &["bench", "timeline", "--to", "thesis"],
        1,
        &["'thesis' has a file that `farleaf bench timeline` did not write", "ch1.tex"],
    ),
    case(
        &["bench", "timeline", "--to", "drawn"],
        1,
        &["'drawn' has a file that `farleaf bench timeline` did not write"],
    ),
];

/// Invalid files, of which nothing is loaded.
#[rustfmt::skip]
pub(crate) const FILES: &[Case] = &[
    case(&["load", "none.txt"], 1, &["nothing was loaded", "none.txt", "No such file"]),
    case(&["load", "folder"], 1, &["nothing was loaded", "'folder' is a directory", "stdin"]),
    case(&["load", "bad.txt"], 1, &["nothing was loaded", "bad.txt:3: 'three' is not a valid record"]),
    case(&["load", "large.txt"], 1, &["large.txt:2: '18446744073709551616' is not a valid record"]),
    case(&["load", "minus.txt"], 1, &["minus.txt:1: '-1' is not a valid record", "whole number from 0"]),
    case(&["load", "gap.txt"], 1, &["gap.txt:2: '' is not a valid record", "found an empty line"]),
    case(&["load", "mixed.txt"], 1, &["mixed.txt:2: '3' is not a valid record", "line 1 has a value"]),
    case(&["load", "twice.txt"], 1, &["twice.txt:3: duplicate key 1, first on line 1", "remove one"]),
    case(&["load", "cut.gz"], 1, &["nothing was loaded", "cannot read 'cut.gz'", "truncated"]),
    case(&["load", "two.txt", "-t", "other"], 1, &["table 'other' does not exist in shm:default", "--create"]),
    case(
        &["load", "two.txt", "--create", "--slots", "16"],
        1,
        &[
            "nothing was loaded",
            "leave out --create",
            "slots 8 instead of the requested 16",
        ],
    ),
];

#[rustfmt::skip]
pub(crate) const TABLES: &[Case] = &[
    case(&["table", "create", "default", "--kind", "words"], 1, &["table 'default' already exists", "same"]),
    case(&["table", "create", "default"], 1, &["table 'default' already exists", "kind words instead of the requested bytes"]),
    case(
        &["table", "create", "default", "--slots", "12"],
        1,
        &[
            "table 'default' already exists",
            "slots 8 instead of the requested 12",
        ],
    ),
    case(&["table", "create", ""], 2, &["table name", "1 to"]),
    case(&["table", "create", "a\nb"], 2, &["table name", "control characters"]),
    case(&["table", "drop", "other"], 1, &["table 'other' does not exist in shm:default", "table list"]),
    case(&["get", "1", "--table", "other"], 1, &["table 'other' does not exist in shm:default", "table list"]),
    case(&["stats", "--table", "other"], 1, &["table 'other' does not exist in shm:default", "table list"]),
];

/// Invalid experiments, profiles and folders of `figures`.
#[rustfmt::skip]
pub(crate) const FIGURES: &[Case] = &[
    case(
        &["figures", "rolex", "--experiments", "twice.toml"],
        2,
        &["twice.toml: slots of figure 'figure-11b': 8 is listed twice"],
    ),
    case(
        &["figures", "rolex", "--profile", "few.toml"],
        2,
        &["figure 'figure-10' = 24", "profile 'rolex' has 8", "use fewer"],
    ),
    case(&["figures", "rolex", "-o", "thesis"], 2, &["the folder of the figures is named by --to", "`--to thesis`"]),
    case(&["figures", "rolex", "--to", "thesis"], 1, &["folder 'thesis' has a file", "'ch1.tex'", "new or empty folder"]),
    case(&["figures", "talos", "--to", "thesis"], 1, &["folder 'thesis' has a file", "'ch1.tex'", "new or empty folder"]),
    case(&["figures", "rolex", "--to", "two.txt"], 1, &["'two.txt' is a file, not a folder; name a new"]),
    case(&["figures", "rolex", "--to", "dangling"], 1, &["'dangling' is a symbolic link without a target"]),
    case(&["figures", "rolex", "--to", "blocked"], 1, &["'blocked/index.html' already exists"]),
    case(&["figures", "rolex", "--threads", "5000"], 2, &["'5000'", "--threads", "at most 1024"]),
    case(
        &["figures", "rolex", "--experiments", "blank.toml"],
        2,
        &["blank.toml: the file is empty; copy experiments/rolex.toml"],
    ),
    case(
        &["figures", "rolex", "--experiments", "cx9.toml"],
        2,
        &["cx9.toml: key profile: cannot read profile 'cx9': No such file"],
    ),
    case(
        &["figures", "rolex", "--experiments", "keys.toml"],
        2,
        &["keys.toml: defaults.keys = 'keys:bad.txt': bad.txt:3: expected a decimal key"],
    ),
    case(
        &["sim", "network", "--profile", "again.toml"],
        2,
        &["again.toml: published: measure = \"read\" with size_bytes = 8 is given twice"],
    ),
    case(&["sim", "network", "--profile", "huge.toml"], 2, &["huge.toml: nic.mtu_bytes = 1e300"]),
    case(&["sim", "network", "--profile", "path.toml"], 2, &["path.toml: name = '../x': must be"]),
];

pub(crate) fn check(place: &Place, case: &Case) {
    let ran = place.farleaf(case.arguments);
    if std::env::var_os("FARLEAF_WRITE_DOCS").is_some() {
        // The directory of a test is another one each time.
        let runtime_directory = place.runtime_directory().display().to_string();
        let stderr = ran
            .stderr
            .replace(&runtime_directory, "/run/user/1000/farleaf");
        write_row(case, &stderr);
    }
    assert_told(case, &ran);
}

fn assert_told(case: &Case, ran: &Ran) {
    let command = case.arguments.join(" ");
    assert_eq!(ran.status, Some(case.status), "farleaf {command}: {ran:?}");
    assert_eq!(ran.stdout, "", "farleaf {command}");
    assert!(
        ran.stderr.starts_with("error: "),
        "farleaf {command}: {}",
        ran.stderr
    );
    for fragment in case.fragments {
        assert!(
            ran.stderr.contains(fragment),
            "farleaf {command}: no {fragment:?} in: {}",
            ran.stderr
        );
    }
    assert!(ran.stderr.len() < 700, "farleaf {command}: {}", ran.stderr);
}

fn place_with_files() -> Place {
    let place = Place::new();
    for (name, content) in [
        ("empty.txt", ""),
        ("bad.txt", "1\n2\nthree\n4\n"),
        ("large.txt", "1\n18446744073709551616\n"),
        ("minus.txt", "-1\n"),
        ("gap.txt", "1\n\n2\n"),
        ("mixed.txt", "1 2\n3\n"),
        ("twice.txt", "1\n2\n1\n"),
        ("two.txt", "1\n2\n"),
    ] {
        place.file(name, content);
    }
    std::fs::create_dir(place.path().join("folder")).expect("a directory");
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(b"1\n2\n3\n4\n5\n").expect("in memory");
    let packed = packed.finish().expect("in memory");
    place.file("cut.gz", &packed[..packed.len() - 5]);
    place
}

/// Promise: invalid arguments are rejected before any pool is contacted.
#[test]
fn bad_arguments_are_refused() {
    let place = Place::new();
    for case in ARGUMENTS {
        check(&place, case);
    }
}

/// Promise: absurd benchmarks are rejected before they take memory or time.
#[test]
fn absurd_benchmarks_are_refused() {
    let place = place_with_files();
    for case in BENCH {
        check(&place, case);
    }
}

/// Promise: invalid timelines are rejected before they take memory or time. A folder with other
/// files, or of another command, is left unchanged.
#[test]
fn timelines_that_cannot_be_are_refused() {
    let place = Place::new();
    let thesis = place.path().join("thesis");
    std::fs::create_dir(&thesis).expect("a directory");
    std::fs::write(thesis.join("ch1.tex"), "mine").expect("written");
    let drawn = place.path().join("drawn");
    std::fs::create_dir(&drawn).expect("a directory");
    let list = "Written by `farleaf figures`; the next run into this folder removes:\nindex.html\n";
    std::fs::write(drawn.join("files-of-this-run.txt"), list).expect("written");
    for case in BUDGETS.iter().chain(TIMELINE) {
        check(&place, case);
    }
    for folder in [thesis, drawn] {
        let entries = std::fs::read_dir(folder).expect("there").count();
        assert_eq!(entries, 1, "nothing was put beside it");
    }
}

/// Experiments of the repository, of which each file here is a changed copy.
const EXPERIMENTS: &str = include_str!("../../../../experiments/rolex.toml");
const PROFILE: &str = include_str!("../../../tools/sim/profiles/rolex.toml");

fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "nothing to replace: {from}");
    text.replacen(from, to, 1)
}

/// Promise: invalid experiments, profiles and folders are rejected before anything runs, and files
/// in a folder are kept.
#[test]
fn bad_figures_are_refused() {
    let place = place_with_files();
    let twice = changed(EXPERIMENTS, "slots = [8, 12, 16]", "slots = [8, 12, 8]");
    place.file("twice.toml", &twice);
    place.file("blank.toml", "# later\n");
    let cx9 = changed(EXPERIMENTS, "profile = \"rolex\"", "profile = \"cx9\"");
    place.file("cx9.toml", &cx9);
    let keys = changed(
        EXPERIMENTS,
        "value = \"uniform\"",
        "value = \"keys:bad.txt\"",
    );
    place.file("keys.toml", &keys);
    let first = PROFILE.split("[[published]]").nth(1).expect("a figure");
    place.file("again.toml", format!("{PROFILE}\n[[published]]{first}"));
    std::os::unix::fs::symlink("nowhere", place.path().join("dangling")).expect("a link");
    let blocked = place.path().join("blocked");
    std::fs::create_dir_all(blocked.join("index.html")).expect("directories");
    let list = "Written by `farleaf figures`; the next run into this folder removes:\nindex.html\n";
    std::fs::write(blocked.join("files-of-this-run.txt"), list).expect("written");
    for (name, from, to) in [
        (
            "few.toml",
            "threads_per_node = { value = 24",
            "threads_per_node = { value = 8",
        ),
        (
            "huge.toml",
            "mtu_bytes = { value = 4096",
            "mtu_bytes = { value = 1e300",
        ),
        ("path.toml", "name = \"rolex\"", "name = \"../x\""),
    ] {
        place.file(name, changed(PROFILE, from, to));
    }
    let thesis = place.path().join("thesis");
    std::fs::create_dir(&thesis).expect("a directory");
    std::fs::write(thesis.join("ch1.tex"), "mine").expect("written");
    for case in FIGURES {
        check(&place, case);
    }
    let entries = std::fs::read_dir(&thesis).expect("there").count();
    assert_eq!(entries, 1, "nothing was put beside it");
}

/// Promise: a profile without published measurements ends the self-check with a status of its own.
#[test]
fn a_testbed_that_nothing_is_published_of_is_told() {
    let place = Place::new();
    let unpublished = PROFILE.split("[[published]]").next().expect("a beginning");
    place.file("own.toml", unpublished);
    let ran = place.farleaf(&["sim", "network", "--profile", "own.toml"]);
    assert_eq!(ran.status, Some(3), "{ran:?}");
    assert!(ran.stdout.contains("Nothing to compare"), "{ran:?}");
    let ran = place.farleaf(&["sim", "network"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(
        ran.stdout.contains("alone ns") && ran.stdout.contains("2000"),
        "{ran:?}"
    );
}

/// Promise: nothing of an invalid file is loaded, and the message says so.
#[test]
fn bad_files_are_not_loaded() {
    let place = place_with_files();
    let _server = place.serve(&["--size", "8MiB"]);
    place
        .farleaf(&["table", "create", "default", "--kind", "words"])
        .quietly();
    for case in FILES {
        check(&place, case);
        assert_eq!(
            place.farleaf(&["scan"]).quietly(),
            "",
            "of {:?}",
            case.arguments
        );
    }
    assert_eq!(
        place
            .farleaf(&["table", "list"])
            .quietly()
            .matches("learned")
            .count(),
        1
    );
}

/// Promise: a load of an invalid file creates no table.
#[test]
fn a_bad_file_makes_no_table() {
    let place = place_with_files();
    let _server = place.serve(&["--size", "8MiB"]);
    assert_eq!(
        place.farleaf(&["load", "bad.txt", "--create"]).status,
        Some(1)
    );
    assert!(
        place
            .farleaf(&["table", "list"])
            .quietly()
            .contains("has no tables")
    );
}

/// Promise: unknown tables, existing tables and invalid names are reported.
#[test]
fn bad_tables_are_told() {
    let place = Place::new();
    let _server = place.serve(&["--size", "8MiB"]);
    place
        .farleaf(&["table", "create", "default", "--kind", "words"])
        .quietly();
    for case in TABLES {
        check(&place, case);
    }
}

/// Promise: a closed stdin has no records, and does not crash the command.
#[test]
fn a_closed_stdin_has_no_records() {
    let place = Place::new();
    let _server = place.serve(&["--size", "8MiB"]);
    place
        .farleaf(&["table", "create", "default", "--kind", "words"])
        .quietly();
    let script = format!("exec {} load - <&-", env!("CARGO_BIN_EXE_farleaf"));
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", &script])
        .env("FARLEAF_RUNTIME_DIR", place.runtime_directory());
    let ran: Ran = shell.stdin(Stdio::null()).output().expect("a shell").into();
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert_eq!(
        ran.stdout,
        "loaded 0 records of stdin into table 'default', which holds 64-bit words\n"
    );
    assert_eq!(ran.stderr, "stdin is empty: 0 records loaded\n");
}
