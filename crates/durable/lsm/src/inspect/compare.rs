//! Comparing two replicas.

use std::fmt::Write as _;

use super::{InspectedSegment, Inspection};
use crate::error::LsmError;
use crate::follow::IndexKind;
use crate::log::record::{MARK_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES};
use crate::place::LogNumber;

/// The result of comparing two replicas byte by byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Number of log segments that both replicas have, and whose bytes were compared.
    pub segment_count: u64,
    /// Number of trees that both replicas have, and whose bytes were compared.
    pub tree_count: u64,
    /// Bytes that were compared.
    pub size_bytes: u64,
    /// Differences although both replicas hold the same writes, one line each. These are failures.
    pub differences: Vec<String>,
    /// Data that one replica has yet to receive, one line each: trees of the other one, while its
    /// own log has the same records. Not a failure; idle replicas have no such lines.
    pub lags: Vec<String>,
    /// Bytes of marks that one log has behind the end of the other one. A mark holds no write. A
    /// primary appends one before it syncs, and sends it to its backups with the next write. So
    /// idle replicas differ by at most one mark.
    pub mark_size_bytes: u64,
}

impl Comparison {
    /// Returns true if both replicas have the same data, and neither has anything to receive but
    /// one mark.
    pub fn is_equal(&self) -> bool {
        const MARK_RECORD_SIZE_BYTES: u64 = (RECORD_HEADER_SIZE_BYTES + MARK_SIZE_BYTES) as u64;
        self.differences.is_empty()
            && self.lags.is_empty()
            && self.mark_size_bytes <= MARK_RECORD_SIZE_BYTES
    }
}

/// Compares two replicas of one engine byte by byte.
///
/// Log segments that both replicas have begun are compared up to the end of the last record. A
/// replica may lack a segment only if its trees do not refer to it and its recovery starts behind
/// it: the segment has been reclaimed there. Trees are compared if `index` is [`IndexKind::Sent`];
/// replicas that build their trees have different ones.
///
/// # Errors
/// A file cannot be read.
pub fn compare(
    left: &Inspection,
    right: &Inspection,
    index: IndexKind,
) -> Result<Comparison, LsmError> {
    let mut comparison = Comparison::default();
    if left.engine() != right.engine() {
        let (left_id, right_id) = (left.engine().0, right.engine().0);
        comparison.differences.push(format!(
            "engine {left_id:016x} in {}, {right_id:016x} in {}",
            left.name, right.name
        ));
        return Ok(comparison);
    }
    for inspection in [left, right] {
        let damage = inspection.damage.iter();
        let lines = damage.map(|it| format!("{}: {it}", inspection.name));
        comparison.differences.extend(lines);
    }
    compare_logs(left, right, &mut comparison)?;
    compare_ends(left, right, &mut comparison);
    if index == IndexKind::Sent {
        compare_trees(left, right, &mut comparison)?;
    }
    Ok(comparison)
}

fn compare_logs(
    left: &Inspection,
    right: &Inspection,
    comparison: &mut Comparison,
) -> Result<(), LsmError> {
    let mut buffers = (Vec::new(), Vec::new());
    for (number, own) in &left.segments {
        let Some(other) = right.segments.get(number) else {
            note_missing(*number, left, right, comparison);
            continue;
        };
        left.read_segment(own, &mut buffers.0)?;
        right.read_segment(other, &mut buffers.1)?;
        comparison.segment_count += 1;
        let common = compared_size_bytes(own, other);
        comparison.size_bytes += common as u64;
        let what = format!("log segment {}", number.0);
        if !note_bytes(
            &what,
            left.name.as_str(),
            right.name.as_str(),
            &buffers.0[..common],
            &buffers.1[..common],
            comparison,
        ) && is_size_wrong(own, other)
        {
            let line = format!(
                "{what}: its records end at byte {} in {}, at byte {} in {}",
                own.record_end, left.name, other.record_end, right.name
            );
            comparison.differences.push(line);
        }
    }
    for number in right.segments.keys() {
        if !left.segments.contains_key(number) {
            note_missing(*number, right, left, comparison);
        }
    }
    Ok(())
}

fn compared_size_bytes(own: &InspectedSegment, other: &InspectedSegment) -> usize {
    own.size_bytes.min(other.size_bytes)
}

