//! Fences: places between keys, as values that own their strings.

use core::cmp::Ordering;

/// A place between keys, ordered as places: right behind `k` is right before `k` with a zero byte
/// added, and they are equal.
#[derive(Clone, Debug)]
pub enum Fence {
    /// Right before a string: that one is behind it.
    Before(Vec<u8>),
    /// Right behind a string.
    Behind(Vec<u8>),
    /// Behind all keys.
    End,
}

impl Fence {
    /// Before all keys.
    pub const START: Self = Self::Before(Vec::new());

    /// Its string, without the zero byte that it may add; none at the end.
    pub fn string(&self) -> Option<&[u8]> {
        match self {
            Self::Before(string) | Self::Behind(string) => Some(string),
            Self::End => None,
        }
    }

    /// The least key that is behind it; none at the end. Fences are in the order of these.
    pub fn least_key(&self) -> Option<Vec<u8>> {
        let mut key = self.string()?.to_vec();
        if matches!(self, Self::Behind(_)) {
            key.push(0);
        }
        Some(key)
    }

    /// Whether it is before all keys.
    pub fn is_start(&self) -> bool {
        matches!(self, Self::Before(string) if string.is_empty())
    }

    /// Whether it is behind all keys.
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::End)
    }

    /// Whether a key lies before it: below it, if it is a page's upper fence.
    pub fn is_behind(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(string) => key < string.as_slice(),
            Self::Behind(string) => key <= string.as_slice(),
            Self::End => true,
        }
    }

    /// How many bytes its string and the other's have in common at their beginnings: what all keys
    /// between the two begin with. 0 if either is the end.
    pub fn common_prefix_size_bytes(&self, other: &Self) -> usize {
        match (self.string(), other.string()) {
            (Some(one), Some(other)) => common_prefix_size_bytes(one, other),
            _ => 0,
        }
    }

    /// The shortest fence that has `left` before it and `right` behind it. `None` unless `left` is
    /// less than `right`.
    pub fn between(left: &[u8], right: &[u8]) -> Option<Self> {
        let common = common_prefix_size_bytes(left, right);
        (left < right).then(|| Self::Before(right[..=common].to_vec()))
    }

    /// The bytes that a key has at least to be behind it.
    fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        let zero = matches!(self, Self::Behind(_)).then_some(0);
        let string = self.string().unwrap_or_default();
        string.iter().copied().chain(zero)
    }
}

/// How many bytes two strings have in common at their beginnings.
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

    /// Strings over three bytes, so that they often begin alike.
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

    /// Both ends, and the two ways to say one place.
    #[test]
    fn places_are_ordered_as_places() {
        assert!(Fence::START.is_start() && Fence::End.is_end());
        assert_eq!(Fence::Behind(vec![7]), Fence::Before(vec![7, 0]));
        assert!(Fence::START < Fence::Behind(vec![]) && Fence::Behind(vec![255]) < Fence::End);
        assert!(Fence::Before(vec![7]) < Fence::Behind(vec![7]));
        assert!(Fence::End.is_behind(&[255; 9]) && !Fence::START.is_behind(&[]));
    }

    /// A string that the other begins with, and one that it does not.
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

        /// What lies between two fences lies so for keys, too, and begins with what they share.
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

        /// Least keys are as far apart as their fences: nothing is behind a fence and below its
        /// least key, and of two fences the greater one has the greater key.
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
