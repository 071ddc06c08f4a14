//! `repertoire.toml`: which skills a project wants, and from where.
//!
//! Settings are in `.repertoire/config.toml`; here are only skills. The account has such a file too, for
//! the skills of all projects. Invariant: the file is a stranger's until its project is trusted. It
//! names no path outside of the project and no password, and reading it sends no request.

use std::{
    collections::BTreeMap,
    io::Write as _,
    path::{Component, Path, PathBuf},
};

use repertoire_core::SkillId;
use repertoire_registry::folder;
use repertoire_remote::{SkillSource, SourcePlace};
use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, Value};

use crate::error::{Error, Result, io_error_at};

/// The file that says what is wanted.
pub const PROJECT_FILE: &str = "repertoire.toml";
/// The file that says what was installed.
pub const LOCK_FILE: &str = "repertoire.lock";
/// A larger file is not read.
pub(super) const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// A skill that a project wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedSkill {
    /// The id it is stored under.
    pub id: SkillId,
    /// The source, as it is written.
    pub source: String,
    /// The skill of the source, where it has several.
    pub skill: Option<String>,
}

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectOwner {
    /// A project, which others share: it names no path outside of itself.
    Project,
    /// The account of the user, which may name any path of this machine.
    Account,
}

/// The skills that a project wants.
#[derive(Debug, Clone)]
pub struct SkillProject {
    folder: PathBuf,
    owner: ProjectOwner,
    document: DocumentMut,
    wanted: BTreeMap<SkillId, WantedSkill>,
    /// The file as it was read; none if there is none.
    text: Option<String>,
}

/// Returns the nearest folder at or above one that has a `repertoire.toml`.
pub fn find_project(here: &Path) -> Option<PathBuf> {
    let has_file = |folder: &&Path| {
        let file = folder.join(PROJECT_FILE).symlink_metadata();
        file.is_ok_and(|about| about.is_file())
    };
    here.ancestors().find(has_file).map(Path::to_owned)
}

impl SkillProject {
    /// Reads the file of a folder; a missing one wants nothing.
    pub fn read(folder: &Path, owner: ProjectOwner) -> Result<Self> {
        let path = folder.join(PROJECT_FILE);
        let bytes = folder::read_small_file(folder, PROJECT_FILE, MAX_FILE_BYTES)?;
        let refuse = |reason: String| Error::ProjectFile {
            path: path.clone(),
            reason,
        };
        let text = bytes
            .map(|bytes| String::from_utf8(bytes.to_vec()))
            .transpose();
        let text = text.map_err(|_| refuse("is not valid UTF-8".to_owned()))?;
        let document: DocumentMut =
            text.as_deref().unwrap_or_default().parse().map_err(
                |error: toml_edit::TomlError| refuse(error.to_string().trim().to_owned()),
            )?;
        let mut wanted = BTreeMap::new();
        for (key, item) in document.iter() {
            match (key, item.as_table_like()) {
                ("skills", Some(table)) => {
                    for (name, item) in table.iter() {
                        let one = parse_wanted(name, item)
                            .map_err(|reason| refuse(format!("skills.{name}: {reason}")))?;
                        check_source(folder, owner, &one)
                            .map_err(|reason| refuse(format!("skills.{name}: {reason}")))?;
                        wanted.insert(one.id.clone(), one);
                    }
                }
                ("skills", None) => return Err(refuse("`skills` must be a table".to_owned())),
                (other, _) => {
                    let reason = format!(
                        "{other:?} is not known here: skills are in [skills], settings in \
                         .repertoire/config.toml"
                    );
                    return Err(refuse(reason));
                }
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            owner,
            document,
            wanted,
            text,
        })
    }

    /// The folder of the project.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of the file.
    pub fn path(&self) -> PathBuf {
        self.folder.join(PROJECT_FILE)
    }

    /// Whether there is no such file yet.
    pub fn is_new(&self) -> bool {
        self.text.is_none()
    }

    /// The file as it was read or written last.
    pub(super) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// The wanted skills, sorted by id.
    pub fn wanted(&self) -> impl Iterator<Item = &WantedSkill> {
        self.wanted.values()
    }

