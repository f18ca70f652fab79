//! Tuples that begin with the same components.

use crate::error::KeyTooLong;
use crate::key::{AsKey, Key, append_bounded};
use crate::range::{ByteRange, prefix_range};

/// The first components of tuples of type `K`: a tuple of at least one, and of fewer than `K` has.
pub trait PrefixOf<K> {
    /// Appends what all keys begin with whose first components are these, and no others: the inner
    /// forms of the components.
    fn encode_prefix(&self, out: &mut Vec<u8>);
}

/// The range of all keys of a tuple type whose first components are these.
///
/// ```
/// # use farleaf_key::{encode_key, prefix_of};
/// type Key = (String, u32, String);
/// let range = prefix_of::<Key>(&("ada", 7))?;
/// assert!(range.contains(&encode_key::<Key>(&("ada", 7, ""))?));
/// assert!(range.contains(&encode_key::<Key>(&("ada", 7, "\u{10ffff}"))?));
/// assert!(!range.contains(&encode_key::<Key>(&("ada", 8, ""))?));
/// assert!(!range.contains(&encode_key::<Key>(&("adam", 7, ""))?));
/// # Ok::<(), farleaf_key::KeyTooLong>(())
/// ```
///
/// A last component that is a string is written as it is, so one more piece of it makes a smaller
/// range: of all keys whose string begins so.
///
/// ```
/// # use farleaf_key::{encode_key, prefix_of, prefix_range};
/// let mut prefix = prefix_of::<(u32, String)>(&(7,))?.start;
/// prefix.extend_from_slice(b"photos/");
/// let range = prefix_range(&prefix);
/// assert!(range.contains(&encode_key::<(u32, String)>(&(7, "photos/1.jpg"))?));
/// assert!(!range.contains(&encode_key::<(u32, String)>(&(7, "photos"))?));
/// # Ok::<(), farleaf_key::KeyTooLong>(())
/// ```
///
/// # Errors
///
/// [`KeyTooLong`], if what the keys would begin with is longer than a key may be.
pub fn prefix_of<K: Key>(first: &impl PrefixOf<K>) -> Result<ByteRange, KeyTooLong> {
    let mut prefix = Vec::new();
    append_bounded(&mut prefix, |out| first.encode_prefix(out))?;
    Ok(prefix_range(&prefix))
}

/// For a tuple of the first components and the others: its prefixes of all of the first ones, of
/// one more, and so on.
macro_rules! prefixes {
    ([$($key:ident $query:ident $place:tt)+] []) => {};
    ([$($key:ident $query:ident $place:tt)+]
     [$next:ident $next_query:ident $next_place:tt $($rest:ident $rest_query:ident $rest_place:tt)*]
    ) => {
        impl<$($key, $query,)+ $next, $($rest,)*> PrefixOf<($($key,)+ $next, $($rest,)*)>
            for ($($query,)+)
        where
            $($query: AsKey<$key>,)+
        {
            fn encode_prefix(&self, out: &mut Vec<u8>) {
                $(self.$place.encode_inner(out);)+
            }
        }

        prefixes! {
            [$($key $query $place)+ $next $next_query $next_place]
            [$($rest $rest_query $rest_place)*]
        }
    };
}

prefixes! { [A QA 0] [B QB 1] }
prefixes! { [A QA 0] [B QB 1 C QC 2] }
prefixes! { [A QA 0] [B QB 1 C QC 2 D QD 3] }
prefixes! { [A QA 0] [B QB 1 C QC 2 D QD 3 E QE 4] }
prefixes! { [A QA 0] [B QB 1 C QC 2 D QD 3 E QE 4 F QF 5] }
prefixes! { [A QA 0] [B QB 1 C QC 2 D QD 3 E QE 4 F QF 5 G QG 6] }
prefixes! { [A QA 0] [B QB 1 C QC 2 D QD 3 E QE 4 F QF 5 G QG 6 H QH 7] }
