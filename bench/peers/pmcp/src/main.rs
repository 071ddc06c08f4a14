//! The peer: every skill beneath a folder, served by pmcp over stdio or HTTP.
//!
//! `pmcp-peer FOLDER stdio` or `pmcp-peer FOLDER http`; the latter prints its port. The newest
//! revision, answers in JSON and requests side by side are switched on, none of which is pmcp's
//! default: the peer is measured at its best.

use std::{error::Error, fs, net::Ipv4Addr, path::Path, sync::Arc};

use pmcp::{
    Server,
    server::{
        skills::{Skill, SkillReference, Skills},
        streamable_http_server::{StreamableHttpServer, StreamableHttpServerConfig},
    },
    types::{
        ProtocolVersion,
        protocol::{LATEST_PROTOCOL_VERSION, PROTOCOL_VERSION_2026_07_28},
    },
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn skills(folder: &Path) -> Result<Skills> {
    let mut all = Skills::new();
    for entry in fs::read_dir(folder)? {
        let place = entry?.path();
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut skill = Skill::new(name, fs::read_to_string(place.join("SKILL.md"))?);
        for file in fs::read_dir(place.join("references"))? {
            let file = file?;
            let path = format!("references/{}", file.file_name().to_string_lossy());
            let body = fs::read_to_string(file.path())?;
            skill = skill.try_with_reference(SkillReference::new(path, "text/markdown", body))?;
        }
        all = all.add(skill);
    }
    Ok(all)
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, transport] = args.as_slice() else {
        return Err("usage: pmcp-peer FOLDER stdio|http".into());
    };
    let versions = [LATEST_PROTOCOL_VERSION, PROTOCOL_VERSION_2026_07_28];
    let server = Server::builder()
        .name("pmcp-peer")
        .version("0.1.0")
        .with_supported_protocol_versions(versions.map(|v| ProtocolVersion(v.into())))
        .try_skills(skills(Path::new(folder))?)?
        .build()?;
    if transport == "stdio" {
        server.run_stdio().await?;
        return Ok(());
    }
    let address = (Ipv4Addr::LOCALHOST, 0).into();
    let config = StreamableHttpServerConfig::stateless();
    let http = StreamableHttpServer::with_config_concurrent(address, Arc::new(server), config);
    let (bound, serving) = http.start().await?;
    println!("{}", bound.port());
    serving.await?;
    Ok(())
}
