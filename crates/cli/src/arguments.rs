//! What can be written on the command line.

use std::env::VarError;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::{fmt, fs};

use anyhow::{Context, anyhow};
use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser};
use farleaf::{Rights, Secret, VerbsOptions};
use tracing::Level;

use farleaf_bench::runner::FabricKind;

use crate::command::{self, Command};
use crate::output::OutputFormat;

/// The commit that this program is built from, or "unknown".
pub(crate) const COMMIT: &str = env!("FARLEAF_COMMIT");

const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("FARLEAF_COMMIT"),
    ")"
);

/// An ordered key-value store whose leaves live in far memory
#[derive(Debug, Parser)]
#[command(name = "farleaf", version = VERSION, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) pool: PoolArguments,

    /// Log more: -v what it does and what that costs, -vv everything
    #[arg(short, long, global = true, display_order = 901, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which pool, and how to be let in.
#[derive(Clone, Debug, Args)]
pub(crate) struct PoolArguments {
    /// Which pool to work with: `shm:NAME`, which `farleaf serve --name NAME` serves, or
    /// `tcp:HOST:PORT`, which `farleaf serve --listen` does, or `verbs:HOST:PORT`, which `farleaf
    /// serve --listen --verbs` does (not for commands that make their own); several with commas, in
    /// the order of their parts, for a table over several pools
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "ADDRESS",
        env = "FARLEAF_POOL"
    )]
    #[arg(default_value = "shm:default")]
    pub(crate) pool: String,

    /// File with the secret of a pool on the network, or with a key derived from it; the variable
    /// `FARLEAF_SECRET` can hold the secret itself
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "FILE",
        env = "FARLEAF_SECRET_FILE"
    )]
    pub(crate) secret_file: Option<PathBuf>,

    /// File with the certificates of the authorities that the node's certificate may come from
    /// (PEM); with it, what goes over the network is encrypted
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "FILE",
        env = "FARLEAF_TLS_CA"
    )]
    pub(crate) tls_ca: Option<PathBuf>,

    /// What to be let in for: `read`, `write` or `admin`; if not given, all that the secret is for
    #[arg(long, global = true, display_order = 900)]
    pub(crate) rights: Option<Rights>,

    #[command(flatten)]
    pub(crate) rdma: RdmaArguments,
}

/// What is used of this host's RDMA devices.
#[derive(Clone, Debug, Args)]
#[expect(
    clippy::struct_field_names,
    reason = "they are the names of the options"
)]
pub(crate) struct RdmaArguments {
    /// RDMA device of this host that `verbs` uses; the first one with an active port if not given
    #[arg(
        long,
        global = true,
        display_order = 902,
        value_name = "DEVICE",
        env = "FARLEAF_RDMA_DEVICE"
    )]
    pub(crate) rdma_device: Option<String>,

    /// Port of that device, from 1 on; its first active one if not given
    #[arg(
        long,
        global = true,
        display_order = 902,
        value_name = "NUMBER",
        env = "FARLEAF_RDMA_PORT"
    )]
    #[arg(value_parser = clap::value_parser!(u8).range(1..), allow_negative_numbers = true)]
    pub(crate) rdma_port: Option<u8>,

    /// Index in the port's table of addresses (GIDs); the first of `RoCE` v2 and IPv4 if not given
    #[arg(
        long,
        global = true,
        display_order = 902,
        value_name = "INDEX",
        env = "FARLEAF_RDMA_GID_INDEX",
        allow_negative_numbers = true
    )]
    pub(crate) rdma_gid_index: Option<u8>,

    /// Payload of a packet in bytes: 256, 512, 1024, 2048 or 4096; what the port has if not given
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
        _ => Err("a packet carries 256, 512, 1024, 2048 or 4096 bytes"),
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

/// The variable that holds the secret itself. Never an argument: those are for all to see.
const SECRET_VARIABLE: &str = "FARLEAF_SECRET";