/// Returns true if the records of two segments end at different offsets, and the segment that ends
/// earlier is closed.
pub(super) const fn is_size_wrong(own: &InspectedSegment, other: &InspectedSegment) -> bool {
    let shorter = if own.record_end < other.record_end {
        own
    } else {
        other
    };
    own.record_end != other.record_end && shorter.is_closed
}

/// Notes a segment that one replica lacks. It is a difference if that replica needs it, unless the
/// segment is behind the end of its log; log ends are compared separately.
fn note_missing(
    number: LogNumber,
    there: &Inspection,
    missing: &Inspection,
    comparison: &mut Comparison,
) {
    let is_read = number >= missing.state.read_from.number();
    if is_read && number.start() < missing.log_end {
        comparison.differences.push(format!(
            "log segment {}: present in {}, missing in {}",
            number.0, there.name, missing.name
        ));
    }
}

/// Notes the first byte that differs; returns true if one does.
fn note_bytes(
    what: &str,
    left: &str,
    right: &str,
    left_bytes: &[u8],
    right_bytes: &[u8],
    comparison: &mut Comparison,
) -> bool {
    if left_bytes == right_bytes {
        return false;
    }
    let mut pairs = left_bytes.iter().zip(right_bytes);
    let at = pairs.position(|(left, right)| left != right);
    let at = at.unwrap_or(left_bytes.len().min(right_bytes.len()));
    let mut line = format!("{what}: differs from byte {at} on");
    if let (Some(left_byte), Some(right_byte)) = (left_bytes.get(at), right_bytes.get(at)) {
        let _ = write!(
            line,
            ": {left_byte:02x} in {left}, {right_byte:02x} in {right}"
        );
    } else {
        let (left_size, right_size) = (left_bytes.len(), right_bytes.len());
        let _ = write!(
            line,
            ": {left_size} bytes in {left}, {right_size} in {right}"
        );
    }
    comparison.differences.push(line);
    true
}

fn compare_ends(left: &Inspection, right: &Inspection, comparison: &mut Comparison) {
    if left.write_end == right.write_end {
        comparison.mark_size_bytes = left.log_end.0.abs_diff(right.log_end.0);
        return;
    }
    comparison.differences.push(format!(
        "the last write ends at {} in {}, at {} in {}",
        left.write_end, left.name, right.write_end, right.name
    ));
}

fn compare_trees(
    left: &Inspection,
    right: &Inspection,
    comparison: &mut Comparison,
) -> Result<(), LsmError> {
    let mut buffers = (Vec::new(), Vec::new());
    for own in left.trees() {
        let Some(other) = right.tree(own.id) else {
            note_missing_tree(own.id.0, left, right, comparison);
            continue;
        };
        comparison.tree_count += 1;
        if own.shape != other.shape {
            let line = format!(
                "tree {}: its shape is {:?} in {}, {:?} in {}",
                own.id.0, own.shape, left.name, other.shape, right.name
            );
            comparison.differences.push(line);
            continue;
        }
        for index in 0..own.segments.len() {
            left.read_tree_segment(own, index, &mut buffers.0)?;
            right.read_tree_segment(other, index, &mut buffers.1)?;
            comparison.size_bytes += buffers.0.len() as u64;
            let what = format!("segment {index} of tree {}", own.id.0);
            note_bytes(
                &what,
                left.name.as_str(),
                right.name.as_str(),
                &buffers.0,
                &buffers.1,
                comparison,
            );
        }
    }
    for other in right.trees() {
        if left.tree(other.id).is_none() {
            note_missing_tree(other.id.0, right, left, comparison);
        }
    }
    Ok(())
}

/// Notes a tree that one replica lacks. A backup receives trees later than the log (REPLICATION-9).
/// Until then its log has the records, which are compared separately.
fn note_missing_tree(
    id: u64,
    there: &Inspection,
    missing: &Inspection,
    comparison: &mut Comparison,
) {
    let line = format!(
        "tree {id}: present in {}, missing in {}",
        there.name, missing.name
    );
    if there.follows || missing.follows {
        comparison.lags.push(line);
    } else {
        comparison
            .differences
            .push(line + ", and neither is a backup");
    }
}
