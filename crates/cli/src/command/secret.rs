//! `farleaf secret`: creates secrets of pools and clusters, and keys with fewer rights.

use anyhow::Context;
use clap::{Args, Subcommand};
use farleaf::{Rights, Secret};

use crate::arguments::PoolArguments;
use crate::failure::{BadArgument, Ending};
use crate::output::print;

/// Arguments of `farleaf secret`.
#[derive(Debug, Args)]
pub(crate) struct SecretArguments {
    #[command(subcommand)]
    command: SecretCommand,
}

#[derive(Debug, Subcommand)]
enum SecretCommand {
    /// Print a new secret; `serve` and its clients read it from a file
    New,
    /// Print a key with fewer rights, derived from the secret in `--secret-file` or
    /// `FARLEAF_SECRET`
    Derive {
        /// Rights of the key: `read` or `write`
        #[arg(value_name = "RIGHTS")]
        wanted: Rights,
    },
}

/// Runs `farleaf secret`.
pub(crate) fn run(pool: &PoolArguments, arguments: &SecretArguments) -> anyhow::Result<Ending> {
    match arguments.command {
        SecretCommand::New => {
            let (_, text) = Secret::random().context("cannot generate a secret")?;
            print(format_args!("{text}\n"))?;
        }
        SecretCommand::Derive { wanted } => {
            if wanted == Rights::Admin {
                let reason = "only the secret itself grants `admin` rights; derive a key for \
                              `read` or `write`";
                return Err(BadArgument(reason.to_owned()).into());
            }
            let secret = pool.secret_to_derive_from()?;
            print(format_args!("{}\n", secret.derived_text(wanted)?))?;
        }
    }
    Ok(Ending::Done)
}
