//! MCP over standard input and output.

use std::sync::Arc;

use rmcp::{ServiceExt, service::ServerInitializeError, transport::io::stdio_pipes};

use crate::{
    engine::Engine,
    error::{Error, Result},
    mcp::Handlers,
};

/// Serves one host over standard input and output until it hangs up or the server shuts down.
pub async fn serve_stdio(engine: Arc<Engine>) -> Result<()> {
    let handlers = Handlers::new(engine.clone());
    let stop = engine.stop.child_token();
    let failed = async {
        match engine.registry().await {
            // Without a registry there is nothing to serve.
            Err(error) => error,
            Ok(_) => std::future::pending().await,
        }
    };
    let serve = async {
        let running = handlers.serve_with_ct(stdio_pipes(), stop).await;
        let running = match running {
            Ok(running) => running,
            // A host that leaves before it says hello has done nothing wrong.
            Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
                return Ok(());
            }
            Err(error) => return Err(Error::Transport(error.to_string())),
        };
        let ended = running.waiting().await;
        ended
            .map(drop)
            .map_err(|error| Error::Transport(error.to_string()))
    };
    tokio::select! {
        ended = serve => ended,
        error = failed => Err(error),
    }
}
