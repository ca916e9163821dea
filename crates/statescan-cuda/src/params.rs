//! Parameters that kernels take by value, declared once for host and device: [`params!`] makes a Rust struct and the text of the
//! same struct in CUDA C++, in which `static_assert` compares its size and the offset of every field with those of the host.

use core::ffi::c_void;
use core::fmt;
use core::marker::PhantomData;
use num_complex::Complex32;

/// A type that kernels take by value or as a field of what they take.
pub trait Parameter {
    /// The declaration of a field of this type in CUDA C++, without the semicolon.
    #[cfg(feature = "driver")]
    fn field(name: &str) -> String;
    /// Declares the type, and the types of its fields before it.
    #[cfg(feature = "driver")]
    fn declare(_to: &mut Declarations) {}
}

/// The text of declarations, each struct once and after those that it is made of.
#[cfg(feature = "driver")]
#[derive(Debug, Default)]
pub struct Declarations {
    text: String,
    known: Vec<&'static str>,
}

#[cfg(feature = "driver")]
impl fmt::Display for Declarations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A field of a struct: its name, its declaration, and where it lies on the host.
#[cfg(feature = "driver")]
#[derive(Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its declaration, without the semicolon.
    pub declaration: String,
    /// Bytes from the beginning of the struct.
    pub offset: usize,
}

#[cfg(feature = "driver")]
impl Declarations {
    /// Adds the text of a type that is declared by hand.
    pub fn add_text(&mut self, name: &'static str, text: &str) {
        if !self.known.contains(&name) {
            self.known.push(name);
            self.text += text;
        }
    }

    /// Adds a struct, whose fields' types were declared before, to what is declared.
    pub fn add<P>(&mut self, name: &'static str, base: Option<&str>, fields: &[Field]) {
        if self.known.contains(&name) {
            return;
        }
        self.known.push(name);
        let base = base.map_or(String::new(), |base| format!(" : {base}"));
        let lines: String = fields.iter().map(|field| format!("  {};\n", field.declaration)).collect();
        let size = size_of::<P>();
        let offsets = fields.iter().map(|Field { name: field, offset, .. }| {
            format!("static_assert(OFFSET_OF({name}, {field}) == {offset}, \"{name}::{field} lies where the host has it\");\n")
        });
        self.text += &format!("struct {name}{base} {{\n{lines}}};\n");
        self.text += &format!("static_assert(sizeof({name}) == {size}, \"{name} has the host's size\");\n");
        self.text.extend(offsets);
    }
}

