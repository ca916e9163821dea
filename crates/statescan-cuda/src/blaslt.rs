//! cuBLASLt, opened at run time: products of matrices, each with the algorithm that the library suggests for its sizes.

use crate::{DeviceMemory, Error, Product, Result, Scalar, Stream, library};
use core::ffi::c_void;
use core::ptr::null_mut;
use cudarc::cublaslt::sys::{self, cublasStatus_t as Status};
use rustc_hash::FxHashMap;
use std::sync::Mutex;

/// Scratch memory that algorithms may use: what NVIDIA advises for Hopper.
const WORKSPACE: usize = 32 << 20;

/// `CUBLAS_OP_N` and `CUBLAS_OP_T`.
const AS_IS: i32 = 0;
const TRANSPOSED: i32 = 1;

/// The library on one stream, with scratch memory and what it suggested so far.
pub(crate) struct Library {
    stream: Stream,
    handle: usize,
    workspace: DeviceMemory,
    plans: Mutex<FxHashMap<Product, Plan>>,
}

/// How a product is computed.
struct Plan {
    product: Described,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// A product and its matrices as the library has them; they are destroyed with it.
struct Described {
    product: usize,
    /// Weights, rows, results.
    matrices: [usize; 3],
}

macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        check(stringify!($function), sys::$function($($argument),*))
    };
}

fn check(call: &'static str, status: Status) -> Result<()> {
    let name = match status {
        Status::CUBLAS_STATUS_SUCCESS => return Ok(()),
        Status::CUBLAS_STATUS_NOT_INITIALIZED => "CUBLAS_STATUS_NOT_INITIALIZED",
        Status::CUBLAS_STATUS_ALLOC_FAILED => "CUBLAS_STATUS_ALLOC_FAILED",
        Status::CUBLAS_STATUS_INVALID_VALUE => "CUBLAS_STATUS_INVALID_VALUE",
        Status::CUBLAS_STATUS_ARCH_MISMATCH => "CUBLAS_STATUS_ARCH_MISMATCH",
        Status::CUBLAS_STATUS_EXECUTION_FAILED => "CUBLAS_STATUS_EXECUTION_FAILED",
        Status::CUBLAS_STATUS_NOT_SUPPORTED => "CUBLAS_STATUS_NOT_SUPPORTED",
        _ => "an error of cuBLASLt",
    };
    Err(Error::Cuda { call, name, code: status as u32 })
}

impl Library {
    pub(crate) fn new(stream: &Stream) -> Result<Self> {
        if !library::is_present(library::BLASLT) && !library::load_from_toolkit(library::BLASLT) {
            let why = "cuBLASLt was not found: it comes with the CUDA toolkit, or as the Python package nvidia-cublas";
            return Err(Error::Unavailable { what: "a product of matrices on CUDA", why });
        }
        let workspace = DeviceMemory::new(stream, WORKSPACE)?;
        let _current = stream.enter()?;
        let mut handle = null_mut();
        // SAFETY: the library is there, a context is current, and the place written is valid.
        unsafe { call!(cublasLtCreate(&mut handle))? };
        Ok(Library { stream: stream.clone(), handle: handle as usize, workspace, plans: Mutex::default() })
    }

