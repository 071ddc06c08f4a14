//! The folder form of a package.
//!
//! File names are chosen the same way every time, from ordinal, name, variant and kind; only a
//! name that an author chose differently is remembered in the artifact.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use bytes::Bytes;

use super::{Artifact, PACKAGE_FILE, Package, PackageFile};
use crate::{
    error::{Error, Result},
    frontmatter::Frontmatter,
    id::{SkillId, SkillName},
    path::{DOCUMENT, RelPath},
    surface::frontmatter_block,
    text::slug,
};

impl Package {
    /// The files of the folder form, sorted by path.
    pub fn to_folder(&self) -> Result<BTreeMap<RelPath, Bytes>> {
        let mut files = BTreeMap::new();
        let lead = self.lead().map(std::ptr::from_ref);
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
                put(&mut files, path, Bytes::from(artifact.content.clone()))?;
            }
        }
        put(
            &mut files,
            RelPath::document(),
            self.skill_document()?.into(),
        )?;
        if !self.is_plain() {
            put(&mut files, package_file()?, manifest.to_json().into())?;
        }
        for file in &self.files {
            put(&mut files, file.path.clone(), file.bytes.clone())?;
        }
        Ok(files)
    }

    /// Where this is kept, and the folder to keep there. An ordinary skill that is called by its
    /// whole id needs no package file to say so: its place does.
    pub fn placed(&self) -> Result<(SkillId, BTreeMap<RelPath, Bytes>)> {
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
        let document = text_of(DOCUMENT, &document)?;
        let Some(manifest) = files.get(&package_file()?).filter(|m| is_manifest(m)) else {
            return Self::plain(document, files);
        };
        let mut package: Self =
            crate::json::from_slice(manifest).map_err(|e| super::json_error(&e))?;
        files.remove(&package_file()?);
        if package.artifacts.len() > super::MAX_ARTIFACTS {
            return Err(Error::Package("too many artifacts".to_owned()));
        }
        package.refuse_inlined()?;
        let led = package.take_contents(&mut files, &document)?;
        package.files = files
            .into_iter()
            .map(|(path, bytes)| PackageFile { path, bytes })
            .collect();
        package.forget_usual_paths()?;
        if !led {
            let generated = package.skill_document()?;
            // With a description that is not the body, the body has to be kept as it is.
            if package.lead().is_some() || generated != document {
                package.document = Some(document);
            }
        }
        package.check()?;
        Ok(package)
    }

    /// An ordinary skill as a package without artifacts.
    fn plain(document: String, files: BTreeMap<RelPath, Bytes>) -> Result<Self> {
        let front = Frontmatter::of(&document)?;
        let field = |key: &str| {
            front
                .text(key)
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
            ..Self::named(field("name")?, field("description")?, Some(document))
        };
        package.check()?;
        Ok(package)
    }

    /// Whether this says no more than a folder without a package file does.
    pub fn is_plain(&self) -> bool {
        let Some(document) = &self.document else {
            return false;
        };
        let Ok(front) = Frontmatter::of(document) else {
            return false;
        };
        let said = |key: &str| front.text(key).unwrap_or_default().to_owned();
        let bare = Self {
            files: self.files.clone(),
            ..Self::named(said("name"), said("description"), self.document.clone())
        };
        // A file that would be taken for a package file makes the folder say something else.
        let taken =
            |file: &PackageFile| file.path.as_str() == PACKAGE_FILE && is_manifest(&file.bytes);
        *self == bare && !self.files.iter().any(taken)
    }

    /// In the folder form contents are in files and nowhere else.
    fn refuse_inlined(&self) -> Result<()> {
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

    /// Moves the files of artifacts into their contents; says whether one is the document's body.
    fn take_contents(
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
                crate::frontmatter::split(document)?
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
            artifact.content = text_of(path.as_str(), &bytes)?;
        }
        let Some(led) = led else { return Ok(false) };
        if self.lead().map(std::ptr::from_ref) != self.artifacts.get(led).map(std::ptr::from_ref) {
            return Err(Error::Package(
                "only the first description artifact without a variant can be SKILL.md".into(),
            ));
        }
        let block = crate::frontmatter::split(document)?.block;
        if block != frontmatter_block(&self.skill_name()?, &self.description) {
            self.frontmatter = Some(block.to_owned());
        }
        Ok(true)
    }

    /// Forgets every file name that would be chosen again.
    fn forget_usual_paths(&mut self) -> Result<()> {
        let given: Vec<_> = self.artifacts.iter().map(|a| a.file.clone()).collect();
        let lead = given.iter().position(Option::is_none);
        let mut own: BTreeSet<usize> = BTreeSet::new();
        loop {
            for (index, artifact) in self.artifacts.iter_mut().enumerate() {
                artifact.file = given[index].clone().filter(|_| own.contains(&index));
            }
            // Without a body artifact, the first description must not be taken for one.
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

    /// The file of each artifact: its own, `SKILL.md` for the lead, else the usual one.
    fn artifact_paths(&self) -> Result<Vec<RelPath>> {
        let lead = self.lead().map(std::ptr::from_ref);
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
                paths.push(usual_path(artifact, &mut taken)?);
            }
        }
        Ok(paths)
    }
}

fn usual_path(artifact: &Artifact, taken: &mut BTreeSet<String>) -> Result<RelPath> {
    let slug = slug(&artifact.name);
    let name = if slug.is_empty() { "artifact" } else { &slug };
    let variant = match &artifact.model_variant {
        Some(variant) => format!("-{}", variant.to_lowercase().trim_end_matches('.')),
        None => String::new(),
    };
    let stem = format!("artifacts/{:02}-{name}{variant}", artifact.ordinal);
    let extension = artifact.kind.extension();
    let mut path = format!("{stem}.{extension}");
    let mut copy = 2;
    while !taken.insert(path.clone()) {
        path = format!("{stem}-{copy}.{extension}");
        copy += 1;
    }
    path.parse()
}

fn put(files: &mut BTreeMap<RelPath, Bytes>, path: RelPath, bytes: Bytes) -> Result<()> {
    match files.entry(path) {
        Entry::Vacant(place) => {
            place.insert(bytes);
            Ok(())
        }
        Entry::Occupied(place) => Err(Error::DuplicatePath(place.key().to_string())),
    }
}

/// Whether a `skill.json` is ours: any tool may keep a file of that name in a skill.
fn is_manifest(bytes: &[u8]) -> bool {
    crate::json::from_slice::<serde_json::Value>(bytes).is_ok_and(|value| {
        value
            .get("artifacts")
            .is_some_and(serde_json::Value::is_array)
    })
}

fn package_file() -> Result<RelPath> {
    PACKAGE_FILE.parse()
}

fn text_of(path: &str, bytes: &[u8]) -> Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(Error::NotUtf8 {
            path: path.to_owned(),
            offset: error.valid_up_to(),
        }),
    }
}
