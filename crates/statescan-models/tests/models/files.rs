//! Paths that are no files, links, and files that killed processes leave.

use crate::common::Folder;
use statescan_models::{Config, Model, write_file};
use std::path::Path;

fn error(folder: &Path) -> String {
    Model::load(folder).expect_err("a folder that is refused").to_string()
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused_before_it_is_opened() {
    use std::os::unix::fs::symlink;
    for name in ["config.json", "model.safetensors"] {
        let folder = Folder::new("mamba").write();
        let path = folder.path().join(name);
        let replaced = |is: &str, make: &dyn Fn()| {
            if path.is_dir() {
                std::fs::remove_dir(&path).unwrap();
            } else {
                std::fs::remove_file(&path).unwrap();
            }
            make();
            let error = error(folder.path());
            assert!(error.contains(&format!("{name}: it is {is}")), "{error}");
        };
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        replaced("a named pipe, expected a file", &|| symlink(&pipe, &path).unwrap());
        replaced("a named pipe, expected a file", &|| std::fs::rename(&pipe, &path).unwrap());
        replaced("a device, expected a file", &|| symlink("/dev/zero", &path).unwrap());
        replaced("a link to nowhere, which does not exist", &|| symlink("nowhere", &path).unwrap());
        replaced("a folder, expected a file", &|| std::fs::create_dir(&path).unwrap());
    }
}

#[cfg(unix)]
#[test]
fn links_are_replaced_and_what_they_lead_to_stays() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let [file, link, chain, nowhere, dangling, device, ring] =
        ["file", "link", "chain", "nowhere", "dangling", "device", "ring"].map(|name| folder.path().join(name));
    std::fs::write(&file, "old").unwrap();
    symlink("file", &link).unwrap();
    symlink(&link, &chain).unwrap();
    symlink(&nowhere, &dangling).unwrap();
    symlink("/dev/null", &device).unwrap();
    symlink("ring", &ring).unwrap();
    for place in [&chain, &dangling, &ring] {
        write_file(place, b"new").unwrap();
        assert!(!place.is_symlink() && std::fs::read(place).unwrap() == b"new");
    }
    assert!(std::fs::read(&file).unwrap() == b"old" && link.is_symlink() && !nowhere.exists());
    let refused = |path: &Path, is: &str| {
        let error = write_file(path, b"third").unwrap_err().to_string();
        assert!(error.ends_with(&format!("it is {is}, expected a file")), "{error}");
    };
    refused(&device, "a device");
    refused(folder.path(), "a folder");
    assert!(!Path::new("/dev/null").is_file());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 6, "nothing is left beside the files");
}

#[test]
fn what_killed_processes_left_is_removed_and_what_others_write_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let names = [
        "a.safetensors.4000000001.part",
        "a.safetensors.4000000002.part",
        "b.safetensors.4000000001.part",
        "a.safetensors.x.part",
    ];
    let [dead, alive, other, unknown] = names.map(|name| folder.path().join(name));
    for path in [&dead, &alive, &other, &unknown] {
        std::fs::write(path, "begun").unwrap();
    }
    let writing = std::fs::File::open(&alive).unwrap();
    writing.lock().unwrap();
    write_file(folder.path().join("a.safetensors"), b"whole").unwrap();
    assert_eq!([&dead, &alive, &other, &unknown].map(|path| path.exists()), [false, true, true, true]);
    drop(writing);
    write_file(folder.path().join("a.safetensors"), b"whole").unwrap();
    assert!(!alive.exists());
}

#[test]
fn models_of_absurd_sizes_are_refused_in_time() {
    let mut config = Config::mamba2(1, 1, 1, 1);
    (config.inner, config.nheads, config.dstate, config.ngroups) = (1 << 24, 1, 1 << 24, 1);
    let error = Model::random(config, statescan::DType::F32, 1).err().unwrap().to_string();
    assert!(error.contains("a state of this model: it needs") && error.contains("GB of memory"), "{error}");
    let error = Model::random(Config::mamba(1 << 20, 1 << 20, 1 << 10), statescan::DType::F32, 1).err().unwrap().to_string();
    assert!(error.contains("a model of these sizes: it needs") && error.contains("GB of memory"), "{error}");
}
