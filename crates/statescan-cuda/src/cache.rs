//! Compiled kernels on disk. An entry is written aside and renamed, so that processes never see half of one; it carries its whole key and a
//! checksum, so that an entry that is damaged, foreign or of another version is as good as absent.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The environment variable that names the folder.
const VARIABLE: &str = "STATESCAN_CACHE_DIR";
const MAGIC: &[u8; 8] = b"sscubin1";

/// A folder of compiled kernels.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The folder that the environment asks for. Without one nothing is kept.
    pub(crate) fn from_environment() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let user = || {
            let caches = if cfg!(windows) { variable("LOCALAPPDATA") } else { variable("XDG_CACHE_HOME") };
            caches.or_else(|| Some(variable("HOME")?.join(".cache"))).map(|folder| folder.join("statescan"))
        };
        Cache { folder: variable(VARIABLE).or_else(user) }
    }

    #[cfg(test)]
    fn at(folder: &Path) -> Self {
        Cache { folder: Some(folder.to_path_buf()) }
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{:016x}.cubin", fnv1a(key.as_bytes()))))
    }

    /// The machine code stored under a key.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        decode(&std::fs::read(self.path(key)?).ok()?, key)
    }

    /// Stores machine code. A folder that cannot be written costs time only, so failures are not reported.
    pub(crate) fn put(&self, key: &str, cubin: &[u8]) {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let Some(path) = self.path(key) else { return };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let aside = path.with_extension(format!("{}.{number}.tmp", std::process::id()));
        let store = |folder: &Path| {
            std::fs::create_dir_all(folder)?;
            std::fs::write(&aside, encode(key, cubin))?;
            std::fs::rename(&aside, &path)
        };
        if path.parent().is_some_and(|folder| store(folder).is_err()) {
            let _ = std::fs::remove_file(&aside);
        }
    }
}

/// 64-bit FNV-1a: stable over processes, versions and machines.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Magic, length of the key, length of the code, checksum of the code, key, code.
fn encode(key: &str, cubin: &[u8]) -> Vec<u8> {
    let numbers = [key.len() as u64, cubin.len() as u64, fnv1a(cubin)];
    let header = numbers.iter().flat_map(|n| n.to_le_bytes());
    MAGIC.iter().copied().chain(header).chain(key.bytes()).chain(cubin.iter().copied()).collect()
}

fn decode(entry: &[u8], key: &str) -> Option<Vec<u8>> {
    let entry = entry.strip_prefix(MAGIC)?;
    let (numbers, rest) = entry.split_at_checked(24)?;
    let number = |i: usize| u64::from_le_bytes(numbers[8 * i..8 * i + 8].try_into().expect("eight bytes"));
    let (stored, cubin) = rest.split_at_checked(usize::try_from(number(0)).ok()?)?;
    let whole = stored == key.as_bytes() && cubin.len() as u64 == number(1) && fnv1a(cubin) == number(2);
    whole.then(|| cubin.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("statescan-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&folder);
            Folder(folder)
        }
        fn files(&self) -> Vec<PathBuf> {
            std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_stored_comes_back_under_its_own_key_only() {
        let folder = Folder::new("store");
        let cache = Cache::at(&folder.0);
        assert_eq!(cache.get("a"), None);
        cache.put("a", b"machine code");
        cache.put("b", b"other code");
        assert_eq!(cache.get("a").as_deref(), Some(&b"machine code"[..]));
        assert_eq!(cache.get("b").as_deref(), Some(&b"other code"[..]));
        assert_eq!(cache.get("c"), None);
        assert_eq!(folder.files().len(), 2);
    }

    #[test]
    fn damaged_and_foreign_entries_count_as_absent_and_are_replaced() {
        let folder = Folder::new("damage");
        let cache = Cache::at(&folder.0);
        cache.put("key", b"machine code");
        let path = cache.path("key").unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            assert_eq!(decode(&whole[..length], "key"), None, "cut to {length}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged, "key"), None, "bit {at}");
        }
        // the entry of another key under the same name, as after a collision of hashes
        std::fs::write(&path, encode("other", b"other code")).unwrap();
        assert_eq!(cache.get("key"), None);
        cache.put("key", b"machine code");
        assert_eq!(cache.get("key").as_deref(), Some(&b"machine code"[..]));
    }

    #[test]
    fn writers_at_the_same_time_leave_one_whole_entry() {
        let folder = Folder::new("race");
        let cache = Cache::at(&folder.0);
        let code: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        cache.put("key", &code);
                        assert!(cache.get("key").is_none_or(|got| got == code));
                    }
                });
            }
        });
        assert_eq!(cache.get("key").as_deref(), Some(&code[..]));
        assert_eq!(folder.files().len(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_error() {
        let folder = Folder::new("file");
        std::fs::write(&folder.0, b"a file, not a folder").unwrap();
        let cache = Cache::at(&folder.0);
        cache.put("key", b"machine code");
        assert_eq!(cache.get("key"), None);
        std::fs::remove_file(&folder.0).unwrap();
        assert_eq!(Cache { folder: None }.get("key"), None);
    }
}
