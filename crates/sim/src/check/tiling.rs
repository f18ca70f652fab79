//! D6: along the links, ranges cover all keys with no gap and no overlap, and each leaf's records
//! lie in its range, each once.

use super::Violation;
use super::region::Region;

/// Checks the whole chain.
pub fn check(region: &Region) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut next_low = Some(0);
    for leaf in &region.leaves {
        if Some(leaf.low) != next_low || leaf.low > leaf.high {
            let how = format!(
                "{} has keys {:#x} to {:#x}, where keys from {next_low:x?} on were due",
                leaf.addr, leaf.low, leaf.high
            );
            violations.push(Violation::new("tiling", how));
        }
        if !leaf.is_sound {
            let how = format!("{} has a key twice or outside of its fences", leaf.addr);
            violations.push(Violation::new("tiling", how));
        }
        next_low = leaf.high.checked_add(1);
    }
    if next_low.is_some() {
        let how = format!("the last leaf ends before {next_low:x?}");
        violations.push(Violation::new("tiling", how));
    }
    violations
}
