//! `farleaf`: serves pools of far memory, and works with the tables in them.
//!
//! | module | what it holds |
//! |---|---|
//! | [`arguments`] | what can be written on the command line |
//! | [`needless`] | options that a command would ignore |
//! | [`cluster_options`] | whether a command is about a pool or a cluster, and what goes with which |
//! | [`table_options`] | how a table is made, and of which kind |
//! | [`strings`] | byte strings, as arguments and as they are printed |
//! | [`quantity`] | keys, counts and sizes, as people write them |
//! | [`command`] | what each command does, a file each |
//! | [`records`] | files of records, read whole and checked before anything is loaded |
//! | [`output`] | what is printed, and what happens when nobody reads it |
//! | [`signals`] | signals that stop a server, and signals that do nothing to it |
//! | [`private_files`] | what a signal must not leave behind |
//! | [`scratch`] | directories for files that are gone when a command ends |
//! | [`progress`] | progress bars |
//! | [`failure`] | how commands end and how errors are told |
//! | [`log`] | the log on stderr |
//! | [`watch`] | work that may come to wait for a client which does not go on |
//!
//! Results go to stdout; the log, progress and errors to stderr. Exit status: 0 done; 1 failed, or
//! a key was absent, or a cluster is not whole; 2 the arguments are wrong; 3 there was nothing to
//! judge by; 4 a planted bug was not found; 130 `sim check` was interrupted.

#![forbid(unsafe_code)]

mod arguments;
mod cluster_options;
mod command;
mod failure;
mod log;
mod needless;
mod output;
mod pool_file;
mod private_files;
mod progress;
mod quantity;
mod records;
mod scratch;
mod signals;
mod strings;
mod table_options;
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = arguments::read();
    if let Some(level) = arguments.log_level() {
        log::start(level);
    }
    match command::run(&arguments) {
        Ok(ending) => ending.into(),
        Err(error) => failure::tell(&error),
    }
}
