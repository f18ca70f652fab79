//! Ranges of tuples that begin with the same components.

use crate::error::KeyTooLong;
use crate::key::{AsKey, Key, append_bounded};
use crate::range::{ByteRange, prefix_range};

/// First components of tuples of type `K`: at least one, and fewer than `K` has.
pub trait PrefixOf<K> {
    /// Appends the prefix of exactly those keys that have these first components: the components'
    /// inner forms.
    fn encode_prefix(&self, out: &mut Vec<u8>);
}

/// Returns the range of all keys of a tuple type that have the given first components.
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
/// A last component that is a string is encoded as its own bytes. Appending the beginning of such a
/// string narrows the range to the keys whose string begins with it.
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
/// [`KeyTooLong`], if the encoded components exceed the size limit of keys.
pub fn prefix_of<K: Key>(first: &impl PrefixOf<K>) -> Result<ByteRange, KeyTooLong> {
    let mut prefix = Vec::new();
    append_bounded(&mut prefix, |out| first.encode_prefix(out))?;
    Ok(prefix_range(&prefix))
}

/// Implements [`PrefixOf`] for the prefixes of a tuple: all of its first components, then one more,
/// and so on.
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
