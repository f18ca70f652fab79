//! Locks that stay usable after a panic of a thread that held them, and changes of states.

use std::sync::atomic::{AtomicU8, Ordering};

pub(crate) use farleaf_base::locks::{lock, read, write};

/// Changes a state if it is `from`; otherwise it stays as it is.
pub(crate) fn change_state(state: &AtomicU8, from: u8, to: u8) {
    // An error means that it is another one.
    let _ = state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
}
