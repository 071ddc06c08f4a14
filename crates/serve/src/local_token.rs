//! The user's own token, in a file that only the user can read.
//!
//! It takes the place of the connection's owner where that is not known, and where a server requires
//! a token from everyone: a program that can read the file runs as the user. It is sent only to
//! servers on this machine that run as the same user, as far as that can be known.

use std::{
    fs,
    io::{Read, Write},
    net::ToSocketAddrs,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use uuid::Uuid;

use crate::{
    error::{Error, Result},
    peer_owner::PeerOwner,
};

/// The name of the file in the account's folder.
const FILE_NAME: &str = "local-token";

fn token_file(account: &Path) -> PathBuf {
    account.join(FILE_NAME)
}

/// Returns the token of an account; creates it if there is none.
pub(crate) fn create(account: &Path) -> Result<String> {
    let path = token_file(account);
    if let Some(token) = read(account)? {
        return Ok(token);
    }
    let random = [Uuid::new_v4(), Uuid::new_v4()].map(Uuid::into_bytes);
    let token = format!("rptl_{}", URL_SAFE_NO_PAD.encode(random.concat()));
    let mut options = fs::File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let written = options.open(&path).and_then(|mut file| {
        file.write_all(token.as_bytes())?;
        file.sync_all()
    });
    match written {
        Ok(()) => Ok(token),
        // Another server created it at the same time.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let read = read(account)?;
            read.ok_or_else(|| io_error(&path, std::io::ErrorKind::NotFound.into()))
        }
        Err(error) => Err(io_error(&path, error)),
    }
}

/// Returns the token of an account for the server at a URL, if that server is on this machine and runs
/// as the same user. Another user may listen on the port while the user's own server does not run.
pub fn read_for(account: &Path, url: &str) -> Result<Option<String>> {
    let Some(token) = read(account)? else {
        return Ok(None);
    };
    let address = url.split("://").nth(1).unwrap_or_default();
    let address = address.split('/').next().unwrap_or_default();
    let mut addresses = address.to_socket_addrs().into_iter().flatten();
    let is_own = addresses.any(|address| {
        let is_own = PeerOwner::of_listener(address) == PeerOwner::SameUser;
        address.ip().is_loopback() && (is_own || !PeerOwner::is_known_here())
    });
    Ok(is_own.then_some(token))
}

/// Returns the token of an account, if there is one. A file that others can read is refused.
pub fn read(account: &Path) -> Result<Option<String>> {
    let path = token_file(account);
    let file = match fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(&path, error)),
    };
    let mut token = String::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let metadata = file.metadata().map_err(|error| io_error(&path, error))?;
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        if !is_own || metadata.mode() & 0o077 != 0 {
            let reason = std::io::Error::other(
                "other users can read it: delete it, and start the server again",
            );
            return Err(io_error(&path, reason));
        }
    }
    file.take(1024)
        .read_to_string(&mut token)
        .map_err(|error| io_error(&path, error))?;
    Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty()))
}

fn io_error(path: &Path, error: std::io::Error) -> Error {
    repertoire_registry::Error::Io {
        path: path.to_owned(),
        error,
    }
    .into()
}