    /// Puts `y = factor x W^T (+ bias) (+ onto)` into the stream, with weights, rows, bias (or 0) and results at these addresses, and what they are added to,
    /// which lies as the results do, at another or the same one.
    ///
    /// # Safety
    /// The addresses are valid for what the product says.
    pub(crate) unsafe fn multiply(&self, product: &Product, addresses: [u64; 4], factor: f32, onto: Option<u64>) -> Result<()> {
        let _current = self.stream.enter()?;
        let mut plans = self.plans.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !plans.contains_key(product) {
            plans.insert(*product, self.plan(product)?);
        }
        let Plan { product: described, algorithm } = &plans[product];
        let [weight, x, bias, y] = addresses;
        let add: f32 = if onto.is_some() { 1.0 } else { 0.0 };
        let [of_weight, of_x, of_y] = described.matrices.map(|matrix| matrix as sys::cublasLtMatrixLayout_t);
        if product.bias {
            described.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        // SAFETY: the descriptions are whole and alive, a context is current, factors are read before the call returns; the caller vouches for
        // the memory, and the scratch memory is this stream's alone.
        unsafe {
            call!(cublasLtMatmul(
                self.handle as sys::cublasLtHandle_t,
                described.product as sys::cublasLtMatmulDesc_t,
                core::ptr::from_ref(&factor).cast(),
                weight as *const c_void,
                of_weight,
                x as *const c_void,
                of_x,
                core::ptr::from_ref(&add).cast(),
                onto.unwrap_or(y) as *const c_void,
                of_y,
                y as *mut c_void,
                of_y,
                core::ptr::from_ref(algorithm),
                self.workspace.address() as *mut c_void,
                WORKSPACE,
                self.stream.raw().cast(),
            ))
        }
    }

    fn plan(&self, product: &Product) -> Result<Plan> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Wish;
        let described = Described::new(product, self.stream.allows_tf32())?;
        let [of_weight, of_x, of_y] = described.matrices.map(|matrix| matrix as sys::cublasLtMatrixLayout_t);
        let mut wishes = null_mut();
        // SAFETY: the place written is valid.
        unsafe { call!(cublasLtMatmulPreferenceCreate(&mut wishes))? };
        let wish = |attribute, value: &[u8]| {
            // SAFETY: the object is alive, and the value has as many bytes.
            unsafe { call!(cublasLtMatmulPreferenceSetAttribute(wishes, attribute, value.as_ptr().cast(), value.len())) }
        };
        let [weight, x, y] = product.aligned.map(u32::to_ne_bytes);
        let onto = product.added_aligned.to_ne_bytes();
        let mut found = 0;
        // SAFETY: plain numbers, which the library fills.
        let mut suggested: sys::cublasLtMatmulHeuristicResult_t = unsafe { core::mem::zeroed() };
        let asked = wish(Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(WORKSPACE as u64).to_ne_bytes())
            .and_then(|()| wish(Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &weight))
            .and_then(|()| wish(Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &x))
            .and_then(|()| wish(Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &onto))
            .and_then(|()| wish(Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y))
            // SAFETY: everything described is alive, there is room for one answer.
            .and_then(|()| unsafe {
                call!(cublasLtMatmulAlgoGetHeuristic(
                    self.handle as sys::cublasLtHandle_t,
                    described.product as sys::cublasLtMatmulDesc_t,
                    of_weight,
                    of_x,
                    of_y,
                    of_y,
                    wishes,
                    1,
                    &mut suggested,
                    &mut found,
                ))
            });
        // SAFETY: created above, destroyed once.
        unsafe { sys::cublasLtMatmulPreferenceDestroy(wishes) };
        asked?;
        if found == 0 {
            let why = "cuBLASLt has no algorithm for these sizes, strides and types";
            return Err(Error::Unavailable { what: "a product of matrices on CUDA", why });
        }
        Ok(Plan { product: described, algorithm: suggested.algo })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Ok(_current) = self.stream.enter() {
            // SAFETY: created by `new`, destroyed once; work under way is completed all the same.
            unsafe { sys::cublasLtDestroy(self.handle as sys::cublasLtHandle_t) };
        }
    }
}

impl Described {
    /// Row-major matrices are what the library calls the columns of their transposes: `y^T = W x^T`.
    fn new(product: &Product, tf32: bool) -> Result<Self> {
        use sys::cublasComputeType_t as Compute;
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let compute = match tf32 && product.input == Scalar::F32 {
            true => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => Compute::CUBLAS_COMPUTE_32F,
        };
        let mut created = null_mut();
        // SAFETY: the place written is valid.
        unsafe { call!(cublasLtMatmulDescCreate(&mut created, compute, sys::cudaDataType_t::CUDA_R_32F))? };
        let mut described = Described { product: created as usize, matrices: [0; 3] };
        let [weight, x] = product.transposed;
        described.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, if weight { &AS_IS } else { &TRANSPOSED })?;
        described.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, if x { &TRANSPOSED } else { &AS_IS })?;
        if product.bias {
            described.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
        }
        let [rows, inputs, outputs] = [product.rows, product.inputs, product.outputs].map(|size| size as u64);
        let of_weight = if weight { (product.input, outputs, inputs) } else { (product.input, inputs, outputs) };
        let of_x = if x { (product.input, rows, inputs) } else { (product.input, inputs, rows) };
        let matrices = [of_weight, of_x, (product.output, outputs, rows)];
        let places = described.matrices.iter_mut().zip(matrices).zip(product.pitches);
        for ((place, (dtype, column, columns)), pitch) in places {
            let mut matrix = null_mut();
            // SAFETY: the place written is valid.
            unsafe { call!(cublasLtMatrixLayoutCreate(&mut matrix, type_of(dtype), column, columns, pitch as i64))? };
            *place = matrix as usize;
        }
        Ok(described)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        let product = self.product as sys::cublasLtMatmulDesc_t;
        // SAFETY: the object is alive, and the value has as many bytes.
        unsafe { call!(cublasLtMatmulDescSetAttribute(product, attribute, core::ptr::from_ref(value).cast(), size_of::<T>())) }
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        // SAFETY: what was created, destroyed once; the library frees host memory.
        unsafe {
            sys::cublasLtMatmulDescDestroy(self.product as sys::cublasLtMatmulDesc_t);
            for &matrix in self.matrices.iter().filter(|&&matrix| matrix != 0) {
                sys::cublasLtMatrixLayoutDestroy(matrix as sys::cublasLtMatrixLayout_t);
            }
        }
    }
}

fn type_of(scalar: Scalar) -> sys::cudaDataType {
    match scalar {
        Scalar::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        Scalar::F16 => sys::cudaDataType_t::CUDA_R_16F,
        _ => sys::cudaDataType_t::CUDA_R_32F,
    }
}
