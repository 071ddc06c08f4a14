//! MIME types by file name, and which of them are text.

/// The MIME type of a file, by its extension.
///
/// ```
/// use repertoire_core::mime::of_path;
///
/// assert_eq!(of_path("references/schema.graphql"), "application/graphql");
/// assert_eq!(of_path("LICENSE"), "text/plain");
/// ```
pub fn of_path(path: &str) -> &'static str {
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some((_, extension)) = name.rsplit_once('.') else {
        return "text/plain";
    };
    match extension.to_ascii_lowercase().as_str() {
        "md" | "markdown" => "text/markdown",
        "txt" | "log" | "j2" | "jinja" | "env" | "cfg" | "ini" | "conf" => "text/plain",
        "html" | "htm" => "text/html",
        "css" => "text/css",
        "csv" => "text/csv",
        "tsv" => "text/tab-separated-values",
        "xml" | "xsd" | "xsl" => "application/xml",
        "js" | "mjs" | "cjs" => "text/javascript",
        "ts" | "tsx" | "mts" => "text/x-typescript",
        "py" | "pyi" => "text/x-python",
        "rs" => "text/x-rust",
        "go" => "text/x-go",
        "rb" => "text/x-ruby",
        "java" => "text/x-java",
        "c" | "h" => "text/x-c",
        "sh" | "bash" | "zsh" => "application/x-sh",
        "sql" => "application/sql",
        "json" | "jsonl" | "ndjson" => "application/json",
        "yaml" | "yml" => "application/yaml",
        "toml" => "application/toml",
        "graphql" | "gql" => "application/graphql",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "ico" => "image/vnd.microsoft.icon",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "tar" => "application/x-tar",
        "wasm" => "application/wasm",
        "ttf" => "font/ttf",
        "otf" => "font/otf",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        _ => "application/octet-stream",
    }
}

/// Whether files of this type are inlined as text, provided that they are UTF-8.
pub fn is_text(mime: &str) -> bool {
    mime.starts_with("text/")
        || mime.ends_with("+xml")
        || matches!(
            mime,
            "application/json"
                | "application/yaml"
                | "application/toml"
                | "application/graphql"
                | "application/sql"
                | "application/xml"
                | "application/x-sh"
        )
}
