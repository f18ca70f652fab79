//! Tests of `farleaf serve`: startup and shutdown.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::pool::{Place, Ran};

/// Promise: a server prints how to connect, and serves clients. SIGTERM, SIGINT and SIGHUP end it
/// with status 0, remove its socket, and leave a log with time stamps. SIGUSR1 and SIGUSR2 do not
/// end it.
#[test]
fn signals_end_a_server_cleanly() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let place = Place::new();
        let mut server = place.serve(&["--size", "8MiB"]);
        assert!(
            server.ready.starts_with("serving shm:default, 8 MiB; "),
            "{}",
            server.ready
        );
        assert!(
            server.ready.contains("`farleaf --pool shm:default ...`"),
            "{}",
            server.ready
        );
        server.signal(Signal::USR1);
        server.signal(Signal::USR2);
        let list = place.farleaf(&["table", "list"]).quietly();
        assert_eq!(
            list,
            "shm:default has no tables; create one with `farleaf table create NAME`\n"
        );
        let socket = place.runtime_directory().join("default.sock");
        assert!(socket.exists());
        server.signal(signal);
        let (status, log) = server.end();
        assert_eq!(status, Some(0), "{log}");
        assert!(!socket.exists(), "the socket is left");
        for line in log.lines() {
            let stamp = line.split(' ').next().expect("a word");
            assert!(
                stamp.contains('T') && stamp.ends_with('Z'),
                "no time stamp: {line}"
            );
        }
        assert!(log.contains("stopped pool=\"shm:default\""), "{log}");
        assert!(log.contains("SIGUSR1: this server has no secret"), "{log}");
    }
}

/// Promise: a SIGHUP that was ignored when a server started (`nohup`) stays ignored.
#[test]
fn an_ignored_hangup_stays_ignored() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_farleaf");
    let script = "trap '' HUP; exec \"$@\"";
    let mut command = place.command_of("sh");
    command.args(["-c", script, "sh", program, "serve", "--size", "8MiB"]);
    let mut server = Place::start_command(command);
    server.signal(Signal::HUP);
    let list = place.farleaf(&["table", "list"]).quietly();
    assert!(list.contains("has no tables"), "{list}");
    server.signal(Signal::TERM);
    let (status, log) = server.end();
    assert_eq!(status, Some(0), "{log}");
    assert!(
        log.contains("signal=15") && !log.contains("signal=1\n"),
        "{log}"
    );
}

/// Promise: if huge pages are not reserved, one line says so and how to change that.
#[test]
fn missing_huge_pages_are_one_line() {
    let place = Place::new();
    let mut server = place.serve(&["--size", "8MiB"]);
    server.signal(Signal::TERM);
    let (_, log) = server.end();
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("huge pages"))
        .collect();
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let has_pages = free.is_ok_and(|count| count.trim().parse::<u64>().is_ok_and(|it| it >= 4));
    assert_eq!(lines.len(), usize::from(!has_pages), "{log}");
    assert!(
        lines.iter().all(|line| line.contains("vm.nr_hugepages=4")),
        "{log}"
    );
}

/// Promise: a second server of the same name is rejected with the reason before it allocates
/// memory, and the first one continues to serve.
#[test]
fn a_second_server_of_the_same_name_is_refused() {
    let place = Place::new();
    let _server = place.serve(&["--size", "8MiB", "--name", "twice"]);
    let second = place.farleaf(&["serve", "--size", "8MiB", "--name", "twice"]);
    assert_eq!((second.status, second.stdout.as_str()), (Some(1), ""));
    assert!(
        second
            .stderr
            .contains("cannot serve shm:twice: it is already served by another"),
        "{second:?}"
    );
    // If memory were allocated first, the error would be about memory.
    let second = place.farleaf(&["serve", "--size", "900TiB", "--name", "twice"]);
    assert_eq!(second.status, Some(1));
    assert!(
        second.stderr.contains("already served") && !second.stderr.contains("memory"),
        "{second:?}"
    );
    place
        .farleaf(&["--pool", "shm:twice", "table", "create", "t"])
        .quietly();
    // A server with another name has another pool.
    let _other = place.serve(&["--size", "8MiB", "--name", "other"]);
    let list = place
        .farleaf(&["--pool", "shm:other", "table", "list"])
        .quietly();
    assert!(list.starts_with("shm:other has no tables"), "{list}");
}

