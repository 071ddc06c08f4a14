//! Names the process that has a port, for messages.

use std::net::SocketAddr;

/// Names the process that listens on a port, if this user can see it: `process 12 (nginx)`.
///
/// Linux only; elsewhere it is not known.
pub fn find_port_user(address: SocketAddr) -> Option<String> {
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .find_map(|table| listening_inode(&table, address.port()).map(str::to_owned))?;
    let link = format!("socket:[{inode}]");
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let found = processes.into_iter().find(|process| {
        // Others, such as `self`, stand for a process that has its number too.
        let is_process = process.file_name().to_string_lossy().parse::<u32>().is_ok();
        let files = std::fs::read_dir(process.path().join("fd"));
        is_process
            && files.into_iter().flatten().flatten().any(|file| {
                std::fs::read_link(file.path())
                    .is_ok_and(|target| target.as_os_str() == link.as_str())
            })
    })?;
    let name = std::fs::read_to_string(found.path().join("comm")).ok()?;
    let name = repertoire_core::text::terminal_safe(name.trim()).into_owned();
    let id = found.file_name();
    Some(format!("process {} ({name})", id.to_string_lossy()))
}

/// Finds the listening socket of a port in a table of the kernel.
fn listening_inode(table: &str, port: u16) -> Option<&str> {
    const LISTEN: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
        let is_this = u16::from_str_radix(local_port, 16) == Ok(port) && fields[3] == LISTEN;
        is_this.then(|| fields.get(9).copied())?
    })
}

#[cfg(all(test, target_os = "linux"))]
#[test]
fn the_process_of_a_port_is_named() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let user = find_port_user(address).unwrap();
    assert!(user.contains(&std::process::id().to_string()), "{user}");
    drop(listener);
    assert_eq!(find_port_user(address), None);
}