    /// One wanted skill.
    pub fn get(&self, id: &SkillId) -> Option<&WantedSkill> {
        self.wanted.get(id)
    }

    /// Wants a skill; comments and the order of other lines stay.
    pub fn put(&mut self, one: WantedSkill) -> Result<()> {
        check_source(&self.folder, self.owner, &one).map_err(|reason| Error::ProjectFile {
            path: self.path(),
            reason: format!("skills.{}: {reason}", one.id),
        })?;
        let root = self.document.as_table_mut();
        let skills = root.entry("skills").or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(false);
            Item::Table(table)
        });
        let value = match &one.skill {
            // The short form says which skill is meant.
            None => Value::from(one.source.as_str()),
            Some(skill) => {
                let mut table = InlineTable::new();
                table.insert("source", one.source.as_str().into());
                table.insert("skill", skill.as_str().into());
                Value::InlineTable(table)
            }
        };
        if let Some(skills) = skills.as_table_like_mut() {
            skills.insert(one.id.as_str(), Item::Value(value));
        }
        self.wanted.insert(one.id.clone(), one);
        Ok(())
    }

    /// Wants a skill no longer; returns whether it was wanted.
    pub fn remove(&mut self, id: &SkillId) -> bool {
        if let Some(skills) = self
            .document
            .get_mut("skills")
            .and_then(Item::as_table_like_mut)
        {
            skills.remove(id.as_str());
        }
        self.wanted.remove(id).is_some()
    }

    /// Writes the file, at once and durably.
    pub fn write(&mut self) -> Result<()> {
        let text = self.document.to_string();
        if self.text.as_deref() != Some(text.as_str()) {
            write_durably(&self.path(), text.as_bytes())?;
            self.text = Some(text);
        }
        Ok(())
    }
}

fn parse_wanted(name: &str, item: &Item) -> Result<WantedSkill, String> {
    let id: SkillId = name.parse().map_err(|error| format!("{error}"))?;
    let text = |table: &dyn TableLike, key: &str| match table.get(key) {
        None => Ok(None),
        Some(item) => match item.as_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(format!("`{key}` must be text")),
        },
    };
    if let Some(source) = item.as_str() {
        return Ok(WantedSkill {
            id,
            source: source.to_owned(),
            skill: None,
        });
    }
    let table = item
        .as_table_like()
        .ok_or("must be a source, or a table with `source`")?;
    let known = ["source", "skill"];
    if let Some((key, _)) = table.iter().find(|(key, _)| !known.contains(key)) {
        return Err(format!("`{key}` is not known: use `source` and `skill`"));
    }
    Ok(WantedSkill {
        id,
        source: text(table, "source")?.ok_or("needs a `source`")?,
        skill: text(table, "skill")?,
    })
}

/// Refuses a source that a project file must not name.
fn check_source(folder: &Path, owner: ProjectOwner, one: &WantedSkill) -> Result<(), String> {
    let source = read_source(folder, one).map_err(|error| error.to_string())?;
    if owner == ProjectOwner::Account {
        return Ok(());
    }
    match source.place() {
        SourcePlace::Folder(path) | SourcePlace::Archive(path, _) | SourcePlace::Package(path) => {
            is_within(folder, path)
                .then_some(())
                .ok_or_else(|| format!("{:?} is outside of the project", one.source))
        }
        SourcePlace::Git(git) if git.url.starts_with("file:") => Err(format!(
            "{:?} is a path of one machine: a project names sources that others reach too",
            one.source
        )),
        _ => Ok(()),
    }
}

/// Whether a path stays within a folder, as it is written and where its links lead.
fn is_within(folder: &Path, path: &Path) -> bool {
    let leads_up = |path: &Path| {
        let mut depth = 0_i32;
        path.components().any(|part| {
            depth += match part {
                Component::ParentDir => -1,
                Component::Normal(_) => 1,
                _ => 0,
            };
            depth < 0
        })
    };
    let relative = match path.strip_prefix(folder) {
        Ok(relative) => relative,
        Err(_) if path.is_absolute() => return false,
        Err(_) => path,
    };
    if leads_up(relative) {
        return false;
    }
    match (folder.canonicalize(), folder.join(relative).canonicalize()) {
        (Ok(folder), Ok(path)) => path.starts_with(folder),
        // What is not there leads nowhere.
        _ => true,
    }
}

