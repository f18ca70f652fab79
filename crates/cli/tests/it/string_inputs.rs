//! Invalid input about tables of byte strings, and about tables of the wrong kind; `bad_inputs` has
//! the checks.

use std::io::Write;
use std::time::{Duration, Instant};

use flate2::{Compression, write::GzEncoder};

use crate::bad_inputs::{Case, case, check};
use crate::pool::{PATIENCE, Place};

/// Invalid arguments that are rejected without a pool.
#[rustfmt::skip]
const ARGUMENTS: &[Case] = &[
    case(&["table", "create", "t", "--kind", "strings"], 2, &["'strings'", "--kind"]),
    case(&["table", "create", "t", "--page-size", "4096"], 2, &["'4096'", "--page-size", "512, 1024 or 2048"]),
    case(&["table", "create", "t", "--inline-value", "-1"], 2, &["'-1'", "--inline-value", "expected a size"]),
    case(&["table", "create", "t", "--kind", "bytes", "--slots", "8"], 2, &["--slots cannot be used with --kind bytes", "use --kind words"]),
    case(&["table", "create", "t", "--kind", "bytes", "--index", "rolex"], 2, &["--index rolex cannot be used with --kind bytes"]),
    case(&["table", "create", "t", "--kind", "words", "--page-size", "512"], 2, &["--page-size cannot be used with --kind words", "use --kind bytes"]),
    case(&["table", "create", "t", "--slots", "8", "--inline-value", "64"], 2, &["--inline-value cannot be used with --slots", "leave one out"]),
    case(&["--pool", "shm:a,shm:b", "table", "create", "t", "--kind", "bytes"], 2, &["a --pool with several addresses cannot be used with --kind bytes"]),
    case(&["load", "f", "--kind", "bytes"], 2, &["--kind cannot be used without --create", "existing table"]),
    case(&["load", "f", "--page-size", "512"], 2, &["--page-size cannot be used without --create"]),
    case(&["load", "f", "--inline-value", "9"], 2, &["--inline-value cannot be used without --create"]),
    case(&["load", "f", "--format", "xml"], 2, &["'xml'", "--format"]),
    case(&["dump", "--format", "csv"], 2, &["'csv'", "--format"]),
    case(&["get", "--raw", "a", "b"], 2, &["--raw needs exactly one key", "name one key"]),
    case(&["get", "--raw", "a", "--output", "json"], 2, &["--raw", "--output"]),
    case(&["get", "--hex", "--escaped", "61"], 2, &["--hex", "--escaped"]),
    case(&["put", "a", "b", "--value-file", "f"], 2, &["<VALUE>", "--value-file"]),
    case(&["scan", "--prefix", "a", "--to", "b"], 2, &["--prefix", "--to"]),
    case(&["scan", "a", "--from", "b"], 2, &["FROM", "--from"]),
    case(&["del"], 2, &["<KEY>"]),
    case(&["del", "a", "--prefix", "b"], 2, &["KEY", "--prefix"]),
];

