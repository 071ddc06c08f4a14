//! Packs the addresses a start has to fill in, where the system's loader can read that.
//!
//! Most of them stand in tables of what is linked in and not needed by most commands, such as the
//! WebAssembly engine. Packed, a start does not read two megabytes to find out where they are.

use std::{env::var, process::Command};

/// The first glibc that knows `DT_RELR`. An older one refuses the whole program.
const FIRST: (u32, u32) = (2, 36);

/// Set to 0, it is left out: for a program that is to run on older systems than the one it is built on.
const SWITCH: &str = "REPERTOIRE_PACK_RELOCATIONS";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={SWITCH}");
    if var(SWITCH).is_ok_and(|value| value == "0") {
        return;
    }
    let here = var("HOST").ok() == var("TARGET").ok();
    let gnu = var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    let linux = var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    let x86 = var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    if here && gnu && linux && x86 && glibc().is_some_and(|found| found >= FIRST) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of the library that everything here is linked with.
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf")
        .arg("GNU_LIBC_VERSION")
        .output()
        .ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    let (major, rest) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    let minor = rest.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
