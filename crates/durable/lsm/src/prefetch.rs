//! Asks the processor for memory that is read soon, so that waits for it overlap.

/// What a processor reads of memory at a time.
const LINE_SIZE_BYTES: usize = 64;

/// Where some items are in memory. They may be gone when it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    start: *const u8,
    size_bytes: usize,
}

impl Span {
    /// Of nothing.
    pub(crate) const EMPTY: Self = Self {
        start: std::ptr::null(),
        size_bytes: 0,
    };

    pub(crate) const fn of<T>(items: &[T]) -> Self {
        Self {
            start: items.as_ptr().cast(),
            size_bytes: size_of_val(items),
        }
    }

    /// Asks for its cache lines. Only a hint: it waits for nothing but the place of its pages, and
    /// for those of many at a time if they are asked for right behind each other.
    #[inline]
    pub(crate) fn prefetch(self) {
        if self.size_bytes > 0 {
            for offset in (0..self.size_bytes).step_by(LINE_SIZE_BYTES) {
                prefetch_line(self.start.wrapping_add(offset));
            }
            // It need not begin where a line does.
            prefetch_line(self.start.wrapping_add(self.size_bytes - 1));
        }
    }
}

#[inline]
fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that a program can see, and no fault, whatever the address
    // is; SSE is part of every x86_64 target.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: whatever it is a span of, nothing, memory that is gone, or the end of all that
    /// there can be, asking for it changes nothing and does not fail.
    #[test]
    fn any_span_may_be_asked_for() {
        Span::EMPTY.prefetch();
        Span::of::<u64>(&[]).prefetch();
        let words = vec![7_u64; 1000];
        Span::of(&words).prefetch();
        assert!(words.iter().all(|word| *word == 7));
        let gone = Span::of(&words);
        drop(words);
        gone.prefetch();
        let last = Span {
            start: std::ptr::without_provenance(usize::MAX - 10),
            size_bytes: 300,
        };
        last.prefetch();
    }
}
