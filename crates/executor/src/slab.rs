//! Futures of one type, pinned where they stand, allocated once.

use std::pin::Pin;

/// A fixed number of places, each vacant or holding a future that never moves.
///
/// The slice is never borrowed shared, nor is a place that holds a future: a pending future holds
/// exclusive references into itself, which a shared borrow of its bytes would end. (An exclusive
/// one does not, because the compiler assumes nothing about those to types that are not `Unpin`.)
pub(crate) struct Slab<F> {
    places: Pin<Box<[Option<F>]>>,
    capacity: usize,
}

impl<F> Slab<F> {
    /// Allocates all places at once.
    pub(crate) fn new(capacity: usize) -> Self {
        let places = (0..capacity).map(|_| None).collect::<Box<[_]>>();
        Self {
            places: Box::into_pin(places),
            capacity,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Puts a future into a vacant place.
    #[inline]
    pub(crate) fn insert(&mut self, index: u32, future: F) {
        let mut place = self.place(index);
        debug_assert!(place.is_none(), "a place holds one future");
        place.set(Some(future));
    }

    /// The future in a place, to be polled there.
    #[inline]
    pub(crate) fn get(&mut self, index: u32) -> Option<Pin<&mut F>> {
        self.place(index).as_pin_mut()
    }

    /// Drops the future in a place, there.
    #[inline]
    pub(crate) fn clear(&mut self, index: u32) {
        self.place(index).set(None);
    }

    #[inline]
    fn place(&mut self, index: u32) -> Pin<&mut Option<F>> {
        // SAFETY: `Pin::map_unchecked_mut` requires that the element does not move as long as the
        // slice does not, and that the closure moves nothing out of its argument. An element of a
        // slice stands inside it, and the closure only borrows. This function is the only way to an
        // element, and it gives a `Pin` to it, so nobody else moves one either: `Pin::set` drops
        // the old value in place before it writes, and `grow` moves only futures that are `Unpin`.
        // The slice itself is dropped in place by its box.
        unsafe {
            self.places
                .as_mut()
                .map_unchecked_mut(|places| &mut places[index as usize])
        }
    }
}

impl<F: Unpin> Slab<F> {
    /// Moves all futures, which may be moved, to a larger slab.
    pub(crate) fn grow(&mut self, capacity: usize) {
        let places = std::mem::replace(&mut self.places, Box::into_pin(Box::default()));
        let mut places = Pin::into_inner(places).into_vec();
        self.capacity = capacity.max(places.len());
        places.resize_with(self.capacity, || None);
        self.places = Box::into_pin(places.into_boxed_slice());
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
