//! Crashes: processes that are killed at random moments, and simulated losses of power.
//!
//! *Kills*: a server, commands that add, back up and clean up are killed together, again and again.
//! Whatever was acknowledged must be there afterwards, and nothing may be half-written.
//!
//! *Power loss*: commands run under `strace`, which records every write, sync, rename and deletion. A
//! loss of power at any moment is then built from that record: what was synced is there, of what was
//! not synced a random part. Changes of folders persist in their order, at the latest with the next
//! sync of anything, as on a journaling file system.

mod power_loss;

use std::{
    collections::HashMap,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use repertoire_serve::iii::bus_client::BusClient;
use serde_json::{Value, json};

pub(crate) use power_loss::run as run_power_loss;

/// Runs this many rounds of kills.
pub(crate) fn run_kills(program: &Path, rounds: usize) -> Result<()> {
    let place = tempfile::tempdir()?;
    let seed = std::process::id().into();
    println!("kills: {rounds} rounds, seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let acknowledged = Arc::<Mutex<Acknowledged>>::default();
    let mut writes = 0;
    for round in 0..rounds {
        let world = KillRound {
            program,
            folder: place.path(),
            round,
            acknowledged: acknowledged.clone(),
        };
        world
            .run(Duration::from_millis(random.u64(20..900)))
            .with_context(|| format!("round {round}"))?;
        let mut known = acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .check(program, place.path())
            .with_context(|| format!("after round {round}"))?;
        writes = known.count;
    }
    println!("kills: {rounds} rounds, {writes} acknowledged writes, none lost");
    Ok(())
}

/// What was acknowledged, by name. A write that was under way when its process was killed may or may
/// not be there, so the next number is allowed, too.
#[derive(Debug, Default)]
struct Acknowledged {
    /// The last acknowledged and the last attempted number of each skill.
    skills: HashMap<String, (usize, usize)>,
    /// Backups and unpacked folders that a command reported as written.
    files: Vec<String>,
    count: usize,
}

impl Acknowledged {
    fn attempt(&mut self, name: &str, n: usize) {
        self.skills.entry(name.to_owned()).or_insert((0, 0)).1 = n;
    }

    fn confirm(&mut self, name: &str, n: usize) {
        self.skills.entry(name.to_owned()).or_insert((0, 0)).0 = n;
        self.count += 1;
    }

    fn confirm_file(&mut self, path: String) {
        self.files.push(path);
        self.count += 1;
    }

    fn check(&mut self, program: &Path, folder: &Path) -> Result<()> {
        for (name, (confirmed, attempted)) in &self.skills {
            if *confirmed == 0 {
                continue;
            }
            let uri = format!("iii://{name}");
            let text = run_command(program, folder, &["cat", &uri])?;
            let number = text
                .split("number ")
                .nth(1)
                .and_then(|rest| rest.split(['.', ' ', '\n']).next()?.parse::<usize>().ok());
            let number = number.with_context(|| format!("{name}: {text}"))?;
            ensure!(
                (*confirmed..=*attempted).contains(&number),
                "{name}: {number}, acknowledged {confirmed}, attempted {attempted}"
            );
        }
        for path in std::mem::take(&mut self.files) {
            ensure!(
                folder.join(&path).exists(),
                "{path} was acknowledged and is gone"
            );
        }
        // A backup that has its name is complete.
        for entry in fs::read_dir(folder)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("backup-") {
                check_backup(program, &entry.path())?;
                fs::remove_file(entry.path())?;
            }
        }
        // An unpacked folder is complete or not there.
        if folder.join("unpacked/tone-check").exists() {
            run_command(program, folder, &["validate", "unpacked/tone-check"])?;
        }
        let _ = fs::remove_dir_all(folder.join("unpacked"));
        run_command(program, folder, &["doctor"]).map(drop)
    }
}

/// Restores a backup into an account of its own and reads it.
fn check_backup(program: &Path, file: &Path) -> Result<()> {
    let other = tempfile::tempdir()?;
    let path = file.to_string_lossy();
    run_command(program, other.path(), &["restore", &path, "--yes"])?;
    run_command(program, other.path(), &["doctor"]).map(drop)
}

fn command(program: &Path, folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .env("REPERTOIRE_HOME", folder.join("home"))
        .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
        .env_remove("REPERTOIRE_WORKSPACE")
        .current_dir(folder);
    command
}

fn run_command(program: &Path, folder: &Path, args: &[&str]) -> Result<String> {
    let done = command(program, folder, args).output()?;
    ensure!(
        done.status.success(),
        "{args:?}: {}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn write_skill_folder(folder: &Path, name: &str, n: usize) -> Result<()> {
    let place = folder.join("sources").join(name);
    fs::create_dir_all(&place)?;
    let text = format!(
        "---\nname: {name}\ndescription: Holds one number. Use when it is asked for.\n---\n\
         # The number\n\nIt is number {n}.\n"
    );
    fs::write(place.join("SKILL.md"), text)?;
    Ok(())
}

struct KillRound<'a> {
    program: &'a Path,
    folder: &'a Path,
    round: usize,
    acknowledged: Arc<Mutex<Acknowledged>>,
}

impl KillRound<'_> {
    fn note(&self, change: impl FnOnce(&mut Acknowledged)) {
        change(
            &mut self
                .acknowledged
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Writes with several processes and kills them all after a time.
    fn run(&self, until_kill: Duration) -> Result<()> {
        let mut server = command(
            self.program,
            self.folder,
            &["serve", "--port", "0", "--hub", "0", "--json", "--quiet"],
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
        let url = read_hub_url(&mut server)?;
        let stop = AtomicBool::new(false);
        let children = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| self.register(&url, &stop));
            scope.spawn(|| self.run_commands(&stop, &children));
            std::thread::sleep(until_kill);
            stop.store(true, Ordering::Relaxed);
            let _ = server.kill();
            let mut children = children.lock().unwrap_or_else(PoisonError::into_inner);
            for child in children.iter_mut() {
                let child: &mut Child = child;
                let _ = child.kill();
            }
        });
        let _ = server.wait();
        for mut child in children
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
        {
            let _ = child.wait();
        }
        Ok(())
    }

    /// Registers numbers on the hub until the server is gone.
    fn register(&self, url: &str, stop: &AtomicBool) {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        else {
            return;
        };
        runtime.block_on(async {
            let Ok(client) = BusClient::connect(url, None).await else {
                return;
            };
            for n in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let number = self.round * 100_000 + n;
                let name = format!("registered-{}", n % 5);
                self.note(|known| known.attempt(&name, number));
                let body = format!("# The number\n\nIt is number {number}.\n");
                let payload = json!({"id": name, "skill": body}).to_string();
                let call = client.call_json("skills::register", &payload, Duration::from_secs(5));
                if call.await.is_err() {
                    return;
                }
                self.note(|known| known.confirm(&name, number));
            }
        });
    }

    /// Runs commands that write, one after the other.
    fn run_commands(&self, stop: &AtomicBool, children: &Mutex<Vec<Child>>) {
        let package = json!({
            "name": "tone-check", "description": "Checks the tone. Use when asked.",
            "artifacts": [{"kind": "description", "name": "Overview", "content": "Check it.\n"}],
        });
        let _ = fs::write(self.folder.join("tone-check.json"), package.to_string());
        let _ = fs::create_dir_all(self.folder.join("unpacked"));
        for n in 1.. {
            let number = self.round * 100_000 + n;
            let name = format!("added-{}", n % 2);
            let backup = format!("backup-{number}.db");
            let args: Vec<&str> = match n % 4 {
                0 => vec!["backup", &backup],
                1 => vec!["gc", "--history", "1ms", "--yes"],
                2 => vec![
                    "package",
                    "unpack",
                    "tone-check.json",
                    "-o",
                    "unpacked/tone-check",
                ],
                _ => {
                    if write_skill_folder(self.folder, &name, number).is_err() {
                        return;
                    }
                    self.note(|known| known.attempt(&name, number));
                    vec![
                        "add",
                        if n % 2 == 0 {
                            "sources/added-0"
                        } else {
                            "sources/added-1"
                        },
                    ]
                }
            };
            let spawned = command(self.program, self.folder, &args)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            let Ok(child) = spawned else { return };
            let at = {
                let mut children = children.lock().unwrap_or_else(PoisonError::into_inner);
                if stop.load(Ordering::Relaxed) {
                    let mut child = child;
                    let _ = child.kill();
                    let _ = child.wait();
                    return;
                }
                children.push(child);
                children.len() - 1
            };
            // Polled, because the main thread has to be able to kill it.
            let done = loop {
                let mut children = children.lock().unwrap_or_else(PoisonError::into_inner);
                match children[at].try_wait() {
                    Ok(Some(status)) => break status.success(),
                    Ok(None) => {}
                    Err(_) => return,
                }
                drop(children);
                std::thread::sleep(Duration::from_millis(1));
            };
            if stop.load(Ordering::Relaxed) {
                return;
            }
            match n % 4 {
                _ if !done => {}
                0 => self.note(|known| known.confirm_file(backup.clone())),
                2 => {
                    let document = "unpacked/tone-check/SKILL.md".to_owned();
                    self.note(|known| known.confirm_file(document));
                }
                1 => {}
                _ => self.note(|known| known.confirm(&name, number)),
            }
        }
    }
}

fn read_hub_url(server: &mut Child) -> Result<String> {
    use std::io::{BufRead, BufReader};
    let out = server.stdout.take().context("no stdout")?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    let addresses: Value = serde_json::from_str(&line).context("the server did not start")?;
    let url = addresses["hub"].as_str().context("no hub")?;
    Ok(url.to_owned())
}
