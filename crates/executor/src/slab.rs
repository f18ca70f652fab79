//! Fixed slots for pinned futures of one type, allocated once.

use std::pin::Pin;

/// A fixed number of slots, each vacant or holding a future that never moves.
///
/// Neither the slice nor an occupied slot is ever borrowed shared. A pending future holds exclusive
/// references into itself, which a shared borrow of its bytes would invalidate. (An exclusive
/// borrow does not, because the compiler assumes nothing about those to types that are not
/// `Unpin`.)
pub(crate) struct Slab<F> {
    slots: Pin<Box<[Option<F>]>>,
    capacity: usize,
}

impl<F> Slab<F> {
    /// Allocates all slots at once.
    pub(crate) fn new(capacity: usize) -> Self {
        let slots = (0..capacity).map(|_| None).collect::<Box<[_]>>();
        Self {
            slots: Box::into_pin(slots),
            capacity,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Stores a future in a vacant slot.
    #[inline]
    pub(crate) fn insert(&mut self, index: u32, future: F) {
        let mut place = self.place(index);
        debug_assert!(place.is_none(), "a place holds one future");
        place.set(Some(future));
    }

    /// Returns the future in a slot, pinned, or `None` if the slot is vacant.
    #[inline]
    pub(crate) fn get(&mut self, index: u32) -> Option<Pin<&mut F>> {
        self.place(index).as_pin_mut()
    }

    /// Drops the future of a slot in place.
    #[inline]
    pub(crate) fn clear(&mut self, index: u32) {
        self.place(index).set(None);
    }

    #[inline]
    fn place(&mut self, index: u32) -> Pin<&mut Option<F>> {
        // SAFETY: `Pin::map_unchecked_mut` requires that the element does not move while the slice
        // does not move, and that the closure moves nothing out of its argument. An element of a
        // slice is stored inside the slice, and the closure only borrows. This function is the only
        // access to an element, and it returns a `Pin` to it. So no other code moves an element:
        // `Pin::set` drops the old value in place before it writes, and `grow` moves only futures
        // that are `Unpin`. The box drops the slice in place.
        unsafe {
            self.slots
                .as_mut()
                .map_unchecked_mut(|slots| &mut slots[index as usize])
        }
    }
}

impl<F: Unpin> Slab<F> {
    /// Moves all futures (which are `Unpin`) to a larger slab.
    pub(crate) fn grow(&mut self, capacity: usize) {
        let slots = std::mem::replace(&mut self.slots, Box::into_pin(Box::default()));
        let mut slots = Pin::into_inner(slots).into_vec();
        self.capacity = capacity.max(slots.len());
        slots.resize_with(self.capacity, || None);
        self.slots = Box::into_pin(slots.into_boxed_slice());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn places_keep_their_address_until_cleared_and_drop_once() {
        let mut slab = Slab::new(3);
        let value = Rc::new(7);
        slab.insert(1, Rc::clone(&value));
        let address = std::ptr::from_ref(slab.get(1).expect("inserted").get_mut()).addr();
        let mut moved = slab;
        assert_eq!(
            std::ptr::from_ref(moved.get(1).expect("still there").get_mut()).addr(),
            address
        );
        assert!(moved.get(0).is_none());
        moved.clear(1);
        assert_eq!(Rc::strong_count(&value), 1);
        moved.insert(1, Rc::clone(&value));
        moved.grow(10);
        assert_eq!((moved.capacity(), **moved.get(1).expect("kept")), (10, 7));
        drop(moved);
        assert_eq!(Rc::strong_count(&value), 1);
    }
}
