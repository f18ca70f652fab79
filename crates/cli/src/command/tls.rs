//! `farleaf tls`: creates certificates for encrypted connections.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use farleaf_net::authority::{AuthorityError, LOCAL_NAMES, VALIDITY_YEARS, create};

use crate::failure::{BadArgument, Ending};
use crate::output::print;

/// Arguments of `farleaf tls`.
#[derive(Debug, Args)]
pub(crate) struct TlsArguments {
    #[command(subcommand)]
    command: TlsCommand,
}

#[derive(Debug, Subcommand)]
enum TlsCommand {
    /// Create an authority and a certificate, for servers and clients of a test cluster
    ///
    /// DIR then has ca.pem (--tls-ca), cert.pem (--tls-cert), key.pem (--tls-key) and ca-key.pem,
    /// with which further certificates can be signed. Existing files are not overwritten. The
    /// certificate is valid for `localhost`, `127.0.0.1` and `::1`, too.
    Init {
        /// Directory for the files; created if it does not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,

        /// Host name or IP address at which clients reach a server; can be repeated
        #[arg(long = "name", value_name = "HOST")]
        names: Vec<String>,
    },
}

/// Runs `farleaf tls`.
pub(crate) fn run(arguments: &TlsArguments) -> anyhow::Result<Ending> {
    let TlsCommand::Init { directory, names } = &arguments.command;
    let files = create(directory, names).map_err(|error| match error {
        error @ AuthorityError::Name { .. } => {
            anyhow::Error::new(BadArgument(format!("--name: {error}")))
        }
        error => error.into(),
    })?;
    let valid_for: Vec<_> = LOCAL_NAMES
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    print(format_args!(
        "created certificates in {} for {}, valid for {VALIDITY_YEARS} years; servers: --tls-ca {} \
         --tls-cert {} --tls-key {}; clients: --tls-ca {}\n",
        directory.display(),
        valid_for.join(", "),
        files.authority.display(),
        files.certificate.display(),
        files.key.display(),
        files.authority.display(),
    ))?;
    Ok(Ending::Done)
}