/// Promise: after kill -9 no client is served, and the same name can be served again, as a new
/// pool.
#[test]
fn a_killed_server_can_be_followed_by_another() {
    let place = Place::new();
    let mut server = place.serve(&["--size", "8MiB"]);
    place.farleaf(&["table", "create", "t"]).quietly();
    server.signal(Signal::KILL);
    assert_eq!(server.end().0, None);
    let orphan = place.farleaf(&["table", "list"]);
    assert_eq!(orphan.status, Some(1));
    assert!(
        orphan.stderr.contains("is `farleaf serve` running?"),
        "{orphan:?}"
    );
    let _again = place.serve(&["--size", "8MiB"]);
    assert!(
        place
            .farleaf(&["table", "list"])
            .quietly()
            .contains("has no tables")
    );
    place.farleaf(&["table", "create", "t"]).quietly();
}

/// Promise: if the server ends while a load reads its file, the load fails and reports that nothing
/// of the file is left. That holds for empty tables and others, and however the server ended.
#[test]
fn a_load_whose_server_has_ended_is_an_error() {
    for (signal, has_records) in [
        (Signal::KILL, false),
        (Signal::KILL, true),
        (Signal::TERM, false),
        (Signal::TERM, true),
    ] {
        let place = Place::new();
        let mut server = place.serve(&["--size", "8MiB"]);
        place
            .farleaf(&["table", "create", "default", "--kind", "words"])
            .quietly();
        if has_records {
            place.farleaf(&["put", "0", "0"]).quietly();
        }
        let mut load = place.command(&["load", "-"]);
        load.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = load.spawn().expect("it starts");
        // The sessions of the node, of `stats`, and of `load`, which now waits for records.
        let deadline = Instant::now() + Duration::from_mins(1);
        while !place.farleaf(&["stats"]).stdout.contains("sessions 3 ") {
            assert!(Instant::now() < deadline, "the load has no session");
        }
        server.signal(signal);
        server.end();
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(b"1\n2\n3\n").expect("it reads");
        drop(stdin);
        let ran: Ran = child.wait_with_output().expect("it ends").into();
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        assert!(
            ran.stderr.contains(
                "the memory node stopped during the load, and the written records were lost"
            ),
            "{ran:?}"
        );
    }
}

/// Promise: an empty environment variable counts as not set.
#[test]
fn empty_variables_count_as_unset() {
    let place = Place::new();
    let _server = place.serve(&["--size", "8MiB"]);
    place.farleaf(&["table", "create", "default"]).quietly();
    let run = |arguments: &[&str]| -> Ran {
        let mut command = place.command(arguments);
        command.env("FARLEAF_POOL", "").env("FARLEAF_TABLE", "");
        command.output().expect("it starts").into()
    };
    assert_eq!(run(&["put", "1", "2"]).quietly(), "inserted 1\n");
    assert_eq!(run(&["get", "1"]).quietly(), "1\t2\n");
    assert_eq!(
        run(&["--pool", "shm:default", "get", "1", "-t", "default"]).quietly(),
        "1\t2\n"
    );
    let given = run(&["--pool", "", "get", "1"]);
    assert_eq!(
        given.status,
        Some(2),
        "what is written is not left out: {given:?}"
    );
}

/// Promise: an unwritable stderr ends nothing. A server with a full stderr continues to serve, its
/// agent continues to work (a dropped table's memory is freed), and a signal still stops it. A
/// command keeps its exit status. Regression test: the thread that logged died.
#[test]
fn a_standard_error_that_cannot_be_written_ends_nothing() {
    let full = || {
        let file = std::fs::File::options().write(true).open("/dev/full");
        Stdio::from(file.expect("/dev/full"))
    };
    let place = Place::new();
    let mut command = place.command(&["serve", "--size", "8MiB"]);
    let mut server = command
        .stdout(Stdio::null())
        .stderr(full())
        .spawn()
        .expect("the program starts");
    let deadline = Instant::now() + Duration::from_secs(20);
    let wait = |what: &str| {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    };
    while place.farleaf(&["table", "create", "t"]).status != Some(0) {
        wait("serving");
    }
    place.farleaf(&["table", "drop", "t"]).quietly();
    while !place.farleaf(&["stats"]).stdout.contains(" 0 B of ") {
        wait("freeing the table's memory");
    }
    let mut absent = place.command(&["get", "7"]);
    let status = absent.stderr(full()).status().expect("it runs");
    assert_eq!(status.code(), Some(1));
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, Signal::TERM).expect("it lives");
    loop {
        if let Some(status) = server.try_wait().expect("a child") {
            assert_eq!(status.code(), Some(0));
            break;
        }
        wait("stopping");
    }
}
