//! Reads archives: `.zip`, `.tar.gz` and `.tar`.
//!
//! Invariants (T5, T52): the number of entries and of unpacked bytes is capped before anything is
//! unpacked, whatever the headers say. An archive with a name that leads out of its folder, with two
//! entries of one name, with entries that overlap, or with two tables of contents that differ is
//! refused as a whole. Nothing is written to the disk.

use std::{
    collections::HashSet,
    io::{Cursor, Read},
};

use bytes::Bytes;
use repertoire_core::RelPath;

use crate::{
    error::{Error, Result},
    file_tree::{FileTree, TreeEntry},
    limits::FetchLimits,
};

/// The most bytes that one byte of an archive may unpack to.
const MAX_RATIO: u64 = 200;
/// The longest name of an entry, with what stands beside it.
const MAX_NAME_BYTES: u64 = 8 * 1024;
/// An archive may always unpack to this many bytes.
const MIN_UNPACKED: u64 = 4 * 1024 * 1024;

/// How an archive is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveFormat {
    /// `.zip`
    Zip,
    /// `.tar.gz` or `.tgz`
    TarGz,
    /// `.tar`
    Tar,
}

impl ArchiveFormat {
    /// Returns the format that a file name says.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let ends = |ending: &str| name.ends_with(ending);
        if ends(".zip") || ends(".skill") {
            Some(Self::Zip)
        } else if ends(".tar.gz") || ends(".tgz") {
            Some(Self::TarGz)
        } else if ends(".tar") {
            Some(Self::Tar)
        } else {
            None
        }
    }

    /// Returns the format that the first bytes show.
    pub(crate) fn from_content(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(b"PK\x03\x04") {
            Some(Self::Zip)
        } else if bytes.starts_with(&[0x1f, 0x8b]) {
            Some(Self::TarGz)
        } else if bytes.get(257..262) == Some(b"ustar") {
            Some(Self::Tar)
        } else {
            None
        }
    }
}

/// Unpacks an archive into memory. `name` is for messages.
pub(crate) fn read_archive(name: &str, bytes: &[u8], limits: &FetchLimits) -> Result<FileTree> {
    let refuse = |reason: String| Error::refused(name, reason);
    let format = ArchiveFormat::from_content(bytes)
        .ok_or_else(|| refuse("is no .zip, .tar.gz or .tar archive".to_owned()))?;
    let ratio_cap = (bytes.len() as u64).saturating_mul(MAX_RATIO);
    let budget = UnpackBudget {
        name,
        entries: limits.entries,
        bytes: limits.total_bytes.min(ratio_cap.max(MIN_UNPACKED)),
        seen: HashSet::new(),
    };
    match format {
        ArchiveFormat::Zip => read_zip(name, bytes, budget),
        ArchiveFormat::TarGz => read_tar(flate2::read::GzDecoder::new(bytes), budget),
        ArchiveFormat::Tar => read_tar(bytes, budget),
    }
}

/// What an archive may still unpack to.
struct UnpackBudget<'a> {
    name: &'a str,
    entries: usize,
    bytes: u64,
    seen: HashSet<String>,
}

impl UnpackBudget<'_> {
    fn refuse(&self, reason: impl Into<String>) -> Error {
        Error::refused(self.name, reason)
    }

    /// Checks the name of an entry; `None` for a folder or for what is not part of the content.
    fn check_name(&mut self, raw: &[u8], is_folder: bool) -> Result<Option<String>> {
        if self.entries == 0 {
            return Err(self.refuse("has too many entries"));
        }
        self.entries -= 1;
        let shown = String::from_utf8_lossy(raw.get(..200).unwrap_or(raw));
        let Ok(text) = std::str::from_utf8(raw) else {
            return Err(self.refuse(format!("entry {shown:?} is not named in UTF-8")));
        };
        let plain = text.strip_prefix("./").unwrap_or(text);
        let plain = plain.strip_suffix('/').unwrap_or(plain);
        if plain.is_empty() || plain == "." {
            return Ok(None);
        }
        // Names that no skill could have are refused here only if they are dangerous.
        if let Err(error) = plain.parse::<RelPath>()
            && leads_out(plain)
        {
            return Err(self.refuse(format!("entry {shown:?} leads out of the archive: {error}")));
        }
        if is_folder {
            return Ok(None);
        }
        if !self.seen.insert(plain.to_owned()) {
            return Err(self.refuse(format!("entry {shown:?} is there twice")));
        }
        Ok(Some(plain.to_owned()))
    }

    /// Reads an entry that holds the name of the next one.
    fn read_name(&mut self, entry: impl Read) -> Result<Vec<u8>> {
        if self.entries == 0 {
            return Err(self.refuse("has too many entries"));
        }
        self.entries -= 1;
        let mut text = Vec::new();
        let read = entry.take(MAX_NAME_BYTES + 1).read_to_end(&mut text);
        read.map_err(|error| self.refuse(format!("has an unreadable name: {error}")))?;
        if text.len() as u64 > MAX_NAME_BYTES {
            return Err(self.refuse("has a name that is too long"));
        }
        Ok(text)
    }

    /// Reads an entry within what is left.
    fn read_entry(&mut self, entry: impl Read, path: &str) -> Result<Bytes> {
        let mut content = Vec::new();
        let read = entry.take(self.bytes + 1).read_to_end(&mut content);
        read.map_err(|error| self.refuse(format!("entry {path:?} cannot be unpacked: {error}")))?;
        if content.len() as u64 > self.bytes {
            return Err(self.refuse("unpacks to far more than it should"));
        }
        self.bytes -= content.len() as u64;
        Ok(content.into())
    }
}

