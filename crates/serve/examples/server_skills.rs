//! Three skills, each one step richer, served over stdio.
//!
//! ```text
//! cargo run -p repertoire-serve --example server_skills            # lists what it would serve
//! cargo run -p repertoire-serve --example server_skills -- --stdio # serves it
//! ```
//!
//! 1. `hello-world`: a document only.
//! 2. `refunds`: under its own path, so that another team can have a `refunds` too.
//! 3. `code-mode`: with supporting files, and as a prompt with the same bytes for hosts that do
//!    not read resources.
#![allow(clippy::print_stdout, reason = "an example")]

use repertoire_serve::{Server, Skill, SkillReference, Uri, embed_skill};

const HELLO_WORLD: &str = include_str!("../../../examples/skills/hello-world/SKILL.md");
const REFUNDS: &str = include_str!("../../../examples/skills/acme/billing/refunds/SKILL.md");

fn refunds_skill() -> Skill {
    Skill::new("refunds", REFUNDS)
        .with_path("acme/billing/refunds")
        .with_reference(SkillReference::new(
            "references/reasons.md",
            "text/markdown",
            include_str!("../../../examples/skills/acme/billing/refunds/references/reasons.md"),
        ))
}

fn build_server() -> Result<Server, repertoire_serve::Error> {
    Server::builder()
        .name("skills-demo")
        .version("0.1.0")
        .skill(Skill::new("hello-world", HELLO_WORLD))
        .skill(refunds_skill())
        // A whole folder, read and checked at compile time.
        .bootstrap_skill_and_prompt(
            embed_skill!("../../examples/skills/code-mode"),
            "start_code_mode",
        )
        .build()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = build_server()?;
    if std::env::args().any(|arg| arg == "--stdio") {
        return Ok(server.serve_stdio().await?);
    }
    println!("serves:");
    for entry in server.registry().snapshot().skills() {
        println!("  {}", Uri::for_document(&entry.id));
    }
    println!("  {}", Uri::DiscoveryIndex);
    let skill = embed_skill!("../../examples/skills/code-mode");
    println!(
        "start_code_mode is a prompt of {} bytes, the bytes of its resources",
        skill.as_prompt_text().len()
    );
    Ok(())
}
