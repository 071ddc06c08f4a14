//! The folder form of a package.
//!
//! File names are derived deterministically from ordinal, name, variant and kind; only a different
//! name chosen by the author is stored in the artifact.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use bytes::Bytes;

use super::{Artifact, PACKAGE_FILE, Package, PackageFile};
use crate::{
    error::{Error, Result},
    frontmatter::Frontmatter,
    id::{SkillId, SkillName},
    path::{DOCUMENT, RelPath},
    surface::frontmatter_block,
    text::make_slug,
};

impl Package {
    /// The files of the folder form, sorted by path.
    pub fn to_folder(&self) -> Result<BTreeMap<RelPath, Bytes>> {
        let mut files = BTreeMap::new();
        let lead = self.body_artifact().map(std::ptr::from_ref);
        let paths = self.artifact_paths()?;
        let mut manifest = self.clone();
        manifest.frontmatter = None;
        manifest.document = None;
        manifest.files = Vec::new();
        for ((artifact, entry), path) in self
            .artifacts
            .iter()
            .zip(&mut manifest.artifacts)
            .zip(paths)
        {
            entry.content = String::new();
            entry.file = Some(path.clone());
            if Some(std::ptr::from_ref(artifact)) != lead {
                insert_file(&mut files, path, Bytes::from(artifact.content.clone()))?;
            }
        }
        insert_file(
            &mut files,
            RelPath::document(),
            self.skill_document()?.into(),
        )?;
        if !self.is_plain() {
            insert_file(&mut files, package_file_path()?, manifest.to_json().into())?;
        }
        for file in &self.files {
            insert_file(&mut files, file.path.clone(), file.bytes.clone())?;
        }
        Ok(files)
    }

    /// Returns the id to store this package under, and its folder. An ordinary skill whose name is
    /// its whole id needs no package file, because the path already gives the id.
    pub fn to_stored_folder(&self) -> Result<(SkillId, BTreeMap<RelPath, Bytes>)> {
        let id = self.skill_id()?;
        let named = Self {
            name: id.name().to_owned(),
            ..self.clone()
        };
        let by_place = self.name == id.as_str() && named.is_plain();
        let folder = if by_place { &named } else { self }.to_folder()?;
        Ok((id, folder))
    }

    /// Reads and checks the folder form.
    pub fn from_folder(files: impl IntoIterator<Item = (RelPath, Bytes)>) -> Result<Self> {
        let mut files: BTreeMap<RelPath, Bytes> = files.into_iter().collect();
        let document = files
            .remove(&RelPath::document())
            .ok_or(Error::NoDocument)?;
        let document = decode_utf8(DOCUMENT, &document)?;
        let Some(manifest) = files
            .get(&package_file_path()?)
            .filter(|m| is_package_file(m))
        else {
            return Self::from_plain_skill(document, files);
        };
        let mut package: Self =
            crate::json::from_slice(manifest).map_err(|e| super::json_error(&e))?;
        files.remove(&package_file_path()?);
        if package.artifacts.len() > super::MAX_ARTIFACTS {
            return Err(Error::Package("too many artifacts".to_owned()));
        }
        package.reject_inlined_contents()?;
        let led = package.load_contents(&mut files, &document)?;
        package.files = files
            .into_iter()
            .map(|(path, bytes)| PackageFile { path, bytes })
            .collect();
        package.drop_default_paths()?;
        if !led {
            let generated = package.skill_document()?;
            // With a description that is not the body, the document has to be kept separately.
            if package.body_artifact().is_some() || generated != document {
                package.document = Some(document);
            }
        }
        package.check_package()?;
        Ok(package)
    }

    /// An ordinary skill as a package without artifacts.
    fn from_plain_skill(document: String, files: BTreeMap<RelPath, Bytes>) -> Result<Self> {
        let front = Frontmatter::from_document(&document)?;
        let field = |key: &str| {
            front
                .get_text(key)
                .map(str::to_owned)
                .ok_or_else(|| Error::Field {
                    field: key.to_owned(),
                    rule: "must be there, as text".to_owned(),
                })
        };
        field("name")?.parse::<SkillName>()?;
        let package = Self {
            files: files
                .into_iter()
                .map(|(path, bytes)| PackageFile { path, bytes })
                .collect(),
            ..Self::new(field("name")?, field("description")?, Some(document))
        };
        package.check_package()?;
        Ok(package)
    }

    /// Whether a folder without a package file expresses the same package.
    pub fn is_plain(&self) -> bool {
        let Some(document) = &self.document else {
            return false;
        };
        let Ok(front) = Frontmatter::from_document(document) else {
            return false;
        };
        let said = |key: &str| front.get_text(key).unwrap_or_default().to_owned();
        let bare = Self {
            files: self.files.clone(),
            ..Self::new(said("name"), said("description"), self.document.clone())
        };
        // A file that parses as a package file would change the meaning of the folder.
        let taken =
            |file: &PackageFile| file.path.as_str() == PACKAGE_FILE && is_package_file(&file.bytes);
        *self == bare && !self.files.iter().any(taken)
    }

    /// Refuses contents in the package file: in the folder form they are separate files.
    fn reject_inlined_contents(&self) -> Result<()> {
        if self.frontmatter.is_some() || self.document.is_some() || !self.files.is_empty() {
            return Err(Error::Package(format!(
                "{PACKAGE_FILE} must not have `frontmatter`, `document` or `files`: they are the \
                 files of the folder"
            )));
        }
        match self.artifacts.iter().find(|a| !a.content.is_empty()) {
            Some(artifact) => Err(Error::Package(format!(
                "artifact {:?}: {PACKAGE_FILE} names a `file` instead of `content`",
                artifact.name
            ))),
            None => Ok(()),
        }
    }

