//! Walking the leaves of a range in the order of their links.

use core::ops::Range;
use std::collections::HashMap;

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::words::Contradiction;

use super::super::Retraining;
use super::super::gather::contradiction;
use super::read::{ReadLeaf, intact, listed};
use super::synonym_tables;
use crate::IndexError;

/// Reads the leaves that the old tables name, and walks the range. `seen`: the counters of the
/// range's models.
pub(super) async fn walk<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    range: &Range<usize>,
    seen: &[u64],
) -> Result<Vec<ReadLeaf>, IndexError> {
    let access = &work.access;
    let all = &work.contents.models;
    let old = &all[range.clone()];
    let mut named = work.contents.leaves_of(access.geometry, range.clone());
    let none = vec![0; seen.len()];
    let tables = synonym_tables(old);
    named.extend(listed(work, batch, &tables, &none, seen).await?);
    let read = intact(work, batch, &named).await?.into_iter();
    let known: HashMap<RemoteAddr, ReadLeaf> = read.map(|leaf| (leaf.addr, leaf)).collect();
    let end = all
        .get(range.end)
        .map_or(RemoteAddr::NULL, |next| next.base);
    let mut leaves: Vec<ReadLeaf> = Vec::with_capacity(known.len());
    let mut addr = old[0].base;
    while addr != end {
        let leaf = match known.get(&addr) {
            Some(leaf) => *leaf,
            None => match read_one(work, batch, addr).await {
                Err(error) if error.lost_node() == Some(addr.node()) && !leaves.is_empty() => {
                    // The leaf is on a lost node.
                    let Some(next) = next_named(&known, &leaves) else {
                        break;
                    };
                    addr = next;
                    continue;
                }
                leaf => leaf?,
            },
        };
        let is_behind = leaves.last().is_some_and(|last| last.low >= leaf.low);
        if is_behind {
            return Err(contradiction(work, addr, Contradiction::LinkToTheLeft));
        }
        if leaf.link.is_null() && !end.is_null() {
            return Err(contradiction(
                work,
                addr,
                Contradiction::LinkToInvalidAddress,
            ));
        }
        addr = leaf.link.place();
        leaves.push(leaf);
    }
    Ok(leaves)
}

/// Returns the next leaf that the old tables name. Nothing else leads past a lost leaf.
fn next_named(known: &HashMap<RemoteAddr, ReadLeaf>, before: &[ReadLeaf]) -> Option<RemoteAddr> {
    let last = before.last()?;
    let behind = known.values().filter(|leaf| leaf.low > last.low);
    behind.min_by_key(|leaf| leaf.low).map(|leaf| leaf.addr)
}

/// Reads a leaf that was not announced, or that was torn when it was read.
async fn read_one<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    addr: RemoteAddr,
) -> Result<ReadLeaf, IndexError> {
    let leaf = work.access.read_intact(batch, addr, work.broken).await?;
    let image = leaf.image();
    if image.is_retired() {
        // No session retires linked leaves of such a table.
        return Err(contradiction(
            work,
            addr,
            Contradiction::RetiredWithoutRetraining,
        ));
    }
    Ok(ReadLeaf::new(addr, image))
}
