//! `farleaf serve --pool FILE --node NUMBER`: serves one node of a pool of several nodes.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use farleaf::{ConnectOptions, VerbsOptions};
use farleaf_net::tls::host_of;
use farleaf_node::{
    DataNode, DataNodeEnd, DataNodeOptions, ListenError, MainNodeOptions, NodeError, NodeId,
    ShmNode, StopSignal, TcpListenOptions,
};

use super::connection::connect_options_with;
use super::serve::{ServeArguments, cannot_listen, warn_of_ordinary_pages};
use crate::arguments::{PoolArguments, secret_of};
use crate::failure::{BadArgument, Ending};
use crate::output::print;
use crate::pool_file::{NodeEntry, PoolFile};
use crate::reload::ReloadSignal;
use crate::signals;
use crate::tls_options::Member;
use farleaf_bench::quantity::size;

/// Arguments that every node of a pool starts with.
struct Start<'a> {
    file: PoolFile,
    /// Position of the node in the file.
    number: usize,
    arguments: &'a ServeArguments,
    connect: ConnectOptions,
    listen: TcpListenOptions,
    /// RDMA device of this host that serves the node's memory, if one does.
    verbs: Option<VerbsOptions>,
    reload: ReloadSignal,
}

/// Serves until SIGINT or SIGTERM.
pub(super) fn run(
    pool: &PoolArguments,
    arguments: &ServeArguments,
    number: usize,
) -> anyhow::Result<Ending> {
    let file = PoolFile::read(Path::new(&pool.pool))?;
    let entry = file.node(number)?.clone();
    // Files are read once, before the signal handlers are installed: they may be pipes.
    let member = Member {
        who: "a node of a pool",
        host: host_of(&entry.address).to_owned(),
        security: arguments.security,
        has_rdma: arguments.verbs,
    };
    let tls = pool.tls.member(&member)?;
    let (own_tls, tls) = tls.unzip();
    let mut connect = connect_options_with(pool, tls)?;
    // The command line takes precedence.
    let mut own_secret = None;
    if let (None, Some(path)) = (&connect.secret, &file.secret_file) {
        let secret = secret_of(path)?;
        connect.secret = Some(secret.clone());
        own_secret = Some((path.clone(), secret));
    }
    let mut reloader = arguments.reload.reloader(pool, connect.secret.as_ref());
    if let Some((path, secret)) = own_secret {
        reloader.add_secret("the pool's secret", &path, &secret);
    }
    if let (Some(own), Some(others)) = (&own_tls, &connect.tls) {
        let both = (own, others);
        pool.tls.reload_member(&mut reloader, both, member);
    }
    let reload = reloader.start()?;
    connect.answer_time_max = file.lost_after;
    let listen = arguments.listen_at(entry.listen, connect.secret.clone(), own_tls)?;
    let verbs = arguments.verbs.then(|| connect.verbs.clone());
    let start = Start {
        file,
        number,
        arguments,
        connect,
        listen,
        verbs,
        reload,
    };
    if number == 0 {
        start.serve_main_node(&entry)
    } else {
        start.serve_data_node(&entry)
    }
}

