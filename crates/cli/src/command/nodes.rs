//! `farleaf nodes`: lists and administers the nodes of a pool.

use clap::{Args, Subcommand};
use comfy_table::CellAlignment;
use farleaf::{NodeInfo, NodeState, Pool};
use serde::Serialize;

use crate::arguments::{OutputArgument, PoolArguments};
use crate::command::connection::open_pool;
use crate::failure::Ending;
use crate::output::{Lines, OutputFormat, grid, print};
use farleaf_bench::quantity::size;

/// Arguments of `farleaf nodes`.
#[derive(Debug, Args)]
pub(crate) struct NodesArguments {
    #[command(subcommand)]
    command: NodesCommand,
}

#[derive(Debug, Subcommand)]
enum NodesCommand {
    /// List the nodes of the pool, including lost ones
    List {
        #[command(flatten)]
        output: OutputArgument,
    },
    /// Move everything on a node to other nodes, without interrupting clients. `nodes list` shows
    /// when the node is empty and can be stopped
    Drain {
        /// Number of the node to drain
        number: u8,
    },
    /// Stop draining a node and use it again
    Keep {
        /// Number of the node to use again
        number: u8,
    },
    /// Declare a node lost, with everything on it. This cannot be undone
    GiveUp {
        /// Number of the node to give up
        number: u8,
    },
}

/// Node as JSON.
#[derive(Serialize)]
struct Listed<'a> {
    node: u8,
    address: &'a str,
    state: String,
    size_bytes: u64,
    /// Bytes in use; `null` if the node cannot be read.
    used_bytes: Option<u64>,
}

/// Runs `farleaf nodes`.
pub(crate) fn run(pool: &PoolArguments, arguments: &NodesArguments) -> anyhow::Result<Ending> {
    let opened = open_pool(pool)?;
    match &arguments.command {
        NodesCommand::List { output } => list(&opened, output.output)?,
        NodesCommand::Drain { number } => set(
            &opened,
            *number,
            NodeState::Draining,
            "is draining; `farleaf nodes list` shows when it has left",
        )?,
        NodesCommand::Keep { number } => {
            set(&opened, *number, NodeState::Active, "is in use")?;
        }
        NodesCommand::GiveUp { number } => {
            set(
                &opened,
                *number,
                NodeState::Lost,
                "is lost, with all data on it",
            )?;
        }
    }
    Ok(Ending::Done)
}

fn set(pool: &Pool, number: u8, state: NodeState, what: &str) -> anyhow::Result<()> {
    pool.set_node_state(number, state)?;
    print(format_args!("node {number} {what}\n"))
}

fn list(pool: &Pool, format: OutputFormat) -> anyhow::Result<()> {
    let nodes = pool.nodes()?;
    match format {
        OutputFormat::Text => print(text(&nodes)),
        OutputFormat::Json => {
            let mut lines = Lines::new(format);
            for node in &nodes {
                let listed = Listed {
                    node: node.number,
                    address: &node.address,
                    state: node.state.to_string(),
                    size_bytes: node.size_bytes,
                    used_bytes: node.used_bytes,
                };
                lines.line("", &listed)?;
            }
            lines.finish()
        }
    }
}

fn text(nodes: &[NodeInfo]) -> String {
    let rows = nodes.iter().map(|node| {
        let used = match (node.state, node.used_bytes) {
            (NodeState::Left | NodeState::Lost, _) => String::new(),
            (_, Some(used_bytes)) => size(used_bytes),
            (_, None) => "unreachable".to_owned(),
        };
        let state = node.state.to_string();
        [
            node.number.to_string(),
            node.address.clone(),
            state,
            size(node.size_bytes),
            used,
        ]
    });
    let (left, right) = (CellAlignment::Left, CellAlignment::Right);
    let header = ["node", "address", "state", "size", "used"];
    grid(header, [right, left, left, right, right], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the bytes in use are a number only where they are known. A node that should be
    /// available and cannot be read is reported as such.
    #[test]
    fn what_is_not_known_is_no_number() {
        let node = |number, state, used_bytes| NodeInfo {
            number,
            address: "memory.example:7470".to_owned(),
            state,
            size_bytes: 64 << 20,
            used_bytes,
        };
        let shown_text = text(&[
            node(0, NodeState::Active, Some(0)),
            node(1, NodeState::Active, None),
            node(2, NodeState::Lost, None),
        ]);
        let rows: Vec<Vec<&str>> = shown_text
            .lines()
            .map(|line| line.split_whitespace().skip(2).collect())
            .collect();
        for row in [
            &["active", "64", "MiB", "0", "B"][..],
            &["active", "64", "MiB", "unreachable"],
            &["lost", "64", "MiB"],
        ] {
            assert!(rows.iter().any(|it| it == row), "{row:?}: {shown_text}");
        }
    }
}
