//! Fences: places between keys, as values that own their strings.

use core::cmp::Ordering;

/// Place between keys, ordered as such: directly behind `k` equals directly before `k` with a zero
/// byte appended.
#[derive(Clone, Debug)]
pub enum Fence {
    /// Directly before a string, which is behind the fence.
    Before(Vec<u8>),
    /// Directly behind a string.
    Behind(Vec<u8>),
    /// Behind all keys.
    End,
}

impl Fence {
    /// Fence before all keys.
    pub const START: Self = Self::Before(Vec::new());

    /// Returns the fence's string, without the zero byte that it may add; `None` at the end.
    pub fn string(&self) -> Option<&[u8]> {
        match self {
            Self::Before(string) | Self::Behind(string) => Some(string),
            Self::End => None,
        }
    }

    /// Returns the least key behind the fence; `None` at the end. Fences sort by these keys.
    pub fn least_key(&self) -> Option<Vec<u8>> {
        let mut key = self.string()?.to_vec();
        if matches!(self, Self::Behind(_)) {
            key.push(0);
        }
        Some(key)
    }

    /// Returns whether the fence is before all keys.
    pub fn is_start(&self) -> bool {
        matches!(self, Self::Before(string) if string.is_empty())
    }

    /// Returns whether the fence is behind all keys.
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::End)
    }

    /// Returns whether a key lies before the fence: inside the page, if this is its upper fence.
    pub fn is_behind(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(string) => key < string.as_slice(),
            Self::Behind(string) => key <= string.as_slice(),
            Self::End => true,
        }
    }

    /// Returns the size in bytes of the common prefix of both strings, with which all keys between
    /// the fences begin; 0 if either fence is the end.
    pub fn common_prefix_size_bytes(&self, other: &Self) -> usize {
        match (self.string(), other.string()) {
            (Some(one), Some(other)) => common_prefix_size_bytes(one, other),
            _ => 0,
        }
    }

    /// Returns the shortest fence with `left` before it and `right` behind it; `None` unless `left`
    /// is less than `right`.
    pub fn between(left: &[u8], right: &[u8]) -> Option<Self> {
        let common = common_prefix_size_bytes(left, right);
        (left < right).then(|| Self::Before(right[..=common].to_vec()))
    }

    /// Iterates over the bytes of the least key behind the fence.
    fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        let zero = matches!(self, Self::Behind(_)).then_some(0);
        let string = self.string().unwrap_or_default();
        string.iter().copied().chain(zero)
    }
}

/// Returns the size in bytes of the common prefix of two strings.
pub fn common_prefix_size_bytes(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

impl Ord for Fence {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.is_end(), other.is_end()) {
            (false, false) => self.bytes().cmp(other.bytes()),
            (one, other) => one.cmp(&other),
        }
    }
}

impl PartialOrd for Fence {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Fence {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Fence {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Strings over three bytes, which often have common prefixes.
    fn strings() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(vec![0_u8, 1, 255]), 0..6)
    }

    fn fences() -> impl Strategy<Value = Fence> {
        prop_oneof![
            4 => strings().prop_map(Fence::Before),
            4 => strings().prop_map(Fence::Behind),
            1 => Just(Fence::End),
        ]
    }

    /// Tests both ends, and the two forms of one place.
    #[test]
    fn places_are_ordered_as_places() {
        assert!(Fence::START.is_start() && Fence::End.is_end());
        assert_eq!(Fence::Behind(vec![7]), Fence::Before(vec![7, 0]));
        assert!(Fence::START < Fence::Behind(vec![]) && Fence::Behind(vec![255]) < Fence::End);
        assert!(Fence::Before(vec![7]) < Fence::Behind(vec![7]));
        assert!(Fence::End.is_behind(&[255; 9]) && !Fence::START.is_behind(&[]));
    }

    /// Tests a string that is a prefix of the other, and one that is not.
    #[test]
    fn separators_are_the_shortest() {
        let between = |left: &[u8], right: &[u8]| Fence::between(left, right).expect("ascending");
        assert_eq!(between(b"ab", b"abcd"), Fence::Before(b"abc".to_vec()));
        assert_eq!(between(b"abX", b"adcd"), Fence::Before(b"ad".to_vec()));
        assert_eq!(between(b"", b"zz"), Fence::Before(b"z".to_vec()));
        assert_eq!(Fence::between(b"b", b"b"), None);
        assert_eq!(Fence::between(b"b", b"a"), None);
    }

    proptest! {
        /// A separator separates, and no shorter string does.
        #[test]
        fn separators_separate(left in strings(), right in strings()) {
            if let Some(fence) = Fence::between(&left, &right) {
                prop_assert!(fence.is_behind(&left) && !fence.is_behind(&right));
                let string = fence.string().expect("not the end");
                let shorter = Fence::Before(string[..string.len() - 1].to_vec());
                prop_assert!(!shorter.is_behind(&left));
            } else {
                prop_assert!(left >= right);
            }
        }

        /// Keys between two fences lie between them as fences, too, and begin with the common
        /// prefix.
        #[test]
        fn keys_between_fences_begin_with_the_common_prefix(
            one in fences(),
            other in fences(),
            key in strings(),
        ) {
            let (low, high) = (one.clone().min(other.clone()), one.max(other));
            prop_assert!(!low.is_behind(&key) || high.is_behind(&key));
            if !low.is_behind(&key) && high.is_behind(&key) {
                prop_assert!(low < high);
                let common = low.common_prefix_size_bytes(&high);
                prop_assert!(key.len() >= common);
                prop_assert_eq!(&key[..common], &low.string().expect("not the end")[..common]);
            }
        }

        /// Least keys sort as their fences do: no key is behind a fence but below its least key,
        /// and the greater of two fences has the greater key.
        #[test]
        fn least_keys_are_ordered_as_fences(one in fences(), other in fences()) {
            if let (Some(of_one), Some(of_other)) = (one.least_key(), other.least_key()) {
                prop_assert!(!one.is_behind(&of_one));
                prop_assert_eq!(&Fence::Before(of_one.clone()), &one);
                prop_assert_eq!(of_one.cmp(&of_other), one.cmp(&other));
            }
        }
    }
}