/// Invalid arguments for a pool with a table `w` of words and a table `b` of bytes, both empty.
#[rustfmt::skip]
const KINDS: &[Case] = &[
    case(&["get", "18446744073709551616", "-t", "w"], 2, &["invalid value '18446744073709551616' for the key in table 'w'", "to 18446744073709551615"]),
    case(&["get", "-1", "-t", "w"], 2, &["invalid value '-1' for the key in table 'w'", "whole number from 0"]),
    case(&["get", "one", "-t", "w"], 2, &["invalid value 'one' for the key in table 'w', which holds 64-bit words"]),
    case(&["put", "1", "-2", "-t", "w"], 2, &["invalid value '-2' for the value in table 'w'", "whole number from 0"]),
    case(&["del", "1", "two", "-t", "w"], 2, &["invalid value 'two' for the key in table 'w'"]),
    case(&["scan", "--from", "5", "--to", "4", "-t", "w"], 2, &["--from 5 is above --to 4"]),
    case(&["get", "--hex", "61", "-t", "w"], 2, &["--hex cannot be used with table 'w'", "not byte strings"]),
    case(&["put", "--escaped", "1", "2", "-t", "w"], 2, &["--escaped cannot be used with table 'w'"]),
    case(&["get", "--raw", "1", "-t", "w"], 2, &["--raw cannot be used with table 'w'"]),
    case(&["put", "1", "--value-file", "two.txt", "-t", "w"], 2, &["--value-file cannot be used with table 'w'"]),
    case(&["scan", "--prefix", "1", "-t", "w"], 2, &["--prefix cannot be used with table 'w'"]),
    case(&["del", "--prefix", "1", "-t", "w"], 2, &["--prefix cannot be used with table 'w'"]),
    case(&["get", "--hex", "6", "-t", "b"], 2, &["key '6' cannot be read as --hex", "character 2: a digit is missing"]),
    case(&["put", "--hex", "61", "6g", "-t", "b"], 2, &["value '6g' cannot be read as --hex", "character 2: 'g' is not a hexadecimal digit"]),
    case(&["put", "--escaped", "a\\q", "v", "-t", "b"], 2, &["cannot be read as --escaped", "character 3: unknown escape \\q"]),
    case(&["scan", "--escaped", "--prefix", "a\\", "-t", "b"], 2, &["prefix 'a\\\\' cannot be read as --escaped", "ends within an escape"]),
    case(&["scan", "--from", "b", "--to", "a", "-t", "b"], 2, &["--from b is above --to a"]),
    case(&["del", "--prefix", "", "-t", "b"], 2, &["--prefix is empty", "farleaf table drop b"]),
    case(&["put", "k", "--value-file", "none.bin", "-t", "b"], 1, &["cannot open 'none.bin'", "No such file"]),
    case(&["put", "k", "--value-file", "folder", "-t", "b"], 1, &["cannot read 'folder'", "directory"]),
    case(&["put", "k", "--value-file", "large.bin", "-t", "b"], 2, &["the value in 'large.bin' is larger than the maximum of 67108864 bytes", "split it"]),
    case(&["table", "create", "t", "--page-size", "512", "--inline-value", "300"], 2, &["inline value size is 300 bytes", "512 bytes", "up to 224 bytes"]),
    case(&["table", "create", "b", "--page-size", "2048"], 1, &["table 'b' already exists", "2048"]),
    case(&["table", "create", "b", "--kind", "words"], 1, &["table 'b' already exists", "kind bytes instead of the requested words"]),
];

