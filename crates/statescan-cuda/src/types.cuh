// Numbers by the names that they have everywhere in the library, and what declarations of parameters need. A program begins with this text.
#pragma once

typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;
typedef unsigned long long u64;
typedef int i32;
typedef float f32;
typedef double f64;
struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct alignas(8) complex64 { f32 re, im; };
struct alignas(16) complex128 { f64 re, im; };

// The offset of a member in a class, as a constant: NVRTC has no `offsetof` of its own.
#define OFFSET_OF(CLASS, MEMBER) __INTADDR__(&(((CLASS*)0)->MEMBER))
