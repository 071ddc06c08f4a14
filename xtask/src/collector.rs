//! Sends the spans of a run to a real collector and reads them back.

use std::process::Command;

use anyhow::Result;

use crate::{
    commands::{CheckCount, build_program, project_dir},
    install,
    interop::{count_steps, fresh_home},
    models::TestModels,
};

/// Runs a skill with a real model; Phoenix must show its spans as one tree.
pub(crate) fn test_collector() -> Result<CheckCount> {
    let models = TestModels::install()?;
    let python = install::install_python("interop/collector/requirements.txt", "collector")?;
    let program = build_program()?;
    let home = fresh_home("collector")?;
    let project = project_dir();
    let mut command = Command::new(&python);
    command
        .arg(project.join("interop/collector/check.py"))
        .arg(python.with_file_name("phoenix"))
        .arg(&program)
        .arg(project.join("examples/skills"))
        .arg(&home);
    models.add_server_args(&mut command);
    count_steps(&mut command)
}
