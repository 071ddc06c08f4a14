//! Guards that are switched off one at a time, and the test that must notice each.

use std::{
    fs,
    process::{Command, Stdio},
};

use anyhow::{Result, bail, ensure};

use crate::commands::{CheckCount, cargo_command, format_command, project_dir, run_checked};

/// A guard that is switched off, and the test that must notice.
struct Mutant {
    row: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// Arguments of `cargo test`.
    test: &'static [&'static str],
}

const REGISTRY_LIB: &[&str] = &["--package", "repertoire-registry", "--lib"];
const SERVE_LIB: &[&str] = &["--package", "repertoire-serve", "--lib"];
const REMOTE_LIB: &[&str] = &["--package", "repertoire-remote", "--lib"];
const REGISTRY_TRUST: &[&str] = &["--package", "repertoire-registry", "--test", "trust"];
const INSTALLING: &[&str] = &["--workspace", "--test", "installing"];
const UNTRUSTED: &[&str] = &["--workspace", "--test", "untrusted"];
const PERMISSIONS: &[&str] = &["--workspace", "--test", "permissions"];
const MATRIX: &[&str] = &["--workspace", "--test", "permission_matrix"];

/// At least one guard of each row of `docs/threats.md` that has one in the code.
const MUTANTS: [Mutant; 72] = [
    Mutant {
        row: "T5",
        file: "crates/remote/src/archive.rs",
        from: "            && leads_out(plain)",
        to: "            && leads_out(plain) && false",
        test: REMOTE_LIB,
    },
    Mutant {
        row: "T5",
        file: "crates/remote/src/archive.rs",
        from: "if content.len() as u64 > self.bytes {",
        to: "if content.len() as u64 > self.bytes && false {",
        test: REMOTE_LIB,
    },
    Mutant {
        row: "T5",
        file: "crates/remote/src/archive.rs",
        from: "if archive.offset() != 0 {",
        to: "if archive.offset() != 0 && false {",
        test: REMOTE_LIB,
    },
    Mutant {
        row: "T23",
        file: "crates/registry/src/registry/installed.rs",
        from: "if attached.trusted == Trusted::Yes && self.0.contains(&subject(&store, id, digest)) {",
        to: "if attached.trusted == Trusted::Yes || self.0.contains(&subject(&store, id, digest)) {",
        test: REGISTRY_TRUST,
    },
    Mutant {
        row: "T24",
        file: "crates/app/src/install/installer.rs",
        from: "if known.digest == new.digest || self.options.allow_moved {",
        to: "if known.digest == new.digest || self.options.allow_moved || true {",
        test: INSTALLING,
    },
    Mutant {
        row: "T26",
        file: "crates/remote/src/http.rs",
        from: "if is_link_local || (is_loopback(to) && !is_loopback(from)) {",
        to: "if is_link_local && (is_loopback(to) && !is_loopback(from)) {",
        test: REMOTE_LIB,
    },
    Mutant {
        row: "T27",
        file: "crates/remote/src/http.rs",
        from: "            if next.origin() != url.origin() {\n                headers.remove(AUTHORIZATION);\n            }",
        to: "",
        test: INSTALLING,
    },
    Mutant {
        row: "T52",
        file: "crates/remote/src/digest_hex.rs",
        from: "    if found == expected {",
        to: "    if found == expected || true {",
        test: INSTALLING,
    },
    Mutant {
        row: "T52",
        file: "crates/remote/src/git.rs",
        from: "if tree.entries.len() >= self.limits.entries || bytes > MAX_TREE_BYTES {",
        to: "if tree.entries.len() >= usize::MAX || bytes > MAX_TREE_BYTES * 100 {",
        test: INSTALLING,
    },
    Mutant {
        row: "T52",
        file: "crates/remote/src/source/parse.rs",
        from: "    if text.starts_with('-') {",
        to: "    if text.starts_with('-') && false {",
        test: REMOTE_LIB,
    },
    Mutant {
        row: "T52",
        file: "crates/app/src/install/project.rs",
        from: "    if leads_up(relative) {",
        to: "    if leads_up(relative) && false {",
        test: &["--package", "repertoire-app", "--lib", "t52_"],
    },
    Mutant {
        row: "T15",
        file: "crates/core/src/look_alike.rs",
        from: "close.retain(|at| is_typo(last, self.names[*at].name()));",
        to: "close.clear();",
        test: &["--package", "repertoire-core", "--lib"],
    },
    Mutant {
        row: "T21",
        file: "crates/serve/src/service.rs",
        from: "        entry.trusted == Trusted::Yes\n            && entry.has_files()",
        to: "        entry.has_files()",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T36",
        file: "crates/app/src/caller.rs",
        from: "prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.contains_str(name))",
        to: "prefixes.is_empty() || !name.is_empty()",
        test: PERMISSIONS,
    },
    Mutant {
        row: "T39",
        file: "crates/serve/src/http/auth.rs",
        from: "PeerOwner::OtherUser(_) => Err(AuthRefusal::OtherUser),",
        to: "PeerOwner::OtherUser(_) => Ok(Caller::local_user()),",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T39",
        file: "crates/serve/src/http/auth.rs",
        from: "PeerOwner::SameUser if is_forwarded(headers) => Err(AuthRefusal::Forwarded),",
        to: "PeerOwner::SameUser if is_forwarded(headers) => Ok(Caller::local_user()),",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T39",
        file: "crates/serve/src/http/auth.rs",
        from: "PeerOwner::Unknown => Err(AuthRefusal::UnknownUser),",
        to: "PeerOwner::Unknown => Ok(Caller::local_user()),",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T40",
        file: "crates/app/src/caller.rs",
        from: "        if self.may(permission) {\n            return Ok(());\n        }",
        to: "        if self.may(permission) || true {\n            return Ok(());\n        }",
        test: MATRIX,
    },
    Mutant {
        row: "T40",
        file: "crates/serve/src/iii/hub/connection.rs",
        from: "if let Err(error) = caller.require(self.function_permission(function)) {",
        to: "if let Err(error) = caller.require(Permission::Read) {",
        test: MATRIX,
    },
    Mutant {
        row: "T42",
        file: "crates/serve/src/peer_limits.rs",
        from: "if open.pending.len() >= self.limits.pending {",
        to: "if open.pending.len() >= usize::MAX {",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T42",
        file: "crates/serve/src/peer_limits.rs",
        from: "mine.saturating_add(units) <= self.per_peer",
        to: "mine.saturating_add(units) <= usize::MAX",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T43",
        file: "crates/registry/src/trust.rs",
        from: "if known.is_some_and(|known| known.binding == found) {\n            return Ok(());\n        }\n        Err(Error::ForeignJournal(wal))",
        to: "let _ = (known, found);\n        Ok(())",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T43",
        file: "crates/registry/src/trust.rs",
        from: "        Err(Error::ForeignJournal(journal))",
        to: "        Ok(())",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T44",
        file: "crates/serve/src/mcp/tools/list_skills.rs",
        from: "include_untrusted || entry.trusted == Trusted::Yes",
        to: "include_untrusted || entry.trusted == Trusted::Yes || true",
        test: PERMISSIONS,
    },
    Mutant {
        row: "T44",
        file: "crates/serve/src/iii/functions/prompts.rs",
        from: "prompts.filter(|entry| entry.trusted == Trusted::Yes)",
        to: "prompts.filter(|entry| entry.trusted == Trusted::Yes || true)",
        test: MATRIX,
    },
    Mutant {
        row: "T45",
        file: "crates/registry/src/registry/artifacts.rs",
        from: "return Err(Error::UntrustedSkill(entry.id.clone()));",
        to: "tracing::debug!(\"untrusted\");",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T46",
        file: "crates/registry/src/store/sqlite/state.rs",
        from: "if rows > 0 && rows_now > MAX_SCOPE_ROWS {",
        to: "if rows > 0 && rows_now > i64::MAX - 1 {",
        test: REGISTRY_LIB,
    },
    Mutant {
        row: "T46",
        file: "crates/serve/src/iii/hub/outbox.rs",
        from: "if queued > self.0.limit || is_full {",
        to: "if queued > self.0.limit {",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T46",
        file: "crates/serve/src/iii/hub/connection.rs",
        from: "if load.calls() >= self.options.max_calls {",
        to: "if load.calls() >= usize::MAX {",
        test: &["--workspace", "--test", "hub", "t46"],
    },
    Mutant {
        row: "T47",
        file: "crates/registry/src/store/sqlite/state.rs",
        from: "newest - MAX_KEY_REVISIONS",
        to: "newest - 1_000_000",
        test: REGISTRY_LIB,
    },
    Mutant {
        row: "T47",
        file: "crates/registry/src/store/sqlite/writer.rs",
        from: "    if has_written {\n        empty_journal(connection);",
        to: "    if has_written && path.as_os_str().is_empty() {\n        empty_journal(connection);",
        test: &["--workspace", "--test", "maintenance"],
    },
    Mutant {
        row: "T47",
        file: "crates/app/src/maintenance.rs",
        from: "remote.retain(|file| name(file).is_none_or(|name| !approved.contains(&name)));",
        to: "let _ = (approved, name);",
        test: &["--package", "repertoire-app", "--lib"],
    },
    Mutant {
        row: "T7",
        file: "crates/registry/src/store/sqlite/connection.rs",
        from: "if rows > MAX_UNTRUSTED_ROWS {",
        to: "if rows > MAX_UNTRUSTED_ROWS + 1 {",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T7",
        file: "crates/registry/src/store/sqlite/connection.rs",
        from: "if bytes <= MAX_UNTRUSTED_BYTES {",
        to: "if bytes <= u64::MAX {",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T47",
        file: "crates/registry/src/store/sqlite/maintenance.rs",
        from: "(age > max(?1, 1) AND at < ?2)",
        to: "(age > ?1 AND at < ?2)",
        test: &["--workspace", "--test", "store_contract"],
    },
    Mutant {
        row: "T1",
        file: "crates/core/src/path.rs",
        from: "text.split('/').find_map(find_segment_error)",
        to: "text.split('/').find_map(find_segment_error).filter(|_| text.is_empty())",
        test: &["--package", "repertoire-core", "--lib", "t1_every"],
    },
    Mutant {
        row: "T2",
        file: "crates/registry/src/source/links.rs",
        from: "if self.project.iter().any(|folder| target.starts_with(folder)) {",
        to: "if self.project.iter().any(|folder| target.starts_with(folder)) || target.is_absolute() {",
        test: &["--workspace", "--test", "links", "t2_a_link_out"],
    },
    Mutant {
        row: "T3",
        file: "crates/core/src/manifest.rs",
        from: "if one == two || inside {",
        to: "if first == second {",
        test: &["--package", "repertoire-core", "--lib", "t3_"],
    },
    Mutant {
        row: "T4",
        file: "crates/registry/src/folder.rs",
        from: "EntryKind::Other => return Err(Error::NotRegular(root.full_path(&relative))),",
        to: "EntryKind::Other => {}",
        test: &["--workspace", "--test", "files", "t4_"],
    },
    Mutant {
        row: "T6",
        file: "crates/core/src/frontmatter/compose.rs",
        from: "if self.copied > 2 * MAX_BYTES {",
        to: "if self.copied > usize::MAX - 1 {",
        test: &["--package", "repertoire-core", "--lib", "t6_aliases"],
    },
    Mutant {
        row: "T8",
        file: "crates/cli/src/output.rs",
        from: "let length = if parameters.is_empty() || !digits.starts_with('m') {",
        to: "let length = if parameters.is_empty() {",
        // `--lib` would fail for want of a library, which is not what must be noticed.
        test: &["--workspace", "--bin", "repertoire", "t8_only_styles_pass"],
    },
    Mutant {
        row: "T9",
        file: "crates/core/src/lint/rules.rs",
        from: ".find(|p| lower.contains(**p));",
        to: ".find(|p| p.is_empty() && lower.contains(**p));",
        test: &["--package", "repertoire-core", "--lib", "t9_"],
    },
    Mutant {
        row: "T10",
        file: "crates/core/src/surface.rs",
        from: "out.push('\\\\');",
        to: "",
        test: &["--package", "repertoire-core", "--lib", "t10_hostile"],
    },
    Mutant {
        row: "T11",
        file: "crates/core/src/lint/rules.rs",
        from: "if is_file_separator(line) {",
        to: "if is_file_separator(line) && path.is_empty() {",
        test: &["--package", "repertoire-core", "--lib", "t11_"],
    },
    Mutant {
        row: "T12",
        file: "crates/core/src/function_guard.rs",
        from: "match prefixes.into_iter().find(|prefix| id.starts_with(prefix)) {",
        to: "match prefixes.into_iter().find(|prefix| id.is_empty() && id.starts_with(prefix)) {",
        test: &["--package", "repertoire-core", "--lib", "t12_"],
    },
    Mutant {
        row: "T13",
        file: "crates/serve/src/resource_reader.rs",
        from: "        options.guard.check_function(function_id)?;\n        let _making",
        to: "        let _making",
        test: &["--workspace", "--test", "bdd", "The guard is asked again"],
    },
    Mutant {
        row: "T14",
        file: "crates/serve/src/resource_reader.rs",
        from: ".call_function(function_id, payload, options.deadline)",
        to: ".call_function(function_id, payload, options.deadline * 20)",
        test: &["--workspace", "--test", "hub", "t14_slow"],
    },
    Mutant {
        row: "T16",
        file: "crates/registry/src/catalogue.rs",
        from: "slot.sort_by_key(|entry| entry.precedence_rank());",
        to: "",
        test: &["--workspace", "--test", "store", "t16_"],
    },
    Mutant {
        row: "T17",
        file: "crates/registry/src/origin.rs",
        from: "Trusted::No => base + (1 << 24),",
        to: "Trusted::No => base,",
        test: &["--workspace", "--test", "trust", "t17_a_planted"],
    },
    Mutant {
        row: "T18",
        file: "crates/registry/src/store/sqlite/connection.rs",
        from: "if found == expected {",
        to: "if found == expected || version > 0 {",
        test: &["--workspace", "--test", "store", "t18_hostile"],
    },
    Mutant {
        row: "T19",
        file: "crates/registry/src/remote.rs",
        from: "if digest != file.digest {",
        to: "if digest != file.digest && bytes.is_empty() {",
        test: &["--workspace", "--test", "untrusted", "t19_content"],
    },
    Mutant {
        row: "T20",
        file: "crates/registry/src/remote.rs",
        from: "if path.is_document() && !place.partial {",
        to: "if path.is_document() && !place.partial && bytes.is_empty() {",
        test: &["--workspace", "--test", "untrusted", "t20_"],
    },
    Mutant {
        row: "T22",
        file: "crates/registry/src/remote.rs",
        from: "        format!(\"{label} {uri}\"),\n        approval_binding(head, head.digest()),",
        to: "        label.to_string(),\n        String::new(),",
        test: &["--workspace", "--test", "untrusted", "t21_t22"],
    },
    Mutant {
        row: "T22",
        file: "crates/registry/src/registry/read.rs",
        from: "(!approved).then(|| folder.to_owned())",
        to: "(!approved && folder.is_empty()).then(|| folder.to_owned())",
        test: &["--workspace", "--test", "untrusted", "t22_"],
    },
    Mutant {
        row: "T23",
        file: "crates/registry/src/origin.rs",
        from: "Self::Remote(_) => 1 << 21,",
        to: "Self::Remote(_) => 0,",
        test: &["--workspace", "--test", "untrusted", "t23_"],
    },
    Mutant {
        row: "T26",
        file: "crates/remote/src/address.rs",
        from: "Reach::Public => !is_public(a.ip()),",
        to: "Reach::Public => false,",
        test: &["--package", "repertoire-remote", "--lib", "t26_a_name"],
    },
    Mutant {
        row: "T27",
        file: "crates/remote/src/mcp/http.rs",
        from: "Some(to) if to.origin() == self.url.origin() => Ok(to),",
        to: "Some(to) if to.has_host() => Ok(to),",
        test: &["--workspace", "--test", "untrusted", "t26_t27"],
    },
    Mutant {
        row: "T28",
        file: "crates/serve/src/http/host_check.rs",
        from: "if !self.is_allowed_host(&host.0) {",
        to: "if !self.is_allowed_host(&host.0) && host.0.is_empty() {",
        test: &["--workspace", "--test", "http_access", "t28_"],
    },
    Mutant {
        row: "T29",
        file: "crates/runtime/src/template.rs",
        from: "environment.set_fuel(Some(FUEL));",
        to: "environment.set_fuel(None);",
        test: &["--package", "repertoire-runtime", "--lib", "t29_"],
    },
    Mutant {
        row: "T30",
        file: "crates/runtime/src/template/code.rs",
        from: "if value.is_safe() {",
        to: "if value.is_safe() || value.as_str().is_some() {",
        test: &[
            "--package",
            "repertoire-runtime",
            "--lib",
            "no_filter_makes_source",
        ],
    },
    Mutant {
        row: "T31",
        file: "crates/runtime/src/sidecar.rs",
        from: "if before >= most {",
        to: "if before > most {",
        test: &["--workspace", "--test", "sidecar", "t31_"],
    },
    Mutant {
        row: "T32",
        file: "crates/runtime/src/sidecar/state.rs",
        from: "check_lm_settings(name, part.remove(\"lm\"))?;",
        to: "let _ = part.remove(\"lm\");",
        test: &["--package", "repertoire-runtime", "--lib", "t32_states"],
    },
    Mutant {
        row: "T33",
        file: "crates/runtime/src/sidecar/client.rs",
        from: "(crashes.len() >= CRASHES).then(|| {",
        to: "(crashes.len() >= usize::MAX).then(|| {",
        test: &["--workspace", "--test", "sidecar", "t33_a_crash_loop"],
    },
    Mutant {
        row: "T34",
        file: "crates/runtime/src/assertion.rs",
        from: "let data = serde_json::json!(shown).to_string();",
        to: "let data = shown.to_string();",
        test: &["--workspace", "--test", "assertions", "t34_judged"],
    },
    Mutant {
        row: "T35",
        file: "crates/registry/src/store/sqlite/writer.rs",
        from: "answers.push(answer.on_commit);",
        to: "(answer.on_commit)(None);",
        test: &["--workspace", "--test", "crash", "t35_a_killed"],
    },
    Mutant {
        row: "T37",
        file: "crates/core/src/package.rs",
        from: "package.check_package()?;",
        to: "let _ = package.check_package();",
        test: &["--package", "repertoire-core", "--lib", "t37_"],
    },
    Mutant {
        row: "T38",
        file: "crates/core/src/lint/shell.rs",
        from: "is_found.then(|| at..line.trim_end().len())",
        to: "(is_found && line.is_empty()).then(|| at..line.trim_end().len())",
        test: &["--package", "repertoire-core", "--lib", "t38_"],
    },
    Mutant {
        row: "T48",
        file: "crates/serve/src/server_refresh.rs",
        from: "Ok(()) => pool.close_removed().await,",
        to: "Ok(()) => {}",
        test: &["--workspace", "--test", "permissions", "t48_"],
    },
    Mutant {
        row: "T49",
        file: "crates/registry/src/store/mod.rs",
        from: "builder.mode(0o700);",
        to: "builder.mode(0o777);",
        test: &["--workspace", "--test", "permissions", "t49_what"],
    },
    Mutant {
        row: "T49",
        file: "crates/app/src/runtime_adapter.rs",
        from: "let text = self.1.redact(&value.to_string());",
        to: "let text = value.to_string();",
        test: &["--package", "repertoire-app", "--lib", "t49_"],
    },
    Mutant {
        row: "T36",
        file: "crates/serve/src/mcp/subscriptions.rs",
        from: "events.any(|event| caller.may_see_name(&event.id))",
        to: "events.any(|event| !event.id.is_empty())",
        test: &["--workspace", "--test", "permissions", "t36_"],
    },
    Mutant {
        row: "T41",
        // That only trusted skills count is checked twice there, so one alone would survive.
        file: "crates/serve/src/mcp/resources.rs",
        from: "        if !is_allowed {",
        to: "        if !is_allowed && uri.is_empty() {",
        test: &["--workspace", "--test", "permission_matrix", "t41_"],
    },
];

