//! Configurations of kernels compiled without a GPU.

use crate::cache::fnv1a;
use crate::{Config, Header, Parameter, Program, Source, nvrtc};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The architectures that kernels are compiled for, one of each generation.
pub const ARCHITECTURES: [&str; 4] = ["sm_80", "sm_90a", "sm_100", "sm_120"];
/// The most shared memory of a block on the smallest of them.
const SHARED: usize = 99 << 10;
/// The most bytes of code: compiling takes about a second for each 100 KB, and the first use of a kernel waits for it.
const LONGEST: usize = 160 << 10;

/// The most lines and parameters of a function.
const LINES: usize = 60;
const PARAMETERS: usize = 6;

/// The kernels that a test compiles: no warning, no spill, not too long, no large function, and no more shared memory of their own than the constant
/// `STATIC` says where a configuration has it ([`SharedMemory::beside`](crate::SharedMemory::beside)). A configuration is compiled for one of its
/// architectures, the one that has met the fewest of its constants. It is left out where nothing of it is new: where some
/// architecture has met each constant, and each of its own has compiled the kernel. So every type, flag and size is met
/// somewhere, and every architecture has met much of them. `STATESCAN_FEW_KERNELS` asks for less: `once` compiles each kernel
/// once, any other value each constant of each kernel for some architecture.
#[derive(Debug, Default)]
pub struct Suite {
    jobs: Vec<Job>,
    /// Constants that a kernel was compiled with.
    anywhere: BTreeSet<(&'static str, String)>,
    /// Constants that a kernel was compiled with for an architecture.
    known: BTreeSet<(&'static str, &'static str, String)>,
    /// How often an architecture was chosen, and for which kernels.
    chosen: BTreeMap<&'static str, usize>,
    compiled: BTreeSet<(&'static str, &'static str)>,
    /// Programs that are compiled already, each for one of these architectures.
    sources: BTreeSet<(u64, Vec<&'static str>)>,
    extent: Extent,
}

/// The pairs that a suite has to meet.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Extent {
    /// Every kernel on every architecture, and every constant on some.
    #[default]
    Architectures,
    /// Every constant of every kernel on some architecture.
    Constants,
    /// Every kernel on some architecture.
    Kernels,
}

impl Extent {
    fn from_environment() -> Self {
        match std::env::var_os("STATESCAN_FEW_KERNELS") {
            None => Extent::Architectures,
            Some(value) if value == "once" => Extent::Kernels,
            Some(_) => Extent::Constants,
        }
    }
}

#[derive(Debug)]
struct Job {
    kernel: &'static str,
    architecture: &'static str,
    source: Source,
    config: String,
}

impl Suite {
    /// Nothing so far. Without NVRTC there is no suite, and the test says so, unless it must not be skipped.
    pub fn new() -> Option<Suite> {
        super::ready().then(|| Suite { extent: Extent::from_environment(), ..Suite::default() })
    }

    /// A configuration that every architecture can have, with so much dynamic shared memory.
    ///
    /// # Panics
    /// If that is more than a block has on each of them.
    pub fn add<P: Parameter>(&mut self, program: &Program<P>, config: &Config, shared: usize) {
        assert!(shared <= SHARED, "{shared} bytes of shared memory for\n{config}");
        self.add_for(&ARCHITECTURES, program, config);
    }