/// Whether a name could be written outside of the folder it is unpacked in.
fn leads_out(name: &str) -> bool {
    name.starts_with(['/', '\\'])
        || name.contains('\0')
        || name.split(['/', '\\']).any(|part| part == "..")
        || name.as_bytes().get(1) == Some(&b':')
}

fn read_zip(name: &str, bytes: &[u8], mut budget: UnpackBudget<'_>) -> Result<FileTree> {
    let refuse = |error: zip::result::ZipError| {
        Error::refused(name, format!("is no usable .zip archive: {error}"))
    };
    let config = zip::read::Config::default();
    let mut archive = zip::ZipArchive::with_config(config, Cursor::new(bytes)).map_err(refuse)?;
    // Programs disagree about what such a file holds.
    if archive.offset() != 0 {
        return Err(budget.refuse("has other data before the archive"));
    }
    if archive.len() > budget.entries {
        return Err(budget.refuse("has too many entries"));
    }
    if archive.has_duplicate_names() {
        return Err(budget.refuse("has two entries of one name"));
    }
    if archive.has_overlapping_entries().map_err(refuse)? {
        return Err(budget.refuse("has entries that overlap"));
    }
    archive.validate_header_consistency().map_err(refuse)?;
    let mut tree = FileTree::default();
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(refuse)?;
        let is_folder = entry.is_dir();
        let Some(path) = budget.check_name(entry.name_raw(), is_folder)? else {
            continue;
        };
        if entry.is_symlink() {
            tree.entries.insert(path, TreeEntry::Other("a link"));
            continue;
        }
        if entry.size() > budget.bytes {
            return Err(budget.refuse("unpacks to far more than it should"));
        }
        let content = budget.read_entry(entry, &path)?;
        tree.insert_file(path, content);
    }
    Ok(tree)
}