    /// Moves artifact files into artifact contents; returns whether one is the document's body.
    fn load_contents(
        &mut self,
        files: &mut BTreeMap<RelPath, Bytes>,
        document: &str,
    ) -> Result<bool> {
        let mut led = None;
        for (index, artifact) in self.artifacts.iter_mut().enumerate() {
            let Some(path) = artifact.file.clone() else {
                return Err(Error::Package(format!(
                    "artifact {:?} has no `file`",
                    artifact.name
                )));
            };
            if path.is_document() {
                crate::frontmatter::split_document(document)?
                    .body
                    .clone_into(&mut artifact.content);
                artifact.file = None;
                if led.replace(index).is_some() {
                    return Err(Error::Package(
                        "two artifacts are the body of SKILL.md".into(),
                    ));
                }
                continue;
            }
            let bytes = files.remove(&path).ok_or_else(|| {
                Error::Package(format!(
                    "artifact {:?}: its file {path} is not in the folder, or another artifact's",
                    artifact.name
                ))
            })?;
            artifact.content = decode_utf8(path.as_str(), &bytes)?;
        }
        let Some(led) = led else { return Ok(false) };
        if self.body_artifact().map(std::ptr::from_ref)
            != self.artifacts.get(led).map(std::ptr::from_ref)
        {
            return Err(Error::Package(
                "only the first description artifact without a variant can be SKILL.md".into(),
            ));
        }
        let block = crate::frontmatter::split_document(document)?.block;
        if block != frontmatter_block(&self.skill_name()?, &self.description) {
            self.frontmatter = Some(block.to_owned());
        }
        Ok(true)
    }

    /// Clears every file name that equals the default one.
    fn drop_default_paths(&mut self) -> Result<()> {
        let given: Vec<_> = self.artifacts.iter().map(|a| a.file.clone()).collect();
        let lead = given.iter().position(Option::is_none);
        let mut own: BTreeSet<usize> = BTreeSet::new();
        loop {
            for (index, artifact) in self.artifacts.iter_mut().enumerate() {
                artifact.file = given[index].clone().filter(|_| own.contains(&index));
            }
            // Without a body artifact, the first description must not be mistaken for one.
            if lead.is_none() {
                self.document = Some(String::new());
            }
            let chosen = self.artifact_paths()?;
            self.document = None;
            let before = own.len();
            own.extend(
                (0..given.len())
                    .filter(|&i| Some(i) != lead && given[i].as_ref() != Some(&chosen[i])),
            );
            if own.len() == before {
                return Ok(());
            }
        }
    }

    /// The file of each artifact: its own, `SKILL.md` for the body artifact, else the default one.
    fn artifact_paths(&self) -> Result<Vec<RelPath>> {
        let lead = self.body_artifact().map(std::ptr::from_ref);
        let mut taken: BTreeSet<String> = self
            .files
            .iter()
            .map(|f| &f.path)
            .chain(self.artifacts.iter().filter_map(|a| a.file.as_ref()))
            .map(|path| path.as_str().to_lowercase())
            .collect();
        let mut paths = Vec::with_capacity(self.artifacts.len());
        for artifact in &self.artifacts {
            if Some(std::ptr::from_ref(artifact)) == lead {
                paths.push(RelPath::document());
            } else if let Some(file) = &artifact.file {
                paths.push(file.clone());
            } else {
                paths.push(default_path(artifact, &mut taken)?);
            }
        }
        Ok(paths)
    }
}

fn default_path(artifact: &Artifact, taken: &mut BTreeSet<String>) -> Result<RelPath> {
    let slug = make_slug(&artifact.name);
    let name = if slug.is_empty() { "artifact" } else { &slug };
    let variant = match &artifact.model_variant {
        Some(variant) => format!("-{}", variant.to_lowercase().trim_end_matches('.')),
        None => String::new(),
    };
    let stem = format!("artifacts/{:02}-{name}{variant}", artifact.ordinal);
    let extension = artifact.kind.file_extension();
    let mut path = format!("{stem}.{extension}");
    let mut copy = 2;
    while !taken.insert(path.clone()) {
        path = format!("{stem}-{copy}.{extension}");
        copy += 1;
    }
    path.parse()
}

fn insert_file(files: &mut BTreeMap<RelPath, Bytes>, path: RelPath, bytes: Bytes) -> Result<()> {
    match files.entry(path) {
        Entry::Vacant(place) => {
            place.insert(bytes);
            Ok(())
        }
        Entry::Occupied(place) => Err(Error::DuplicatePath(place.key().to_string())),
    }
}

/// Whether a `skill.json` is a package file: other tools may use that name in a skill.
fn is_package_file(bytes: &[u8]) -> bool {
    crate::json::from_slice::<serde_json::Value>(bytes).is_ok_and(|value| {
        value
            .get("artifacts")
            .is_some_and(serde_json::Value::is_array)
    })
}

fn package_file_path() -> Result<RelPath> {
    PACKAGE_FILE.parse()
}

fn decode_utf8(path: &str, bytes: &[u8]) -> Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(Error::NotUtf8 {
            path: path.to_owned(),
            offset: error.valid_up_to(),
        }),
    }
}
