//! The list of commands in groups, as `repertoire` and `--help` show it.

use std::fmt::Write as _;

use clap::{Command, CommandFactory, FromArgMatches};

use super::Args;

/// The groups in the order in which they are shown. A test checks that every command is in one.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Every day", &["list", "show", "search", "ask", "serve"]),
    (
        "Manage skills",
        &[
            "add", "install", "update", "outdated", "verify", "why", "migrate", "remove",
            "history", "rollback", "diff", "fork", "package", "artifact", "init", "trust",
            "disable", "enable", "watch", "cat", "tour",
        ],
    ),
    ("Check skills", &["validate", "lint", "eval", "doctor"]),
    (
        "Run and improve skills",
        &["run", "optimize", "trace", "catalogue", "setup"],
    ),
    (
        "Serve and connect",
        &[
            "connect",
            "disconnect",
            "link",
            "mcp",
            "worker",
            "bus",
            "token",
            "remote",
            "approve",
        ],
    ),
    ("Keep it safe and small", &["backup", "restore", "gc"]),
    ("Shell", &["completions"]),
];

/// Parses the command line.
pub(crate) fn parse_args() -> Result<Args, clap::Error> {
    let matches = grouped_command().try_get_matches()?;
    Args::from_arg_matches(&matches)
}

/// Returns the command with a help text that lists the subcommands in groups.
pub(crate) fn grouped_command() -> Command {
    let command = Args::command();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}{{after-help}}",
        format_groups(&command)
    );
    command.help_template(template)
}

fn format_groups(command: &Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{heading}:");
        for name in names {
            let found = command.find_subcommand(name);
            let about = found.and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name:<11}  {about}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_exactly_one_group() {
        let command = Args::command();
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
        let mut names: Vec<&str> = shown.map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        names.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, names);
    }
}
