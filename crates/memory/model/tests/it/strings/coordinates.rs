//! Coordinates and positions are monotone.

use farleaf_model::strings::{
    Alphabet, LineSegment, LineSegmentParts, PackedBlock, Residuals, StringDirectory,
    StringModelError,
};
use proptest::prelude::*;

use crate::strings::samples::{string, strings};

proptest! {
    /// The greater of two strings has no smaller coordinate, in any alphabet.
    #[test]
    fn coordinates_are_monotone(strings in strings(60)) {
        for alphabet in Alphabet::ALL {
            let coordinates = strings.iter().map(|string| alphabet.coordinate(string));
            prop_assert!(coordinates.is_sorted(), "{alphabet:?}");
        }
    }

    /// The greater string has no smaller coordinate behind a prefix, and no smaller position on any
    /// line: for any valid parts, strings and unit. For any line and residuals, one of its leaves
    /// is located.
    #[test]
    fn positions_are_monotone(
        strings in strings(40),
        fence in string(),
        prefix_size in 0_u16..20,
        code in 0_u8..9,
        slope in prop_oneof![0.0..1e-12, 0.0..1.0, any::<f64>()],
        intercept in prop_oneof![-70.0_f32..70.0, any::<f32>()],
        shift in 0_u32..=8,
    ) {
        let Ok(alphabet) = Alphabet::from_code(code) else {
            prop_assert_eq!(code, 8);
            return Ok(());
        };
        let prefix_size = prefix_size.min(fence.len() as u16);
        let parts = LineSegmentParts {
            first_fence: fence,
            prefix_size,
            alphabet,
            slope,
            intercept,
            leaf_count: 7,
            error_max: 1.0,
        };
        let segment = match LineSegment::from_parts(parts) {
            Ok(segment) => segment,
            Err(error) => {
                prop_assert!(matches!(error, StringModelError::Number { .. }), "{error}");
                return Ok(());
            }
        };
        prop_assert!(strings.iter().map(|key| segment.coordinate(key)).is_sorted());
        prop_assert!(strings.iter().map(|key| segment.position(key, shift)).is_sorted());
        let bytes = Residuals::Bytes {
            shift,
            residuals: vec![1, -2, 3, -128, 127, 0, 5],
        };
        let blocks = vec![PackedBlock::from_words([0x1234_5678_9abc_def0, u64::MAX])];
        for residuals in [Residuals::None, bytes, Residuals::Packed { blocks }] {
            let directory = StringDirectory::build(&[segment.clone().into()], residuals)?;
            for key in &strings {
                let (from, to) = directory.predicted_range(key);
                prop_assert!(from <= to && to < 7);
                prop_assert_eq!((from, to), segment.predicted_range(key));
                let located = directory.locate(key);
                prop_assert!(located.leaf < 7 && located.also.is_none_or(|also| also < 7));
            }
        }
    }

    /// Strings of an alphabet's own bytes, as many as fit, have distinct coordinates, in their
    /// order.
    #[test]
    fn listed_bytes_are_told_apart(
        left in prop::collection::vec(b'0'..=b'9', 8),
        right in prop::collection::vec(b'0'..=b'9', 8),
    ) {
        for alphabet in Alphabet::ALL {
            let coordinates = [&left, &right].map(|string| alphabet.coordinate(string));
            let orders = (coordinates[0].cmp(&coordinates[1]), left.cmp(&right));
            prop_assert_eq!(orders.0, orders.1, "{:?}", alphabet);
        }
    }
}
