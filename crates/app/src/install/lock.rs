//! `repertoire.lock`: exactly what was installed, so that the same can be installed elsewhere.
//!
//! Unknown fields are kept; another version is an error. Invariant: a lock decides nothing by itself.
//! What it names is fetched only in a trusted project, and used only if its digest is the locked one.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use repertoire_core::{Digest, Signer, SkillId};
use repertoire_registry::folder;
use repertoire_remote::Pin;
use toml_edit::{ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value, value};

use super::project::{LOCK_FILE, MAX_FILE_BYTES, write_durably};
use crate::error::{Error, Result};

/// The version that is read and written.
const VERSION: i64 = 1;
const HEADER: &str = "# Written by repertoire. It pins what repertoire.toml names; keep it in version \
                      control.\n";

/// A skill as it was installed.
#[derive(Debug, Clone)]
pub struct LockedSkill {
    /// The id it is stored under.
    pub id: SkillId,
    /// The source as it was asked for.
    pub source: String,
    /// The skill of the source, where it has several.
    pub skill: Option<String>,
    /// Where that was, in full.
    pub resolved: String,
    /// What was fetched.
    pub pin: Pin,
    /// The digest of all files.
    pub digest: Digest,
    /// The version, where the source has versions.
    pub version: Option<String>,
    /// Who signed it; `None` is recorded as unsigned.
    pub signer: Option<Signer>,
    /// Whether `repertoire.toml` names it.
    pub explicit: bool,
    /// The skills that need it.
    pub required_by: Vec<String>,
    /// Fields of later versions.
    pub(super) unknown: Vec<(String, Item)>,
}

impl PartialEq for LockedSkill {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
            && self.source == other.source
            && self.skill == other.skill
            && self.resolved == other.resolved
            && self.pin == other.pin
            && self.digest == other.digest
            && self.version == other.version
            && self.signer == other.signer
            && self.explicit == other.explicit
            && self.required_by == other.required_by
    }
}

impl LockedSkill {
    /// A skill that a project names itself.
    pub fn new(id: SkillId, source: String, resolved: String, pin: Pin, digest: Digest) -> Self {
        Self {
            id,
            source,
            skill: None,
            resolved,
            pin,
            digest,
            version: None,
            signer: None,
            explicit: true,
            required_by: Vec::new(),
            unknown: Vec::new(),
        }
    }
}

/// What was installed for a project.
#[derive(Debug, Clone, Default)]
pub struct SkillLock {
    skills: BTreeMap<SkillId, LockedSkill>,
    unknown: Vec<(String, Item)>,
    /// The file as it was read; none if there is none.
    text: Option<String>,
}

