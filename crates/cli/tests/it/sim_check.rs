//! Tests of `farleaf sim check` for scripts and users: exit statuses, and reports of interrupted
//! runs.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use farleaf_sim::plan::Profile;
use farleaf_sim::plant::Plant;
use rustix::process::Signal;

use crate::pool::{Place, Ran, send};

/// Promise: scripts can distinguish a planted bug that was not found from a run without findings.
/// The message says where to look for the bug. Nouns with the number one are singular.
#[test]
fn a_planted_bug_that_is_not_found_has_a_status() {
    let place = Place::new();
    let one = ["sim", "check", "--seed", "1", "--runs", "1"];
    let calm = ["--threads", "1", "--profile", "calm"];
    let common = [&one[..], &calm[..]].concat();
    let ran = place.farleaf(&common);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let begin = "1 run, each twice, seed 1, profile calm: nothing found\n";
    assert!(ran.stdout.starts_with(begin), "{ran:?}");
    assert!(ran.stdout.ends_with(" s on 1 thread\n"), "{ran:?}");
    // The bug has no effect where tables are not dropped.
    let ran = place.farleaf(&[&common[..], &["--plant", "freed-too-early"]].concat());
    assert_eq!(ran.status, Some(4), "{ran:?}");
    assert_eq!(
        ran.stderr,
        "the planted bug 'freed-too-early' was not found; profile 'crashes' finds it within 8,000 \
         runs\n"
    );
    let end = "freed-too-early planted: nothing found\n";
    assert!(ran.stdout.contains(end), "{ran:?}");
}

/// Promise: Ctrl-C makes the command report the finished runs, and end with the status that shells
/// show for it.
#[test]
fn an_interrupted_check_tells_how_far_it_came() {
    let place = Place::new();
    let mut command = place.command(&["sim", "check", "--runs", "1G", "--threads", "1"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut first = String::new();
    stderr.read_line(&mut first).expect("it tells its seeds");
    let seed = first
        .strip_prefix("seeds from ")
        .and_then(|rest| rest.strip_suffix(" on, profile crashes\n"))
        .expect("a seed");
    send(&child, Signal::INT);
    let mut stdout = String::new();
    let mut pipe = child.stdout.take().expect("piped");
    pipe.read_to_string(&mut stdout).expect("text");
    let status = child.wait().expect("it ends").code();
    assert_eq!(status, Some(130), "{stdout}");
    assert!(stdout.starts_with("interrupted after "), "{stdout}");
    assert!(stdout.contains(seed), "{stdout}");
}

/// Promise: a finding that cannot be printed is reported on stderr, and still counts as one.
#[test]
fn a_finding_that_cannot_be_printed_is_told() {
    let place = Place::new();
    let arguments = "sim check --seed 1 --plant unlock-before-state --reduce 1";
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("Linux has one");
    let mut command = place.command(&arguments.split(' ').collect::<Vec<_>>());
    let ran: Ran = command.stdout(full).output().expect("it runs").into();
    assert_eq!(ran.status, Some(1), "{ran:?}");
    let message = "breaks a promise, which could not be printed: cannot write to stdout: No space";
    assert!(
        ran.stderr.starts_with("seed ") && ran.stderr.contains(message),
        "{ran:?}"
    );
}

/// Promise: the help names every bug that can be planted.
#[test]
fn help_names_all_bugs() {
    let help = Place::new().farleaf(&["sim", "check", "--help"]).quietly();
    for plant in Plant::ALL {
        assert!(help.contains(plant.name()), "{plant}: {help}");
    }
}

/// Promise: `--profile all` runs each profile and prints its seeds and result. With `--seed` every
/// profile begins at that seed. A planted bug needs the one profile that finds it.
#[test]
fn all_profiles_are_run() {
    let place = Place::new();
    let all = "sim check --profile all --runs 1 --threads 1";
    let all: Vec<&str> = all.split(' ').collect();
    let names = Profile::ALL.map(Profile::name);
    let ran = place.farleaf(&[&all[..], &["--seed", "1"]].concat());
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let results: Vec<&str> = ran.stdout.lines().step_by(2).collect();
    let expected =
        names.map(|name| format!("1 run, each twice, seed 1, profile {name}: nothing found"));
    assert_eq!(results, expected);
    let ran = place.farleaf(&all);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let fresh: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(fresh.len(), names.len(), "{ran:?}");
    for (line, name) in fresh.into_iter().zip(names) {
        assert!(
            line.starts_with("seeds from ") && line.ends_with(name),
            "{line}"
        );
    }
    let ran = place.farleaf(&[&all[..], &["--plant", "moved-at-once"]].concat());
    assert_eq!(ran.status, Some(2), "{ran:?}");
    let message = "error: --profile all cannot be used with --plant: profile 'retraining' finds";
    assert!(ran.stderr.starts_with(message), "{ran:?}");
}

/// Promise: `sim messages` has the exit statuses of `sim check`, and reports violations.
#[test]
fn messages_are_judged_with_the_same_statuses() {
    let place = Place::new();
    let few = [
        "sim",
        "messages",
        "--seed",
        "1",
        "--runs",
        "3",
        "--threads",
        "1",
    ];
    let ran = place.farleaf(&few);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let begin = "3 runs, each twice, seeds 1 to 3: nothing found\n";
    assert!(ran.stdout.starts_with(begin), "{ran:?}");
    let mut planted = few;
    planted[3] = "3";
    let ran = place.farleaf(&[&planted[..], &["--plant", "tag-first"]].concat());
    assert_eq!(ran.status, Some(1), "{ran:?}");
    let begin = "2 runs, each twice, seeds 3 to 4, tag-first planted: seed 4 breaks a promise\n";
    assert!(ran.stdout.starts_with(begin), "{ran:?}");
    assert!(ran.stdout.contains("\n  bytes: call 0x0 "), "{ran:?}");
    let ran = place.farleaf(&[&few[..], &["--plant", "place-reused-early"]].concat());
    assert_eq!(ran.status, Some(4), "{ran:?}");
    let message = "the planted bug 'place-reused-early' was not found; it is within 500 runs";
    assert!(ran.stderr.starts_with(message), "{ran:?}");
}
