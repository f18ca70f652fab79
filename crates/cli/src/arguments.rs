//! Arguments of the program, and the options that all commands share.

use std::env::VarError;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::{fmt, fs};

use anyhow::{Context, anyhow};
use clap::builder::Resettable;
use clap::{Args, CommandFactory, FromArgMatches, Parser};
use farleaf::{Rights, Secret, VerbsOptions};
use tracing::Level;

use crate::command::Command;
use crate::output::OutputFormat;
use crate::{cluster_options, needless};

/// The commit that this program is built from, or "unknown".
pub(crate) const COMMIT: &str = env!("FARLEAF_COMMIT");

const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("FARLEAF_COMMIT"),
    ")"
);

/// Farleaf: an ordered key-value store for data that several processes or machines share
#[derive(Debug, Parser)]
#[command(name = "farleaf", version = VERSION, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) pool: PoolArguments,

    /// Log more: -v for what the command does and what it costs, -vv for everything
    #[arg(short, long, global = true, display_order = 901, action = clap::ArgAction::Count)]
    #[arg(help_heading = GLOBAL_OPTIONS)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Heading of the options that every command takes, in the help of `farleaf` itself.
const GLOBAL_OPTIONS: &str = "Global options";

/// Address of the pool or cluster, and how to authenticate to it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = GLOBAL_OPTIONS)]
pub(crate) struct PoolArguments {
    /// Address of the pool: `shm:NAME` (`farleaf serve --name NAME`), `tcp:HOST:PORT` (`serve
    /// --listen`) or `verbs:HOST:PORT` (`serve --listen --verbs`). For a table over several pools,
    /// the addresses of its parts, separated by commas
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "ADDRESS",
        env = "FARLEAF_POOL"
    )]
    #[arg(default_value = "shm:default")]
    pub(crate) pool: String,

    /// Address of the cluster, for persistent tables: `tcp:HOST:PORT`, which `farleaf region serve`
    /// prints at startup, or `etcd:HOST:PORT[,HOST:PORT...]`. Cannot be used with --pool
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "ADDRESS",
        env = "FARLEAF_CLUSTER"
    )]
    pub(crate) cluster: Option<String>,

    /// File with the secret of the pool or cluster, or with a key derived from it. The variable
    /// `FARLEAF_SECRET` can hold the secret itself
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "FILE",
        env = "FARLEAF_SECRET_FILE"
    )]
    pub(crate) secret_file: Option<PathBuf>,

    /// File with the CA certificates (PEM) that the server's certificate must lead to. Turns
    /// encryption on
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "FILE",
        env = "FARLEAF_TLS_CA"
    )]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Rights to ask for: `read`, `write` or `admin` [default: all that the secret grants]
    #[arg(long, global = true, display_order = 900)]
    pub(crate) rights: Option<Rights>,

    #[command(flatten)]
    pub(crate) rdma: RdmaArguments,
}

/// RDMA device of this host, and how to use it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = GLOBAL_OPTIONS)]
#[expect(
    clippy::struct_field_names,
    reason = "they are the names of the options"
)]
pub(crate) struct RdmaArguments {
    /// RDMA device for `verbs` [default: the first one with an active port]
    #[arg(
        long,
        global = true,
        display_order = 902,
        value_name = "DEVICE",
        env = "FARLEAF_RDMA_DEVICE"
    )]
    pub(crate) rdma_device: Option<String>,

    /// Port of the RDMA device, counted from 1 [default: its first active port]
    #[arg(
        long,
        global = true,
        display_order = 902,
        value_name = "NUMBER",
        env = "FARLEAF_RDMA_PORT"
    )]
    #[arg(value_parser = clap::value_parser!(u8).range(1..), allow_negative_numbers = true)]
    pub(crate) rdma_port: Option<u8>,

    /// Index of the address (GID) in the table of the RDMA port [default: the first RoCE v2 address
    /// of IPv4]
    #[arg(
        long,
        global = true,
        display_order = 902,
        value_name = "INDEX",
        env = "FARLEAF_RDMA_GID_INDEX",
        allow_negative_numbers = true
    )]
    pub(crate) rdma_gid_index: Option<u8>,

    /// Payload of an RDMA packet in bytes: 256, 512, 1024, 2048 or 4096 [default: the port's]
    #[arg(
        long,
        global = true,
        display_order = 902,
        value_name = "BYTES",
        env = "FARLEAF_RDMA_MTU"
    )]
    #[arg(value_parser = parse_mtu, allow_negative_numbers = true)]
    pub(crate) rdma_mtu: Option<u16>,
}

fn parse_mtu(text: &str) -> Result<u16, &'static str> {
    match text.parse() {
        Ok(bytes @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err("expected 256, 512, 1024, 2048 or 4096 bytes"),
    }
}

impl From<&RdmaArguments> for VerbsOptions {
    fn from(arguments: &RdmaArguments) -> Self {
        Self {
            device: arguments.rdma_device.clone(),
            port: arguments.rdma_port,
            gid_index: arguments.rdma_gid_index,
            mtu_bytes: arguments.rdma_mtu,
        }
    }
}

/// Environment variable with the secret itself. It is never an argument, because other users can
/// read the arguments of a process.
const SECRET_VARIABLE: &str = "FARLEAF_SECRET";

impl PoolArguments {
    /// Returns the addresses of the named pools, in order.
    pub(crate) fn addresses(&self) -> Vec<&str> {
        self.pool.split(',').collect()
    }

