//! X2: the leaves of a range, in the order of their links.

use core::ops::Range;
use std::collections::HashMap;

use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::Contradiction;
use farleaf_types::RemoteAddr;

use super::super::Retraining;
use super::super::gather::contradiction;
use super::read::{Met, intact, listed};
use super::synonym_tables;
use crate::IndexError;

/// Reads what the old tables name, and walks. `seen`: the counters of the range's models.
pub(super) async fn walk<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    range: &Range<usize>,
    seen: &[u64],
) -> Result<Vec<Met>, IndexError> {
    let access = &work.access;
    let all = &work.contents.models;
    let old = &all[range.clone()];
    let mut named = work.contents.leaves_of(access.geometry, range.clone());
    let none = vec![0; seen.len()];
    let tables = synonym_tables(old);
    named.extend(listed(work, batch, &tables, (&none, seen)).await?);
    let read = intact(work, batch, &named).await?.into_iter();
    let known: HashMap<RemoteAddr, Met> = read.map(|leaf| (leaf.addr, leaf)).collect();
    let end = all
        .get(range.end)
        .map_or(RemoteAddr::NULL, |next| next.base);
    let mut leaves: Vec<Met> = Vec::with_capacity(known.len());
    let mut addr = old[0].base;
    while addr != end {
        let leaf = match known.get(&addr) {
            Some(leaf) => *leaf,
            None => match read_one(work, batch, addr).await {
                Err(error) if error.lost_node() == Some(addr.node()) && !leaves.is_empty() => {
                    // R9.
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
            return Err(contradiction(work, addr, Contradiction::LinkToNowhere));
        }
        addr = leaf.link.place();
        leaves.push(leaf);
    }
    Ok(leaves)
}

/// The next leaf that the old tables name. Nothing else leads past a lost leaf (R9).
fn next_named(known: &HashMap<RemoteAddr, Met>, before: &[Met]) -> Option<RemoteAddr> {
    let last = before.last()?;
    let behind = known.values().filter(|leaf| leaf.low > last.low);
    behind.min_by_key(|leaf| leaf.low).map(|leaf| leaf.addr)
}

/// A leaf that nobody has announced, or that was torn when it was read.
async fn read_one<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    addr: RemoteAddr,
) -> Result<Met, IndexError> {
    let leaf = work.access.read_intact(batch, addr, work.broken).await?;
    let image = leaf.image();
    if image.is_retired() {
        // X1: nobody retires leaves that are linked.
        return Err(contradiction(work, addr, Contradiction::RetiredByNobody));
    }
    Ok(Met::new(addr, image))
}