fn read_tar(packed: impl Read, mut budget: UnpackBudget<'_>) -> Result<FileTree> {
    // Headers and padding are no content, but they are unpacked all the same.
    let overhead = (budget.entries as u64)
        .saturating_mul(2048)
        .min(budget.bytes);
    let packed = packed.take(budget.bytes + overhead);
    let mut archive = tar::Archive::new(packed);
    let mut tree = FileTree::default();
    let name = budget.name;
    let broken =
        |error: std::io::Error| Error::refused(name, format!("is no usable .tar archive: {error}"));
    // The name of the next entry, where it is too long for a header. The library would read such
    // names whole, however long they are.
    let mut long_name: Option<Vec<u8>> = None;
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() {
            continue;
        }
        if kind.is_gnu_longname() || kind.is_gnu_longlink() || kind.is_pax_local_extensions() {
            let text = budget.read_name(&mut entry)?;
            if kind.is_gnu_longname() {
                let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
                long_name = Some(text[..end].to_vec());
            } else if kind.is_pax_local_extensions() {
                for record in tar::PaxExtensions::new(&text) {
                    let record = record.map_err(broken)?;
                    match record.key_bytes() {
                        b"path" => long_name = Some(record.value_bytes().to_vec()),
                        // The size of the header would be another one.
                        b"size" => return Err(budget.refuse("has two sizes for one entry")),
                        _ => {}
                    }
                }
            }
            continue;
        }
        let raw = match long_name.take() {
            Some(name) => name,
            None => entry.header().path_bytes().into_owned(),
        };
        let Some(path) = budget.check_name(&raw, kind.is_dir())? else {
            continue;
        };
        if !kind.is_file() {
            let what = if kind.is_symlink() || kind.is_hard_link() {
                "a link"
            } else {
                "a device or another special file"
            };
            tree.entries.insert(path, TreeEntry::Other(what));
            continue;
        }
        if entry.size() > budget.bytes {
            return Err(budget.refuse("unpacks to far more than it should"));
        }
        let expected = entry.size();
        let content = budget.read_entry(entry, &path)?;
        if content.len() as u64 != expected {
            return Err(budget.refuse(format!("entry {path:?} ends too early")));
        }
        tree.insert_file(path, content);
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn tar_gz(write: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        write(&mut builder);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(&builder.into_inner().unwrap()).unwrap();
        packed.finish().unwrap()
    }

    /// Appends an entry whose name is written as it is, unlike the library would.
    fn append(builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]) {
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }

    fn zip_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in entries {
            let options = zip::write::SimpleFileOptions::default();
            writer.start_file(*name, options).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn refusal(bytes: &[u8]) -> String {
        let limits = FetchLimits {
            entries: 100,
            total_bytes: 8 * 1024 * 1024,
            ..FetchLimits::default()
        };
        let error = read_archive("x", bytes, &limits).expect_err("is refused");
        assert_eq!(error.code(), "refused_content");
        error.to_string()
    }

    #[test]
    fn archives_of_all_formats_give_the_same_files() {
        let zipped = zip_of(&[("a/SKILL.md", b"# A"), ("a/x.txt", b"x")]);
        let tarred = tar_gz(|builder| {
            append(builder, "./a/SKILL.md", b"# A");
            append(builder, "a/x.txt", b"x");
        });
        let limits = FetchLimits::default();
        let read = |bytes: &[u8]| read_archive("x", bytes, &limits).unwrap().contents;
        assert_eq!(read(&zipped), read(&tarred));
        assert_eq!(read(&zipped)["a/x.txt"], "x");
    }

    #[test]
    fn t5_names_that_lead_out_are_refused() {
        for name in ["../x", "/etc/x", "a/../../x", "..\\x", "C:\\x"] {
            let slip = tar_gz(|builder| append(builder, name, b"x"));
            assert!(refusal(&slip).contains("leads out"), "{name}");
            let slip = zip_of(&[(name, b"x")]);
            let reason = refusal(&slip);
            assert!(
                reason.contains("leads out") || reason.contains("usable"),
                "{name}: {reason}"
            );
        }
    }

    #[test]
    fn t5_bombs_are_refused_before_they_are_unpacked() {
        let zeros = vec![0; 32 * 1024 * 1024];
        let bomb = zip_of(&[("bomb", &zeros)]);
        assert!(bomb.len() < 64 * 1024);
        assert!(refusal(&bomb).contains("far more"));
        let bomb = tar_gz(|builder| append(builder, "bomb", &zeros));
        assert!(refusal(&bomb).contains("far more"));
        let many = tar_gz(|builder| {
            for n in 0..200 {
                append(builder, &format!("f{n}"), b"");
            }
        });
        assert!(refusal(&many).contains("too many entries"));
    }

    #[test]
    fn t5_archives_with_two_meanings_are_refused() {
        let twice = tar_gz(|builder| {
            append(builder, "a", b"1");
            append(builder, "a", b"2");
        });
        assert!(refusal(&twice).contains("twice"));
        let mut polyglot = b"PK\x03\x04#!/bin/sh\n".to_vec();
        polyglot.extend(zip_of(&[("a", b"1")]));
        assert!(refusal(&polyglot).contains("other data"));
        // The name in the local header differs from the one in the table of contents.
        let mut confused = zip_of(&[("aaaa", b"1")]);
        let at = confused.windows(4).position(|w| w == b"aaaa").unwrap();
        confused[at] = b'b';
        assert!(refusal(&confused).contains("usable"));
        let mut cut = tar_gz(|builder| append(builder, "a", &[7; 5000]));
        cut.truncate(cut.len() - 12);
        assert!(!refusal(&cut).is_empty());
        assert!(refusal(b"not an archive").contains("is no .zip"));
    }

    #[test]
    fn t5_long_names_are_read_within_a_bound() {
        let long = format!("a/{}/SKILL.md", "x".repeat(150));
        let packed = tar_gz(|builder| {
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            builder.append_data(&mut header, &long, &b"x"[..]).unwrap();
        });
        let tree = read_archive("x", &packed, &FetchLimits::default()).unwrap();
        assert!(tree.contents.contains_key(&long));
        let endless = tar_gz(|builder| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::GNULongName);
            let name = vec![0x1b; 2 * 1024 * 1024];
            header.set_size(name.len() as u64);
            header.set_cksum();
            builder.append(&header, &name[..]).unwrap();
        });
        let reason = refusal(&endless);
        assert!(
            reason.contains("too long") && reason.len() < 1000,
            "{reason}"
        );
    }

    #[test]
    fn t52_links_and_devices_are_named_not_followed() {
        let linked = tar_gz(|builder| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            builder
                .append_link(&mut header, "a/x", "/etc/passwd")
                .unwrap();
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Fifo);
            header.set_size(0);
            builder
                .append_data(&mut header, "a/y", std::io::empty())
                .unwrap();
        });
        let tree = read_archive("x", &linked, &FetchLimits::default()).unwrap();
        assert!(tree.contents.is_empty());
        assert_eq!(tree.entries["a/x"], TreeEntry::Other("a link"));
        assert!(matches!(tree.entries["a/y"], TreeEntry::Other(_)));
    }
}
