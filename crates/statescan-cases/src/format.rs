//! The file format: safetensors in, safetensors out, nothing trusted.
//!
//! A file is an 8-byte header length, a JSON header, and the tensors' bytes without gaps. The header is read first and checked against the
//! length of the file, so memory is asked for only where the bytes exist.

use crate::aside::Aside;
pub use crate::error::{FormatError, MAX_HEADER};
use crate::room::fits;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use statescan::DType;
use statescan::tensor::{MAX_RANK, Tensor};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Read, Write};
use std::path::Path;

/// The most elements that the other axes of an empty tensor may multiply to (or the length of the file, if that is more).
///
/// Nothing in a file's length limits the axes beside a zero, and outputs are sized by them.
pub const MAX_EMPTY: u64 = 1 << 20;

/// The content of a file.
#[derive(Debug, Default)]
pub struct File {
    /// Tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// The strings under `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

/// Reads a file that is in memory.
///
/// # Errors
/// Anything that is not exactly the format.
pub fn read(bytes: &[u8]) -> Result<File, FormatError> {
    read_from(&mut &*bytes, bytes.len() as u64)
}

/// Reads a file of known length from a stream.
///
/// # Errors
/// As [`read`]; what the system says.
pub fn read_from(reader: &mut impl Read, length: u64) -> Result<File, FormatError> {
    let prefix = 8;
    if length < prefix {
        return Err(FormatError::Truncated { what: "the header's length", expected: prefix, got: length });
    }
    let mut word = [0; 8];
    reader.read_exact(&mut word)?;
    let header_len = u64::from_le_bytes(word);
    if header_len > MAX_HEADER {
        return Err(FormatError::HeaderTooLong { got: header_len });
    }
    let data_start = prefix + header_len;
    if data_start > length {
        return Err(FormatError::Truncated { what: "the header", expected: data_start, got: length });
    }
    let mut header = vec![0; header_len as usize];
    reader.read_exact(&mut header)?;
    let header = core::str::from_utf8(&header).map_err(|e| FormatError::Header(e.to_string()))?;
    if let Some(name) = repeated_name(header)? {
        return Err(FormatError::Duplicate(name));
    }
    let metadata: Metadata = serde_json::from_str(header).map_err(|e| FormatError::Header(e.to_string()))?;
    let (expected, got) = (length - data_start, metadata.data_len() as u64);
    if expected != got {
        return Err(FormatError::Coverage { expected, got });
    }
    if !fits(got) {
        return Err(FormatError::Memory { bytes: got });
    }
    let infos = metadata.tensors();
    let mut order: Vec<_> = infos.iter().collect();
    order.sort_by_key(|(_, info)| info.data_offsets);
    let mut file = File::default();
    for (name, info) in order {
        let mut buffer = allocate(name, info, length)?;
        let bytes = info.data_offsets.1 - info.data_offsets.0;
        reader.read_exact(&mut buffer.bytes_mut()[..bytes])?;
        file.tensors.insert(name.clone(), buffer);
    }
    if let Some(strings) = metadata.metadata() {
        file.metadata.extend(strings.iter().map(|(k, v)| (k.clone(), v.clone())));
    }
    Ok(file)
}

fn allocate(name: &str, info: &TensorInfo, length: u64) -> Result<Tensor, FormatError> {
    let name = || name.to_string();
    let dtype = match info.dtype {
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::BF16 => DType::BF16,
        Dtype::F16 => DType::F16,
        Dtype::C64 => DType::Complex64,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        got => return Err(FormatError::DType { name: name(), got }),
    };
    if info.shape.len() > MAX_RANK {
        return Err(FormatError::Rank { name: name(), got: info.shape.len() });
    }
    if info.shape.contains(&0) {
        let others = info.shape.iter().filter(|&&n| n > 0).try_fold(1u64, |all, &n| all.checked_mul(n as u64));
        if others.is_none_or(|n| n > MAX_EMPTY.max(length)) {
            return Err(FormatError::Empty { name: name(), shape: info.shape.clone() });
        }
    }
    let bytes = (info.data_offsets.1 - info.data_offsets.0) as u64;
    Tensor::host(dtype, &info.shape).map_err(|_| FormatError::Memory { bytes })
}

/// The first name that a JSON object gives twice: parsers keep the last one silently.
fn repeated_name(json: &str) -> Result<Option<String>, FormatError> {
    struct Names;
    impl<'de> Visitor<'de> for Names {
        type Value = Option<String>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let (mut seen, mut repeated) = (HashSet::new(), None);
            while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                if repeated.is_none() && !seen.insert(name.clone()) {
                    repeated = Some(name);
                }
            }
            Ok(repeated)
        }
    }
    let mut parser = serde_json::Deserializer::from_str(json);
    let repeated = parser.deserialize_map(Names).map_err(|e| FormatError::Header(e.to_string()))?;
    Ok(repeated)
}