impl Start<'_> {
    fn serve_main_node(&self, entry: &NodeEntry) -> anyhow::Result<Ending> {
        let signals = signals::take()?;
        let options = MainNodeOptions {
            address: entry.address.clone(),
            connect: self.connect.clone(),
            lost_after: self.file.lost_after,
            verbs: self.verbs.clone(),
        };
        let own = self.arguments.node_options()?;
        let name = &self.file.name;
        let node = ShmNode::start_main_node(name, entry.size_bytes, own, options);
        let mut node = node.map_err(|error| self.refused(entry, error))?;
        node.listen(&self.listen)
            .map_err(|error| self.refused(entry, error))?;
        warn_of_ordinary_pages(node.page_kind(), node.size_bytes());
        let stop = node.stop_signal();
        signals::stop_on(signals, move || stop.stop(), self.reload.clone())?;
        self.say_ready(entry, node.size_bytes(), node.verbs());
        node.wait()?;
        tracing::info!(address = entry.address, "stopped");
        Ok(Ending::Done)
    }

    /// Serves a node that joins the pool. A node that its pool has given up starts empty.
    fn serve_data_node(&self, entry: &NodeEntry) -> anyhow::Result<Ending> {
        let signals = signals::take()?;
        let stopping: Arc<Mutex<Stopping>> = Arc::default();
        let stop_target = Arc::clone(&stopping);
        let stop = move || lock(&stop_target).stop();
        signals::stop_on(signals, stop, self.reload.clone())?;
        loop {
            let node = self.start_data_node(entry)?;
            lock(&stopping).watch(node.stop_signal());
            warn_of_ordinary_pages(node.page_kind(), node.size_bytes());
            self.say_ready(entry, node.size_bytes(), node.verbs());
            let end = node.wait();
            if end == DataNodeEnd::Stopped || lock(&stopping).is_stopping {
                break;
            }
            tracing::warn!(
                address = entry.address,
                "this node rejoins its pool as a new, empty node"
            );
        }
        tracing::info!(address = entry.address, "stopped");
        Ok(Ending::Done)
    }

    fn start_data_node(&self, entry: &NodeEntry) -> anyhow::Result<DataNode> {
        let options = DataNodeOptions {
            name: format!("{}-{}", self.file.name, self.number),
            size_bytes: entry.size_bytes,
            listen: self.listen.clone(),
            address: entry.address.clone(),
            wanted: NodeId(u8::try_from(self.number).unwrap_or(0)),
            main_node_address: self.file.nodes[0].address.clone(),
            connect: self.connect.clone(),
            verbs: self.verbs.clone(),
        };
        DataNode::start(&options).map_err(|error| self.refused(entry, error))
    }

    fn refused(&self, entry: &NodeEntry, error: NodeError) -> anyhow::Error {
        let number = self.number;
        match error {
            NodeError::Listen(ListenError::AlreadyServed(_)) => {
                let (address, name) = (&entry.address, &self.file.name);
                anyhow::anyhow!(
                    "cannot serve {address}: a pool named '{name}' is already served on this host; \
                     stop that pool, or change the name of this one in its file (name = \"other\")"
                )
            }
            NodeError::Name(_) => BadArgument(format!("name of the pool: {error}")).into(),
            NodeError::Size(_) => BadArgument(format!(
                "size of node {number}: {error}; for example, use 64MiB"
            ))
            .into(),
            error => cannot_listen(&format!("node {number}"), error, &entry.address),
        }
    }

    fn say_ready(&self, entry: &NodeEntry, size_bytes: u64, device: Option<String>) {
        let (number, name) = (self.number, &self.file.name);
        let (address, size) = (&entry.address, size(size_bytes));
        let (kind, by) = match device {
            Some(device) => ("verbs", format!(" by {device}")),
            None => ("tcp", String::new()),
        };
        // The parent process need not read the line.
        let _ = print(format_args!(
            "serving node {number} of '{name}'{by}, {size}; `farleaf --pool {kind}:{address} ...` \
             uses the pool; Ctrl-C stops the node\n"
        ));
    }
}

/// Handle that stops the joining node that currently runs.
#[derive(Default)]
struct Stopping {
    is_stopping: bool,
    data_node: Option<StopSignal>,
}

impl Stopping {
    fn stop(&mut self) {
        self.is_stopping = true;
        self.data_node.iter().for_each(StopSignal::stop);
    }

    fn watch(&mut self, data_node: StopSignal) {
        if self.is_stopping {
            data_node.stop();
        }
        self.data_node = Some(data_node);
    }
}

fn lock(stopping: &Mutex<Stopping>) -> std::sync::MutexGuard<'_, Stopping> {
    stopping.lock().unwrap_or_else(PoisonError::into_inner)
}
