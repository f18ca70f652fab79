//! Directory by which an endpoint finds the nodes of its pool.

use core::fmt::Debug;
use std::sync::Arc;

use farleaf_base::NodeId;

use crate::tcp::TcpClient;

/// Access to a node.
#[derive(Debug)]
pub enum NodeAccess {
    /// The pool has no such node.
    None,
    /// The node is lost for good.
    Lost,
    /// The node is reached by this client.
    At(Arc<TcpClient>),
    /// The node cannot be reached at present, for this reason.
    Unreachable(String),
}

/// Directory of a pool's nodes other than the main node. Calls may block. For operations on
/// connected nodes only [`is_lost`](Self::is_lost) is called.
pub trait NodeDirectory: Debug + Send + Sync {
    /// Returns the access to a node.
    fn find(&self, node: NodeId) -> NodeAccess;

    /// Returns another client for a node that is not lost but where `failed` can open no more
    /// connections. Returns `None` unless the reason is that `failed`'s own connection to the node
    /// has ended.
    fn renew(&self, _node: NodeId, _failed: &Arc<TcpClient>) -> Option<NodeAccess> {
        None
    }

    /// Returns true if a node is known to be lost for good. Costs nothing.
    fn is_lost(&self, node: NodeId) -> bool;

    /// Returns true if the pool's main node reports a node as lost for good. Called after the
    /// connection to the node broke. Waits until the main node has noticed the loss, or has heard
    /// from the node since.
    fn query_lost(&self, node: NodeId) -> bool;
}