/// A tensor to be written: its name, its storage type and shape in the file, its bytes.
pub struct Entry<'a> {
    /// Its name.
    pub name: String,
    /// Its type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements, row-major.
    pub bytes: &'a [u8],
}

impl<'a> Entry<'a> {
    /// A dense buffer; complex ones become real ones with a trailing axis of 2, as the format of the test vectors has it.
    pub fn new(name: impl Into<String>, buffer: &'a Tensor) -> Self {
        let mut shape = buffer.shape().to_vec();
        let dtype = buffer.dtype();
        let len: usize = shape.iter().product();
        if dtype.is_complex() {
            shape.push(2);
        }
        Entry { name: name.into(), dtype: dtype.real(), shape, bytes: &buffer.bytes()[..len * dtype.size()] }
    }
}

/// Writes a file in one piece.
///
/// # Errors
/// Errors of the stream; a header that cannot be made (names that repeat).
pub fn write(out: &mut impl Write, entries: &[Entry<'_>], metadata: &BTreeMap<String, String>) -> std::io::Result<()> {
    let other = |e: SafeTensorError| std::io::Error::other(e.to_string());
    let mut order: Vec<&Entry<'_>> = entries.iter().collect();
    // wide types first keeps every tensor aligned
    order.sort_by(|a, b| b.dtype.size().cmp(&a.dtype.size()).then_with(|| a.name.cmp(&b.name)));
    let mut at = 0;
    let mut infos = Vec::new();
    for entry in &order {
        let data_offsets = (at, at + entry.bytes.len());
        at = data_offsets.1;
        infos.push((entry.name.clone(), TensorInfo { dtype: stored(entry.dtype), shape: entry.shape.clone(), data_offsets }));
    }
    let strings: HashMap<_, _> = metadata.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    let header = Metadata::new((!strings.is_empty()).then_some(strings), infos).map_err(other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for entry in order {
        out.write_all(entry.bytes)?;
    }
    Ok(())
}

fn stored(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 | DType::Complex128 => Dtype::F64,
        DType::BF16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        _ => Dtype::F32,
    }
}

/// Writes a file aside and renames it, so that a failure leaves nothing behind and an existing file as it was.
///
/// # Errors
/// Errors of the system; a target that exists and is no regular file.
pub fn write_file(path: &Path, entries: &[Entry<'_>], metadata: &BTreeMap<String, String>) -> std::io::Result<()> {
    let aside = Aside::create(path)?;
    let mut out = std::io::BufWriter::with_capacity(1 << 20, aside.file());
    write(&mut out, entries, metadata)?;
    out.into_inner().map_err(|e| e.into_error())?;
    aside.finish()
}

/// Whether [`write_file`] can make a file there, which is better known before long work than after it. Nothing is left.
///
/// # Errors
/// As [`write_file`].
pub fn try_file(path: &Path) -> std::io::Result<()> {
    Aside::create(path).map(drop)
}
