//! Prefetching: hints to the processor, so that cache misses overlap.

/// Size of a cache line in bytes.
const LINE_SIZE_BYTES: usize = 64;

/// Memory range of some items. The items may no longer exist when the span is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    start: *const u8,
    size_bytes: usize,
}

impl Span {
    /// Empty span.
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

    /// Prefetches the cache lines of the span. This is only a hint. It waits at most for address
    /// translation, and those waits overlap if several spans are prefetched in sequence.
    #[inline]
    pub(crate) fn prefetch(self) {
        if self.size_bytes > 0 {
            for offset in (0..self.size_bytes).step_by(LINE_SIZE_BYTES) {
                prefetch_line(self.start.wrapping_add(offset));
            }
            // The span need not begin at a cache line's boundary.
            prefetch_line(self.start.wrapping_add(self.size_bytes - 1));
        }
    }
}

#[inline]
fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that a program can observe and never faults, whatever the
    // address is; SSE is part of every x86_64 target.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: prefetching any span changes nothing and does not fail. Spans may be empty,
    /// dangling, or at the end of the address space.
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