    /// Returns the secret from the file or the environment variable, if there is one.
    pub(crate) fn secret(&self) -> anyhow::Result<Option<Secret>> {
        if let Some(path) = &self.secret_file {
            return Ok(Some(secret_of(path)?));
        }
        match std::env::var(SECRET_VARIABLE) {
            Ok(text) if !text.is_empty() => {
                let secret = Secret::from_text(&text);
                Ok(Some(secret.with_context(|| {
                    format!("{SECRET_VARIABLE} does not contain a valid secret")
                })?))
            }
            Err(VarError::NotUnicode(_)) => Err(anyhow!("{SECRET_VARIABLE} is not valid UTF-8")),
            _ => Ok(None),
        }
    }
}

/// Reads a secret from a file.
pub(crate) fn secret_of(path: &Path) -> anyhow::Result<Secret> {
    let secret = Secret::from_file(path)?;
    warn_of_others(path);
    Ok(secret)
}

/// Logs one warning if other users can read or change the secret's file.
fn warn_of_others(path: &Path) {
    static SAID: Once = Once::new();
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file);
    if file.is_some_and(|file| file.permissions().mode() & 0o066 != 0) {
        SAID.call_once(|| {
            tracing::warn!(
                "other users of this host can read or change '{0}'; run `chmod 600 {0}`",
                path.display()
            );
        });
    }
}

impl fmt::Display for PoolArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pool)
    }
}

/// Parses the command line; exits if it is invalid.
pub(crate) fn read() -> Arguments {
    let matches = definition().get_matches();
    needless::refuse(&matches);
    let uses_cluster = cluster_options::check(&matches);
    let arguments = Arguments::from_arg_matches(&matches);
    let mut arguments = arguments.unwrap_or_else(|error| error.exit());
    if !uses_cluster {
        // The cluster of the environment variable is meant for other commands.
        arguments.pool.cluster = None;
    }
    arguments
}

/// Definition of the command line. The help of `farleaf` lists the global options; the help of a
/// command refers to it.
pub(crate) fn definition() -> clap::Command {
    built(without_empty_variables(Arguments::command()))
}

/// Definition of the command line for manual pages, which need none for `help COMMAND`.
pub(crate) fn definition_for_manual() -> clap::Command {
    built(without_help_commands(Arguments::command()))
}

/// Definition of the command line for completion scripts. They offer every argument of a
/// definition, so this one has no hidden arguments.
pub(crate) fn definition_for_completions() -> clap::Command {
    without_hidden_arguments(&Arguments::command()).version(VERSION)
}

fn without_hidden_arguments(command: &clap::Command) -> clap::Command {
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let arguments: Vec<clap::Arg> = arguments.cloned().collect();
    let is_visible = |id: &clap::Id| arguments.iter().any(|it| it.get_id() == id);
    // Groups are copied, because arguments may require them.
    let groups = command.get_groups().map(|group| {
        let members = group.get_args().filter(|id| is_visible(id)).cloned();
        clap::ArgGroup::new(group.get_id().clone())
            .multiple(true)
            .args(members.collect::<Vec<_>>())
    });
    let groups: Vec<clap::ArgGroup> = groups.collect();
    let visible = clap::Command::new(command.get_name().to_owned())
        .args(arguments)
        .groups(groups)
        .subcommands(command.get_subcommands().map(without_hidden_arguments));
    match command.get_about() {
        Some(about) => visible.about(about.clone()),
        None => visible,
    }
}

fn built(mut command: clap::Command) -> clap::Command {
    // Copies the global options into all commands, where they can be hidden.
    command.build();
    command.mut_subcommands(without_global_options)
}

fn without_help_commands(command: clap::Command) -> clap::Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help_commands)
}

fn without_global_options(command: clap::Command) -> clap::Command {
    command
        .mut_args(|argument| {
            if argument.is_global_set() {
                argument.hide(true)
            } else {
                argument
            }
        })
        .after_help("Global options (--pool, --cluster, ...): see `farleaf --help`")
        .mut_subcommands(without_global_options)
}

/// Makes empty environment variables count as unset, because scripts clear variables that way.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |variable: &OsStr| std::env::var_os(variable).is_some_and(|it| it.is_empty());
    command
        .mut_args(|argument| match argument.get_env() {
            Some(variable) if is_empty(variable) => argument.env(Resettable::Reset),
            _ => argument,
        })
        .mut_subcommands(without_empty_variables)
}

impl Arguments {
    /// Returns the level to log. Servers log their own events, other commands only problems.
    /// Simulations log nothing: their failures are simulated.
    pub(crate) fn log_level(&self) -> Option<Level> {
        let level = self.verbose.saturating_add(match self.command {
            Command::Serve(_) | Command::Region(_) => 1,
            Command::Sim(_) if self.verbose == 0 => return None,
            _ => 0,
        });
        Some(match level {
            0 => Level::WARN,
            1 => Level::INFO,
            2 => Level::DEBUG,
            _ => Level::TRACE,
        })
    }
}

/// Table that the command works with.
#[derive(Clone, Debug, Args)]
pub(crate) struct TableArgument {
    /// Name of the table
    #[arg(short, long = "table", value_name = "NAME", env = "FARLEAF_TABLE")]
    #[arg(default_value = "default")]
    pub(crate) table: String,
}

/// Format in which results are printed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OutputArgument {
    /// Output format: text, or one JSON object per line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the definition of the command line is free of contradictions.
    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }
}