    /// A configuration of a plan for some architectures.
    pub fn add_for<P: Parameter>(&mut self, architectures: &[&'static str], program: &Program<P>, config: &Config) {
        let (source, config) = (program.source(config), config.to_string());
        let missing = undeclared(program.headers(), &config);
        assert!(missing.is_empty(), "{}: headers use constants that they do not name as given: {missing:?}", program.kernel);
        let texts = program.headers().iter().map(|header| (header.name, header.text)).chain([(program.kernel, program.text())]);
        let large: Vec<_> =
            texts.flat_map(|(name, text)| large_functions(text).into_iter().map(move |f| format!("{f} in {name}"))).collect();
        assert!(large.is_empty(), "functions of more than {LINES} lines or {PARAMETERS} parameters: {large:?}");
        if !self.sources.insert((fnv1a(source.key().as_bytes()), architectures.to_vec())) {
            return;
        }
        let kernel = program.kernel;
        let unknown = |architecture: &'static str| {
            config.lines().filter(|line| !self.known.contains(&(kernel, architecture, line.to_string()))).count()
        };
        let often = |architecture| self.chosen.get(architecture).copied().unwrap_or(0);
        let best = architectures.iter().copied().max_by_key(|&a| (unknown(a), core::cmp::Reverse(often(a))));
        let architecture = best.expect("a configuration is for some architecture");
        let known = |a: &'static str| self.compiled.contains(&(kernel, a));
        let is_new = |line: &str| !self.anywhere.contains(&(kernel, line.to_string()));
        let anywhere = ARCHITECTURES.into_iter().any(known);
        let enough = match self.extent {
            Extent::Architectures => architectures.iter().all(|&a| known(a)) && !config.lines().any(is_new),
            Extent::Constants => anywhere && !config.lines().any(is_new),
            Extent::Kernels => anywhere,
        };
        if unknown(architecture) == 0 || enough {
            return;
        }
        self.compiled.insert((kernel, architecture));
        self.anywhere.extend(config.lines().map(|line| (kernel, line.to_string())));
        self.known.extend(config.lines().map(|line| (kernel, architecture, line.to_string())));
        *self.chosen.entry(architecture).or_default() += 1;
        self.jobs.push(Job { kernel, architecture, source, config });
    }

    /// Compiles all of them, on every core.
    ///
    /// # Panics
    /// With what the compiler said, if one of them does not compile, spills registers or is too long.
    pub fn compile(self) {
        let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some(job) = self.jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(what) = job.compile() {
                    failures.lock().unwrap().push(format!("{} {}: {what}\n{}", job.kernel, job.architecture, job.config));
                }
            }
        };
        std::thread::scope(|scope| {
            (0..std::thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(work)));
        });
        let failures = failures.into_inner().unwrap();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

/// The constants of a configuration that headers use, and that neither they nor the headers that they include name as `given`.
fn undeclared(headers: &[Header], config: &str) -> Vec<String> {
    let constants: BTreeSet<&str> = config.lines().filter_map(|line| words(line.split('=').next()?).last()).collect();
    let header = |name: &str| headers.iter().find(|header| header.name == name);
    let mut missing = Vec::new();
    for of in headers {
        let (mut named, mut reached) = (BTreeSet::new(), vec![of]);
        while let Some(next) = reached.pop() {
            let contract = next.text.split("static_assert(given").skip(1).filter_map(|text| text.split(';').next());
            named.extend(contract.flat_map(words));
            reached.extend(next.text.lines().filter_map(|line| header(line.strip_prefix("#include \"")?.strip_suffix('"')?)));
        }
        let code = of.text.lines().map(|line| line.split("//").next().unwrap_or(line));
        let used: BTreeSet<&str> = code.flat_map(words).filter(|word| constants.contains(word)).collect();
        missing.extend(used.difference(&named).map(|constant| format!("{constant} in {}", of.name)));
    }
    missing
}

/// The functions of a text with more lines or parameters than there should be. Each begins with `DEVICE`, as `common.cuh` defines it, or with what that
/// stands for.
fn large_functions(text: &str) -> Vec<String> {
    let code: String = text.lines().map(|line| line.split("//").next().unwrap_or(line).to_string() + "\n").collect();
    let marks = ["DEVICE ", "__device__ ", "__global__ "].into_iter().flat_map(|mark| code.match_indices(mark));
    let functions = marks.filter_map(|(at, mark)| Function::at(&code[at + mark.len()..]));
    let large = functions.filter(|f| f.lines > LINES || f.parameters > PARAMETERS);
    large.map(|f| format!("{} ({} lines, {} parameters)", f.name, f.lines, f.parameters)).collect()
}

struct Function<'t> {
    name: &'t str,
    lines: usize,
    parameters: usize,
}