/// Parses the source of a wanted skill; paths are relative to the project.
pub(super) fn read_source(folder: &Path, one: &WantedSkill) -> Result<SkillSource> {
    let source = SkillSource::parse_in_project(&one.source, folder)?;
    Ok(match &one.skill {
        Some(skill) => source.with_skill(skill),
        None => source,
    })
}

/// Writes a file so that it is complete or as before, whatever happens.
pub(super) fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let io = |error| io_error_at(path)(error);
    let mut new = tempfile::Builder::new()
        .prefix(".repertoire-")
        .tempfile_in(folder)
        .map_err(io)?;
    new.write_all(bytes).map_err(io)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // Like any other file of a project; it holds no secrets.
        let mode = std::fs::Permissions::from_mode(0o644);
        new.as_file().set_permissions(mode).map_err(io)?;
    }
    new.as_file().sync_all().map_err(io)?;
    new.persist(path).map_err(|error| io(error.error))?;
    folder::sync_folder(folder).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SkillProject> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(PROJECT_FILE), text).unwrap();
        SkillProject::read(folder.path(), ProjectOwner::Project)
    }

    #[test]
    fn wanted_skills_are_read_and_changed_without_losing_comments() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(PROJECT_FILE);
        let text = "# What we use.\n[skills]\npdf = \"acme/skills@pdf\" # forms\n\"acme/x\" = { \
                    source = \"https://example.com/r.git\", skill = \"x\" }\n";
        std::fs::write(&file, text).unwrap();
        let mut project = SkillProject::read(folder.path(), ProjectOwner::Project).unwrap();
        assert_eq!(project.wanted().count(), 2);
        let x = project.get(&"acme/x".parse().unwrap()).unwrap();
        assert_eq!(x.skill.as_deref(), Some("x"));
        let new = WantedSkill {
            id: "new".parse().unwrap(),
            source: "oci://example.com/new:1".to_owned(),
            skill: None,
        };
        project.put(new.clone()).unwrap();
        assert!(project.remove(&"acme/x".parse().unwrap()));
        project.write().unwrap();
        let now = std::fs::read_to_string(&file).unwrap();
        assert_eq!(
            now,
            "# What we use.\n[skills]\npdf = \"acme/skills@pdf\" # forms\nnew = \
             \"oci://example.com/new:1\"\n"
        );
        let again = SkillProject::read(folder.path(), ProjectOwner::Project).unwrap();
        assert_eq!(again.get(&new.id), Some(&new));
    }

    #[test]
    fn t52_project_files_name_no_place_outside_of_the_project() {
        for (line, word) in [
            ("x = \"../elsewhere\"", "outside"),
            ("x = \"/etc\"", "outside"),
            ("x = \"./a/../../b\"", "outside"),
            ("x = \"file:///srv/x.git\"", "one machine"),
            ("x = \"git+file:///srv/x.git\"", "one machine"),
            ("x = \"https://me:secret@example.com/x.git\"", "password"),
            ("x = \"--upload-pack=x\"", "option"),
            ("\"../x\" = \"a/b\"", "skills.../x"),
            ("x = { path = \"a\" }", "not known"),
            ("x = 1", "must be a source"),
        ] {
            let error = read(&format!("[skills]\n{line}\n")).unwrap_err();
            assert_eq!(error.code(), "project_file", "{line}");
            assert!(error.to_string().contains(word), "{line}: {error}");
        }
        assert!(read("[other]\n").is_err());
        assert!(read("skills = 1\n").is_err());
        assert!(read("[skills\n").is_err());
        assert!(read("[skills]\nx = \"./skills/x\"\n").is_ok());
    }

    #[test]
    fn t2_a_project_file_is_no_link() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("else.toml"), "").unwrap();
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("/etc/passwd", folder.path().join(PROJECT_FILE)).unwrap();
            assert!(SkillProject::read(folder.path(), ProjectOwner::Project).is_err());
            assert_eq!(find_project(folder.path()), None);
        }
    }
}
