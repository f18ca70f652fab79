//! Farleaf's side: a memory node in its own process, and sessions over `tcp`.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use farleaf::{Pool, Table, TableOptions};
use farleaf_executor::TaskSet;
use farleaf_node::{RetrainPolicy, ShmNode, TcpListenOptions};

use super::{Keys, Request, Server, key_of, value_of};

const TABLE: &str = "records";

/// Memory node; it ends when this is dropped.
#[derive(Debug)]
pub struct FarleafNode {
    child: Child,
    address: String,
}

/// Serves until standard input ends, in the child process.
///
/// # Errors
/// The host lacks the memory.
pub fn serve(size_bytes: u64) -> anyhow::Result<()> {
    let name = format!("against-redis-{}", std::process::id());
    let mut node = ShmNode::start(&name, size_bytes, Some(RetrainPolicy::default()))?;
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    println!("tcp:{}", node.listen(&TcpListenOptions::at(loopback))?);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

impl FarleafNode {
    /// Starts the node and loads the records.
    ///
    /// # Errors
    /// This program cannot be started again, or the node has not enough memory.
    pub fn start(record_count: u64) -> anyhow::Result<Self> {
        let size_bytes = record_count * 64 + (64 << 20);
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--serve-bytes", &size_bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the memory node")?;
        let mut address = String::new();
        let stdout = child.stdout.take().context("it has an output")?;
        BufReader::new(stdout).read_line(&mut address)?;
        let node = Self {
            child,
            address: address.trim().to_owned(),
        };
        let session = Pool::open(&node.address)?.session()?;
        let table = session.create_table(TABLE, &TableOptions::default())?;
        let records = (0..record_count).map(|index| (key_of(index), value_of(key_of(index))));
        table.bulk_load(records, |_| {})?;
        Ok(node)
    }
}

impl Drop for FarleafNode {
    fn drop(&mut self) {
        self.child.stdin.take();
        // The process ends when its input does; a process that does not end cannot be helped.
        let _ = self.child.wait();
    }
}

async fn perform(table: &farleaf::AsyncTable, request: Request, key: u64) -> anyhow::Result<()> {
    match request {
        Request::Get => ensure!(
            table.get(key).await? == Some(value_of(key)),
            "wrong value of key {key}"
        ),
        Request::Put => {
            table.put(key, value_of(key)).await?;
        }
    }
    Ok(())
}

impl Server for FarleafNode {
    fn work(
        &self,
        request: Request,
        in_flight: usize,
        request_count: u64,
        keys: &mut Keys,
    ) -> anyhow::Result<Duration> {
        let session = Pool::open(&self.address)?.session()?;
        let table: Table = session.open_table(TABLE)?;
        let table = table.asynchronous();
        let start = Instant::now();
        if in_flight == 1 {
            for _ in 0..request_count {
                session.block_on(perform(table, request, keys.next_key()))?;
            }
            return Ok(start.elapsed());
        }
        let mut tasks = TaskSet::with_capacity(in_flight);
        let mut failed = None;
        let mut note = |outcome: anyhow::Result<()>| failed = outcome.err().or(failed.take());
        for _ in 0..request_count {
            tasks.run_until_vacant(session.completions(), &mut note);
            match tasks.spawn(perform(table, request, keys.next_key())) {
                Ok(Some(outcome)) => note(outcome),
                Ok(None) => {}
                Err(_) => bail!("the set has a vacancy"),
            }
        }
        tasks.drain(session.completions(), &mut note);
        match failed {
            Some(error) => Err(error),
            None => Ok(start.elapsed()),
        }
    }
}
