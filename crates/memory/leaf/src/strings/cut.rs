//! Places where a page is cut in two.

use crate::strings::fence::Fence;

/// Divisor of the record count: a record counts as near an end within the outer fourth. Several
/// sessions that insert ascending keys do so only in nearly ascending order.
const NEAR_END_SHARE: usize = 4;
/// Largest percentage of bytes in either half of a cut that counts as in the middle.
const MIDDLE_PERCENT_MAX: usize = 60;

/// Record of a page that is to be cut, in key order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    /// Whole key.
    pub(crate) key: &'a [u8],
    /// Size in words, including the slot.
    pub(crate) size_words: usize,
}

/// Place where a page is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Number of records that stay in the left half.
    pub(crate) left_count: usize,
    /// Fence between the halves.
    pub(crate) fence: Fence,
    /// Whether the cut leaves a full page, because records near an end of the table come in order.
    pub(crate) is_at_the_end: bool,
}

/// Which ends of its table a page is at, and the size limit of its fences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    /// Largest size of an inline fence in bytes.
    pub(crate) fence_size_bytes_max: usize,
}

/// Returns all cuts of the pieces, the best first. There must be at least two pieces, in ascending
/// order.
///
/// After an append at the table's end, the right page begins directly behind the last record that
/// stays. Slightly late keys of other sessions then belong to the right page, which has free space.
/// A prepend at the table's beginning likewise leaves the right page full. Other halves are about
/// equal in bytes; of the cuts in the middle, the one with the shortest separator is best.
/// `inserted` is the index of a new record among the pieces.
pub(crate) fn cuts(pieces: &[Piece<'_>], ends: Ends, inserted: Option<usize>) -> Vec<Cut> {
    let count = pieces.len();
    let mut cuts = Vec::with_capacity(count);
    match inserted {
        Some(place) if ends.is_last && place > 0 && place >= count - count / NEAR_END_SHARE => {
            let key = pieces[place - 1].key;
            if key.len() <= ends.fence_size_bytes_max {
                cuts.push(Cut {
                    left_count: place,
                    fence: Fence::Behind(key.to_vec()),
                    is_at_the_end: true,
                });
            } else {
                cuts.extend(separated(pieces, place).map(at_the_end));
            }
        }
        Some(place) if ends.is_first && place < count / NEAR_END_SHARE => {
            cuts.extend(separated(pieces, place + 1).map(at_the_end));
        }
        _ => {}
    }
    let total: usize = pieces.iter().map(|piece| piece.size_words).sum();
    let mut left = 0;
    let mut ranked: Vec<_> = (1..count)
        .map(|left_count| {
            left += pieces[left_count - 1].size_words;
            let larger = left.max(total - left);
            let cut = separated(pieces, left_count);
            let string = cut.as_ref().and_then(|cut| cut.fence.string());
            let separator_size_bytes = string.map_or(0, <[u8]>::len);
            let is_in_the_middle = larger * 100 <= total * MIDDLE_PERCENT_MAX;
            let rank = if is_in_the_middle {
                (false, separator_size_bytes, larger)
            } else {
                (true, larger, separator_size_bytes)
            };
            (rank, cut)
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    cuts.extend(ranked.into_iter().filter_map(|(_, cut)| cut));
    cuts
}

/// Returns the cut behind `left_count` pieces, with the shortest separator.
fn separated(pieces: &[Piece<'_>], left_count: usize) -> Option<Cut> {
    let (left, right) = (pieces.get(left_count - 1)?, pieces.get(left_count)?);
    let fence = Fence::between(left.key, right.key)?;
    Some(Cut {
        left_count,
        fence,
        is_at_the_end: false,
    })
}

fn at_the_end(cut: Cut) -> Cut {
    Cut {
        is_at_the_end: true,
        ..cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIDDLE: Ends = Ends {
        is_first: false,
        is_last: false,
        fence_size_bytes_max: 9,
    };
    const ONLY: Ends = Ends {
        is_first: true,
        is_last: true,
        fence_size_bytes_max: 9,
    };

    fn first(sizes: &[(&str, usize)], ends: Ends, inserted: Option<usize>) -> Cut {
        let pieces: Vec<_> = sizes
            .iter()
            .map(|(key, size_words)| Piece {
                key: key.as_bytes(),
                size_words: *size_words,
            })
            .collect();
        let cuts = cuts(&pieces, ends, inserted);
        assert!(cuts.len() >= pieces.len() - 1, "every cut is among them");
        cuts[0].clone()
    }

    fn before(string: &str, left_count: usize) -> Cut {
        Cut {
            left_count,
            fence: Fence::Before(string.into()),
            is_at_the_end: false,
        }
    }

    /// Halves are equal by bytes, not by records.
    #[test]
    fn halves_are_equal_in_bytes() {
        let sizes = [("a", 10), ("b", 2), ("c", 2), ("d", 3), ("e", 3)];
        assert_eq!(first(&sizes, MIDDLE, None), before("b", 1));
        let sizes = [("a", 1), ("b", 100)];
        assert_eq!(first(&sizes, MIDDLE, None), before("b", 1));
    }

    /// The cut in the middle with the shortest separator wins; of equally short ones, that with the
    /// most equal halves.
    #[test]
    fn short_separators_are_preferred_in_the_middle() {
        let keys = [
            "aa", "ab0", "ab11", "ab12", "ab13", "ab14", "ab2", "c", "d", "e",
        ];
        assert_eq!(
            first(&keys.map(|key| (key, 5)), MIDDLE, None),
            before("ab2", 6)
        );
        let keys = [
            "aa", "ab0", "ab11", "ab12", "ab13", "ab14", "ab15", "c", "d", "e",
        ];
        assert_eq!(
            first(&keys.map(|key| (key, 5)), MIDDLE, None),
            before("ab14", 5)
        );
    }

    /// A fence that would be outside is not used if a short one exists.
    #[test]
    fn appends_behind_long_keys_use_the_separator() {
        let sizes = [("a", 5), ("b", 5), ("c", 5), ("dddd", 5), ("e", 5)];
        let ends = Ends {
            fence_size_bytes_max: 3,
            ..ONLY
        };
        assert_eq!(first(&sizes, ends, Some(4)), at_the_end(before("e", 4)));
    }

    /// Full pages are left only at the table's ends, and only near them.
    #[test]
    fn appends_and_prepends_leave_the_other_page_full() {
        let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let sizes = keys.map(|key| (key, 5));
        let append = first(&sizes, ONLY, Some(7));
        assert_eq!(
            append,
            Cut {
                left_count: 7,
                fence: Fence::Behind(b"g".into()),
                is_at_the_end: true
            }
        );
        assert_eq!(first(&sizes, ONLY, Some(6)).left_count, 6);
        assert_eq!(first(&sizes, ONLY, Some(5)), before("e", 4));
        assert_eq!(first(&sizes, ONLY, Some(0)), at_the_end(before("b", 1)));
        assert_eq!(first(&sizes, ONLY, Some(1)), at_the_end(before("c", 2)));
        assert_eq!(first(&sizes, ONLY, Some(2)), before("e", 4));
        assert_eq!(first(&sizes, MIDDLE, Some(7)), before("e", 4));
        assert_eq!(first(&sizes, ONLY, None), before("e", 4), "no insert");
    }
}
