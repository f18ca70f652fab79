//! Expected order of keys, defined without any encoding.

use std::cmp::Ordering;

/// Total order in which equal means the same key.
pub(crate) trait ModelOrder {
    fn model_order(&self, other: &Self) -> Ordering;
}

macro_rules! by_ord {
    ($($key:ty),+) => {$(
        impl ModelOrder for $key {
            fn model_order(&self, other: &Self) -> Ordering {
                self.cmp(other)
            }
        }
    )+};
}

by_ord!(
    u8,
    u16,
    u32,
    u64,
    u128,
    i8,
    i16,
    i32,
    i64,
    i128,
    bool,
    char,
    (),
    String,
    Vec<u8>
);

impl<const N: usize> ModelOrder for [u8; N] {
    fn model_order(&self, other: &Self) -> Ordering {
        self.cmp(other)
    }
}

impl ModelOrder for f32 {
    fn model_order(&self, other: &Self) -> Ordering {
        self.total_cmp(other)
    }
}

impl ModelOrder for f64 {
    fn model_order(&self, other: &Self) -> Ordering {
        self.total_cmp(other)
    }
}

impl<K: ModelOrder> ModelOrder for Option<K> {
    fn model_order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(one), Some(other)) => one.model_order(other),
        }
    }
}

macro_rules! by_components {
    ($($key:ident $place:tt),+) => {
        impl<$($key: ModelOrder),+> ModelOrder for ($($key,)+) {
            fn model_order(&self, other: &Self) -> Ordering {
                Ordering::Equal$(.then_with(|| self.$place.model_order(&other.$place)))+
            }
        }
    };
}

by_components!(A 0, B 1);
by_components!(A 0, B 1, C 2);
by_components!(A 0, B 1, C 2, D 3);
by_components!(A 0, B 1, C 2, D 3, E 4);
by_components!(A 0, B 1, C 2, D 3, E 4, F 5);
by_components!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
by_components!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