impl SkillLock {
    /// Reads the lock of a folder; a missing one is empty.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(LOCK_FILE);
        let Some(bytes) = folder::read_small_file(folder, LOCK_FILE, MAX_FILE_BYTES)? else {
            return Ok(Self::default());
        };
        let refuse = |reason: String| Error::ProjectFile {
            path: path.clone(),
            reason,
        };
        let text = std::str::from_utf8(&bytes).map_err(|error| refuse(error.to_string()))?;
        let document: DocumentMut = text
            .parse()
            .map_err(|error: toml_edit::TomlError| refuse(error.to_string().trim().to_owned()))?;
        match document.get("version").and_then(Item::as_integer) {
            Some(VERSION) => {}
            Some(other) => {
                return Err(refuse(format!(
                    "has the version {other}, and this program knows {VERSION}"
                )));
            }
            None => return Err(refuse("has no version".to_owned())),
        }
        let mut lock = Self {
            text: Some(text.to_owned()),
            ..Self::default()
        };
        for (key, item) in document.iter() {
            match (key, item) {
                ("version", _) => {}
                ("skill", Item::ArrayOfTables(tables)) => {
                    for (number, table) in tables.iter().enumerate() {
                        let one = parse_locked(table)
                            .map_err(|reason| refuse(format!("skill {}: {reason}", number + 1)))?;
                        let id = one.id.clone();
                        if lock.skills.insert(id.clone(), one).is_some() {
                            return Err(refuse(format!("{id} is there twice")));
                        }
                    }
                }
                ("skill", _) => return Err(refuse("`skill` must be tables".to_owned())),
                (other, item) => lock.unknown.push((other.to_owned(), item.clone())),
            }
        }
        Ok(lock)
    }

    /// Whether there is no such file yet.
    pub fn is_new(&self) -> bool {
        self.text.is_none()
    }

    /// The file as it was read or written last.
    pub(super) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// The skills, sorted by id.
    pub fn skills(&self) -> impl Iterator<Item = &LockedSkill> {
        self.skills.values()
    }

    /// One skill.
    pub fn get(&self, id: &SkillId) -> Option<&LockedSkill> {
        self.skills.get(id)
    }

    /// Adds a skill or replaces it; fields that are not known stay.
    pub fn put(&mut self, mut one: LockedSkill) {
        if let Some(known) = self.skills.get(&one.id) {
            one.unknown.clone_from(&known.unknown);
        }
        self.skills.insert(one.id.clone(), one);
    }

    /// Removes a skill; returns whether it was there.
    pub fn remove(&mut self, id: &SkillId) -> bool {
        self.skills.remove(id).is_some()
    }

    /// Writes the lock of a folder, at once and durably, unless it says the same already.
    pub fn write(&mut self, folder: &Path) -> Result<()> {
        let path: PathBuf = folder.join(LOCK_FILE);
        let text = self.to_text();
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(Error::ProjectFile {
                path,
                reason: format!("would have more than {MAX_FILE_BYTES} bytes"),
            });
        }
        if self.text.as_deref() != Some(text.as_str()) {
            write_durably(&path, text.as_bytes())?;
            self.text = Some(text);
        }
        Ok(())
    }

    fn to_text(&self) -> String {
        let mut document = DocumentMut::new();
        document.insert("version", value(VERSION));
        for (key, item) in &self.unknown {
            document.insert(key, item.clone());
        }
        let mut tables = ArrayOfTables::new();
        for one in self.skills.values() {
            tables.push(locked_table(one));
        }
        if !tables.is_empty() {
            document.insert("skill", Item::ArrayOfTables(tables));
        }
        format!("{HEADER}{document}")
    }
}

fn locked_table(one: &LockedSkill) -> Table {
    let mut table = Table::new();
    let mut put = |key: &str, text: &str| drop(table.insert(key, value(text)));
    put("id", one.id.as_str());
    put("source", &one.source);
    if let Some(skill) = &one.skill {
        put("skill", skill);
    }
    put("resolved", &one.resolved);
    put("pin", &one.pin.to_string());
    put("digest", &one.digest.to_string());
    if let Some(version) = &one.version {
        put("version", version);
    }
    match &one.signer {
        Some(signer) => {
            let mut fields = InlineTable::new();
            fields.insert("identity", signer.identity.as_str().into());
            fields.insert("issuer", signer.issuer.as_str().into());
            table.insert("signer", Item::Value(Value::InlineTable(fields)));
        }
        None => drop(table.insert("unsigned", value(true))),
    }
    if one.explicit {
        table.insert("explicit", value(true));
    }
    if !one.required_by.is_empty() {
        let names: toml_edit::Array = one.required_by.iter().map(String::as_str).collect();
        table.insert("required_by", value(names));
    }
    for (key, item) in &one.unknown {
        table.insert(key, item.clone());
    }
    table
}

