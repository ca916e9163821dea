//! One pointer for all threads of a call.

/// A pointer that jobs share; each writes its own elements.
pub(crate) struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}
// SAFETY: only an address; every use says which elements it owns.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(ptr: *mut T) -> Self {
        Shared(ptr)
    }
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}
