//! `farleaf cluster key`: keys for clients that may use only one table, or a part of it.

use std::ffi::OsStr;

use farleaf::Rights;

use crate::arguments::PoolArguments;
use crate::command::cluster_client::Opened;
use crate::failure::{BadArgument, Ending};
use crate::output::print;
use crate::strings::EncodingArguments;

/// Part of a table that a key is for.
pub(super) struct Part<'a> {
    pub(super) rights: Rights,
    pub(super) table: &'a str,
    pub(super) prefix: Option<&'a OsStr>,
    pub(super) encoding: EncodingArguments,
}

/// Prints a key for a part of a table.
pub(super) fn run(
    pool: &PoolArguments,
    opened: &Opened,
    part: &Part<'_>,
) -> anyhow::Result<Ending> {
    let secret = pool.secret_to_derive_from()?;
    let prefix = match part.prefix {
        Some(text) => part.encoding.read("the prefix", text)?,
        None => Vec::new(),
    };
    let table = opened.cluster.open_table(part.table);
    let table = table.map_err(|error| opened.explain(error))?;
    let scope = table.key_scope(&prefix).ok_or_else(|| {
        BadArgument(format!(
            "--key-prefix: the prefix has {} bytes, and at most {} are allowed",
            prefix.len(),
            farleaf::persistent::KEY_PREFIX_SIZE_BYTES_MAX
        ))
    })?;
    let text = secret.limited_text(part.rights, &scope)?;
    print(format_args!("{text}\n"))?;
    Ok(Ending::Done)
}