impl PoolArguments {
    /// The pools that are named, in order.
    pub(crate) fn addresses(&self) -> Vec<&str> {
        self.pool.split(',').collect()
    }

    /// The secret, if there is one.
    pub(crate) fn secret(&self) -> anyhow::Result<Option<Secret>> {
        if let Some(path) = &self.secret_file {
            return Ok(Some(secret_of(path)?));
        }
        match std::env::var(SECRET_VARIABLE) {
            Ok(text) if !text.is_empty() => {
                let secret = Secret::from_text(&text);
                Ok(Some(secret.with_context(|| {
                    format!("{SECRET_VARIABLE} holds no secret")
                })?))
            }
            Err(VarError::NotUnicode(_)) => Err(anyhow!("{SECRET_VARIABLE} is no text")),
            _ => Ok(None),
        }
    }
}

/// The secret in a file.
pub(crate) fn secret_of(path: &Path) -> anyhow::Result<Secret> {
    let secret = Secret::from_file(path)?;
    warn_of_others(path);
    Ok(secret)
}

/// Says once that others can read or change a secret, if they can.
fn warn_of_others(path: &Path) {
    static SAID: Once = Once::new();
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file);
    if file.is_some_and(|file| file.permissions().mode() & 0o066 != 0) {
        SAID.call_once(|| {
            tracing::warn!(
                "other users of this host can read or change {0}; `chmod 600 {0}` keeps them from \
                 it",
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

/// Reads the command line, and ends the program if that is not possible.
pub(crate) fn read() -> Arguments {
    let matches = without_empty_variables(Arguments::command()).get_matches();
    refuse_needless_pool(&matches);
    refuse_needless_rdma(&matches);
    refuse_needless_table_options(&matches);
    refuse_options_of_other_kinds(&matches);
    Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// A variable that is set to nothing is not set: scripts clear variables so.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |variable: &OsStr| std::env::var_os(variable).is_some_and(|it| it.is_empty());
    command
        .mut_args(|argument| match argument.get_env() {
            Some(variable) if is_empty(variable) => argument.env(Resettable::Reset),
            _ => argument,
        })
        .mut_subcommands(without_empty_variables)
}

/// `serve`, `bench`, `sim` and `figures` make pools of their own: an address would be ignored, and
/// is refused. That of the environment stands there for the other commands.
fn refuse_needless_pool(matches: &ArgMatches) {
    let is_given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
    let command = matches.subcommand_name();
    let makes_own = matches!(command, Some("bench" | "sim" | "figures"));
    if is_given("rights") && (makes_own || matches!(command, Some("serve" | "secret"))) {
        refuse(
            "--rights cannot be used here: it is for commands that are let into a pool".to_owned(),
        );
    }
    let of_serve = matches.subcommand_matches("serve");
    let is_node = of_serve.is_some_and(|serve| serve.contains_id("node"));
    if is_given("tls_ca") && (makes_own || command == Some("serve") && !is_node) {
        refuse(
            "--tls-ca cannot be used here: it is for commands that are let into a pool".to_owned(),
        );
    }
    if is_given("secret_file") && makes_own {
        refuse(
            "--secret-file cannot be used here: this command makes a pool of its own".to_owned(),
        );
    }
    let of_secret = matches.subcommand_matches("secret");
    if is_given("secret_file") {
        if of_serve.is_some_and(|serve| !serve.contains_id("listen") && !is_node) {
            refuse(
                "--secret-file cannot be used without --listen: who is let in by `shm` needs no \
                    secret"
                    .to_owned(),
            );
        }
        if of_secret.and_then(ArgMatches::subcommand_name) == Some("new") {
            refuse(
                "--secret-file cannot be used here: a new secret is printed; `> FILE` puts it \
                    into a file"
                    .to_owned(),
            );
        }
    }
    if is_node && !is_given("pool") {
        refuse("--node needs --pool FILE, the file that says which nodes the pool has".to_owned());
    }
    let instead = match command {
        Some("serve") if is_node => return,
        Some("serve") => {
            "`serve` starts a pool; name it with --name NAME, or serve one of the nodes in a file \
             with --pool FILE --node NUMBER"
        }
        Some("secret") => "`secret` works with no pool",
        Some("bench") => "`bench` makes a pool of its own; choose its fabric with --fabric",
        Some("sim") => "`sim` simulates a pool of its own",
        Some("figures") => "`figures` makes what it measures or simulates by itself",
        _ => return,
    };
    if is_given("pool") {
        refuse(format!("--pool cannot be used here: {instead}"));
    }
}

/// Of RDMA devices only `verbs` has any use.
fn refuse_needless_rdma(matches: &ArgMatches) {
    let is_given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
    let options = ["rdma_device", "rdma_port", "rdma_gid_index", "rdma_mtu"];
    let Some(option) = options.into_iter().find(is_given) else {
        return;
    };
    let option = option.replace('_', "-");
    let uses_verbs = match matches.subcommand() {
        Some(("serve", serve)) => serve.get_flag("verbs"),
        Some(("bench", bench)) => {
            let name = bench.subcommand().map_or(bench, |(_, matches)| matches);
            let fabric = name.try_get_one::<FabricKind>("fabric");
            fabric.ok().flatten() == Some(&FabricKind::Verbs)
        }
        Some(("sim" | "figures" | "secret", _)) => false,
        _ => {
            let pool = matches.get_one::<String>("pool");
            pool.is_some_and(|pool| pool.split(',').any(|one| one.starts_with("verbs:")))
        }
    };
    if !uses_verbs {
        refuse(format!(
            "--{option} cannot be used here: it is for `serve --verbs`, `bench --fabric verbs` and \
             pools at verbs:HOST:PORT"
        ));
    }
}

/// A table that is there has its options already: `load` would ignore others, unless `--create` has
/// it compare them.
fn refuse_needless_table_options(matches: &ArgMatches) {
    let Some(("load", load)) = matches.subcommand() else {
        return;
    };
    let is_given = |option: &&str| load.value_source(option) == Some(ValueSource::CommandLine);
    let given = [
        "kind",
        "slots",
        "index",
        "page_size",
        "inline_value",
        "fill",
        "epsilon",
        "bounds",
    ]
    .into_iter()
    .find(is_given)
    .map(|option| option.replace('_', "-"));
    if !load.get_flag("create")
        && let Some(option) = given
    {
        refuse(format!(
            "--{option} cannot be used without --create: a table that is there keeps the options \
             that it was made with"
        ));
    }
}

/// `bench ycsb` has options for each kind of table: those of the other one would be ignored.
fn refuse_options_of_other_kinds(matches: &ArgMatches) {
    if let Some(("bench", bench)) = matches.subcommand()
        && let Some(misplaced) = command::bench::option_of_other_kind(bench)
    {
        refuse(misplaced);
    }
}

fn refuse(message: String) -> ! {
    Arguments::command()
        .error(clap::error::ErrorKind::ArgumentConflict, message)
        .exit()
}

impl Arguments {
    /// What is logged. A server tells what happens to it; other commands only what goes wrong;
    /// simulations nothing, as what goes wrong in them happens to nobody.
    pub(crate) fn log_level(&self) -> Option<Level> {
        let told = self.verbose.saturating_add(match self.command {
            Command::Serve(_) => 1,
            Command::Sim(_) if self.verbose == 0 => return None,
            _ => 0,
        });
        Some(match told {
            0 => Level::WARN,
            1 => Level::INFO,
            2 => Level::DEBUG,
            _ => Level::TRACE,
        })
    }
}

/// The table to work with.
#[derive(Clone, Debug, Args)]
pub(crate) struct TableArgument {
    /// Which table of the pool
    #[arg(short, long = "table", value_name = "NAME", env = "FARLEAF_TABLE")]
    #[arg(default_value = "default")]
    pub(crate) table: String,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OutputArgument {
    /// How to print: as text, or as JSON, one object a line
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
