//! `farleaf`: serves pools of far memory and clusters, and works with the tables in them.
//!
//! | module | contents |
//! |---|---|
//! | [`program`] | definition of the command line, how it is read, and the command that it runs |
//! | [`arguments`] | options that several commands share |
//! | [`needless`] | rejection of options that a command would ignore |
//! | [`pool_or_cluster`] | choice between pool and cluster, and rejection of the other's options |
//! | [`cluster_options`] | options of persistent tables |
//! | [`tls_options`] | options of TLS, by kind of command |
//! | [`table_options`] | options and kind of a new table |
//! | [`strings`] | byte strings in arguments and in output |
//! | [`command`] | commands, one file each |
//! | [`records`] | files of records, read whole and checked before anything is loaded |
//! | [`output`] | output on stdout, also when it is closed |
//! | [`signals`] | signals that stop a server, and signals that servers ignore |
//! | [`private_files`] | files that a signal must not leave behind |
//! | [`scratch`] | directories that are removed when a command ends |
//! | [`progress`] | progress bars |
//! | [`failure`] | how commands end and how errors are reported |
//! | [`log`] | the log on stderr |
//! | [`watch`] | work that may block on a client that does not continue |
//!
//! Results go to stdout; the log, progress and errors to stderr. Exit status: 0 done; 1 failed, or
//! a key was absent, or a cluster is degraded; 2 invalid arguments; 3 nothing to compare with; 4 a
//! planted bug was not found; 130 `sim check` was interrupted.

#![forbid(unsafe_code)]

mod arguments;
mod cluster_options;
mod command;
mod failure;
mod log;
mod needless;
mod output;
mod pool_file;
mod pool_or_cluster;
mod private_files;
mod program;
mod progress;
mod records;
mod reload;
mod scratch;
mod signals;
mod strings;
mod table_options;
mod tls_options;
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = program::read();
    if let Some(level) = arguments.log_level() {
        log::start(level);
    }
    match program::run(&arguments) {
        Ok(ending) => ending.into(),
        Err(error) => failure::tell(&error),
    }
}
