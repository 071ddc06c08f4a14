//! Writes the contents of a resource as JSON, the same way on every surface.

use base64::{Engine as _, engine::general_purpose::STANDARD};

/// The content of a resource.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ResourceContent<'a> {
    /// A text.
    Text(&'a str),
    /// A text that is already a JSON string, as a store keeps it.
    JsonText(&'a str),
    /// Bytes that are no text.
    Blob(&'a [u8]),
}

impl<'a> ResourceContent<'a> {
    /// Returns the content of a file: a text if its MIME type says so and it is UTF-8.
    pub(crate) fn from_bytes(mime: &str, bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) if repertoire_core::mime::is_text(mime) => Self::Text(text),
            _ => Self::Blob(bytes),
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Text(text) | Self::JsonText(text) => text.len(),
            Self::Blob(bytes) => bytes.len() / 3 * 4,
        }
    }
}

/// Appends `"contents":[…]` with one resource.
pub(crate) fn push_contents(out: &mut String, uri: &str, mime: &str, content: ResourceContent<'_>) {
    out.reserve(content.len() + content.len() / 8 + uri.len() + 128);
    out.push_str("\"contents\":[{\"uri\":");
    push_json_string(out, uri);
    out.push_str(",\"mimeType\":");
    push_json_string(out, mime);
    match content {
        ResourceContent::Text(text) => {
            out.push_str(",\"text\":");
            push_json_string(out, text);
        }
        ResourceContent::JsonText(json) => {
            out.push_str(",\"text\":");
            out.push_str(json);
        }
        ResourceContent::Blob(bytes) => {
            out.push_str(",\"blob\":\"");
            STANDARD.encode_string(bytes, out);
            out.push('"');
        }
    }
    out.push_str("}]");
}

/// Appends a text as a JSON string.
pub(crate) fn push_json_string(out: &mut String, text: &str) {
    // Most texts need few escapes, so whole runs between them are copied.
    out.push('"');
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            // Rare control characters are left to `serde_json`, with the rest of the text.
            0..0x20 => {
                let rest = serde_json::Value::from(&text[from..]).to_string();
                out.push_str(&rest[1..]);
                return;
            }
            _ => continue,
        };
        out.push_str(&text[from..at]);
        out.push_str(escape);
        from = at + 1;
    }
    out.push_str(&text[from..]);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_kind_of_content_is_valid_json() {
        let odd = "a \"quote\", a \\, a\ttab,\r\n a \u{1} and a \u{7f}, ä 🦀";
        let quoted = Value::from(odd).to_string();
        for (content, field, value) in [
            (ResourceContent::Text(odd), "text", json!(odd)),
            (ResourceContent::JsonText(&quoted), "text", json!(odd)),
            (ResourceContent::Blob(b"\xff\x00"), "blob", json!("/wA=")),
        ] {
            let mut out = "{".to_owned();
            push_contents(&mut out, "skill://a/b \"c\".md", "text/markdown", content);
            out.push('}');
            let read: Value = repertoire_core::json::from_str(&out).unwrap();
            let want = json!({"contents": [{
                "uri": "skill://a/b \"c\".md", "mimeType": "text/markdown", field: value,
            }]});
            assert_eq!(read, want);
        }
    }
}
