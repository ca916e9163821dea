//! Structs of arguments and results whose fields have setters, so that one more field breaks nobody's code.

/// Adds to a struct a setter for each field, with the field's name and description.
macro_rules! builder {
    ($(#[$meta:meta])* pub struct $name:ident<'a> { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        pub struct $name<'a> {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl<'a> $name<'a> {
            $(
                $(#[$field_meta])*
                #[must_use]
                pub fn $field(mut self, $field: impl Into<$type>) -> Self {
                    self.$field = $field.into();
                    self
                }
            )*
        }
    };
}
pub(crate) use builder;
