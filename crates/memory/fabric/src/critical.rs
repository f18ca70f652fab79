//! The time in which a session may hold a lock, or own a chunk, that only it can give back.

use core::cell::Cell;

/// From before the verb that may take something until it is known to be given back. If the work is
/// cut off in between (its future is dropped, or a batch fails), the session may hold what nobody
/// else will free while it lives; so it counts as broken, and must be closed (F6).
///
/// Waiting for a lock that somebody else holds is not critical.
#[derive(Debug)]
#[must_use = "dropping it at once marks the session as broken"]
pub struct Critical<'a>(&'a Cell<bool>);

impl<'a> Critical<'a> {
    /// Begins. `broken` is the session's: it is set unless [`passed`](Self::passed) is reached.
    #[inline]
    pub fn enter(broken: &'a Cell<bool>) -> Self {
        Self(broken)
    }

    /// Nothing is held any more, or it is known who gives it back.
    #[inline]
    pub fn passed(self) {
        core::mem::forget(self);
    }
}

impl Drop for Critical<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.set(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_broken_unless_the_critical_time_is_passed() {
        let broken = Cell::new(false);
        Critical::enter(&broken).passed();
        assert!(!broken.get());
        drop(Critical::enter(&broken));
        assert!(broken.get());
    }
}
