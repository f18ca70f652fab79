//! `farleaf serve`: a memory node for the processes of this host.

use std::thread;

use anyhow::Context;
use clap::Args;
use farleaf::{PageKind, Pool, retrain_policy};
use farleaf_node::{NodeError, ShmNode};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{BadArgument, Ending};
use crate::output::print;
use crate::quantity::{parse_size, size};

const HUGE_PAGE_SIZE_BYTES: u64 = 2 << 20;

/// Which pool to serve.
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The pool's name; its address is `shm:NAME`
    #[arg(long, default_value = "default")]
    name: String,

    /// Size of its memory, such as 512MiB or 4GiB; all of it is taken at once
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    #[arg(allow_negative_numbers = true)]
    size: u64,

    /// Threads that retrain tables while they are used: 1, or 0 for none
    #[arg(
        long,
        default_value_t = 1,
        value_name = "COUNT",
        allow_negative_numbers = true
    )]
    retrain_threads: u32,
}

/// Serves until SIGINT or SIGTERM. A second signal ends it at once.
pub(crate) fn run(arguments: &ServeArguments) -> anyhow::Result<Ending> {
    refuse_if_served(&arguments.name)?;
    // Before the node, so that no signal falls between.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot take signals")?;
    let retraining = retrain_policy(arguments.retrain_threads)
        .map_err(|error| BadArgument(format!("--{error}")))?;
    let node = ShmNode::start(&arguments.name, arguments.size, retraining);
    let node = node.map_err(|error| refused(&arguments.name, error))?;
    if node.page_kind() == PageKind::Ordinary {
        let page_count = node.size_bytes().div_ceil(HUGE_PAGE_SIZE_BYTES);
        tracing::warn!(
            "no huge pages: everything works, slower; `sysctl -w vm.nr_hugepages={page_count}` as \
             root before `farleaf serve` reserves enough"
        );
    }
    let stop = node.stop_signal();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut stopping = false;
            for signal in signals.forever() {
                if stopping {
                    // Whether it can be done or not, this is the end of it.
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
                stopping = true;
                stop.stop();
                tracing::info!(signal, "stopping");
            }
        })
        .context("cannot start the thread that waits for signals")?;
    let (address, size) = (node.name().to_string(), size(node.size_bytes()));
    tracing::info!(pool = address, size, pid = std::process::id(), "serving");
    let ready = format!(
        "serving {address}, {size}; `farleaf --pool {address} ...` and \
         `Pool::open(\"{address}\")` use it; Ctrl-C stops it\n"
    );
    // Whoever started it need not listen.
    let _ = print(ready);
    node.wait()
        .with_context(|| format!("{address} stopped serving"))?;
    tracing::info!(pool = address, "stopped");
    Ok(Ending::Done)
}

/// The node takes the name after the memory, of which the host may not have so much twice: a name
/// that somebody serves already is refused here, before any memory is taken. Of two servers that
/// start at once, the node refuses the second.
fn refuse_if_served(name: &str) -> anyhow::Result<()> {
    let address = format!("shm:{name}");
    if Pool::open(&address).is_err() {
        return Ok(());
    }
    Err(anyhow::anyhow!(
        "cannot serve {address}: {address} is already served by another process; stop that one or \
         take another name"
    ))
}

fn refused(name: &str, error: NodeError) -> anyhow::Error {
    match error {
        NodeError::Name(_) => BadArgument(format!("--name: {error}")).into(),
        NodeError::Size(_) => BadArgument(format!("--size: {error}; take 64MiB, say")).into(),
        other => anyhow::Error::new(other).context(format!("cannot serve shm:{name}")),
    }
}
