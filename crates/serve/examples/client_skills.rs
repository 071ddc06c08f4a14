//! Two hosts and one skill: a host that reads resources and a host that only knows prompts get
//! the same bytes.
//!
//! ```text
//! cargo run -p repertoire-serve --example client_skills
//! ```
#![allow(
    clippy::format_push_string,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example that panics when its checks fail"
)]

use repertoire_serve::{
    Server, Skill, embed_skill,
    rmcp::{
        RoleClient, ServiceExt,
        model::{
            ContentBlock, GetPromptRequestParams, ReadResourceRequestParams, ResourceContents,
        },
        service::RunningService,
    },
};

fn code_mode() -> Skill {
    embed_skill!("../../examples/skills/code-mode")
}

/// Connects a client to the server within this process.
async fn connect_client(server: &Server) -> RunningService<RoleClient, ()> {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let handlers = server.mcp_connection();
    tokio::spawn(async move { handlers.serve(theirs).await.unwrap().waiting().await });
    ().serve(ours).await.unwrap()
}

async fn read_text(client: &RunningService<RoleClient, ()>, uri: &str) -> String {
    let result = client
        .read_resource(ReadResourceRequestParams::new(uri))
        .await
        .unwrap();
    match result.contents.into_iter().next().unwrap() {
        ResourceContents::TextResourceContents { text, .. } => text,
        other => panic!("{uri} is not text: {other:?}"),
    }
}

/// Reads a skill as a host with resources does: the document, then each supporting file.
async fn text_from_resources(client: &RunningService<RoleClient, ()>, skill: &Skill) -> String {
    let listed = client.list_all_resources().await.unwrap();
    let uris: Vec<&str> = listed
        .iter()
        .map(|resource| resource.uri.as_str())
        .collect();
    println!("  listed: {uris:?}");
    // Supporting files are readable but not listed.
    assert!(!uris.iter().any(|uri| uri.contains("references/")));
    let index = read_text(client, "skill://index.json").await;
    assert!(index.contains("\"type\":\"skill-md\""));

    let mut text = read_text(client, "skill://code-mode/SKILL.md").await;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    for reference in skill.references() {
        let path = reference.path();
        let body = read_text(client, &format!("skill://code-mode/{path}")).await;
        text.push_str(&format!("\n--- {path} ---\n{body}"));
        if !body.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}

/// Reads a skill as a host with prompts only does.
async fn text_from_prompt(client: &RunningService<RoleClient, ()>) -> String {
    let request = GetPromptRequestParams::new("start_code_mode");
    let prompt = client.get_prompt(request).await.unwrap();
    match prompt.messages.into_iter().next().unwrap().content {
        ContentBlock::Text(text) => text.text,
        other => panic!("not text: {other:?}"),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .name("skills-demo")
        .version("0.1.0")
        .bootstrap_skill_and_prompt(code_mode(), "start_code_mode")
        .build()?;
    let client = connect_client(&server).await;
    println!("a host that reads resources:");
    let resources = text_from_resources(&client, &code_mode()).await;
    println!("  {} bytes", resources.len());
    println!("a host that knows prompts only:");
    let prompt = text_from_prompt(&client).await;
    println!("  {} bytes", prompt.len());
    assert_eq!(resources, prompt, "the two surfaces differ");
    assert_eq!(prompt, code_mode().as_prompt_text());
    println!("both got the same {} bytes", prompt.len());
    client.cancel().await?;
    Ok(())
}