/// A struct of parameters and its declaration in CUDA C++ under the same name. A first field in parentheses, `struct Name(base:
/// Type)`, is a base class there, so that functions which take the base take the struct as well.
#[macro_export]
macro_rules! params {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(($base:ident: $base_type:ident))? {
            $($(#[$about:meta])* $field_vis:vis $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq)]
        $vis struct $name {
            $($base: $base_type,)?
            $($(#[$about])* $field_vis $field: $type,)*
        }

        impl $crate::Parameter for $name {
            $crate::with_driver! {
                fn field(name: &str) -> String {
                    format!(concat!(stringify!($name), " {}"), name)
                }
                fn declare(to: &mut $crate::Declarations) {
                    use $crate::{Field, Parameter};
                    #[allow(unused_mut, unused_assignments)]
                    let mut base = None;
                    $(
                        <$base_type as Parameter>::declare(to);
                        base = Some(stringify!($base_type));
                    )?
                    $(<$type as Parameter>::declare(to);)*
                    let fields = [$(Field {
                        name: stringify!($field),
                        declaration: <$type as Parameter>::field(stringify!($field)),
                        offset: core::mem::offset_of!($name, $field),
                    }),*];
                    to.add::<$name>(stringify!($name), base, &fields);
                }
            }
        }
    };
}

/// Text that only a build with a driver has: what [`params!`] is made of asks the features of this crate, not those of the crate that uses it.
#[doc(hidden)]
#[cfg(feature = "driver")]
#[macro_export]
macro_rules! with_driver {
    ($($text:tt)*) => { $($text)* };
}

/// See above.
#[doc(hidden)]
#[cfg(not(feature = "driver"))]
#[macro_export]
macro_rules! with_driver {
    ($($text:tt)*) => {};
}

macro_rules! scalar {
    ($($type:ident as $name:literal),*) => {$(
        impl Parameter for $type {
            #[cfg(feature = "driver")]
            fn field(name: &str) -> String {
                format!(concat!($name, " {}"), name)
            }
        }
    )*};
}
scalar!(u32 as "u32", i32 as "i32", i64 as "i64", f32 as "f32", Complex32 as "complex64", c_void as "void");

impl<P: Parameter, const COUNT: usize> Parameter for [P; COUNT] {
    #[cfg(feature = "driver")]
    fn field(name: &str) -> String {
        P::field(&format!("{name}[{COUNT}]"))
    }
    #[cfg(feature = "driver")]
    fn declare(to: &mut Declarations) {
        P::declare(to);
    }
}

/// The address of elements in a device's memory: a pointer there, a number here.
#[repr(transparent)]
pub struct Address<E>(u64, PhantomData<E>);

impl<E> Address<E> {
    /// The null pointer.
    pub const NULL: Self = Address(0, PhantomData);

    /// Elements at an address.
    pub const fn new(address: u64) -> Self {
        Address(address, PhantomData)
    }
}

impl<E: Parameter> Parameter for Address<E> {
    #[cfg(feature = "driver")]
    fn field(name: &str) -> String {
        E::field(&format!("*{name}"))
    }
    #[cfg(feature = "driver")]
    fn declare(to: &mut Declarations) {
        E::declare(to);
    }
}

impl<E> Clone for Address<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Address<E> {}

impl<E> PartialEq for Address<E> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<E> Default for Address<E> {
    fn default() -> Self {
        Self::NULL
    }
}

impl<E> fmt::Debug for Address<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;

    params! {
        /// The first fields of another struct.
        struct Sizes {
            rows: i64,
            factor: f32,
        }
    }

    params! {
        /// A struct with every kind of field.
        struct Sample(sizes: Sizes) {
            /// A pair.
            axes: [u32; 2],
            again: [Sizes; 3],
            terms: Address<f32>,
            anything: Address<c_void>,
        }
    }

    const DECLARED: &str = r#"struct Sizes {
  i64 rows;
  f32 factor;
};
static_assert(sizeof(Sizes) == 16, "Sizes has the host's size");
static_assert(OFFSET_OF(Sizes, rows) == 0, "Sizes::rows lies where the host has it");
static_assert(OFFSET_OF(Sizes, factor) == 8, "Sizes::factor lies where the host has it");
struct Sample : Sizes {
  u32 axes[2];
  Sizes again[3];
  f32 *terms;
  void *anything;
};
static_assert(sizeof(Sample) == 88, "Sample has the host's size");
static_assert(OFFSET_OF(Sample, axes) == 16, "Sample::axes lies where the host has it");
static_assert(OFFSET_OF(Sample, again) == 24, "Sample::again lies where the host has it");
static_assert(OFFSET_OF(Sample, terms) == 72, "Sample::terms lies where the host has it");
static_assert(OFFSET_OF(Sample, anything) == 80, "Sample::anything lies where the host has it");
"#;

    #[test]
    fn a_struct_is_declared_once_after_what_it_is_made_of() {
        let mut declarations = Declarations::default();
        Sizes::declare(&mut declarations);
        Sample::declare(&mut declarations);
        assert_eq!(declarations.to_string(), DECLARED);
    }

    #[test]
    fn declarations_compile_only_as_the_host_has_them() {
        use crate::program::TYPES;
        use crate::{Source, nvrtc, testing};
        if !testing::ready() {
            return;
        }
        let compile = |declared: &str| {
            let kernel = "extern \"C\" __global__ void sample(const __grid_constant__ Sample p) { *p.terms = p.factor; }";
            let source = Source { text: [TYPES.text, declared, kernel].concat(), headers: Vec::new() };
            nvrtc::compile("sample", &source, "sm_80", &[])
        };
        compile(DECLARED).unwrap();
        for (here, there) in [("i64 rows", "u32 rows"), ("u32 axes[2]", "u32 axes[3]"), ("  f32 *terms;\n  void", "  void")] {
            assert!(compile(&DECLARED.replacen(here, there, 1)).is_err(), "{there}");
        }
    }
}