impl<'t> Function<'t> {
    /// The function whose declaration a text begins with; nothing where that is of a variable, or defined elsewhere.
    fn at(text: &'t str) -> Option<Self> {
        // bounds of a launch, or an operator that is written with parentheses, stand before the parameters
        let next =
            |from: usize| Some(from + text[from..].find(['(', ';', '{']).filter(|&at| text[from + at..].starts_with('('))?);
        let mut open = next(0)?;
        loop {
            let close = open + closing(&text[open..])?;
            let rest = text[close + 1..].trim_start();
            let rest = rest.strip_prefix("const").unwrap_or(rest).trim_start();
            // a constructor has its members first
            let body = if rest.starts_with(':') { &rest[rest.find('{')?..] } else { rest };
            if body.starts_with('{') {
                let end = text.len() - body.len() + closing(body)?;
                let name = words(&text[..open]).last()?;
                return Some(Function {
                    name,
                    lines: text[..=end].lines().count(),
                    parameters: parameters(&text[open + 1..close]),
                });
            }
            open = next(close + 1)?;
        }
    }
}

/// The number of parameters between two parentheses.
fn parameters(text: &str) -> usize {
    let mut depth = 0;
    let between = text.chars().filter(|&c| {
        depth += i32::from("([<{".contains(c)) - i32::from(")]>}".contains(c));
        c == ',' && depth == 0
    });
    between.count() + usize::from(!text.trim().is_empty())
}

