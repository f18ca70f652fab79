//! How an endpoint finds the nodes of its pool.

use core::fmt::Debug;
use std::sync::Arc;

use farleaf_types::NodeId;

use crate::tcp::TcpClient;

/// The way to a node.
#[derive(Debug)]
pub enum NodeWay {
    /// There is no such node.
    None,
    /// It is gone for good.
    Lost,
    /// It is there.
    At(Arc<TcpClient>),
    /// It cannot be reached just now, and why.
    Unreachable(String),
}

/// Who knows the nodes of a pool besides its home. Calls may block; none but
/// [`is_lost`](Self::is_lost) is on the path of an operation on nodes that are connected.
pub trait NodeDirectory: Debug + Send + Sync {
    /// The way to a node.
    fn find(&self, node: NodeId) -> NodeWay;

    /// Nothing more can be opened by this client of a node, which is not lost: the way by another
    /// client, if the first one's own connection to the node has ended. `None`: that is not why.
    fn renew(&self, _node: NodeId, _failed: &Arc<TcpClient>) -> Option<NodeWay> {
        None
    }

    /// Whether a node is known to be gone for good. Costs nothing.
    fn is_lost(&self, node: NodeId) -> bool;

    /// The connection to a node broke: whether the node is gone for good, by the word of the pool's
    /// home. Waits until the home has noticed, or heard from the node since.
    fn is_lost_now(&self, node: NodeId) -> bool;
}