/// Invalid files for `b`, which is empty after each load.
#[rustfmt::skip]
const FILES: &[Case] = &[
    case(&["load", "alone.tsv", "-t", "b"], 1, &["nothing was loaded", "alone.tsv:2: 'alone' is not a valid record", "found no tab"]),
    case(&["load", "tabs.tsv", "-t", "b"], 1, &["tabs.tsv:1:", "more than one tab", "\\t"]),
    case(&["load", "latin.tsv", "-t", "b"], 1, &["latin.tsv:2:", "invalid UTF-8 at byte 4", "\\xNN"]),
    case(&["load", "path.tsv", "-t", "b"], 1, &["path.tsv:1:", "invalid key: character 4: unknown escape \\d"]),
    case(&["load", "half.tsv", "-t", "b"], 1, &["half.tsv:1:", "invalid value: ", "'g' is not a hexadecimal digit"]),
    case(&["load", "gap.tsv", "-t", "b"], 1, &["gap.tsv:2: '' is not a valid record", "found no tab"]),
    case(&["load", "long.tsv", "-t", "b"], 1, &["long.tsv:2: 'kkk", "the key has 4097 bytes", "maximum of 4096"]),
    case(&["load", "twice.tsv", "-t", "b"], 1, &["twice.tsv:3: duplicate key 'a', first on line 1", "remove one"]),
    case(&["load", "cut.tsv.gz", "-t", "b"], 1, &["cannot read 'cut.tsv.gz'", "truncated"]),
    case(&["load", "two.txt", "-t", "b"], 1, &["two.txt:1: '1' is not a valid record", "found no tab"]),
    case(&["load", "none.tsv", "-t", "b"], 1, &["nothing was loaded", "cannot open 'none.tsv'"]),
    case(&["load", "good.tsv", "--hex", "-t", "w"], 1, &["cannot load 'good.tsv' with --hex", "leave --hex out"]),
    case(&["load", "good.tsv", "--raw", "-t", "w"], 1, &["cannot load 'good.tsv' with --raw", "leave --raw out"]),
    case(&["load", "good.json", "--format", "json", "--hex", "-t", "b"], 2, &["--hex cannot be used with --format json"]),
    case(&["load", "good.tsv", "--hex", "-t", "b"], 1, &["good.tsv:1:", "write a byte as two hexadecimal digits"]),
    case(&["dump", "--hex", "-t", "w"], 2, &["--hex cannot be used with table 'w'", "not byte strings"]),
    case(&["load", "good.json", "-t", "b"], 1, &["good.json:1:", "found no tab", "--format json reads objects"]),
    case(&["load", "good.tsv", "--format", "json", "-t", "b"], 1, &["good.tsv:1:", "expected an object with a key and a value"]),
    case(&["load", "broken.json", "--format", "json", "-t", "b"], 1, &["broken.json:2:", "EOF while parsing", "at byte 9"]),
    case(&["load", "number.json", "--format", "json", "-t", "b"], 1, &["number.json:1:", "invalid type: integer `7`"]),
    case(&["load", "hex.json", "--format", "json", "-t", "b"], 1, &["hex.json:1:", "invalid key_hex: ", "a digit is missing"]),
    case(&["load", "both.json", "--format", "json", "-t", "b"], 1, &["both.json:1:", "it has both key and key_hex"]),
    case(&["load", "neither.json", "--format", "json", "-t", "b"], 1, &["neither.json:1:", "missing value or value_hex"]),
    case(&["load", "field.json", "--format", "json", "-t", "b"], 1, &["field.json:1:", "unknown field `colour`"]),
    case(&["load", "latin.json", "--format", "json", "-t", "b"], 1, &["latin.json:1:", "invalid UTF-8 at byte 12", "key_hex or value_hex"]),
    case(&["load", "good.tsv", "-t", "w"], 1, &["good.tsv:1: 'a\\t1' is not a valid record", "expected a whole number from 0"]),
    case(&["load", "mixed.tsv", "--create", "-t", "new"], 1, &["detected as a record of words; to load bytes, use --kind bytes", "mixed.tsv:2:"]),
    case(&["load", "comma.txt", "--create", "-t", "new"], 1, &["comma.txt:1:", "its key begins with a zero", "use --kind words"]),
    case(&["load", "escapes.tsv", "--hex", "--create", "-t", "new"], 1, &["nothing was loaded: escapes.tsv:1:", "not a hexadecimal digit"]),
    case(&["load", "pairs.tsv", "--escaped", "-t", "w"], 2, &["--escaped cannot be used with records of words"]),
    case(&["load", "zeros.tsv", "--create", "-t", "new"], 1, &["--kind bytes", "zeros.tsv:2:", "its key begins with a zero"]),
    case(&["load", "alone.tsv", "--create", "-t", "new"], 1, &["detected as a record of bytes", "--kind words", "alone.tsv:2:"]),
    case(&["load", "good.tsv", "--create", "-t", "w"], 1, &["leave out --create", "table 'w' already exists", "kind words instead of the requested bytes"]),
    case(&["load", "good.tsv", "--create", "-t", "b", "--page-size", "2048"], 1, &["leave out --create", "table 'b' already exists"]),
];

