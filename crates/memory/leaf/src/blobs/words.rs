//! Byte strings as words, zero-padded at the end.

/// Returns the number of words for this many bytes.
pub(crate) const fn word_count(size_bytes: usize) -> usize {
    size_bytes.div_ceil(8)
}

/// Appends bytes as words.
pub(crate) fn extend_words(words: &mut Vec<u64>, bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    words.extend(whole.iter().map(|chunk| u64::from_le_bytes(*chunk)));
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words.push(u64::from_le_bytes(last));
    }
}

/// Appends this many of the words' first bytes. There must be enough words.
pub(crate) fn extend_bytes(bytes: &mut Vec<u8>, words: &[u64], size_bytes: usize) {
    let end = bytes.len() + size_bytes;
    let words = &words[..word_count(size_bytes)];
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: converting to words and back preserves bytes of any number.
    #[test]
    fn bytes_survive_the_way() {
        for size_bytes in 0..40_u8 {
            let string: Vec<u8> = (1..=size_bytes).collect();
            let (mut words, mut back) = (vec![7], b"ab".to_vec());
            extend_words(&mut words, &string);
            assert_eq!(words.len(), 1 + word_count(string.len()));
            extend_bytes(&mut back, &words[1..], string.len());
            assert_eq!((&back[..2], &back[2..]), (&b"ab"[..], &string[..]));
        }
    }
}
