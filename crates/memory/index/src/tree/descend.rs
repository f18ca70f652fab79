//! Descent from the root to the node that covers a key on some level.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint};

use super::access::TreeAccess;
use super::head::Head;
use super::node::{IMAGE_SIZE_WORDS, InnerNode, KeyPosition, image_addr};
use crate::IndexError;

/// Largest number of nodes that one descent reads: links of a level are followed as long as a tree
/// that lacks half of its entries would need.
const HOP_COUNT_MAX: u32 = 1 << 12;

/// Node that covers a key.
#[derive(Clone, Debug)]
pub struct Descent {
    /// Address of the node.
    pub addr: RemoteAddr,
    /// Node as read.
    pub node: InnerNode,
    /// True if the start node no longer covers the key: if it was the root, there is a newer root.
    pub is_start_old: bool,
}

/// Descent of one of many keys.
#[derive(Clone, Debug)]
struct Walker {
    start: RemoteAddr,
    at: Option<RemoteAddr>,
    is_start_old: bool,
    found: Option<Descent>,
}

impl<E: Endpoint> TreeAccess<'_, E> {
    /// Reads the address of the node at the top, with its level in the spare bits. Costs one round
    /// trip.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn root(&self, batch: &mut Batch, head: &Head) -> Result<RemoteAddr, IndexError> {
        batch.clear();
        let read = batch.read(head.root_addr(), 1);
        self.leaves.endpoint.execute(batch).await?;
        Ok(RemoteAddr::from_word(batch.words(read)[0]))
    }

    /// Returns the node of a level that covers a key, searching from `start` on. Calls `met` with
    /// each node on the path that covers the key. Costs one round trip and 1016 bytes per level,
    /// and one round trip per link. `None` if the path ends early because nodes are corrupted or
    /// lost, or if `start` is below that level.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn descend(
        &self,
        batch: &mut Batch,
        start: RemoteAddr,
        key: u64,
        level: u16,
        met: impl Fn(&InnerNode),
    ) -> Result<Option<Descent>, IndexError> {
        let (mut addr, mut is_start_old) = (start.place(), false);
        for _ in 0..HOP_COUNT_MAX {
            let Some(node) = self.read(batch, addr).await? else {
                return Ok(None);
            };
            let key_position = node.key_position(key);
            if key_position == KeyPosition::Here {
                met(&node);
            }
            match key_position {
                KeyPosition::On(next) => {
                    batch.cost_mut().links += 1;
                    is_start_old |= addr == start.place();
                    addr = next;
                }
                KeyPosition::Lost => return Ok(None),
                KeyPosition::Here if node.level() == level => {
                    return Ok(Some(Descent {
                        addr,
                        node,
                        is_start_old,
                    }));
                }
                KeyPosition::Here => match node.child_of(key) {
                    Some(entry) if node.level() > level => addr = entry.child.place(),
                    _ => return Ok(None),
                },
            }
        }
        Ok(None)
    }

    /// Does [`descend`](Self::descend) to the level above the leaves for many keys, each from its
    /// own start, and calls `met` with every node. Costs one round trip per level for all keys
    /// together, and more for nodes that are torn or have split.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn descend_many(
        &self,
        batch: &mut Batch,
        keys: &[u64],
        starts: &[RemoteAddr],
        met: impl Fn(&InnerNode),
    ) -> Result<Vec<Option<Descent>>, IndexError> {
        let walkers = starts.iter().map(|start| Walker::new(*start));
        let mut walkers: Vec<Walker> = walkers.collect();
        for _ in 0..HOP_COUNT_MAX {
            let mut wanted: Vec<RemoteAddr> = walkers.iter().filter_map(|it| it.at).collect();
            wanted.sort_unstable();
            wanted.dedup();
            if wanted.is_empty() {
                break;
            }
            let nodes = self.read_many(batch, &wanted).await?;
            nodes.iter().flatten().for_each(&met);
            for (walker, key) in walkers.iter_mut().zip(keys) {
                let Some(at) = walker.at else { continue };
                let place = wanted.binary_search(&at).expect("it was asked for");
                walker.step(batch, nodes[place].as_ref(), *key);
            }
        }
        Ok(walkers.into_iter().map(|walker| walker.found).collect())
    }

    /// Reads nodes in one batch, and torn ones again, one by one.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn read_many(
        &self,
        batch: &mut Batch,
        addrs: &[RemoteAddr],
    ) -> Result<Vec<Option<InnerNode>>, IndexError> {
        batch.clear();
        let reads: Vec<_> = addrs
            .iter()
            .map(|addr| {
                let is_inside = self.is_inside(*addr);
                is_inside.then(|| batch.read(image_addr(*addr), IMAGE_SIZE_WORDS))
            })
            .collect();
        let executed = if batch.is_empty() {
            Ok(())
        } else {
            self.leaves.endpoint.execute(batch).await
        };
        if let Err(error) = executed
            && error.lost_node().is_none()
        {
            return Err(error.into());
        }
        let read = reads.into_iter().map(|read| {
            let words = batch.words(read?);
            Some(InnerNode::from_words(words))
        });
        let mut nodes: Vec<Option<InnerNode>> = read.collect();
        for (node, addr) in nodes.iter_mut().zip(addrs) {
            let is_torn = node.as_ref().is_some_and(|it| !self.is_intact(it, *addr));
            if is_torn {
                *node = self.read(batch, *addr).await?;
            }
        }
        Ok(nodes)
    }
}

impl Walker {
    fn new(start: RemoteAddr) -> Self {
        Self {
            start,
            at: Some(start),
            is_start_old: false,
            found: None,
        }
    }

    fn step(&mut self, batch: &mut Batch, node: Option<&InnerNode>, key: u64) {
        let (Some(addr), Some(node)) = (self.at.take(), node) else {
            return;
        };
        self.at = match node.key_position(key) {
            KeyPosition::On(next) => {
                batch.cost_mut().links += 1;
                self.is_start_old |= addr == self.start;
                Some(next)
            }
            KeyPosition::Lost => None,
            KeyPosition::Here if node.level() == 1 => {
                self.found = Some(Descent {
                    addr,
                    node: node.clone(),
                    is_start_old: self.is_start_old,
                });
                None
            }
            KeyPosition::Here => node.child_of(key).map(|entry| entry.child.place()),
        };
    }
}