/// Invalid benchmarks on byte strings.
#[rustfmt::skip]
const BENCH: &[Case] = &[
    case(&["bench", "--kind", "strings"], 2, &["'strings'", "--kind"]),
    case(&["bench", "--kind", "bytes", "--key-size", "23"], 2, &["--key-size is 23", "from 24 to 4096 bytes"]),
    case(&["bench", "--kind", "bytes", "--key-size", "-1"], 2, &["'-1'", "--key-size", "expected a count"]),
    case(&["bench", "--kind", "bytes", "--value-size", "7"], 2, &["--value-size is 7", "from 8 bytes to 64 MiB"]),
    case(&["bench", "--kind", "bytes", "--slots", "8"], 2, &["--slots cannot be used with --kind bytes", "--kind bytes"]),
    case(&["bench", "--page-size", "512"], 2, &["--page-size needs --kind bytes", "needs --kind bytes"]),
    case(&["bench", "--kind", "bytes", "--value-size", "XL"], 2, &["'XL'", "--value-size", "SD, MD or LD"]),
    case(&["bench", "--kind", "bytes", "--fields", "3"], 2, &["--fields is 3 with values of 1000 bytes", "divides the value into fields of 16 bytes or more"]),
    case(&["bench", "--kind", "bytes", "--fields", "100"], 2, &["--fields is 100 with values of 1000 bytes", "16 bytes or more"]),
    case(&["bench", "--kind", "bytes", "--fields", "0"], 2, &["'0'", "--fields", "at least one"]),
    case(&["bench", "--kind", "bytes", "--fields", "10", "--value-size", "SD"], 2, &["--fields is 10 with --value-size SD", "it must be 1"]),
    case(&["bench", "--fields", "10"], 2, &["--fields needs --kind bytes", "needs --kind bytes"]),
    case(&["bench", "--kind", "bytes", "--page-size", "4096"], 2, &["--page-size is 4096", "512, 1024 or 2048"]),
    case(&["bench", "--kind", "bytes", "--index", "fg"], 2, &["--index is fg with --kind bytes", "learned"]),
    case(&["bench", "--kind", "bytes", "--partitions", "2"], 2, &["--partitions is 2 with --kind bytes", "one pool"]),
    case(&["bench", "--kind", "bytes", "--index", "rf-tree", "--metadata-budget", "1MiB"], 2, &["--metadata-budget is given with --index rf-tree", "learned"]),
    case(&["bench", "--kind", "bytes", "--metadata-budget", "1023"], 2, &["--metadata-budget is 1023 bytes", "at least 1024 bytes"]),
    case(&["bench", "--kind", "bytes", "--keys", "good.tsv", "--key-size", "30"], 2, &["--key-size is given with a key file", "omitted"]),
    case(&["bench", "--kind", "bytes", "--dataset", "keys:good.tsv", "--key-size", "30"], 2, &["--key-size is given with a key file"]),
    case(&["bench", "--kind", "bytes", "--keys", "none.tsv"], 1, &["cannot read key file 'none.tsv'", "No such file"]),
    case(&["bench", "--kind", "bytes", "--keys", "folder"], 1, &["cannot read key file 'folder'", "directory"]),
    case(&["bench", "--kind", "bytes", "--keys", "empty.tsv"], 1, &["key file 'empty.tsv' has no keys"]),
    case(&["bench", "--kind", "bytes", "--keys", "gap.tsv"], 1, &["gap.tsv:2: '' is not a valid key", "begins with a tab"]),
    case(&["bench", "--kind", "bytes", "--keys", "latin.tsv"], 1, &["latin.tsv:2: 'caf", "invalid UTF-8 at byte 4", "\\xNN"]),
    case(&["bench", "--kind", "bytes", "--keys", "path.tsv"], 1, &["path.tsv:1:", "character 4: unknown escape \\d"]),
    case(&["bench", "--kind", "bytes", "--keys", "long.tsv"], 1, &["long.tsv:2: 'kkk", "the key has 4097 bytes", "maximum of 4096"]),
    case(&["bench", "--kind", "bytes", "--keys", "cut.tsv.gz"], 1, &["cannot read key file 'cut.tsv.gz'"]),
    case(&["bench", "--kind", "bytes", "--keys", "good.tsv", "--records", "9"], 1, &["'good.tsv' has 2 distinct keys", "fewer --records"]),
    case(&["bench", "--kind", "bytes", "--keys", "good.tsv", "--records", "2", "--workload", "D"], 1, &["2 to load and", "fewer --operations"]),
    case(&["bench", "--kind", "bytes", "--records", "9", "--inline-value", "5000"], 1, &["inline value size is 5000 bytes", "up to 544 bytes"]),
    case(&["bench", "--kind", "words", "--keys", "good.tsv", "--records", "1"], 1, &["good.tsv:1: expected a decimal key"]),
];

