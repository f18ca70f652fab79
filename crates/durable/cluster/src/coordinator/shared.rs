//! A coordinator of any kind, behind a shared pointer.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::Coordinator;

/// A coordinator of any kind. Clones share it.
#[derive(Clone)]
pub struct SharedCoordinator {
    inner: Arc<dyn Coordinator>,
    name: Arc<str>,
}

impl SharedCoordinator {
    /// Wraps a coordinator; `name` is used in messages.
    pub fn new(inner: impl Coordinator + 'static, name: &str) -> Self {
        Self {
            inner: Arc::new(inner),
            name: name.into(),
        }
    }

    /// Returns the name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for SharedCoordinator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

impl Deref for SharedCoordinator {
    type Target = dyn Coordinator;

    fn deref(&self) -> &Self::Target {
        &*self.inner
    }
}
