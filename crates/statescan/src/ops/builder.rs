//! Structs of arguments and results whose fields have setters, so that one more field breaks nobody's code.

use crate::tensor::{Tensor, View, ViewMut};

/// A value that a setter takes: one of the field's type, or for an optional field the value itself; for a view also a [`Tensor`].
///
/// ```
/// use statescan::ops::linear_scan::Args;
/// use statescan::View;
///
/// let (a, b, state) = ([0.5f32; 4], [1f32; 4], [2f32]);
/// let args = Args::new(View::new(&a, &[1, 4])?, View::new(&b, &[1, 4])?);
/// let with_state = args.initial_state(View::new(&state, &[1])?).reverse(true);
/// let without = with_state.initial_state(None);
/// assert!(with_state.initial_state.is_some() && without.initial_state.is_none());
/// # Ok::<(), statescan::Error>(())
/// ```
pub trait IntoField<T> {
    /// The value of the field.
    fn into_field(self) -> T;
}

impl<T> IntoField<T> for T {
    fn into_field(self) -> T {
        self
    }
}

impl<T> IntoField<Option<T>> for T {
    fn into_field(self) -> Option<T> {
        Some(self)
    }
}

impl<'a> IntoField<View<'a>> for &'a Tensor {
    fn into_field(self) -> View<'a> {
        self.view()
    }
}

impl<'a> IntoField<Option<View<'a>>> for &'a Tensor {
    fn into_field(self) -> Option<View<'a>> {
        Some(self.view())
    }
}

impl<'a> IntoField<Option<ViewMut<'a>>> for &'a mut Tensor {
    fn into_field(self) -> Option<ViewMut<'a>> {
        Some(self.view_mut())
    }
}

/// Adds to a struct a setter for each field, with the field's name and description.
macro_rules! builder {
    ($(#[$meta:meta])* pub struct $name:ident<'a> { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[non_exhaustive]
        pub struct $name<'a> {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl<'a> $name<'a> {
            $(
                $(#[$field_meta])*
                #[must_use]
                pub fn $field(mut self, $field: impl $crate::ops::IntoField<$type>) -> Self {
                    self.$field = $field.into_field();
                    self
                }
            )*
        }
    };
}
pub(crate) use builder;