/// All cases of this file.
pub(crate) const STRINGS: [&[Case]; 4] = [ARGUMENTS, KINDS, FILES, BENCH];

fn place_with_files() -> Place {
    let place = Place::new();
    let long = format!("a\t1\n{}\t2\n", "k".repeat(4097));
    let files: [(&str, &[u8]); 24] = [
        ("good.tsv", b"a\t1\nb\t2\n"),
        ("good.json", b"{\"key\":\"a\",\"value\":\"1\"}\n"),
        ("alone.tsv", b"a\t1\nalone\n"),
        ("tabs.tsv", b"a\tb\tc\n"),
        ("latin.tsv", b"a\t1\ncaf\xe9\t2\n"),
        ("path.tsv", b"C:\\data\t1\n"),
        ("half.tsv", b"a\t\\x0g\n"),
        ("gap.tsv", b"a\t1\n\nb\t2\n"),
        ("long.tsv", long.as_bytes()),
        ("twice.tsv", b"a\t1\nb\t2\n\\x61\t3\n"),
        ("two.txt", b"1\n2\n"),
        ("empty.tsv", b""),
        (
            "broken.json",
            b"{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\n",
        ),
        ("number.json", b"{\"key\":7,\"value\":\"1\"}\n"),
        ("hex.json", b"{\"key_hex\":\"616\",\"value\":\"1\"}\n"),
        (
            "both.json",
            b"{\"key\":\"a\",\"key_hex\":\"61\",\"value\":\"1\"}\n",
        ),
        ("neither.json", b"{\"key\":\"a\"}\n"),
        (
            "field.json",
            b"{\"key\":\"a\",\"value\":\"1\",\"colour\":\"red\"}\n",
        ),
        ("latin.json", b"{\"key\":\"caf\xe9\",\"value\":\"1\"}\n"),
        ("mixed.tsv", b"1\t2\nthree\t4\n"),
        ("zeros.tsv", b"1\t2\n007\t4\n"),
        ("comma.txt", b"007,5\n"),
        ("pairs.tsv", b"1\t2\n"),
        ("escapes.tsv", b"zz\t00\n"),
    ];
    for (name, content) in files {
        place.file(name, content);
    }
    std::fs::create_dir(place.path().join("folder")).expect("a directory");
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(b"a\t1\nb\t2\nc\t3\n").expect("in memory");
    let packed = packed.finish().expect("in memory");
    place.file("cut.tsv.gz", &packed[..packed.len() - 5]);
    // A sparse file, which takes no blocks on the disk.
    let large = std::fs::File::create(place.path().join("large.bin")).expect("a file");
    large.set_len((64 << 20) + 1).expect("a size");
    place
}

/// Promise: invalid arguments about either kind are rejected before any pool is contacted.
#[test]
fn bad_arguments_about_kinds_are_refused() {
    let place = Place::new();
    for case in ARGUMENTS {
        check(&place, case);
    }
}

/// Promise: the error for an invalid benchmark on byte strings names the wrong option, or the line
/// of the file of keys.
#[test]
fn bad_benchmarks_on_strings_are_refused() {
    let place = place_with_files();
    for case in BENCH {
        check(&place, case);
    }
}

/// Promise: arguments that do not fit the table's kind, cannot be decoded, or conflict with
/// existing tables are reported, and nothing is written.
#[test]
fn what_does_not_fit_a_table_is_told() {
    let place = place_with_files();
    let _server = place.serve(&["--size", "8MiB"]);
    let create = |name, kind| {
        let arguments = ["table", "create", name, "--kind", kind];
        place.farleaf(&arguments).quietly();
    };
    create("w", "words");
    create("b", "bytes");
    for case in KINDS {
        check(&place, case);
    }
    let long = "k".repeat(4097);
    for arguments in [
        &["get", &long, "-t", "b"][..],
        &["put", &long, "v", "-t", "b"],
        &["scan", &long, "-t", "b"],
        &["scan", "--from", &long, "-t", "b"],
        &["scan", "--to", &long, "-t", "b"],
        &["scan", "--prefix", &long, "-t", "b"],
        &["del", "--prefix", &long, "-t", "b"],
    ] {
        let ran = place.farleaf(arguments);
        assert_eq!(ran.status, Some(2), "{ran:?}");
        let role = if arguments[1] == "--prefix" {
            "prefix"
        } else {
            "key"
        };
        let message = format!(
            "error: the {role} has 4097 bytes, more than the maximum of 4096: \
             'kkkkkkkkkkkkkkkk...'\n"
        );
        assert_eq!(ran.stderr, message);
    }
    // The longest key is valid, too.
    for bound in ["--from", "--to", "--prefix"] {
        assert_eq!(
            place
                .farleaf(&["scan", bound, &long[1..], "-t", "b"])
                .quietly(),
            ""
        );
    }
    for table in ["w", "b"] {
        assert_eq!(place.farleaf(&["dump", "-t", table]).quietly(), "");
    }
}

