//! `farleaf tls`: creates certificates for encrypted connections.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use farleaf_net::authority::{AuthorityError, LOCAL_NAMES, VALIDITY_DAYS, add, create};

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
    /// with which `farleaf tls add` signs further certificates; servers and clients do not need it.
    /// Existing files are not overwritten. The certificate is valid for 3650 days, and for
    /// `localhost`, `127.0.0.1` and `::1`, too.
    Init {
        /// Directory for the files; created if it does not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,

        /// Host name (also *.DOMAIN) or IP address at which clients reach a server; can be repeated
        #[arg(long = "name", value_name = "HOST")]
        names: Vec<String>,
    },
    /// Create another certificate of an authority that `farleaf tls init` created
    ///
    /// The files are DIR/PREFIX.pem (--tls-cert) and DIR/PREFIX-key.pem (--tls-key). Existing files
    /// are not overwritten. The certificate is like that of `farleaf tls init`.
    Add {
        /// Directory with ca.pem and ca-key.pem
        #[arg(value_name = "DIR")]
        directory: PathBuf,

        /// Host name (also *.DOMAIN) or IP address at which clients reach a server; can be repeated
        #[arg(long = "name", value_name = "HOST", required = true)]
        names: Vec<String>,

        /// Beginning of the names of the files [default: the first HOST]
        #[arg(long, value_name = "PREFIX")]
        out: Option<String>,
    },
}

/// Runs `farleaf tls`.
pub(crate) fn run(arguments: &TlsArguments) -> anyhow::Result<Ending> {
    let (created, names) = match &arguments.command {
        TlsCommand::Init { directory, names } => (create(directory, names), names),
        TlsCommand::Add {
            directory,
            names,
            out,
        } => {
            let prefix = out.as_ref().unwrap_or(&names[0]);
            (add(directory, names, prefix), names)
        }
    };
    let files = created.map_err(|error| match error {
        error @ AuthorityError::Name { .. } => {
            anyhow::Error::new(BadArgument(format!("--name: {error}")))
        }
        error => error.into(),
    })?;
    let mut valid_for = LOCAL_NAMES.to_vec();
    for name in names {
        if !valid_for.contains(&name.as_str()) {
            valid_for.push(name);
        }
    }
    let authority = quoted(&files.authority);
    print(format_args!(
        "created {}, for {}, valid for {VALIDITY_DAYS} days; servers: --tls-cert {} --tls-key {}, \
         and --tls-ca {authority} if they connect to others; clients: --tls-ca {authority}\n",
        quoted(&files.certificate),
        valid_for.join(", "),
        quoted(&files.certificate),
        quoted(&files.key),
    ))?;
    Ok(Ending::Done)
}

/// Returns a path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "/._-+:,@".contains(it);
    if text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a shell takes each printed path as one argument.
    #[test]
    fn paths_are_quoted_for_a_shell() {
        for (path, text) in [
            ("tls/ca.pem", "tls/ca.pem"),
            ("my tls/ca.pem", "'my tls/ca.pem'"),
            ("*.example.pem", "'*.example.pem'"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(quoted(Path::new(path)), text);
        }
    }
}