/// Finds the end of the parenthesis or brace that a text begins with.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, c)| {
        match c {
            '(' | '{' => depth += 1,
            ')' | '}' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

impl Job {
    fn compile(&self) -> Result<(), String> {
        let options = ["--ptxas-options=-v"];
        let (cubin, log) =
            nvrtc::compile(self.kernel, &self.source, self.architecture, &options).map_err(|error| error.to_string())?;
        if cubin.len() > LONGEST {
            return Err(format!("{} bytes of code", cubin.len()));
        }
        let spills = !log.contains("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads");
        // remarks of this class say that products wait for each other, or that registers are not handed on: right results, at half the speed
        if spills || log.contains("warning") || log.contains("(C75") {
            return Err(log);
        }
        let own = log.split(" bytes smem").next().filter(|before| before.len() < log.len());
        let own: usize = own.and_then(|before| before.rsplit(' ').next()?.parse().ok()).unwrap_or(0);
        let said =
            self.config.lines().find_map(|line| line.strip_prefix("constexpr int STATIC = ")?.strip_suffix(';')?.parse().ok());
        if said.is_some_and(|said: usize| own > said) {
            return Err(format!("{own} bytes of shared memory of its own, where its plan leaves {said:?}"));
        }
        if std::env::var_os("STATESCAN_SHOW_REGISTERS").is_some() {
            println!("{} {} {}", self.kernel, self.architecture, log.lines().find(|l| l.contains("registers")).unwrap_or(""));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{COMMON, params};

    params! {
        struct Nothing {
            count: u32,
        }
    }

    const SPILLS: &str = r#"extern "C" __global__ void __launch_bounds__(1024) many(const __grid_constant__ Nothing p) {
  f32 v[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++) v[i] = f32(p.count + i);
  for (u32 k = 0; k < p.count; k++)
#pragma unroll
    for (int i = 0; i < COUNT; i++) v[i] = __fmaf_rn(v[i], v[i], v[(i + 7) % COUNT]);
  f32 sum = 0.f;
#pragma unroll
  for (int i = 0; i < COUNT; i++) sum += v[i];
  if (sum == 1.5f) asm volatile("trap;");
}
"#;

    #[test]
    fn a_header_names_the_constants_that_it_uses() {
        let tiles =
            Header::new("tiles.cuh", "static_assert(given<int>(STEPS) &&\n  given_types<X>());\nX tile[STEPS];  // COUNT\n");
        let config = Config::default().int("STEPS", 4).int("COUNT", 2).dtype("X", crate::Scalar::F32).to_string();
        for (text, expected) in [
            ("#include \"tiles.cuh\"\nint of[STEPS];", vec![]),
            ("#include \"tiles.cuh\"\nint of[COUNT];", vec!["COUNT in rows.cuh"]),
            ("int of[STEPS];", vec!["STEPS in rows.cuh"]),
        ] {
            assert_eq!(undeclared(&[tiles, Header::new("rows.cuh", text)], &config), expected, "{text}");
        }
    }

    #[test]
    fn large_functions_are_found() {
        let members = "struct S { DEVICE S(int a, Pair<int, int> b, int c, int d, int e, int f, int g) : a(a) {} };\n";
        let operator =
            "struct Sum { DEVICE int operator()(int a, int b, int c, int d, int e, int f, int g) const { return a; } };\n";
        let kernel = "extern \"C\" __global__ void __launch_bounds__(THREADS, 2) kernel(const __grid_constant__ Params p) {\n";
        let line = "  a = b(0, 1, 2, 3, 4, 5, 6) ? c(0, 1, 2, 3, 4, 5, 6) : D{};  // }\n";
        let of = |lines| members.to_string() + "DEVICE int number;\n" + operator + kernel + &line.repeat(lines) + "}\n";
        let others = ["S (1 lines, 7 parameters)", "operator (1 lines, 7 parameters)"];
        assert_eq!(large_functions(&of(LINES - 1)), [&others[..], &["kernel (61 lines, 1 parameters)"]].concat());
        assert_eq!(large_functions(&of(LINES - 2)), others);
    }

    #[test]
    fn shared_memory_of_its_own_is_what_the_plan_leaves() {
        let text = "extern \"C\" __global__ void holds(const __grid_constant__ Nothing p) {\n  __shared__ f32 some[256];\n  some[threadIdx.x] = 1.f;\n  __syncthreads();\n  if (some[p.count] == 2.f) asm volatile(\"trap;\");\n}\n";
        let program = Program::<Nothing>::new("holds", &[COMMON], text);
        for (bytes, passes) in [(1024, true), (1023, false)] {
            let Some(mut suite) = Suite::new() else { return };
            suite.add(&program, &Config::default().int("STATIC", bytes), 0);
            let compiled = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| suite.compile()));
            assert_eq!(compiled.is_ok(), passes, "{bytes}");
        }
    }

    #[test]
    fn what_spills_does_not_pass_as_compiled() {
        let program = Program::<Nothing>::new("many", &[COMMON], SPILLS);
        for (count, passes) in [(4, true), (120, false)] {
            let Some(mut suite) = Suite::new() else { return };
            suite.add(&program, &Config::default().int("COUNT", count), 0);
            let compiled = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| suite.compile()));
            assert_eq!(compiled.is_ok(), passes, "{count}");
        }
    }

    #[test]
    fn architectures_meet_constants_in_turn_until_nothing_is_new() {
        let program = Program::<Nothing>::new("many", &[COMMON], SPILLS);
        let Some(mut suite) = Suite::new() else { return };
        suite.extent = Extent::Architectures;
        let mut add = |count, odd| suite.add(&program, &Config::default().int("COUNT", count).flag("ODD", odd), 0);
        for (count, odd) in [(1, true), (2, false), (1, true)] {
            add(count, odd);
        }
        // constants that two others have met, for the two that have compiled nothing
        for (count, odd) in [(1, false), (2, true)] {
            add(count, odd);
        }
        // nothing of the second one is new
        for (count, odd) in [(3, true), (3, false)] {
            add(count, odd);
        }
        assert_eq!(suite.jobs.len(), 5);
        assert_eq!(suite.chosen.keys().copied().collect::<BTreeSet<_>>(), BTreeSet::from(ARCHITECTURES));
    }

    #[test]
    fn few_kernels_are_those_with_something_new() {
        let program = Program::<Nothing>::new("many", &[COMMON], SPILLS);
        for (extent, jobs) in [(Extent::Constants, 3), (Extent::Kernels, 1)] {
            let Some(mut suite) = Suite::new() else { return };
            suite.extent = extent;
            for (count, odd) in [(1, true), (2, false), (1, false), (2, true), (3, true)] {
                suite.add(&program, &Config::default().int("COUNT", count).flag("ODD", odd), 0);
            }
            assert_eq!(suite.jobs.len(), jobs);
        }
    }
}
