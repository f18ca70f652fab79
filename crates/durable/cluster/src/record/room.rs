//! How much room a server's disk has, for whoever places replicas (CP22).

/// A disk of which less than so many per cent are free is low on room...
pub const LOW_PERCENT: u64 = 5;
/// ...but for less than so many bytes it always is: what a replica takes until its first merges are
/// done...
pub const LOW_SIZE_BYTES_MIN: u64 = 64 << 20;
/// ...and with so many it never is: 5 % of a large disk would be room for many regions.
pub const LOW_SIZE_BYTES_MAX: u64 = 8 << 30;
/// On a small disk no more than this part of it is asked for.
const LOW_SMALL_DISK_PARTS: u64 = 4;

/// With less than so many bytes a disk is full: no replica could begin there, which takes a segment
/// of 2 MiB of the log and of the trees, and as much again before anything is given back.
pub const FULL_SIZE_BYTES: u64 = 8 << 20;
/// On a small disk no more than this part of it is asked for.
const FULL_SMALL_DISK_PARTS: u64 = 16;

/// How much room a disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// It has some, or does not say.
    Enough,
    /// It has some for what it has, and is to get nothing more.
    Low,
    /// Nothing more can be written, or soon.
    Full,
}

impl Room {
    /// That of a disk that can hold so many bytes (0: it does not say), of which so many are free.
    pub fn of(capacity_bytes: u64, free_bytes: Option<u64>) -> Self {
        match free_bytes {
            Some(free) if free < full_below_bytes(capacity_bytes) => Self::Full,
            Some(free) if free < low_below_bytes(capacity_bytes) => Self::Low,
            _ => Self::Enough,
        }
    }
}

/// With less than so many bytes free, a disk that can hold so many (0: it does not say) is low on
/// room.
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

    /// Promise: what is low and what is full follows the size of the disk, within bounds, and is
    /// some part of a small one alone.
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
            for (free, room) in [
                (low, Room::Enough),
                (low - 1, Room::Low),
                (full, Room::Low),
                (full - 1, Room::Full),
                (0, Room::Full),
            ] {
                assert_eq!(Room::of(capacity, Some(free)), room, "{free} of {capacity}");
            }
            assert_eq!(Room::of(capacity, None), Room::Enough);
        }
    }
}