fn parse_locked(table: &Table) -> Result<LockedSkill, String> {
    let text = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(item) => item
            .as_str()
            .map(|text| Some(text.to_owned()))
            .ok_or_else(|| format!("`{key}` must be text")),
    };
    let needed = |key: &str| text(key)?.ok_or_else(|| format!("has no `{key}`"));
    let is_set = |key: &str| table.get(key).and_then(Item::as_bool).unwrap_or(false);
    let signer = match table.get("signer").and_then(Item::as_table_like) {
        Some(fields) => {
            let field = |key: &str| {
                let text = fields.get(key).and_then(Item::as_str);
                text.map(str::to_owned)
                    .ok_or_else(|| format!("its signer has no `{key}`"))
            };
            Some(Signer {
                identity: field("identity")?,
                issuer: field("issuer")?,
            })
        }
        // A missing line must not count as unsigned: that is recorded, too.
        None if is_set("unsigned") => None,
        None => return Err("has neither a signer nor `unsigned = true`".to_owned()),
    };
    let required_by = match table.get("required_by") {
        None => Vec::new(),
        Some(item) => {
            let names = item.as_array().ok_or("`required_by` must be a list")?;
            names
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        }
    };
    let known = [
        "id",
        "source",
        "skill",
        "resolved",
        "pin",
        "digest",
        "version",
        "signer",
        "unsigned",
        "explicit",
        "required_by",
    ];
    let unknown = table.iter().filter(|(key, _)| !known.contains(key));
    Ok(LockedSkill {
        id: needed("id")?.parse().map_err(|error| format!("{error}"))?,
        source: needed("source")?,
        skill: text("skill")?,
        resolved: needed("resolved")?,
        pin: needed("pin")?.parse().map_err(|error| format!("{error}"))?,
        digest: needed("digest")?
            .parse()
            .map_err(|error| format!("{error}"))?,
        version: text("version")?,
        signer,
        explicit: is_set("explicit"),
        required_by,
        unknown: unknown
            .map(|(key, item)| (key.to_owned(), item.clone()))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(id: &str) -> LockedSkill {
        LockedSkill::new(
            id.parse().unwrap(),
            "acme/skills@pdf".to_owned(),
            "https://github.com/acme/skills.git".to_owned(),
            Pin::Commit("a".repeat(40)),
            Digest::hash_bytes(b"x"),
        )
    }

    #[test]
    fn locks_are_written_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut lock = SkillLock::read(folder.path()).unwrap();
        assert!(lock.is_new());
        let signed = LockedSkill {
            skill: Some("x".to_owned()),
            version: Some("1.0".to_owned()),
            signer: Some(Signer {
                identity: "a@example.com".to_owned(),
                issuer: "https://accounts.example.com".to_owned(),
            }),
            required_by: vec!["pdf".to_owned()],
            explicit: false,
            ..locked("acme/x")
        };
        lock.put(locked("pdf"));
        lock.put(signed.clone());
        lock.write(folder.path()).unwrap();
        let again = SkillLock::read(folder.path()).unwrap();
        assert!(!again.is_new());
        assert_eq!(again.get(&signed.id), Some(&signed));
        assert_eq!(again.get(&"pdf".parse().unwrap()), Some(&locked("pdf")));
    }

    #[test]
    fn unknown_fields_stay_and_other_versions_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(LOCK_FILE);
        let mut lock = SkillLock::default();
        lock.put(locked("pdf"));
        let text = lock
            .to_text()
            .replace("explicit = true", "explicit = true\nlater = 1");
        std::fs::write(
            &file,
            text.replace("version = 1", "version = 1\nnew = \"y\""),
        )
        .unwrap();
        let mut lock = SkillLock::read(folder.path()).unwrap();
        lock.put(LockedSkill {
            version: Some("2".to_owned()),
            ..locked("pdf")
        });
        lock.write(folder.path()).unwrap();
        let now = std::fs::read_to_string(&file).unwrap();
        assert!(
            now.contains("later = 1") && now.contains("new = \"y\""),
            "{now}"
        );
        for (from, to, word) in [
            ("version = 1", "version = 2", "knows 1"),
            ("version = 1", "", "no version"),
            ("unsigned = true", "", "neither a signer"),
            ("digest = \"sha256:", "digest = \"md5:", "digest"),
            ("pin = \"git:", "pin = \"svn:", "pin"),
            ("id = \"pdf\"", "id = \"../pdf\"", "id"),
        ] {
            std::fs::write(&file, now.replacen(from, to, 1)).unwrap();
            let error = SkillLock::read(folder.path()).unwrap_err();
            assert_eq!(error.code(), "project_file");
            assert!(error.to_string().contains(word), "{to}: {error}");
        }
    }
}
