//! Options that several commands share.

use std::env::VarError;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fmt, fs};

use anyhow::{Context, anyhow};
use clap::Args;
use farleaf::{Rights, Secret, VerbsOptions};

use crate::failure::BadArgument;
use crate::output::OutputFormat;
use crate::tls_options::TlsArguments;

/// The commit that this program is built from, or "unknown".
pub(crate) const COMMIT: &str = env!("FARLEAF_COMMIT");

/// Heading of the options that every command takes, in the help of `farleaf` itself.
pub(crate) const GLOBAL_OPTIONS: &str = "Global options";

/// Address of the pool without `--pool`.
pub(crate) const DEFAULT_POOL: &str = "shm:default";

/// Name of the table without `--table`.
pub(crate) const DEFAULT_TABLE: &str = "default";

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
    #[arg(default_value = DEFAULT_POOL)]
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

    #[command(flatten)]
    pub(crate) tls: TlsArguments,

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

    /// Returns the secret for a command that derives a key.
    pub(crate) fn secret_to_derive_from(&self) -> anyhow::Result<Secret> {
        let none = "missing secret to derive a key from; set --secret-file or FARLEAF_SECRET";
        let secret = self.secret()?;
        Ok(secret.ok_or_else(|| BadArgument(none.to_owned()))?)
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

/// Logs one warning if other users can read or change a file with a secret or key.
pub(crate) fn warn_of_others(path: &Path) {
    static SAID: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file);
    if file.is_none_or(|file| file.permissions().mode() & 0o066 == 0) {
        return;
    }
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.iter().any(|it| it == path) {
        said.push(path.to_owned());
        tracing::warn!(
            "other users of this host can read or change '{0}'; run `chmod 600 {0}`",
            path.display()
        );
    }
}

impl fmt::Display for PoolArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pool)
    }
}

/// Table that the command works with.
#[derive(Clone, Debug, Args)]
pub(crate) struct TableArgument {
    /// Name of the table
    #[arg(short, long = "table", value_name = "NAME", env = "FARLEAF_TABLE")]
    #[arg(default_value = DEFAULT_TABLE)]
    pub(crate) table: String,
}

/// Format in which results are printed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OutputArgument {
    /// Output format: text, or one JSON object per line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}
