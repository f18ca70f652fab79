//! Hash of a key, used by leaves and filters.

/// Size of a hash in bits. With 32 bits and 100 million entries, 2.3 % of all absent keys would
/// pass the filter because of equal hashes. With 48 bits and 10 thousand million entries, 0.004 %
/// do.
pub(crate) const HASH_BITS: u32 = 48;

/// Odd number without a pattern: the first 64 bits of the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Another such number, from the square root of 2. It keeps a key of zeros from hashing to zero.
const START: u64 = 0xb504_f333_f9de_6485;

/// Computes the 48-bit hash of a key. It is part of the format: another hash would make all trees
/// unreadable.
///
/// Each 8 bytes are multiplied to 128 bits, whose halves are folded, as in wyhash. The hash does
/// not resist deliberate collisions. Those cost reads of the log, but never give wrong results.
pub fn key_hash(key: &[u8]) -> u64 {
    let mut state = START ^ key.len() as u64;
    let (words, rest) = key.as_chunks::<8>();
    for word in words {
        state = mix(state ^ u64::from_le_bytes(*word));
    }
    // The size is in the state, so zeros behind the rest are unambiguous.
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    state = mix(state ^ u64::from_le_bytes(last));
    mix(state ^ START) >> (u64::BITS - HASH_BITS)
}

/// Spreads the information of some bits over all 64.
pub(crate) const fn mix(word: u64) -> u64 {
    let product = word as u128 * MULTIPLIER as u128;
    (product as u64 ^ (product >> 64) as u64).wrapping_add(MULTIPLIER)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Promise (format): hashes never change.
    #[test]
    fn hashes_stay() {
        let hashes = [&b""[..], b"a", b"\0", b"user00000000000000000042"].map(key_hash);
        assert_eq!(
            hashes,
            [
                0x16ba_6a35_69b3,
                0x0cee_f13a_b6f6,
                0x02dd_5722_742a,
                0x0e5a_51bf_0fd3
            ]
        );
    }

    /// Promise: 200,000 keys that differ in few bits do not collide, like random numbers of 48 bits
    /// (except for a chance of 1 in 14,000). The upper bits, which choose filter blocks, are evenly
    /// distributed.
    #[test]
    fn hashes_spread() {
        let of_kinds: [fn(u64) -> Vec<u8>; 4] = [
            |it| format!("user{it:020}").into_bytes(),
            |it| it.to_le_bytes().to_vec(),
            |it| it.to_be_bytes().to_vec(),
            |it| vec![0; it as usize % 4096],
        ];
        for (kind, key_of) in of_kinds.iter().enumerate() {
            let count = if kind == 3 { 4096 } else { 200_000_u64 };
            let hashes: Vec<u64> = (0..count).map(|it| key_hash(&key_of(it))).collect();
            let distinct: BTreeSet<u64> = hashes.iter().copied().collect();
            assert!(
                distinct.len() as u64 == count,
                "kind {kind}: {}",
                distinct.len()
            );
            let mut buckets = [0_u64; 64];
            for hash in &hashes {
                buckets[(hash >> 42) as usize] += 1;
            }
            let mean = count / 64;
            let even = mean * 7 / 10..=mean * 13 / 10;
            assert!(
                buckets.iter().all(|it| even.contains(it)),
                "kind {kind}: {buckets:?}"
            );
        }
    }

    /// Promise: if any bit of a key changes, each bit of the hash changes for about half of the
    /// keys.
    #[test]
    fn each_bit_matters() {
        let mut changes = [0_u32; HASH_BITS as usize];
        let mut tried = 0;
        for number in 0..200_u64 {
            let key = format!("key{number:012}");
            for bit in 0..key.len() * 8 {
                let mut other = key.clone().into_bytes();
                other[bit / 8] ^= 1 << (bit % 8);
                let difference = key_hash(key.as_bytes()) ^ key_hash(&other);
                for (at, change) in changes.iter_mut().enumerate() {
                    *change += (difference >> at & 1) as u32;
                }
                tried += 1;
            }
        }
        let half = tried * 45 / 100..=tried * 55 / 100;
        assert!(
            changes.iter().all(|it| half.contains(it)),
            "{changes:?} of {tried}"
        );
    }
}
