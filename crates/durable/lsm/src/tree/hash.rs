//! The hash of a key that leaves have and filters are made of (LT2, LT4).

/// Bits of a hash. With 32, of 100 million entries 2.3 % of all other keys would pass the filter
/// because of their hashes alone; with so many, of 10 thousand million 0.004 % do.
pub(crate) const HASH_BITS: u32 = 48;

/// An odd number without any pattern (the golden ratio's first 64 bits).
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Another one (of the square root of 2), so that a key of zeros does not stay zero.
const START: u64 = 0xb504_f333_f9de_6485;

/// The hash of a key: 48 bits. It is part of the format: another one would make all trees
/// unreadable.
///
/// Eight bytes at a time are taken in by a multiplication to 128 bits whose halves are folded, as
/// wyhash does it. It is no match for somebody who looks for keys of equal hashes: those cost
/// reads of the log, and no wrong answers.
pub fn key_hash(key: &[u8]) -> u64 {
    let mut state = START ^ key.len() as u64;
    let (words, rest) = key.as_chunks::<8>();
    for word in words {
        state = mix(state ^ u64::from_le_bytes(*word));
    }
    // The size is in the state, so zeros behind the rest say nothing new.
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    state = mix(state ^ u64::from_le_bytes(last));
    mix(state ^ START) >> (u64::BITS - HASH_BITS)
}

/// Spreads what is known in some bits over all 64.
pub(crate) const fn mix(word: u64) -> u64 {
    let product = word as u128 * MULTIPLIER as u128;
    (product as u64 ^ (product >> 64) as u64).wrapping_add(MULTIPLIER)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Promise: the hashes are these, for ever.
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

    /// Promise: 200,000 keys that differ in few bits do not collide, as random numbers of 48 bits
    /// would not (but for a chance of 1 in 14,000), and the upper bits (which choose filter blocks)
    /// are even.
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

    /// Promise: whichever bit of a key is another one, each bit of the hash is in about half of
    /// the keys.
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