/// Promise: nothing of an invalid file is loaded. The message names the file, the line and the
/// problem, and no table is created.
#[test]
fn bad_files_of_strings_are_not_loaded() {
    let place = place_with_files();
    let _server = place.serve(&["--size", "8MiB"]);
    for (name, kind) in [("w", "words"), ("b", "bytes")] {
        let arguments = ["table", "create", name, "--kind", kind];
        place.farleaf(&arguments).quietly();
    }
    for case in FILES {
        check(&place, case);
        assert_eq!(place.farleaf(&["dump", "-t", "b"]).quietly(), "");
    }
    let list = place.farleaf(&["table", "list"]).quietly();
    assert!(!list.contains("new"), "{list}");
    // Valid files of the same formats are loaded.
    for (file, format) in [("good.tsv", "tsv"), ("good.json", "json")] {
        let load = ["load", file, "--format", format, "-t", "b"];
        let loaded = place.farleaf(&load).quietly();
        assert!(loaded.contains("table 'b'"), "{loaded}");
    }
}

/// Promise: a value of 64 MiB is rejected if the pool becomes full while it is written, whether the
/// free space is contiguous or fragmented. Existing records stay, all space is freed, and values
/// that fit can be put.
#[test]
fn a_pool_that_is_full_in_the_middle_of_a_value_is_told() {
    let place = Place::new();
    for (name, size_mib) in [("two.bin", 2), ("fifty.bin", 50), ("large.bin", 64)] {
        let file = std::fs::File::create(place.path().join(name)).expect("a file");
        file.set_len(size_mib << 20).expect("a size");
    }
    let put = |key: &str, file: &str| place.farleaf(&["put", key, "--value-file", file]);
    let refused = || {
        let ran = put("large", "large.bin");
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        let message = "error: out of space on node 0 for a value block of 67174400 bytes: the \
                       pool is full";
        assert!(ran.stderr.starts_with(message), "{ran:?}");
        assert_eq!(place.farleaf(&["get", "large"]).status, Some(1));
        ran.stderr
    };
    let server = place.serve(&["--size", "64MiB"]);
    place
        .farleaf(&["table", "create", "default", "--kind", "bytes"])
        .quietly();
    assert_eq!(refused(), refused());
    place.farleaf(&["put", "small", "value"]).quietly();
    drop(server);

    let _server = place.serve(&["--size", "100MiB"]);
    place
        .farleaf(&["table", "create", "default", "--kind", "bytes"])
        .quietly();
    let names: Vec<String> = (10..40).map(|number| format!("v{number}")).collect();
    for name in &names {
        put(name, "two.bin").quietly();
    }
    for name in names.iter().step_by(3) {
        place.farleaf(&["del", name]).quietly();
    }
    assert_eq!(refused(), refused());
    place.farleaf(&["put", "small", "value"]).quietly();
    // Space of removed records is free a moment after the command has ended.
    let started_at = Instant::now();
    while put("fifty", "fifty.bin").status != Some(0) {
        assert!(
            started_at.elapsed() < PATIENCE,
            "something is not given back"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let keys = place
        .farleaf(&["scan", "--keys-only", "--limit", "100"])
        .quietly();
    assert_eq!(keys.lines().count(), 22, "{keys}");
}