/// Checks that every mutant still applies.
#[allow(clippy::unnecessary_wraps, reason = "the form of a step")]
pub(crate) fn check_mutants() -> Result<CheckCount> {
    let mut count = CheckCount::default();
    for mutant in &MUTANTS {
        let text = fs::read_to_string(project_dir().join(mutant.file));
        let found = text.map(|text| text.matches(mutant.from).count());
        let result = match found {
            Ok(1) => Ok(()),
            Ok(n) => Err(anyhow::anyhow!(
                "{}: found {n} times: {}",
                mutant.file,
                mutant.from
            )),
            Err(error) => Err(error.into()),
        };
        count.add(CheckCount::from_result(mutant.row, result));
    }
    Ok(count)
}

/// Switches off each guard in a copy of the project and runs the test that must notice; only those of some
/// rows, if any are named.
pub(crate) fn test_mutants(rows: &[&str]) -> Result<()> {
    let copy = project_dir().join("target/xtask/mutants");
    let _ = fs::remove_dir_all(&copy);
    let mut clone = Command::new("git");
    run_checked(
        clone
            .args(["clone", "--quiet"])
            .arg(project_dir())
            .arg(&copy),
    )?;
    // Shared, so that only the crates of the project are compiled once more.
    let target = project_dir().join("target");
    let mut survivors = Vec::new();
    let is_wanted = |mutant: &&Mutant| rows.is_empty() || rows.contains(&mutant.row);
    let wanted: Vec<&Mutant> = MUTANTS.iter().filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "no mutants of {rows:?}");
    for mutant in &wanted {
        let file = copy.join(mutant.file);
        let original = fs::read_to_string(&file)?;
        ensure!(
            original.matches(mutant.from).count() == 1,
            "{}: does not apply: {}",
            mutant.file,
            mutant.from
        );
        fs::write(&file, original.replace(mutant.from, mutant.to))?;
        let mut command = cargo_command(&["test", "--quiet"]);
        command
            .args(mutant.test)
            .current_dir(&copy)
            .env("CARGO_TARGET_DIR", &target)
            .env("REPERTOIRE_TEST_QUICK", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        println!(
            "{} {}: {}",
            mutant.row,
            mutant.file,
            format_command(&command)
        );
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("error[E") || said.contains("could not compile") {
            fs::write(&file, original)?;
            bail!("the mutant does not compile: {said}");
        }
        if output.status.success() {
            println!("  SURVIVED: {}", mutant.to);
            survivors.push(mutant.row);
        } else {
            println!("  noticed");
        }
        fs::write(&file, original)?;
    }
    println!("{} mutants, {} survived", wanted.len(), survivors.len());
    ensure!(survivors.is_empty(), "survivors: {survivors:?}");
    Ok(())
}
