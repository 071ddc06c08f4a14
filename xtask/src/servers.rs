//! Stock servers and other tools for tests of installing: a web server, an OCI registry, and the
//! command line clients of others.
//!
//! Debian's packages are unpacked beneath `target`, which needs no root and changes nothing else.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{
    commands::{project_dir, run_checked},
    interop::NodeTools,
};

/// The packages: the servers, and the libraries of theirs that a machine may not have.
const PACKAGES: [&str; 4] = ["lighttpd", "docker-registry", "libnettle8", "libxxhash0"];

/// What tests of installing need.
pub(crate) struct TestServers {
    root: PathBuf,
    node: NodeTools,
}

impl TestServers {
    /// Unpacks the servers and installs the clients, once.
    pub(crate) fn install() -> Result<Self> {
        let place = project_dir().join("target/xtask/servers");
        let stamp = place.join("installed.txt");
        let wanted = PACKAGES.join(" ");
        if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
            println!("using {wanted} unpacked earlier");
        } else {
            println!("unpacking {wanted} into target/xtask/servers");
            let _ = fs::remove_dir_all(&place);
            unpack_packages(&place)?;
            fs::write(&stamp, &wanted)?;
        }
        let program = place.join("root/usr/bin/docker-registry");
        if !program.is_file() {
            bail!("{} is not there", program.display());
        }
        Ok(Self {
            root: place.join("root"),
            node: NodeTools::install()?,
        })
    }

    /// Tells tests where everything is.
    pub(crate) fn set_test_env(&self, command: &mut Command) {
        command
            .env("REPERTOIRE_TEST_SERVERS", &self.root)
            .env("REPERTOIRE_TEST_NODE", self.node.modules_dir());
    }
}

fn unpack_packages(place: &std::path::Path) -> Result<()> {
    let packages = place.join("packages");
    for folder in ["packages/partial", "lists/partial", "root"] {
        fs::create_dir_all(place.join(folder))?;
    }
    // Lists of its own: those of the system need root, and may be missing or old.
    let apt = || {
        let mut command = Command::new("apt-get");
        let option = |name: &str, value: String| format!("{name}={value}");
        let lists = option(
            "Dir::State::Lists",
            place.join("lists").display().to_string(),
        );
        let cache = option("Dir::Cache", packages.display().to_string());
        command.args([
            "-q",
            "-o",
            &lists,
            "-o",
            &cache,
            "-o",
            "APT::Sandbox::User=root",
        ]);
        command.current_dir(&packages);
        command
    };
    run_checked(apt().arg("update").stdout(Stdio::null()))?;
    run_checked(apt().arg("download").args(PACKAGES))?;
    for entry in fs::read_dir(&packages)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "deb") {
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("--extract").arg(&path).arg(place.join("root"));
            run_checked(&mut unpack).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}
