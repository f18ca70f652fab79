//! The time in which a session may hold a lock or own a chunk that only this session can release.

use core::cell::Cell;

/// Guard of a critical section: from before the verb that may acquire something until its release
/// is certain.
///
/// If the work is cut off in between (its future is dropped, or a batch fails), the session may
/// hold something that no other session frees while it lives. So the session counts as broken and
/// must be closed (FABRIC-6).
///
/// Waiting for a lock that another session holds is not critical.
#[derive(Debug)]
#[must_use = "dropping it at once marks the session as broken"]
pub struct Critical<'a>(&'a Cell<bool>);

impl<'a> Critical<'a> {
    /// Enters the section. `broken` belongs to the session, and is set unless
    /// [`passed`](Self::passed) is called.
    #[inline]
    pub fn enter(broken: &'a Cell<bool>) -> Self {
        Self(broken)
    }

    /// Leaves the section: the session holds nothing more, or the release is ensured otherwise.
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
