//! Free space of a server's disk, for the placement of replicas (CONTROL-22).

/// Percentage of free space below which a disk is low.
pub const LOW_PERCENT: u64 = 5;
/// Free space below which a disk is always low: a replica takes that much until its first merges
/// are done.
pub const LOW_SIZE_BYTES_MIN: u64 = 64 << 20;
/// Free space above which a disk is never low: 5 % of a large disk would be enough for many
/// regions.
pub const LOW_SIZE_BYTES_MAX: u64 = 8 << 30;
/// Divisor of a small disk's capacity that limits the required free space.
const LOW_SMALL_DISK_PARTS: u64 = 4;

/// Free space below which a disk is full. No replica could begin there: it takes a segment of 2 MiB
/// of the log and of the trees, and as much again before anything is freed.
pub const FULL_SIZE_BYTES: u64 = 8 << 20;
/// Divisor of a small disk's capacity that limits the size below which it is full.
const FULL_SMALL_DISK_PARTS: u64 = 16;

/// State of a disk's free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpaceState {
    /// There is enough space, or its size is unknown.
    Enough,
    /// There is space for the present replicas, and for nothing more.
    Low,
    /// Nothing more can be written, or soon.
    Full,
}

impl SpaceState {
    /// Returns the state for a capacity in bytes (0 if unknown) and free bytes.
    pub fn of(capacity_bytes: u64, free_bytes: Option<u64>) -> Self {
        match free_bytes {
            Some(free) if free < full_below_bytes(capacity_bytes) => Self::Full,
            Some(free) if free < low_below_bytes(capacity_bytes) => Self::Low,
            _ => Self::Enough,
        }
    }
}

/// Returns the free space below which a disk of this capacity (0 if unknown) is low, in bytes.
pub fn low_below_bytes(capacity_bytes: u64) -> u64 {
    let share = capacity_bytes / 100 * LOW_PERCENT;
    let low = share.clamp(LOW_SIZE_BYTES_MIN, LOW_SIZE_BYTES_MAX);
    no_more_than(low, capacity_bytes, LOW_SMALL_DISK_PARTS)
}

fn full_below_bytes(capacity_bytes: u64) -> u64 {
    no_more_than(FULL_SIZE_BYTES, capacity_bytes, FULL_SMALL_DISK_PARTS)
}

fn no_more_than(size_bytes: u64, capacity_bytes: u64, parts: u64) -> u64 {
    if capacity_bytes == 0 {
        return size_bytes;
    }
    size_bytes.min(capacity_bytes / parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits follow the size of the disk, within bounds, and are a part of it only on small disks.
    #[test]
    fn marks_follow_the_disk() {
        let mib = |count: u64| count << 20;
        for (capacity, low, full) in [
            (mib(60), mib(15), mib(60) / 16),
            (mib(200), mib(50), mib(8)),
            (mib(1 << 10), mib(64), mib(8)),
            (mib(100 << 10), mib(100 << 10) / 100 * 5, mib(8)),
            (mib(4 << 20), mib(8 << 10), mib(8)),
            (0, mib(64), mib(8)),
        ] {
            for (free, state) in [
                (low, SpaceState::Enough),
                (low - 1, SpaceState::Low),
                (full, SpaceState::Low),
                (full - 1, SpaceState::Full),
                (0, SpaceState::Full),
            ] {
                assert_eq!(
                    SpaceState::of(capacity, Some(free)),
                    state,
                    "{free} of {capacity}"
                );
            }
            assert_eq!(SpaceState::of(capacity, None), SpaceState::Enough);
        }
    }
}
