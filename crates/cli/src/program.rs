//! The command line of `farleaf`: its definition, how it is read, and the command that it runs.

use std::ffi::OsStr;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing::Level;

use crate::arguments::{GLOBAL_OPTIONS, PoolArguments};
use crate::command::{
    bench, cluster, del, dump, figures, get, load, manual, nodes, put, region, scan, secret, serve,
    sim, stats, table, tls,
};
use crate::failure::Ending;
use crate::{needless, pool_or_cluster};

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

    /// Name of the command, for messages.
    #[arg(skip)]
    pub(crate) command_name: String,
}

/// Command to run.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a memory pool to processes of this host, or of other hosts with --listen
    Serve(serve::ServeArguments),
    /// Create, list and drop tables
    Table(table::TableArguments),
    /// Load records from a file into a table
    Load(load::LoadArguments),
    /// Print all records of a table in the format that `load` reads
    Dump(dump::DumpArguments),
    /// Print the values of keys
    Get(get::GetArguments),
    /// Set the value of a key
    Put(put::PutArguments),
    /// Remove keys
    Del(del::DelArguments),
    /// Print records in key order
    Scan(scan::ScanArguments),
    /// Show the contents of a pool and statistics of its tables
    Stats(stats::StatsArguments),
    /// List, drain and give up the nodes of a pool
    Nodes(nodes::NodesArguments),
    /// Run a server of a cluster, and compare replicas
    Region(region::RegionArguments),
    /// Create, inspect and administer a cluster
    Cluster(cluster::ClusterArguments),
    /// Create secrets, and derive keys with fewer rights from them
    Secret(secret::SecretArguments),

    /// Create certificates for encrypted connections of a test cluster
    Tls(tls::TlsArguments),
    /// Run benchmarks in a pool or on servers of their own
    Bench(Box<bench::BenchArguments>),
    /// Run randomized failure simulations and check the results
    Sim(sim::SimArguments),
    /// Reproduce the figures of the papers
    Figures(figures::FiguresArguments),
    /// Print a completion script for a shell
    Completions(manual::CompletionsArguments),
    /// Write manual pages, one for each command
    Man(manual::ManArguments),
}

/// Runs the command.
///
/// # Errors
/// The command failed; [`crate::failure`] prints the error.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Ending> {
    run_command(arguments).map_err(|error| {
        if is_forbidden(&error) {
            let right = match arguments.command {
                Command::Table(_) => "'admin'",
                Command::Load(_) => "'write', or 'admin' to create the table",
                _ => "'write'",
            };
            let name = &arguments.command_name;
            error.context(format!("`farleaf {name}` needs the right {right}"))
        } else {
            error
        }
    })
}

/// Returns whether the session's rights do not allow the operation.
fn is_forbidden(error: &anyhow::Error) -> bool {
    let mut of_store = error.chain().filter_map(|it| it.downcast_ref());
    of_store.any(|error: &farleaf::Error| match error.kind_in_pool() {
        farleaf::ErrorKind::Fabric(batch) => batch.is_forbidden(),
        _ => false,
    })
}

fn run_command(arguments: &Arguments) -> anyhow::Result<Ending> {
    let pool = &arguments.pool;
    match &arguments.command {
        Command::Serve(serve) => serve::run(pool, serve),
        Command::Table(table) => table::run(pool, table),
        Command::Load(load) => load::run(pool, load),
        Command::Dump(dump) => dump::run(pool, dump),
        Command::Get(get) => get::run(pool, get),
        Command::Put(put) => put::run(pool, put),
        Command::Del(del) => del::run(pool, del),
        Command::Scan(scan) => scan::run(pool, scan),
        Command::Stats(stats) => stats::run(pool, stats),
        Command::Nodes(nodes) => nodes::run(pool, nodes),
        Command::Region(region) => region::run(pool, region),
        Command::Cluster(cluster) => cluster::run(pool, cluster),
        Command::Secret(secret) => secret::run(pool, secret),
        Command::Tls(tls) => tls::run(tls),
        Command::Bench(bench) => bench::run(pool, bench),
        Command::Sim(sim) => sim::run(sim),
        Command::Figures(figures) => figures::run(figures),
        Command::Completions(completions) => {
            manual::print_completions(completions, definition_for_completions())
        }
        Command::Man(man) => manual::write_pages(man, definition_for_manual()),
    }
}

/// Parses the command line; exits if it is invalid.
pub(crate) fn read() -> Arguments {
    let matches = definition().try_get_matches();
    let matches = matches.unwrap_or_else(|error| with_tip(error).exit());
    let checked = needless::refuse(&matches).and_then(|()| pool_or_cluster::check(&matches));
    let uses_cluster = checked.unwrap_or_else(|conflict| {
        let error = Arguments::command().error(ErrorKind::ArgumentConflict, conflict);
        error.exit()
    });
    let arguments = Arguments::from_arg_matches(&matches);
    let mut arguments = arguments.unwrap_or_else(|error| error.exit());
    if !uses_cluster {
        // The cluster of the environment variable is meant for other commands.
        arguments.pool.cluster = None;
    }
    arguments.pool.tls.note_sources(&matches);
    let name = matches.subcommand_name().unwrap_or_default();
    name.clone_into(&mut arguments.command_name);
    arguments
}

/// Replaces the tip for names that other programs give to commands of this one.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let is_of_farleaf = |usage: &ContextValue| usage.to_string().contains("farleaf [OPTIONS] ");
    if !error.get(ContextKind::Usage).is_some_and(is_of_farleaf) {
        return error;
    }
    let tip = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) => match name.as_str() {
            "ls" | "list" => "list tables with `farleaf table list`",
            "create" => "create a table with `farleaf table create`",
            "set" => "set the value of a key with `farleaf put`",
            "rm" => "remove keys with `farleaf del`, and a table with `farleaf table drop`",
            _ => return error,
        },
        _ => return error,
    };
    error.remove(ContextKind::SuggestedSubcommand);
    let tips = vec![tip.into()];
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    error
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the definition of the command line is free of contradictions.
    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    /// Promise: names of other programs get a tip, at the top level only.
    #[test]
    fn names_of_other_programs_get_a_tip() {
        for (line, tip) in [
            (&["farleaf", "ls"][..], "`farleaf table list`"),
            (&["farleaf", "create"], "`farleaf table create`"),
            (&["farleaf", "set"], "`farleaf put`"),
            (&["farleaf", "rm"], "`farleaf table drop`"),
            (&["farleaf", "nodes", "ls"], "'list'"),
        ] {
            let error = definition().try_get_matches_from(line);
            let text = with_tip(error.expect_err("it is not a command")).to_string();
            assert!(text.contains(tip), "{text}");
            assert_eq!(text.matches("tip: ").count(), 1, "{text}");
        }
    }
}
